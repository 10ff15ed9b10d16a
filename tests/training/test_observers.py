"""Observers: what they see, how they end a training, and that a training does not notice them."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rhobust
from rhobust.errors import Refused
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.start import train_run
from rhobust.training.record import Record

X = torch.randn(96, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
SETTINGS: dict[str, Any] = {
    **{"data": "digits", "model": "linear", "method": "spgda", "radius": 2, "train_samples": 100, "batch_size": 25},
    **{"epochs": 5, "threads": 1, "device": "cpu"},
}
CONFIG = Config.resolve(SETTINGS)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 2))


def fitted(observer: rhobust.Observer | None = None, **how: Any) -> Any:
    settings: dict[str, Any] = {"method": "spgda", "radius": 0.1, "epochs": 6, "batch_size": 32, **how}
    return rhobust.fit(model(), (X, Y), observer=observer, **settings)


def squared_error(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (output - y).square().sum(1)


class Quiet(rhobust.Observer):
    def warned(self, message: str) -> None:
        pass


class Watch(Quiet):
    """Keeps all that it is told, and answers as it was told to."""

    def __init__(self, answers: dict[int, Any] | None = None) -> None:
        self.answers = answers or {}
        self.told: list[Any] = []

    def started(self, steps: int | None, start: int, radius: float | None) -> None:
        self.told.append(("started", steps, start, radius))

    def stepped(self, record: Record) -> None:
        self.told.append(record.step)

    def epoch_ended(self, number: int, model: nn.Module) -> Any:
        self.told.append(f"epoch {number}")
        return self.answers.get(number)


def test_it_sees_every_step_and_the_end_of_every_epoch_in_their_order() -> None:
    watch = Watch()
    history = fitted(watch).history
    epochs = [part for epoch in range(6) for part in (3 * epoch, 3 * epoch + 1, 3 * epoch + 2, f"epoch {epoch}")]
    assert watch.told == [("started", 18, 0, 0.1), *epochs]
    assert len(history) == 18


@pytest.mark.parametrize("answers", [{2: True}, {0: False, 1: None, 2: True, 3: True}])
def test_true_ends_the_training_as_one_of_so_many_epochs(answers: dict[int, Any]) -> None:
    watch = Watch(answers)
    early, short = fitted(watch), fitted(Quiet(), epochs=3)
    assert early.history == short.history
    assert watch.told[-1] == "epoch 2"
    for ours, theirs in zip(early.model.parameters(), short.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_averaged_weights_come_when_the_training_is_over() -> None:
    seen: list[torch.Tensor] = []

    class Sees(Quiet):
        def epoch_ended(self, number: int, model: nn.Module) -> bool:
            seen.append(model[0].weight.detach().clone())  # type: ignore[index]
            return number == 4

    current = fitted(Sees()).model
    averaged = fitted(Sees(), ema=0.9).model
    assert torch.equal(seen[4], seen[9])  # of all epochs the same current ones
    assert torch.equal(current[0].weight, seen[4])
    assert not torch.equal(averaged[0].weight, seen[9])


class Meddles(Quiet):
    """Looks at the model in evaluation mode, leaves some of it so, and draws."""

    def epoch_ended(self, number: int, model: nn.Module) -> None:
        model.eval()
        model(X)
        torch.rand(7)
        if number == 1:
            model.requires_grad_(True).train()
            next(model.children()).eval()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_training_does_not_notice_that_it_is_looked_at(frozen: bool) -> None:
    """With dropout, which evaluation mode or another draw would change; a part that was frozen stays so."""
    weights, modes = [], []
    for observer in (Quiet(), Meddles()):
        net = model()
        net.get_submodule("0").train(not frozen)
        trained = rhobust.fit(net, (X, Y), method="spgda", radius=0.1, epochs=6, batch_size=32, observer=observer)
        weights.append(torch.cat([weight.detach().flatten() for weight in trained.model.parameters()]))
        modes.append([module.training for module in net.modules()])
    assert torch.equal(*weights)
    assert modes[0] == modes[1] == [True, not frozen, True, True, True]


class Broken(Quiet):
    """Raises an error where it is asked for the first, or the last, time."""

    def __init__(self, where: str, at: int) -> None:
        self.where, self.at = where, at

    def stepped(self, record: Record) -> None:
        if self.where == "stepped" and record.step == self.at:
            raise LookupError("no such chart")

    def epoch_ended(self, number: int, model: nn.Module) -> None:
        model.eval()
        if self.where == "epoch_ended" and number == self.at:
            raise LookupError("no such chart")


@pytest.mark.parametrize("where", ["stepped", "epoch_ended"])
def test_an_error_of_the_observer_s_ends_the_training_and_the_modes_come_back(where: str) -> None:
    net = model()
    with pytest.raises(LookupError, match="no such chart"):
        rhobust.fit(net, (X, Y), radius=0.1, observer=Broken(where, at=2))
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize(("where", "at", "kept"), [("stepped", 10, 8), ("epoch_ended", 2, 12), ("epoch_ended", 4, 20)])
def test_a_run_keeps_what_was_done_before_an_error_and_goes_on(where: str, at: int, kept: int, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no such chart"):
        train_run(tmp_path / "cut", CONFIG, Broken(where, at))
    newest = max((tmp_path / "cut" / "checkpoints").iterdir()).stem
    assert newest == f"step-{kept:09d}"
    again = Watch()
    train_run(tmp_path / "cut", None, again)
    epoch = kept // 4 - 1
    assert again.told[:2] == [("started", 20, kept, 2.0), f"epoch {epoch}"]  # it is asked of that epoch's end again
    whole = train_run(tmp_path / "whole", CONFIG)
    assert Run(tmp_path / "cut").metrics() == whole.metrics()
    assert Run(tmp_path / "cut").model_path.read_bytes() == whole.model_path.read_bytes()


def test_a_run_that_an_observer_ends_is_finished(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", CONFIG, Watch({1: True}))
    assert run.finished
    assert len(run.metrics()) == 8


def test_an_answer_is_asked_again_where_nothing_says_that_it_was_given(tmp_path: Path) -> None:
    """Stopped between the last step of an epoch and its end, a run ends there and takes no further step."""
    path = tmp_path / "run"
    with pytest.raises(LookupError):
        train_run(path, Config.resolve(SETTINGS, {"checkpoint_every": 4}), Broken("epoch_ended", 1))
    train_run(path, None, Watch({1: True}))
    assert len(Run(path).metrics()) == 8


@pytest.mark.parametrize("answer", ["yes", 1, 0, torch.tensor(True), []])
def test_another_answer_is_refused(answer: Any) -> None:
    with pytest.raises(Refused, match=r"Watch\.epoch_ended must return True to end the training, or False or None"):
        fitted(Watch({0: answer}))


@pytest.mark.parametrize("observer", [print, "tensorboard", Watch, 3])
def test_what_is_no_observer_is_refused(observer: Any) -> None:
    with pytest.raises(Refused, match=r"observer must be an instance of a subclass of rhobust\.Observer"):
        fitted(observer)


def test_warnings_are_python_s_unless_they_are_taken() -> None:
    class Ear(rhobust.Observer):
        def __init__(self) -> None:
            self.heard: list[str] = []

        def warned(self, message: str) -> None:
            self.heard.append(message)

    class Plain(rhobust.Observer):
        pass

    ear = Ear()
    settings: dict[str, Any] = {"method": "erm", "epochs": 5, "ema": 0.99}
    rhobust.fit(nn.Linear(3, 2), (X, 5 * X[:, :2].relu()), loss=squared_error, observer=ear, **settings)
    assert len(ear.heard) == 1
    with pytest.warns(UserWarning, match="looks back over 100 steps, and there are 5") as said:
        rhobust.fit(nn.Linear(3, 2), (X, 5 * X[:, :2].relu()), loss=squared_error, observer=Plain(), **settings)
    assert all(one.filename == __file__ for one in said)


def test_a_training_that_its_observer_ends_is_not_told_to_go_on() -> None:
    slow: dict[str, Any] = {"epochs": 50, "batch_size": 8, "radius": 0.01}

    class Ends(rhobust.Observer):
        def epoch_ended(self, number: int, model: nn.Module) -> bool:
            return number == 14

    with pytest.warns(UserWarning, match="the objective still falls"):
        fitted(**slow | {"epochs": 15})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(Ends(), **slow)
