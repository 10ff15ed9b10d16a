"""The record of one step, as a line of metrics.jsonl holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MOST_ROUNDS = 50  # of a federation, that E c is averaged over


@dataclass(frozen=True, kw_only=True)
class Record:
    """One step of a training; for a federation a step is a round (`RoundRecord`)."""

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
    errors: dict[str, float] = field(default_factory=dict)
    """Clean and attacked test errors after the step, where they were measured."""


@dataclass(frozen=True, kw_only=True)
class RoundRecord(Record):
    """One round of a federation."""

    workers: int
    """Uploads that counted."""
    dropped: dict[str, str]
    """Workers whose uploads did not count, each with the reason."""
    bytes_up: int
    bytes_down: int
    left_out: list[str] = field(default_factory=list)
    """Workers whose gradient in theta the aggregator, where it selects, did not use; gamma's is aggregated apart."""


def rho_eff(records: Sequence[Mapping[str, Any]]) -> float:
    """E c over the last epoch of some metrics, the mean of its steps; near the radius when gamma has settled.

    Rounds of a federation have no epochs: there it is the last quarter, and no more than fifty.
    """
    last = [record for record in records if record["epoch"] == records[-1]["epoch"]]
    if "workers" in records[-1]:
        last = list(records[-min(_MOST_ROUNDS, -(-len(records) // 4)) :])
    return math.fsum(record["rho_eff"] for record in last) / len(last)
