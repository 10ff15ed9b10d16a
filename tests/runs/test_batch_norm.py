"""Runs with BatchNorm: resumed to the bit, read by every verb, and refused before there is a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Size, nn
from typer.testing import CliRunner

import rhobust
from rhobust.attacks.attack import ATTACKS, attack
from rhobust.commands.app import app
from rhobust.data.catalog import digits
from rhobust.errors import ConfigError, DataError, Refused
from rhobust.losses import cross_entropy
from rhobust.models.resnet import resnet
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.start import train_run
from rhobust.training.observers import Observer, Silent
from rhobust.training.record import Record

SETTINGS = {
    **{"model": "resnet", "method": "fgsm", "train_samples": 96, "batch_size": 32, "epochs": 4, "ema": 0.5},
    **{"device": "cpu", "threads": 1, "checkpoint_every": 5},
}


class Stop(BaseException):
    """Ends a training at once, as a lost machine does."""


class Breaks(Observer):
    """Stops everything after a step, and notes what is said."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.said = at, [""][:0]

    def stepped(self, record: Record) -> None:
        if record.step == self.at:
            raise Stop

    def warned(self, message: str) -> None:
        self.said.append(message)


@pytest.mark.parametrize("way", ["ascent-eval", "frozen"])
def test_a_run_with_batch_norm_goes_on_as_if_nothing_had_happened(way: str, tmp_path: Path) -> None:
    config = Config.resolve(SETTINGS, {"batch_norm": way})
    whole = train_run(tmp_path / "whole", config)
    with pytest.raises(Stop):
        train_run(tmp_path / "broken", config, Breaks(8))
    again = train_run(tmp_path / "broken")
    assert again.model_path.read_bytes() == whole.model_path.read_bytes()
    assert again.config().batch_norm == way
    moved = rhobust.load(whole.path).model.get_buffer("0.1.running_mean").abs().max() > 0
    assert moved == (way == "ascent-eval")


def test_the_remark_is_told_to_the_observer_of_a_run(tmp_path: Path) -> None:
    for way, told in (("ascent-eval", 1), ("frozen", 0)):
        heard = Breaks()
        train_run(tmp_path / way, Config.resolve(SETTINGS, {"batch_norm": way}), heard)  # no warning of Python's
        assert sum("outside the theory" in message for message in heard.said) == told


def test_a_run_with_batch_norm_is_read_by_every_command(tmp_path: Path) -> None:
    def command(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    run = tmp_path / "run"
    words = [f"{key}={value}" for key, value in SETTINGS.items()]
    command("train", "--out", run, *words, "batch_norm=ascent-eval")
    loaded = rhobust.load(run)
    assert not any(module.training for module in loaded.modules())
    x = digits().test.x[:8]
    torch.testing.assert_close(loaded(x[1:2]), loaded(x)[1:2])
    command("evaluate", run, "--attacks", "fgsm", "--epsilons", "0.1", "--samples", "20")
    command("certify", run, "--radii", "0.5", "--samples", "10")
    command("report", run, "--samples", "10", "--out", tmp_path / "report.md")
    assert "resnet" in (tmp_path / "report.md").read_text()


def test_a_model_left_in_training_mode_is_measured_in_evaluation_mode() -> None:
    torch.manual_seed(0)
    model, some = resnet(Size([1, 8, 8]), 10), digits().test[:24]
    for part in model.buffers():
        if part.is_floating_point():
            part.data = 0.5 + torch.rand_like(part)
    before = {name: part.clone() for name, part in model.state_dict().items()}

    def measured() -> list[Any]:
        way = ATTACKS["pgd"](0.1)
        found = attack(model, some.x, some.y, way, loss=cross_entropy, bounds=(-1, 1))
        evaluation = rhobust.evaluate(model, some, bounds=(-1, 1), attacks=("fgsm",), epsilons=[0.1], checks=False)
        (certificate,) = rhobust.certify(model, some, loss=cross_entropy, radii=[0.1], bounds=(-1, 1), max_steps=3)
        return [
            found.zeta.tolist(),
            found.fooled.tolist(),
            evaluation.clean,
            evaluation.error("fgsm", 0.1),
            certificate,
        ]

    training = measured()
    assert all(module.training for module in model.modules())
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    model.eval()
    assert measured() == training


def test_no_verb_measures_a_model_that_couples_samples_in_every_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10))
    some = digits().test[:24]
    with pytest.raises(Refused, match=r"layer '1' \(BatchNorm1d\) has no running statistics"):
        attack(model, some.x, some.y, ATTACKS["fgsm"](0.1), loss=cross_entropy)
    with pytest.raises(Refused, match="has no running statistics"):
        rhobust.evaluate(model, some, bounds=(-1, 1))
    with pytest.raises(Refused, match="has no running statistics"):
        rhobust.certify(model, some, loss=cross_entropy, radii=[0.1])
    rhobust.fit(model, (some.x, some.y), method="erm", epochs=1, observer=Silent())


def test_a_last_batch_of_one_is_refused_before_there_is_a_directory(tmp_path: Path) -> None:
    for method in ("erm", "fgsm"):
        config = Config.resolve(SETTINGS, {"method": method, "train_samples": 97})
        with pytest.raises(DataError, match="a batch of one sample has none"):
            train_run(tmp_path / "run", config)
        assert not (tmp_path / "run").exists()


def test_refuse_is_refused_before_there_is_a_directory(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="normalizes with the statistics of the batch"):
        train_run(tmp_path / "run", Config.resolve(SETTINGS, {"batch_norm": "refuse"}))
    assert not (tmp_path / "run").exists()


def test_an_unknown_way_is_a_problem_of_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"unknown batch_norm 'eval'.*; known: ascent-eval, frozen, refuse"):
        Config.resolve({"method": "erm", "batch_norm": "eval"})


FEDERATION: dict[str, Any] = {
    **{
        "model": "resnet",
        "train_samples": 90,
        "workers": 3,
        "batch_size": 30,
        "rounds": 4,
        "device": "cpu",
        "threads": 1,
    }
}


@pytest.mark.parametrize("method", [{"method": "drfl", "radius": 0.5}, {"method": "fedavg"}], ids=lambda m: m["method"])
def test_a_federation_takes_frozen_statistics_and_refuses_others_before_there_is_a_directory(
    method: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=r"in a federation they never move.*batch_norm='frozen'.*to_group_norm\(model\)"):
        train_run(tmp_path / "run", Config.resolve(FEDERATION, method))
    assert not (tmp_path / "run").exists()
    heard = Breaks()
    run: Run = train_run(tmp_path / "run", Config.resolve(FEDERATION, method, {"batch_norm": "frozen"}), heard)
    buffers = dict(rhobust.load(run.path).model.named_buffers())
    assert all(not part.any() for name, part in buffers.items() if name.endswith(("mean", "tracked")))
    assert not any("outside the theory" in message for message in heard.said)


def test_frozen_workers_are_one_batch() -> None:
    """DRFL with equal minibatches is SPGDA on all of them: also where BatchNorm is frozen."""
    from rhobust.runs.build import build_engine
    from rhobust.support.seeding import seeded
    from rhobust.training.loop import train

    found = []
    for fuse in (True, False):
        config = Config.resolve(FEDERATION, {"method": "drfl-loss", "radius": 0.5, "batch_norm": "frozen"})
        with seeded(0, torch.device("cpu")):
            engine: Any = build_engine(config, digits(), torch.device("cpu"))
            engine.workers.fuse = fuse
            train(engine)
        found.append(np.concatenate([part.detach().numpy().ravel() for part in engine.objective.model.parameters()]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
