"""Settings of a federation: who takes part, what each does in a round, and what the server makes of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from rhobust.aggregators import Mean, find_aggregator
from rhobust.errors import ConfigError, unknown
from rhobust.liars import find_lie
from rhobust.methods import FEDERATED
from rhobust.partitions import find_partition

WEIGHTS = ("equal", "samples")
SERVERS = ("step", "average")


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
    """The step size of a worker that takes more than one step."""
    server: str = "step"
    """`step`: the optimizer's, on the aggregated gradient. `average`: theta after the local steps, averaged."""
    aggregator: str = "mean"
    weights: str = "equal"
    """How uploads count: all alike, or by the samples behind them."""
    quorum: int = 1
    """The fewest useful uploads that make a round."""
    liars: int = 0
    """So many of the simulated workers lie."""
    lie: str = "sign-flip"
    """How they do (`liars`)."""
    evaluate_every: int | None = None
    """Rounds between two looks at the test error; none: never."""

    KINDS: ClassVar[dict[str, type]] = {
        **dict.fromkeys(("rounds", "workers", "local_steps", "quorum", "liars", "evaluate_every"), int),
        **dict.fromkeys(("participation", "local_rate"), float),
        **dict.fromkeys(("partition", "server", "aggregator", "weights", "lie"), str),
    }

    @staticmethod
    def known() -> list[str]:
        """The keys."""
        return [key.name for key in dataclasses.fields(Federation)]

    @property
    def asked(self) -> int:
        """How many workers are asked in a round."""
        return max(1, math.ceil(self.participation * self.workers - 1e-9))

    @property
    def rate_idles(self) -> bool:
        """Whether `local_rate` was set and no worker takes a step of its own."""
        given = 0 < self.local_rate < math.inf and self.local_rate != Federation.local_rate
        return given and self.local_steps == 1 and self.server == "step"

    def method_name(self, central: str) -> str:
        """What the federation of a central method is called."""
        if self.server == "average":
            return "fedavg" if central == "erm" else f"fedavg of {central}"
        return next(
            (name for name, of in FEDERATED.items() if of == central and name != "fedavg"), f"federated {central}"
        )

    def problems(self) -> list[str]:
        """Everything that is wrong with the settings."""
        found = [
            f"{key} must be > 0, not {value}"
            for key in ("rounds", "workers", "local_steps", "local_rate", "quorum", "evaluate_every")
            if (value := getattr(self, key)) is not None and not 0 < value < math.inf
        ]
        if not 0 < self.participation <= 1:
            found.append(f"participation must be above 0 and at most 1, not {self.participation}")
        for kind, name, names in (("server", self.server, SERVERS), ("weights", self.weights, WEIGHTS)):
            if name not in names:
                found.append(unknown(kind, name, names))
        if not 0 <= self.liars < max(self.workers, 1):
            found.append(f"liars must be at least 0 and fewer than the {self.workers} workers, not {self.liars}")
        finders: tuple[tuple[Callable[[str], object], str], ...] = (
            (find_aggregator, self.aggregator),
            (find_partition, self.partition),
            (find_lie, self.lie),
        )
        for find, spec in finders:
            try:
                find(spec)
            except ConfigError as error:
                found += error.problems
        with suppress(ConfigError):  # an aggregator that nobody knows is a problem of its own
            if self.weights == "samples" and not isinstance(find_aggregator(self.aggregator), Mean):
                found.append(
                    f"weights 'samples' go by what each worker says that it has, and aggregator '{self.aggregator}' is "
                    "for workers who may lie: a lie about that would count for all. Set weights to equal"
                )
        with suppress(ConfigError):  # a lie that nobody knows is a problem of its own
            find_lie(self.lie)
            if not self.liars and self.lie != Federation.lie:
                found.append(f"lie is '{self.lie}', but nobody lies: set liars, how many of the workers do")
        return found + self._too_few() if self.workers > 0 and 0 < self.participation <= 1 else found

    def _too_few(self) -> list[str]:
        """What needs more workers than are asked."""
        found = []
        if self.quorum > self.asked:
            found.append(f"quorum is {self.quorum}, but only {self.asked} workers are asked in a round")
        with suppress(ConfigError):  # an aggregator that nobody knows is a problem of its own
            fewest = find_aggregator(self.aggregator).fewest
            if fewest > self.asked:
                found.append(
                    f"aggregator '{self.aggregator}' needs {fewest} uploads, but only {self.asked} workers are asked"
                )
        return found


def unfolded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose method is a federated one, as the central method and the federation it stands for.

    >>> unfolded({"method": "fedavg", "rounds": 100})
    {'method': 'erm', 'rounds': 100, 'local_steps': 5, 'server': 'average'}
    """
    name = settings.get("method")
    if not isinstance(name, str) or name not in FEDERATED:
        return dict(settings)
    found = dict(settings) | {"method": FEDERATED[name]}
    found.setdefault("rounds", Federation.rounds)
    if name == "fedavg":
        found.setdefault("local_steps", 5)
        found.setdefault("server", "average")
    return found
