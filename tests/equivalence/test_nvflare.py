"""The federation in NVFlare's simulator and the one in this process: the same bits after twenty rounds.

The deployed one is held against the same reference in e2e/test_federation_demo.py and faults/test_federation.py.
"""

import subprocess
import sys
from pathlib import Path

from rhobust.runs.config import Config
from tests.deployments import assert_same, in_process, lines


def test_simulated_by_the_engine_it_is_the_federation_in_one_process(tmp_path: Path) -> None:
    # Momentum and prox on the server, unequal steps and shares of the workers: nothing that could hide a difference.
    config = Config.resolve(
        {"method": "drfl", "radius": 2.0, "rounds": 20, "workers": 2, "batch_size": 48, "local_steps": 2},
        {"regularizer": "l1:0.001", "optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.9},
        {"weights": "samples", "threads": 1, "seed": 4},
    )
    (tmp_path / "config.toml").write_text(config.to_toml())
    run = tmp_path / "run"
    words = [str(tmp_path / "engine"), str(run), str(tmp_path / "config.toml"), "2"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.equivalence.simulated", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert [line["workers"] for line in lines(run)] == [2] * 20
    assert_same(run, in_process(config, 2))
