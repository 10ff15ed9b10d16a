"""Federated runs, from the outside: a normal run directory, the same bytes after a stop, Byzantine workers."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import rhobust
from rhobust.commands.app import app
from rhobust.data.catalog import load_data
from rhobust.errors import ConfigError, RhobustError
from rhobust.evaluation.evaluate import evaluate
from rhobust.federation.server import QuorumLost
from rhobust.losses import cross_entropy
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.start import train_run
from rhobust.training.observers import Observer, Silent
from rhobust.training.record import Record

FILES = ("model.safetensors", "metrics.jsonl", "config.toml")
PARAMETERS = 64 * 10 + 10  # of the linear model on the digits


def command(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str | Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, ["federate", *(str(word) for word in words)], catch_exceptions=False)
    return caught.value.problems


def assert_same_run(path: Path, reference: Path, files: tuple[str, ...] = FILES) -> None:
    for name in files:
        assert (path / name).read_bytes() == (reference / name).read_bytes(), name


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("federated") / "run"
    said = command(
        *("federate", "--data", "digits", "--model", "linear", "--method", "drfl", "--radius", "1"),
        *("--workers", "10", "--partition", "one-class", "--rounds", "10", "--batch-size", "16"),
        *("--participation", "0.5", "--evaluate-every", "4", "--learning-rate", "0.01", "--out", path),
    )
    assert f"{path}: 10 rounds, loss " in said
    return path


def test_the_metrics_of_a_federated_run(trained: Path) -> None:
    records = Run.find(trained).metrics()
    assert [record["step"] for record in records] == list(range(10))
    for record in records:
        assert (record["workers"], record["dropped"]) == (5, {})
        assert record["gradients"] == 5 * (1, 1, 1, 1, 3)[record["step"] % 5]  # of five workers
        assert record["bytes_up"] == 5 * (4 * PARAMETERS + 40)
        assert record["bytes_down"] == 5 * (4 * PARAMETERS + 16)
        psi = record["loss"] + record["gamma"] * (1.0 - record["rho_eff"])
        assert record["value"] == pytest.approx(psi, rel=1e-9)
    looked = {record["step"]: record["errors"] for record in records if record["errors"]}
    assert list(looked) == [3, 7, 9]  # after 4 and 8 rounds, and at the end
    assert all(set(errors) == {"clean", "ifgsm", "pgd"} for errors in looked.values())
    model, data = rhobust.load(trained), load_data("digits")
    found = evaluate(model, data.test, loss=cross_entropy, bounds=data.bounds, attacks=("ifgsm", "pgd"), epsilons=[0.1])
    assert looked[9] == {"clean": found.clean, "ifgsm": found.error("ifgsm", 0.1), "pgd": found.error("pgd", 0.1)}
    assert looked[9]["clean"] < looked[3]["clean"]


def test_a_look_at_the_error_is_of_the_model_at_that_round_and_changes_nothing(trained: Path, tmp_path: Path) -> None:
    command("federate", "--config", trained / "config.toml", "--rounds", "8", "--out", tmp_path / "short")
    command("federate", "--config", trained / "config.toml", "evaluate_every=100", "--out", tmp_path / "blind")
    records, short = Run.find(trained).metrics(), Run.find(tmp_path / "short").metrics()
    assert short == records[:8]
    assert (tmp_path / "blind" / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_rounds_that_are_looked_at_are_logged_whatever_else_is_not(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", Config.resolve(COMMON, RESUMED["judged"]))
    assert [(record["step"], bool(record["errors"])) for record in run.metrics()] == [
        (number, number in (4, 9, 10))
        for number in range(11)  # in three rounds there is not one of each turn
    ]


@pytest.mark.parametrize("name", ["train", "federate"])
def test_its_settings_taken_back_make_the_same_bytes(trained: Path, tmp_path: Path, name: str) -> None:
    command(name, "--config", trained / "config.toml", "--out", tmp_path / "again")
    assert_same_run(tmp_path / "again", trained)


def test_it_is_a_run_like_any_other(trained: Path, tmp_path: Path) -> None:
    model = rhobust.load(trained)
    assert model.config.name == "drfl"
    assert model.gamma != 1.0
    data = load_data("digits")
    with torch.no_grad():
        clean = float((model(data.test.x).argmax(1) != data.test.y).float().mean())
    command("evaluate", trained, "--attacks", "fgsm", "--epsilons", "0.1", "--json", tmp_path / "e.json")
    assert json.loads((tmp_path / "e.json").read_text())["clean"] == pytest.approx(clean)
    central = tmp_path / "central"
    command("train", "--model", "linear", "--method", "spgda", "--radius", "1", "--epochs", "1", "--out", central)
    command("report", trained, central, "--samples", "40", "--out", tmp_path / "report.md")
    page = (tmp_path / "report.md").read_text()
    assert "| drfl" in page
    assert "| spgda" in page


def test_a_federation_of_fedavg_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "run"
    command(
        *("federate", "--method", "fedavg", "--model", "linear", "--rounds", "5", "--workers", "4"),
        *("--partition", "sizes:zipf", "--weights", "samples", "--local-steps", "2", "local_learning_rate=0.05"),
        *("--out", path),
    )
    config = Run.find(path).config()
    assert (config.name, config.method, config.batch_size) == ("fedavg", "erm", 64)
    records = Run.find(path).metrics()
    assert [record["workers"] for record in records] == [4] * 5
    assert records[-1]["loss"] < records[0]["loss"]
    assert {record["gamma"] for record in records} == {1.0}  # nobody moves it


def test_wrong_settings_are_one_error_and_leave_no_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = "\n".join(
        refused(
            *("--method", "drfl", "--workers", "4", "--participation", "0.5", "--aggregator", "multi-krum:1"),
            *("--partition", "moon", "--byzantine", "4", "--byzantine-attack", "white", "--weights", "heavy"),
            *("--out", out),
            *("quorum=3", "momentum=0.5", "wrokers=3", "rounds=0", "data=nowhere"),
        )
    )
    for part in (
        "method 'drfl' needs a radius",
        "needs 5 uploads, but only 2",
        "unknown partition 'moon'",
        "byzantine must be at least 0 and fewer than the 4 workers",
        "unknown byzantine_attack 'white'",
        "unknown weights 'heavy'",
        "quorum is 3, but only 2",
        "momentum belongs to the optimizer sgd",
        "unknown key 'wrokers'",
        "rounds must be > 0",
        "nowhere",
    ):
        assert part in found
    assert refused("--radius", "1", "--workers", "2000", "--out", out) == [
        "2000 workers cannot share 1437 samples: each needs one at least"
    ]
    assert refused("--radius", "1")[0].startswith("say where the run should go")
    assert refused("--method", "ifgsm", "--out", out) == ["this is not a federated run: it has no rounds"]
    assert not out.exists()


# --- Stopped and resumed ---------------------------------------------------------------------------------------------

COMMON = {
    **{"model": "linear", "train_samples": 200, "rounds": 11, "workers": 6, "batch_size": 8},
    **{"threads": 1, "seed": 4},
}
RESUMED: dict[str, dict[str, Any]] = {
    "fused": {"method": "drfl", "radius": 1},
    "momentum": {"method": "drfl", "radius": 1, "optimizer": "sgd", "momentum": 0.9},
    "literal": {"method": "drfl-literal", "radius": 1, "regularizer": "l1:1e-3"},
    "some": {"method": "drfl", "radius": 1, "participation": 0.5, "partition": "dirichlet:0.3", "weights": "samples"},
    "judged": {"method": "drfl", "radius": 1, "evaluate_every": 5, "log_every": 3},
    "byzantine": {
        **{"method": "drfl", "radius": 1, "byzantine": 2, "byzantine_attack": "noise"},
        "aggregator": "trimmed-mean:1",
    },
    "random": {"method": "ifgsm", "random_start": True, "participation": 0.5},
    "fedavg": {"method": "fedavg", "participation": 0.5},
}
ATTACKED: dict[str, Any] = {"method": "drfl-loss", "radius": 1e-3, "byzantine": 2, "byzantine_attack": "sign-flip:9"}


class Stop(BaseException):
    """Nothing that anybody would catch."""


class Breaks(Silent):
    """Stops everything after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def stepped(self, record: Record) -> None:
        if record.step == self.after:
            raise Stop


