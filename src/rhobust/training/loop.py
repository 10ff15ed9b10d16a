"""The one loop: it takes the steps of an engine, logs them, saves checkpoints and stops between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rhobust.errors import Diverged, Halted, Refused
from rhobust.support.interrupts import deferred_signals
from rhobust.training.engine import Engine
from rhobust.training.observers import Observer, Silent, asked_to_end
from rhobust.training.record import Record
from rhobust.training.stopping_rule import StoppingRule

Judge = Callable[[], dict[str, float]]
"""Test errors of the model as it is when asked, by name."""


class Keeper(Protocol):
    """Where a training is written down; a run directory is one."""

    def log(self, record: Record) -> None:
        """Add a record to the metrics."""

    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        """Keep the complete state after so many steps."""


@dataclass(frozen=True)
class Every:
    """How often the loop does what it does beside the steps, in steps."""

    log: int = 1
    checkpoint: int | None = None
    """None: at the end of every epoch."""
    judge: int | None = None
    """None: never."""


def train(
    engine: Engine,
    *,
    start: int = 0,
    every: Every | None = None,
    keeper: Keeper | None = None,
    observer: Observer | None = None,
    judge: Judge | None = None,
    stop: StoppingRule | None = None,
) -> list[Record]:
    """Take every step from `start` on; the records that were logged.

    Where an epoch ends, the observer and the rule `stop` are asked whether the training does. With a keeper, SIGINT,
    SIGTERM and SIGHUP take effect between two steps, after a checkpoint. What stops the loop on one of several
    processes stops it on all: only what they agreed on is raised.
    """
    if start and engine.epoch_steps is None:
        raise Refused(f"cannot start at step {start}: the stream does not tell how many steps an epoch has")
    return _Loop(engine, every or Every(), keeper, observer or Silent(), judge, stop, start).run()


@dataclass
class _Loop:
    engine: Engine
    every: Every
    keeper: Keeper | None
    observer: Observer
    judge: Judge | None
    stop: StoppingRule | None
    done: int
    """Steps that were taken so far."""
    history: list[Record] = field(default_factory=list)
    kept: int = field(init=False)
    """Steps in the last checkpoint."""

    def run(self) -> list[Record]:
        self.kept = self.done
        total = None if self.stop else self.engine.total
        self.observer.started(total, self.done, self.engine.objective.radius or None)
        with deferred_signals(enabled=self.keeper is not None) as signals:
            try:
                self._steps(signals)
            except Diverged as error:  # never checkpointed
                self._note(error.records)
                raise
            self.engine.settle()
        return self.history

    def _steps(self, signals: Sequence[int]) -> None:
        engine = self.engine
        first, skip = divmod(self.done, engine.epoch_steps or 1)
        try:
            if first and not skip and self._is_over(first - 1):  # asked again: nothing says that it was answered
                return
            for number in range(first, engine.epochs):
                for records in engine.epoch(number, skip if number == first else 0, self.observer.warned):
                    self.done += 1
                    self._note(self._judged(records))
                    halt = engine.anywhere(bool(signals))
                    if halt or self._is_due(self.every.checkpoint):
                        self._keep()
                    if halt:
                        raise KeyboardInterrupt
                self._note(engine.flush())
                if self.every.checkpoint is None:
                    self._keep()  # before the observer is asked, who may raise an error
                if self._is_over(number):
                    return
            if self.stop is not None:
                self.observer.warned(
                    f"{engine.epochs} epochs, the limit of epochs 'auto', ended the training before its objective had "
                    "settled. Raise the learning rate, or give the number of epochs"
                )
        except Halted:  # between two steps: what was done stands
            self._keep()
            raise

    def _is_over(self, number: int) -> bool:
        """Whether the training ends with this epoch, which is over: on all processes, if one says so."""
        over = asked_to_end(self.observer, number, self.engine.objective.model)
        return self.engine.anywhere(over or (self.stop is not None and self.stop.settled))

    def _judged(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records, the last one with test errors where they are due: every so often, and after the last step."""
        judged = self.every.judge is not None and (self._is_due(self.every.judge) or self.done == self.engine.total)
        if self.judge is None or not judged:
            return records
        try:
            *before, last = *records, *self.engine.flush()
        except Diverged as error:  # those that it had given already come before
            error.records = [*records, *error.records]
            raise
        return [*before, replace(last, errors=self.judge())]

    def _note(self, records: Sequence[Record]) -> None:
        for record in records:
            if self.stop is not None:
                self.stop.see(record)
            if self.engine.objective.maximizer.is_logged(record.step, self.every.log) or record.errors:
                self.history.append(record)
                if self.keeper is not None:
                    self.keeper.log(record)
            self.observer.stepped(record)

    def _keep(self) -> None:
        """Save a checkpoint, if there was a step since the last one, with every step in the metrics."""
        self._note(self.engine.flush())
        if self.keeper is not None and self.done > self.kept:
            rule = {} if self.stop is None else {"stop": self.stop.state_dict()}
            self.keeper.save_checkpoint(self.done, self.engine.state_dict() | rule)
            self.kept = self.done

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.done % every == 0
