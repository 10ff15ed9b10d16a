"""The loop over rounds of a federation, whatever carries its messages: who is asked, what is kept, when it stops."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rhobust.engines.federated import FederatedRecord, Server, Stream, Task, Upload
from rhobust.interrupts import deferred_signals
from rhobust.runs import Run
from rhobust.trainer import Observer

Judge = Callable[[], dict[str, float]]
"""Test errors of the server's model, by name."""


class Workers(ABC):
    """Those who hold the data, and a way to ask them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._number = {name: number for number, name in enumerate(self.names)}

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
    participation: float = 1.0
    seed: int = 0
    judge: Judge | None = None
    judge_every: int | None = None
    run: Run | None = None
    checkpoint_every: int = 50
    history: list[FederatedRecord] = field(default_factory=list)

    def asked(self, round_: int) -> list[str]:
        """The names of those who take part in a round."""
        count = max(1, math.ceil(self.participation * len(self.workers.names)))
        if count == len(self.workers.names):
            return self.workers.names
        draws = Stream.PARTICIPANTS.draws(self.seed, round_)
        chosen = sorted(draws.choice(len(self.workers.names), count, replace=False))
        return [self.workers.names[number] for number in chosen]

    def train(self, observer: Observer | None = None) -> None:
        """Every round from the server's on. With a run directory, signals take effect between two rounds."""
        observer = observer or Observer()
        observer.started(self.rounds, self.server.round, self.server.objective.radius or None)
        with deferred_signals(enabled=self.run is not None) as signals:
            while self.server.round < self.rounds:
                record = self.workers.round(self.server, self.asked(self.server.round))
                done = self.server.round
                if self.judge and self.judge_every and (done % self.judge_every == 0 or done == self.rounds):
                    record = replace(record, errors=self.judge())
                self.history.append(record)
                for name, reason in record.dropped.items():
                    observer.warned(f"round {record.step}: {name} was dropped: {reason}")
                if self.run:
                    self.run.log(record)
                observer.stepped(record)
                if self.run and (signals or done % self.checkpoint_every == 0):
                    self.run.save_checkpoint(done, self.server.state_dict())
                if signals:
                    raise KeyboardInterrupt
