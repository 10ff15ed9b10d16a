"""Schedules: the rates that they set, and trainings that are the same by hand and after a resume."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import rhobust
from rhobust.errors import ConfigError, Refused
from rhobust.runs.config import Config
from rhobust.runs.load import load
from rhobust.runs.start import train_run
from rhobust.training.observers import Observer
from rhobust.training.record import Record
from rhobust.training.schedule import SCHEDULES, Schedule

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_torch(name: str) -> None:
    weight = nn.Parameter(torch.zeros(1))
    ours, theirs = (torch.optim.SGD([weight], lr=0.5) for _ in range(2))
    schedule, total = Schedule(name, ours, 20), 20
    if name == "cosine":
        known: torch.optim.lr_scheduler.LRScheduler = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, total)
    elif name == "one-cycle":
        known = torch.optim.lr_scheduler.OneCycleLR(
            theirs, 0.5, total + 1, pct_start=7 / 21, div_factor=25, final_div_factor=math.inf, cycle_momentum=False
        )
    else:
        known = torch.optim.lr_scheduler.ConstantLR(theirs, factor=1.0)
    for step in range(total):
        schedule.set(step)
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        theirs.step()
        known.step()


@pytest.mark.parametrize("name", ["cosine", "one-cycle"])
def test_a_training_is_the_loop_by_hand_with_these_rates(name: str) -> None:
    torch.manual_seed(0)
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rhobust.fit(model, (X, Y), method="erm", epochs=8, batch_size=40, optimizer=optimizer, schedule=name)
    for step in range(8):
        rate = SCHEDULES[name](step / 8)
        loss = nn.functional.cross_entropy(twin(X), Y)
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        with torch.no_grad():
            for theta, gradient in zip(twin.parameters(), gradients, strict=True):
                theta.sub_(rate * gradient)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


class Stop(Observer):
    def stepped(self, record: Record) -> None:
        if record.step == 17:
            raise RuntimeError("power cut")


@pytest.mark.parametrize("name", ["cosine", "one-cycle"])
def test_a_run_that_is_resumed_takes_the_same_rates_bit_for_bit(tmp_path: Path, name: str) -> None:
    asked = {"data": "digits", "method": "spgda", "radius": 2.0, "epochs": 2, "schedule": name, "checkpoint_every": 5}
    config = Config.resolve(asked, {"threads": 1})
    whole = train_run(tmp_path / "whole", config)
    with pytest.raises(RuntimeError, match="power cut"):
        train_run(tmp_path / "cut", config, Stop())
    resumed = train_run(tmp_path / "cut")
    assert resumed.metrics() == whole.metrics()
    ours, theirs = (load(run.path).state_dict() for run in (resumed, whole))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    plain = train_run(tmp_path / "plain", Config.resolve(asked, {"threads": 1, "schedule": "constant"}))
    assert plain.metrics()[-1]["loss"] != whole.metrics()[-1]["loss"]


def test_a_run_of_before_schedules_has_a_constant_rate(tmp_path: Path) -> None:
    config = Config.resolve({"data": "digits", "method": "erm", "epochs": 1})
    path = tmp_path / "config.toml"
    path.write_text("".join(line for line in config.to_toml().splitlines(True) if not line.startswith("schedule")))
    assert Config.from_toml(path).schedule == "constant"


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown schedule 'cosin' \(did you mean 'cosine'\?\)"):
        rhobust.fit(nn.Linear(3, 2), (X, Y), method="erm", schedule="cosin")
    with pytest.raises(ConfigError, match=r"unknown schedule 'linear'"):
        Config.resolve({"schedule": "linear", "method": "erm"})
    with pytest.raises(ConfigError, match="a federation keeps its learning rate: drop schedule"):
        Config.resolve({"method": "drfl", "radius": 2.0, "schedule": "cosine"})

    class Endless(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(zip(X, Y, strict=True))

    loader = DataLoader(Endless(), batch_size=8)
    with pytest.raises(Refused, match="schedule 'cosine' needs the number of steps"):
        rhobust.fit(nn.Linear(3, 2), loader, method="erm", schedule="cosine")
