"""The numbers of a step, on the device and as they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rhobust.errors import Diverged
from rhobust.training.record import Record


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
