"""The stopping rule of `epochs="auto"`, which ends a training where its objective has settled."""

from __future__ import annotations

from typing import Any, Literal

import torch

from rhobust.checks import count_problem
from rhobust.training.record import Record
from rhobust.training.trend import Trends, trend

Epochs = int | Literal["auto"]
"""How long a training is: a number of passes over the data, or "auto", until the stopping rule holds."""

MOST_EPOCHS = 10_000
"""The number of epochs after which a training ends though its objective has not settled."""

_FEWEST = 32  # epochs: then the last quarter has eight points
_MORE = 20  # it is asked again when there are a twentieth more: noise gets few chances, and long curves take no time


class StoppingRule:
    """Sees every step, and says where an epoch ends whether the objective has settled (`Trends.settled`).

    Its state is a part of a checkpoint. So a training that goes on ends where one that was not stopped does, however
    seldom its steps are logged.
    """

    def __init__(self) -> None:
        self._epochs: list[list[float]] = []  # of each: its steps, and the sums of psi and of the residual

    def see(self, record: Record) -> None:
        """The next step."""
        if record.epoch == len(self._epochs):
            self._epochs.append([0.0, 0.0, 0.0])
        for place, number in enumerate((1.0, record.value, record.stationarity)):
            self._epochs[-1][place] += number

    @property
    def settled(self) -> bool:
        """Whether the training may end, asked where an epoch ends."""
        count = len(self._epochs)
        if count < _FEWEST or count % (count // _MORE):
            return False
        value, stationarity = (trend([epoch[place] / epoch[0] for epoch in self._epochs]) for place in (1, 2))
        return Trends(value, stationarity).settled

    def state_dict(self) -> dict[str, Any]:
        """What its next answers depend on."""
        return {"epochs": torch.tensor(self._epochs, dtype=torch.float64).reshape(-1, 3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._epochs = state["epochs"].tolist()


def stopping_rule(epochs: Epochs) -> StoppingRule | None:
    """A new one, where the length of the training is left to it."""
    return StoppingRule() if epochs == "auto" else None


def most_epochs(epochs: Epochs) -> int:
    """How many there may be."""
    return MOST_EPOCHS if epochs == "auto" else int(epochs)


def epochs_problem(epochs: object) -> str | None:
    """What is wrong with a length, if anything."""
    if isinstance(epochs, str) and epochs == "auto":
        return None
    problem = count_problem("epochs", epochs)
    return problem and f"{problem}; or 'auto', until the objective has settled"


def schedule_problem(epochs: Epochs, schedule: str) -> str | None:
    """A schedule needs to know where the training ends."""
    if epochs != "auto" or schedule == "constant":
        return None
    return f"schedule '{schedule}' needs the number of epochs, and 'auto' is none: set epochs to one, or drop schedule"
