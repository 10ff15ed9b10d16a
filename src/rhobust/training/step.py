"""One step: its gradient, and its numbers on the device and as they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.data.batches import Batch
from rhobust.errors import Diverged
from rhobust.memory import Memory
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer
from rhobust.training.record import Record

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""In which the model's passes are computed; weights, zeta, gamma and sums are float32 in both."""


@dataclass(frozen=True)
class Numbers:
    """A record whose values are still on the device: loss, value, gamma, E c, stationarity, gap."""

    step: int
    epoch: int
    values: Tensor  # (6,)
    gradients: int

    def read(self, values: list[float]) -> Record:
        """The record, from `values` as the host sees them."""
        loss, value, gamma, rho_eff, stationarity, gap = values
        return Record(
            step=self.step,
            epoch=self.epoch,
            loss=loss,
            value=value,
            gamma=gamma,
            rho_eff=rho_eff,
            stationarity=stationarity,
            accuracy=gap if math.isfinite(gap) else None,
            gradients=self.gradients,
        )


def gradient(
    objective: RobustObjective,
    optimizer: ProximalOptimizer,
    batch: Batch,
    step: int,
    epoch: int,
    precision: torch.dtype = torch.float32,
    memory: Memory | None = None,
) -> Numbers:
    """The gradient in theta and gamma on a batch, left where the optimizer finds it, and the numbers of the step."""
    x, y, at = batch
    optimizer.zero_grad()
    start = None if memory is None or at is None else memory.recall(at)
    with _precise(y.device, precision):
        surrogate = objective(x, y, start, step)  # Alg. 1 and 2, line 3
    surrogate.value.backward()  # Alg. 1 and 2, line 4: the gradient
    gamma = objective.gamma.detach()
    gap = torch.full_like(gamma, math.inf) if surrogate.accuracy is None else surrogate.accuracy.gap.max()
    values = (
        surrogate.loss.mean(),
        surrogate.value.detach(),
        gamma,
        surrogate.cost.mean(),
        optimizer.stationarity(),
        gap,
    )
    if memory is not None and at is not None:  # last: a step that fails before may be taken again
        memory.keep(at, surrogate.center, surrogate.zeta)
    return Numbers(step, epoch, torch.stack([value.to(gamma) for value in values]), surrogate.gradients)


def _precise(device: torch.device, precision: torch.dtype) -> AbstractContextManager[object]:
    # Not autocast(enabled=False): that would end an autocast of the caller's.
    return nullcontext() if precision == torch.float32 else torch.autocast(device.type, precision)


def sound(record: Record) -> bool:
    """Whether a step can be trusted to update anything."""
    # A tempered loss is finite where the loss is not.
    return all(math.isfinite(number) for number in (record.loss, record.value, record.stationarity))


def diverged(record: Record, left: str, before: Sequence[Record] = ()) -> Diverged:
    """The error of a step that is not sound; `left` says what was left of it, `before` are the sound ones before it."""
    # Before the first update there is nothing that a rate could have done.
    advice = "Scale the data" if record.step == 0 else "Lower the learning rate"
    return Diverged(
        f"at step {record.step} (epoch {record.epoch}) the objective is {record.value} and its gradient's norm "
        f"{record.stationarity}; {left}. {advice}, or raise gamma_min or lower the radius",
        before,
    )