class Signals(Breaks):
    """Ctrl-C in a round."""

    def stepped(self, record: Record) -> None:
        if record.step == self.after:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_stopped_twice_and_resumed_has_the_same_bytes(tmp_path: Path, name: str) -> None:
    config = Config.resolve(COMMON, RESUMED[name], {"checkpoint_every": 2})
    train_run(tmp_path / "whole", config)
    with pytest.raises(Stop):
        train_run(tmp_path / "run", config, Breaks(after=4))  # one round later than the checkpoint
    with pytest.raises(Stop):
        train_run(tmp_path / "run", None, Breaks(after=8))
    torch.manual_seed(99)  # whatever another process has drawn
    train_run(tmp_path / "run", None)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_an_interrupt_waits_for_the_round_and_saves_it(tmp_path: Path) -> None:
    config = Config.resolve(COMMON, RESUMED["some"], {"checkpoint_every": 1000})
    train_run(tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        train_run(tmp_path / "run", config, Signals(after=6))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000007.safetensors"]
    assert len(Run.find(tmp_path / "run").metrics()) == 7
    train_run(tmp_path / "run", None)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


# The command in a process that kills itself, as no handler can prevent, when it gives the fifth file its name.
KILLED = """
import os, signal, sys
real, count = os.replace, 0
def replace(*args):
    global count
    count += 1
    if count == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
os.replace = replace
sys.argv = ["rhobust", *sys.argv[1:]]
from rhobust.commands.app import main
main()
"""


def test_a_run_killed_and_resumed_by_the_command_has_the_same_bytes(tmp_path: Path) -> None:
    config = Config.resolve(COMMON, RESUMED["some"], {"checkpoint_every": 2})
    train_run(tmp_path / "whole", config)
    words = ["federate", "--config", str(tmp_path / "whole" / "config.toml"), "--out", str(tmp_path / "run"), "--quiet"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], check=False)
    assert killed.returncode == -signal.SIGKILL
    run = Run.find(tmp_path / "run")
    assert not run.finished
    assert 0 < len(run.metrics()) < 11
    command("train", "--resume", tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_lost_quorum_stops_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    """Two impossible gradients of gamma are refused at once, and four uploads are not the five of the quorum."""
    settings = {**COMMON, **ATTACKED, "quorum": 5}
    with pytest.raises(QuorumLost, match=r"4 of 6 workers sent a valid upload, 5 are needed .*is above rho"):
        train_run(tmp_path / "run", Config.resolve(settings))
    run = Run.find(tmp_path / "run")
    assert not run.finished
    with pytest.raises(RhobustError, match="--resume"):
        rhobust.load(run.path)


# --- Byzantine workers -----------------------------------------------------------------------------------------------

ATTACKS = ("sign-flip:4", "noise", "inner-product:3", "alie:1.5", "label-flip")


def ends(path: Path, **settings: Any) -> tuple[float, float, float]:
    """Clean error, error under IFGSM and gamma after 45 rounds of ten workers on the digits."""
    usual = {"method": "drfl", "radius": 1, "model": "linear", "optimizer": "sgd", "learning_rate": 0.2, "rounds": 45}
    more = {"batch_size": 64, "gamma_rule": "multiplicative:0.1", "evaluate_every": 45, "threads": 1}
    run = train_run(path, Config.resolve(usual, more, settings))
    last = run.metrics()[-1]
    return last["errors"]["clean"], last["errors"]["ifgsm"], last["gamma"]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, float, float]:
    found = ends(tmp_path_factory.mktemp("honest") / "run")
    assert found[0] < 0.12
    return found


