"""The engine of one process: the step as it is, nothing averaged."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.averaging import WeightAverage
from rhobust.errors import Diverged
from rhobust.memory import Memory
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer


@dataclass(frozen=True)
class Record:
    """What one step did; a line of metrics.jsonl."""

    step: int
    epoch: int
    loss: float
    """Mean loss at zeta."""
    value: float
    """Mean psi, the robust objective without r."""
    gamma: float
    """The gamma that this step's batch was priced with."""
    rho_eff: float
    """E c on the batch; the learned gamma drives it to rho."""
    stationarity: float
    """||theta - prox(theta - alpha g)|| / alpha before the step."""
    accuracy: float | None
    """The largest gap of the inner sup over the batch; none where it was not measured or has no bound."""
    gradients: int
    """Gradients in zeta paid for the batch."""


@dataclass(frozen=True)
class Numbers:
    """A record whose values are still on the device, in the order of `Record`."""

    step: int
    epoch: int
    values: Tensor  # (6,)
    gradients: int

    def read(self, values: list[float]) -> Record:
        """The record, from `values` as the host sees them."""
        loss, value, gamma, rho_eff, stationarity, gap = values
        accuracy = gap if math.isfinite(gap) else None
        return Record(self.step, self.epoch, loss, value, gamma, rho_eff, stationarity, accuracy, self.gradients)


class LocalEngine:
    """Runs the one step eagerly, on whatever device the objective lives.

    With `precision` bfloat16 the model's passes run under autocast; weights, zeta, gamma and sums keep theirs. With
    `average` the model ends with the weights averaged over the steps.
    """

    def __init__(
        self,
        objective: RobustObjective,
        optimizer: ProximalOptimizer,
        precision: torch.dtype = torch.float32,
        average: WeightAverage | None = None,
    ) -> None:
        self.objective, self.optimizer, self.precision, self.average = objective, optimizer, precision, average
        self.memory: Memory | None = None
        """Where the samples' ascents were left, if they are to go on from there."""
        self.full_batch: int | None = None
        """Samples in a batch that is not the last of its epoch, where that is known."""
        self.warn: Callable[[str], None] = lambda message: None
        """Where to say what the user should know."""

    def step(self, x: Tensor, y: Tensor, step: int, epoch: int, at: Tensor | None = None) -> list[Record]:
        """One training step; the records that are ready. A value that is not finite stops before the update.

        `at` says which samples these are, for the engine's memory.
        """
        numbers = self.gradient(x, y, step, epoch, at)
        record = numbers.read(numbers.values.tolist())
        if not sound(record):
            raise diverged(record, "nothing was updated")
        self.update()
        self.follow()
        return [record]

    def gradient(self, x: Tensor, y: Tensor, step: int, epoch: int, at: Tensor | None = None) -> Numbers:
        """The gradient in theta and gamma, left where the optimizer finds it."""
        self.optimizer.zero_grad()
        start = None if self.memory is None or at is None else self.memory.recall(at)
        self.objective.turn = step
        with self._precise(x.device):
            surrogate = self.objective(x, y, start)
        surrogate.value.backward()
        gamma = self.objective.gamma.detach()
        gap = torch.full_like(gamma, math.inf) if surrogate.accuracy is None else surrogate.accuracy.gap.max()
        values = (
            surrogate.loss.mean(),
            surrogate.value.detach(),
            gamma,
            surrogate.cost.mean(),
            self.optimizer.stationarity(),
            gap,
        )
        if self.memory is not None and at is not None:  # last: a step that fails before may be taken again
            self.memory.keep(at, surrogate.center, surrogate.zeta)
        return Numbers(step, epoch, torch.stack([value.to(gamma) for value in values]), surrogate.gradients)

    def update(self) -> None:
        """The step, from the gradient as it stands."""
        self.optimizer.step()

    def follow(self) -> None:
        """After a step: the average. It counts on the host, so it is no part of what is captured."""
        if self.average is not None:
            self.average.update()

    def settle(self) -> None:
        """After the last step: the model as it is to be used."""
        if self.average is not None:
            self.average.put()

    def admit(self, x: Tensor, y: Tensor) -> None:
        """All the data that the batches will come from, where they are one set in memory."""

    def flush(self) -> list[Record]:
        """Records of steps already taken that `step` has not returned; call it until there are none."""
        return []

    def _precise(self, device: torch.device) -> AbstractContextManager[object]:
        # Not autocast(enabled=False): that would end an autocast of the caller's.
        return nullcontext() if self.precision == torch.float32 else torch.autocast(device.type, self.precision)


def sound(record: Record) -> bool:
    """Whether a step can be trusted to update anything."""
    # A tempered loss is finite where the loss is not.
    return all(math.isfinite(number) for number in (record.loss, record.value, record.stationarity))


def diverged(record: Record, left: str) -> Diverged:
    """The error of a step that is not sound; `left` says what was left of it."""
    # Before the first update there is nothing that a rate could have done.
    advice = "Scale the data" if record.step == 0 else "Lower the learning rate"
    return Diverged(
        f"at step {record.step} (epoch {record.epoch}) the objective is {record.value} and its gradient's norm "
        f"{record.stationarity}; {left}. {advice}, or raise gamma_min or lower the radius"
    )
