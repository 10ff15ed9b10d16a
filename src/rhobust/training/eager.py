"""The engine of one process, which takes each step operator by operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from rhobust.data.batches import Batch, Batches
from rhobust.errors import Refused
from rhobust.memory import Memory
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer
from rhobust.training.engine import Engine, Warn
from rhobust.training.record import Record
from rhobust.training.schedule import Schedule
from rhobust.training.step import Numbers, diverged, gradient, sound
from rhobust.training.weight_average import WeightAverage


class EagerEngine(Engine):
    """Takes the steps of Alg. 1 and 2 operator by operator, on whatever device the objective lives.

    With `precision` bfloat16 the model's passes run under autocast; weights, zeta, gamma and sums keep theirs. With
    `ema` the model ends with the weights averaged over the steps. With `memory` an ascent goes on from where that
    of the epoch before ended. `schedule`, a name of `SCHEDULES`, sets the rates of the weights. Batches depend on
    (seed, epoch) alone, so a training that is stopped and goes on takes the same steps as one that is not.
    """

    def __init__(
        self,
        objective: RobustObjective,
        optimizer: ProximalOptimizer,
        batches: Batches,
        epochs: int = 1,
        *,
        precision: torch.dtype = torch.float32,
        ema: WeightAverage | None = None,
        memory: Memory | None = None,
        schedule: str = "constant",
    ) -> None:
        self.objective, self.optimizer, self.batches, self.epochs = objective, optimizer, batches, epochs
        self.precision, self.ema, self.memory = precision, ema, memory
        self.epoch_steps = batches.steps()
        self.total = None if self.epoch_steps is None else self.epoch_steps * epochs
        self.schedule = None if schedule == "constant" else self._scheduled(schedule)
        self._taken, self._epoch = 0, -1  # steps so far, and the epoch that they lie in

    def epoch(self, number: int, skip: int, warn: Warn) -> Iterator[Sequence[Record]]:
        for step, batch in self.numbered(number, skip):  # Alg. 1 and 2, line 1
            yield [self.take(batch, step, number)]

    def numbered(self, epoch: int, skip: int) -> Iterator[tuple[int, Batch]]:
        """The batches of an epoch after the first `skip`, each with the number of its step."""
        # In the next epoch the count goes on: a loader may be wrong about its length.
        if self.epoch_steps is not None and (skip or epoch != self._epoch + 1):
            self._taken = epoch * self.epoch_steps + skip
        self._epoch = epoch
        for batch in self.batches.epoch(epoch, skip):  # Alg. 1 and 2, line 2
            if self.schedule is not None:
                self.schedule.set(self._taken)
            yield self._taken, batch
            self._taken += 1

    def _scheduled(self, name: str) -> Schedule:
        if self.total is None:
            raise Refused(
                f"schedule '{name}' needs the number of steps, which this DataLoader does not tell: use 'constant'"
            )
        return Schedule(name, self.optimizer.base, self.total)

    def take(self, batch: Batch, step: int, epoch: int) -> Record:
        """One training step. A value that is not finite stops before the update."""
        numbers = self.gradient(batch, step, epoch)
        record = numbers.read(numbers.values.tolist())
        if not sound(record):
            raise diverged(record, "nothing was updated")
        self.update()
        self.follow()
        return record

    def gradient(self, batch: Batch, step: int, epoch: int) -> Numbers:
        """The gradient in theta and gamma, left where the optimizer finds it."""
        return gradient(self.objective, self.optimizer, batch, step, epoch, self.precision, self.memory)

    def update(self) -> None:
        """The step, from the gradient as it stands."""
        self.optimizer.step()  # Alg. 1 and 2, line 4

    def follow(self) -> None:
        """After a step: the average. It counts on the host, so it is no part of what is captured."""
        if self.ema is not None:
            self.ema.update()

    def settle(self) -> None:
        if self.ema is not None:
            self.ema.put()

    def state_dict(self) -> dict[str, Any]:
        device = self.objective.gamma.device
        return {
            "objective": dict(self.objective.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.ema is None else self.ema.state_dict(),  # its name in the runs of older versions
            "memory": None if self.memory is None else self.memory.state_dict(),
            "generator": torch.get_rng_state(),
            "cuda_generator": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.ema is not None:
            self.ema.load_state_dict(state["average"])
        if self.memory is not None:
            self.memory.load_state_dict(state["memory"])
        torch.set_rng_state(state["generator"])
        if state["cuda_generator"] is not None:
            torch.cuda.set_rng_state(state["cuda_generator"], self.objective.gamma.device)