def near(found: tuple[float, float, float], honest: tuple[float, float, float]) -> bool:
    """Errors within 8 points, and a price of transport within a third."""
    return found[0] < honest[0] + 0.08 and found[1] < honest[1] + 0.08 and abs(found[2] / honest[2] - 1) < 1 / 3


@pytest.mark.parametrize("aggregator", ["geometric-median", "trimmed-mean:3"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_robust_aggregator_bears_three_byzantine_workers_of_ten(
    attack: str, aggregator: str, honest: tuple[float, float, float], tmp_path: Path
) -> None:
    assert near(ends(tmp_path / "run", byzantine=3, byzantine_attack=attack, aggregator=aggregator), honest)


@pytest.mark.parametrize("attack", ATTACKS[:3])
def test_the_mean_does_not(attack: str, honest: tuple[float, float, float], tmp_path: Path) -> None:
    """Two of the attacks leave a model that errs nearly always; noise leaves gamma far from where it belongs."""
    found = ends(tmp_path / "run", byzantine=3, byzantine_attack=attack, aggregator="mean")
    assert not near(found, honest)
    assert found[2] > 4 * honest[2]
    if attack != "noise":
        assert found[0] > 0.5


def test_byzantine_workers_are_those_at_the_end_and_what_gives_them_away_is_named(tmp_path: Path) -> None:
    settings = {**COMMON, **ATTACKED}
    warnings: list[str] = []

    class Listens(Observer):
        def warned(self, message: str) -> None:
            warnings.append(message)

    run = train_run(tmp_path / "run", Config.resolve(settings), Listens())
    first = run.metrics()[0]
    assert list(first["dropped"]) == ["worker-5", "worker-6"]
    assert first["workers"] == 4
    dropped = [warning for warning in warnings if "was dropped" in warning]
    assert sorted(dropped)[0].startswith("round 0: worker-5 was dropped: its gradient in gamma")
    assert len(dropped) == 2  # each once, whatever happens later
