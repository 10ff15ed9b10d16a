"""The average of the weights is what its formula says, survives a checkpoint, and changes no step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.data.batches import SampleBatches
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, Refused
from rhobust.losses import cross_entropy
from rhobust.method import find_method
from rhobust.runs.config import Config
from rhobust.training.compose import central_engine, compose
from rhobust.training.eager import EagerEngine
from rhobust.training.loop import train
from rhobust.training.observers import Observer, Silent
from rhobust.training.record import Record
from rhobust.training.weight_average import WeightAverage

DATA = Samples(
    torch.randn(48, 4, generator=torch.Generator().manual_seed(0)),
    torch.randint(3, (48,), generator=torch.Generator().manual_seed(1)),
)


def engine(decay: float | None, epochs: int = 1) -> EagerEngine:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    composed = compose(model, cross_entropy, find_method("spgda"), radius=0.5, optimizer=optimizer)
    made = central_engine(*composed, SampleBatches(DATA, 16, 0, torch.device("cpu")), epochs, ema=decay)
    assert isinstance(made, EagerEngine)
    return made


class Kept:
    """The last checkpoint."""

    def log(self, record: Record) -> None:
        """Metrics are not what this is about."""

    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        self.step, self.state = step, copy.deepcopy(state)


def weight(made: EagerEngine) -> Tensor:
    return made.objective.model.get_parameter("weight").detach()


def path(steps: int) -> list[Tensor]:
    """The weights after each step of a training without an average."""
    plain, found = engine(None), []
    batches = list(SampleBatches(DATA, 16, 0, torch.device("cpu")).epoch(0)) * steps
    for number in range(steps):
        plain.take(batches[number], number, 0)
        found.append(weight(plain).clone())
    return found


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.99])
def test_the_average_is_the_formula_along_the_path_of_a_plain_training(decay: float) -> None:
    averaged, expected = engine(decay), torch.zeros(3, 4)
    batches = list(SampleBatches(DATA, 16, 0, torch.device("cpu")).epoch(0)) * 44
    for step, theta in enumerate(path(44), start=1):
        averaged.take(batches[step - 1], step - 1, 0)
        assert torch.equal(weight(averaged), theta)  # the steps themselves are the same
        if step % 10 == 0:
            share = max(10 / step, 1 - decay**10)
            expected = (1 - share) * expected + share * theta
    averaged.settle()
    torch.testing.assert_close(weight(averaged), expected)
    assert (torch.equal(expected, path(44)[39])) == (decay == 0)


def test_an_average_of_bfloat16_weights_gets_where_they_are() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    average = WeightAverage(model, 0.999)
    for value in [1.0] * 1000 + [1.25] * 10_000:
        nn.init.constant_(model.weight, value)
        average.update()
    average.put()
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.item() == 1.25  # the average forgot all but e^-10 of the first


def test_a_training_too_short_for_an_average_keeps_its_weights() -> None:
    averaged, plain = engine(0.9, 3), engine(None, 3)
    assert len(train(averaged)) == len(train(plain)) == 9
    for one, other in zip(averaged.objective.parameters(), plain.objective.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_keeps_the_average_to_the_bit() -> None:
    straight, first, second = engine(0.9, 14), engine(0.9, 5), engine(0.9, 14)
    train(straight)
    keeper = Kept()
    train(first, keeper=keeper)
    assert not torch.equal(weight(first), keeper.state["objective"]["model.weight"])  # kept unaveraged
    second.load_state_dict(keeper.state)
    train(second, start=keeper.step)
    for one, other in zip(straight.objective.parameters(), second.objective.parameters(), strict=True):
        assert torch.equal(one, other)


def test_fit_hands_the_average_back() -> None:
    models = []
    for decay in (None, 0.9):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        rhobust.fit(model, (DATA.x, DATA.y), method="erm", epochs=5, batch_size=16, ema=decay, observer=Silent())
        models.append(model.weight.detach())
    assert not torch.equal(*models)
    torch.testing.assert_close(*models, atol=0.05, rtol=0)  # near: the same path, smoothed


def test_a_word_is_no_decay() -> None:
    with pytest.raises(Refused, match="a number at least 0 and below 1, not 'a'"):
        WeightAverage(nn.Linear(1, 1), "a")  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_an_impossible_decay_is_refused(decay: float) -> None:
    with pytest.raises(Refused, match="decay"):
        WeightAverage(nn.Linear(1, 1), decay)
    with pytest.raises(ConfigError, match="ema must be"):
        Config.resolve({"method": "erm", "ema": decay})


def test_a_federation_has_no_average() -> None:
    with pytest.raises(ConfigError, match="a federation keeps no average"):
        Config.resolve({"method": "drfl", "radius": 1.0, "ema": 0.9})


class Heard(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def warned(self, message: str) -> None:
        self.said.append(message)


@pytest.mark.parametrize(("decay", "warned"), [(0.9, False), (0.99, True)])
def test_an_average_over_more_steps_than_there_are_is_warned_of(decay: float, warned: bool) -> None:
    listener = Heard()
    rhobust.fit(  # fifteen steps
        nn.Linear(4, 3), (DATA.x, DATA.y), method="erm", epochs=5, batch_size=16, ema=decay, observer=listener
    )
    assert sum("looks back over 100 steps, and there are 15" in message for message in listener.said) == warned
