"""The interface of an engine, which takes the steps of a training one at a time.

Engines differ in who computes a step and in what is averaged. None of them knows a formula, a file or a signal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rhobust.objective import RobustObjective
from rhobust.training.record import Record

Warn = Callable[[str], None]
"""Where an engine says what the user should know."""


class Engine(ABC):
    """Takes the steps of a training, one at a time."""

    objective: RobustObjective
    """What is trained."""
    epochs: int
    """How many epochs there are; the last one may be shorter."""
    epoch_steps: int | None
    """Steps in an epoch; none where only the end of the stream tells."""
    total: int | None
    """Steps in all, where they are known."""

    @abstractmethod
    def epoch(self, number: int, skip: int, warn: Warn) -> Iterator[Sequence[Record]]:
        """The steps of an epoch after the first `skip`: each `next` takes one and gives the records that are ready."""

    def flush(self) -> Sequence[Record]:
        """Records of steps already taken that `epoch` has not given yet."""
        return ()

    def anywhere(self, flag: bool) -> bool:
        """Whether the flag is set on any of the processes that train together."""
        return flag

    def settle(self) -> None:  # noqa: B027 (most have nothing to do)
        """After the last step: put the model into the state in which it is used."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on, generators included; all processes that train together call it."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
