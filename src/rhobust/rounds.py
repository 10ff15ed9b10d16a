"""The loop over rounds of a federation, whatever carries its messages: who is asked, what is kept, when it stops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rhobust.engines.federated import FederatedRecord, QuorumLost, Server, Stream, Task, Upload
from rhobust.errors import Diverged
from rhobust.interrupts import deferred_signals
from rhobust.objective import RobustObjective
from rhobust.observer import Observer
from rhobust.runs import Run

Judge = Callable[[], dict[str, float]]
"""Test errors of the server's model, by name."""


class Workers(ABC):
    """Those who hold the data, and a way to ask them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._number = {name: number for number, name in enumerate(self.names)}
        self.warn: Callable[[str], None] = lambda message: None
        """Where to say what the user should know."""

    def number(self, name: str) -> int:
        """A worker's place, which its random stream comes from."""
        return self._number[name]

    @abstractmethod
    def ask(self, task: Task, asked: Sequence[str]) -> Mapping[str, Upload | str]:
        """Send the task to those asked: from each its upload, or the reason why there is none."""

    def round(self, server: Server, asked: Sequence[str]) -> FederatedRecord:
        """One round: broadcast, gather, step."""
        return server.step(asked, self.ask(server.task(), asked))


@dataclass
class Rounds:
    """Rounds of a server and its workers, with an optional run directory to log and checkpoint into.

    Who is asked in a round depends on (seed, round) alone, so a server that is killed and resumed goes on as if
    nothing had happened.
    """

    server: Server
    workers: Workers
    rounds: int
    asked_each: int
    """How many workers are asked in a round."""
    seed: int = 0
    judge: Judge | None = None
    judge_every: int | None = None
    run: Run | None = None
    log_every: int = 1
    checkpoint_every: int = 50
    history: list[FederatedRecord] = field(default_factory=list)

    def asked(self, round_: int) -> Iterator[list[str]]:
        """Who takes part in a round; and who in their place, should they not suffice, until everybody was asked."""
        left = self.workers.names
        draws = Stream.PARTICIPANTS.draws(self.seed, round_)
        while len(left) > self.asked_each:
            chosen = {int(number) for number in draws.choice(len(left), self.asked_each, replace=False)}
            yield [name for number, name in enumerate(left) if number in chosen]
            left = [name for number, name in enumerate(left) if number not in chosen]
        yield left

    def _round(self, observer: Observer) -> FederatedRecord:
        """One round, with those whose turn it is; the absent and the broken cost it no more than asking others."""
        draws = self.asked(self.server.round)
        asked = next(draws)
        while True:
            try:
                return self.workers.round(self.server, asked)
            except (QuorumLost, Diverged) as problem:  # raised before anything has changed
                others = next(draws, None)
                if others is None:
                    if self.run and self.server.round:
                        self.run.save_checkpoint(self.server.round, self.state())
                    raise
                observer.warned(f"{problem}; asking {', '.join(others)} instead")
                asked = others

    @property
    def objective(self) -> RobustObjective:
        """What is trained."""
        return self.server.objective

    def state(self) -> dict[str, Any]:
        """Everything the next round depends on."""
        return self.server.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` took."""
        self.server.load_state_dict(state)

    def train(self, observer: Observer | None = None, start: int = 0) -> None:
        """Every round from `start` on. With a run directory, signals take effect between two rounds."""
        observer = observer or Observer()
        observer.started(self.rounds, start, self.objective.radius or None)
        self.workers.warn = observer.warned
        if problem := self.objective.unspendable:
            observer.warned(problem)
        named: set[str] = set()
        with deferred_signals(enabled=self.run is not None) as signals:
            while self.server.round < self.rounds:
                record = self._round(observer)
                done = self.server.round
                if self.judge and self.judge_every and (done % self.judge_every == 0 or done == self.rounds):
                    record = replace(record, errors=self.judge())
                for name, reason in record.dropped.items():
                    if name not in named:  # once each: the metrics have every round
                        observer.warned(f"round {record.step}: {name} was dropped: {reason}")
                named |= record.dropped.keys()
                if self.server.objective.maximizer.is_logged(record.step, self.log_every) or record.errors:
                    self.history.append(record)
                    if self.run:
                        self.run.log(record)
                observer.stepped(record)
                if self.run and (signals or done % self.checkpoint_every == 0):
                    self.run.save_checkpoint(done, self.state())
                if signals:
                    raise KeyboardInterrupt
