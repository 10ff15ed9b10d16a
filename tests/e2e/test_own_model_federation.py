"""A model of the user's own across real processes: each site runs its own copy, and another copy is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rhobust.runs.config import Config
from tests.deployments import assert_same, deployed, digits_file, in_process, lines

NETS = """
from torch import nn

def net(shape, outputs, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), width), nn.ELU(), nn.Linear(width, outputs))
"""


def test_sites_with_the_same_source_train_and_another_is_named_with_both_digests(tmp_path: Path) -> None:
    data, hub = digits_file(tmp_path / "digits.npz"), tmp_path / "nets.py"
    hub.write_text(NETS)
    with deployed(tmp_path / "fed", 2) as federation:
        federation.use(data)
        for site in federation.kits.sites:
            folder = federation.path / site
            (folder / "own.py").write_text(NETS)  # of another name, in another folder
            with (folder / "site.toml").open("a") as file:
                file.write('model = "own.py:net"\n')
        federation.start()
        words = ["--out", str(tmp_path / "run"), f"data={data}", f"model={hub}:net", "model_args.width=24"]
        words += ["radius=1", "rounds=5", "threads=1"]
        process = federation.submit(*words)
        _, said = process.communicate(timeout=180)
        assert process.returncode == 0, said
        assert [line["workers"] for line in lines(tmp_path / "run")] == [2] * 5
        assert_same(tmp_path / "run", in_process(Config.from_toml(tmp_path / "run" / "config.toml"), 2))

        other = NETS + "# an older version\n"
        (federation.path / "site-2" / "own.py").write_text(other)
        words[1] = str(tmp_path / "without")
        process = federation.submit(*words)
        _, said = process.communicate(timeout=180)
        assert process.returncode == 0, said
        (dropped,) = {tuple(line["dropped"].items()) for line in lines(tmp_path / "without")}
        ((site, reason),) = dropped
        found, wanted = (hashlib.sha256(text.encode()).hexdigest() for text in (other, NETS))
        assert site == "site-2"
        assert f"net with the SHA-256 {found}; install nets.py:net with the SHA-256 {wanted} there" in reason
        assert f"site-2 was dropped: {reason}" in " ".join(said.split())
