"""The engine of a federation, whose step is a round of the server with its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rhobust.errors import Diverged
from rhobust.federation.messages import Task, Upload
from rhobust.federation.randomness import Stream
from rhobust.federation.server import ROUNDS_PER_EPOCH, QuorumLost, Server
from rhobust.training.engine import Engine, Warn
from rhobust.training.record import RoundRecord


class Workers(ABC):
    """The workers that hold the data, and a way to ask them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._number = {name: number for number, name in enumerate(self.names)}

    def number(self, name: str) -> int:
        """A worker's place, which seeds its random stream."""
        return self._number[name]

    def prepare(self, warn: Warn) -> None:  # noqa: B027 (workers of this process are ready)
        """Before the first round: get ready to be asked. From then on `warn` takes messages for the user."""

    @abstractmethod
    def ask(self, task: Task, asked: Sequence[str]) -> Mapping[str, Upload | str]:
        """Send the task to the workers asked: the upload of each, or the reason why there is none."""

    def round(self, server: Server, asked: Sequence[str]) -> RoundRecord:
        """One round: broadcast, gather, step."""
        task = server.task()  # Alg. 3, line 9, of the round before
        uploads = self.ask(task, asked)  # lines 2 to 6
        return server.step(task, asked, uploads)  # lines 7 and 8


class FederatedEngine(Engine):
    """Takes rounds of a server and its workers.

    The workers asked in a round depend on (seed, round) alone, so a training that is killed and resumed takes the same
    rounds.
    """

    def __init__(self, server: Server, workers: Workers, rounds: int, asked_each: int, seed: int = 0) -> None:
        self.server, self.workers, self.objective = server, workers, server.objective
        self.rounds = self.total = rounds
        self.epoch_steps = ROUNDS_PER_EPOCH
        self.epochs = -(-rounds // ROUNDS_PER_EPOCH)
        self.asked_each, self.seed = asked_each, seed
        self._prepared = False
        self._named: set[str] = set()  # workers that were dropped and that a warning has named

    def epoch(self, number: int, skip: int, warn: Warn) -> Iterator[Sequence[RoundRecord]]:
        if not self._prepared:
            self.workers.prepare(warn)
            self._prepared = True
        for _ in range(skip, min(ROUNDS_PER_EPOCH, self.rounds - number * ROUNDS_PER_EPOCH)):  # Alg. 3, line 1
            record = self._round(warn)
            for name, reason in record.dropped.items():
                if name not in self._named:  # once for each name: the metrics have every round
                    warn(f"round {record.step}: {name} was dropped: {reason}")
            self._named |= record.dropped.keys()
            yield [record]

    def asked(self, round_: int) -> Iterator[list[str]]:
        """The workers of a round; then, if their uploads do not suffice, others in their place until all were asked."""
        left = self.workers.names
        draws = Stream.PARTICIPANTS.draws(self.seed, round_)
        while len(left) > self.asked_each:
            chosen = {int(number) for number in draws.choice(len(left), self.asked_each, replace=False)}
            yield [name for number, name in enumerate(left) if number in chosen]
            left = [name for number, name in enumerate(left) if number not in chosen]
        yield left

    def state_dict(self) -> dict[str, Any]:
        return self.server.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.server.load_state_dict(state)

    def _round(self, warn: Warn) -> RoundRecord:
        """One round. If absent or faulty workers prevent it, others are asked in their place."""
        draws = self.asked(self.server.round)
        asked = next(draws)
        while True:
            try:
                return self.workers.round(self.server, asked)
            except (QuorumLost, Diverged) as problem:  # raised before anything has changed
                others = next(draws, None)
                if others is None:
                    raise
                warn(f"{problem}; asking {', '.join(others)} instead")
                asked = others
