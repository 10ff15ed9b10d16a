"""Settings of a federation: who takes part, what each does in a round, and what the server makes of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rhobust.engines.federated import LocalWork

METHODS = {
    "drfl": "spgda",
    "drfl-spgd": "spgd",
    "drfl-margin": "spgda-margin",
    "drfl-literal": "spgda-literal",
    "fedavg": "erm",
}
"""Federated methods, and what their workers do: the composition of the central method of that name."""

WEIGHTS = ("equal", "samples")
SERVERS = ("step", "average")

_FEDAVG_STEPS = 5


@dataclass(frozen=True)
class Federation:
    """What a federated run has besides the settings of every run."""

    rounds: int = 300
    workers: int = 10
    partition: str = "iid"
    """How simulated workers share the data (`partitions`)."""
    participation: float = 1.0
    """The share of workers that is asked in a round."""
    local_steps: int = 1
    local_rate: float = 0.1
    """Step size of a worker that takes more than one step."""
    server: str = "step"
    """`step`: the optimizer's on the aggregated gradient. `average`: theta as it is after the local steps, averaged."""
    aggregator: str = "mean"
    weights: str = "equal"
    """How uploads count: all alike, or by the samples behind them."""
    quorum: int = 1
    """The fewest useful uploads that make a round."""
    liars: int = 0
    lie: str | None = None
    """How so many of the simulated workers lie (`liars`)."""
    evaluate_every: int | None = None
    """Rounds between two looks at the test error; none: a tenth of all."""

    @staticmethod
    def known() -> list[str]:
        """The keys."""
        return [key.name for key in dataclasses.fields(Federation)]

    @property
    def asked(self) -> int:
        """How many workers are asked in a round."""
        return max(1, round(self.participation * self.workers + 0.4999999))

    def work(self, batch_size: int, seed: int) -> LocalWork:
        """What a worker does in a round."""
        return LocalWork(batch_size, self.local_steps, self.local_rate, seed)
