"""Settings of a federation: its workers, their steps in a round, and the server's update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rhobust.data.partitions import PARTITIONS, find_partition
from rhobust.federation.aggregators import Aggregator, Mean, find_aggregator
from rhobust.federation.byzantine import BYZANTINE_ATTACKS, find_byzantine_attack
from rhobust.method import FEDERATED
from rhobust.support.setting import accepted_by, one_of, positive, problems_by_key, setting


def _share(key: str, value: float) -> Iterator[str]:
    if not 0 < value <= 1:
        yield f"{key} must be above 0 and at most 1, not {value}"


@dataclass(frozen=True)
class Federation:
    """What a federated run has besides the settings of every run."""

    rounds: int = setting(300, "Number of communication rounds.", positive)
    workers: int = setting(10, "Number of workers that hold the training data.", positive)
    partition: str = setting(
        "iid", f"Split of the data among simulated workers: {', '.join(PARTITIONS)}.", accepted_by(find_partition)
    )
    participation: float = setting(
        1.0, "Fraction of the workers sampled per round. If too few answer, others are asked.", _share
    )
    local_steps: int = setting(1, "Number of steps of a worker between two uploads.", positive)
    local_learning_rate: float = setting(0.1, "Step size of a worker that takes several local steps.", positive)
    server_update: str = setting(
        "gradient",
        "Update of the weights: gradient (optimizer step along the aggregated gradient) or average (mean of the "
        "workers' weights, FedAvg).",
        one_of(("gradient", "average")),
    )
    aggregator: str = setting(
        "mean",
        "Aggregation rule: mean, median, trimmed-mean:F, geometric-median or multi-krum:F, also as clipped-NAME. "
        "F is the number of Byzantine workers.",
        accepted_by(find_aggregator),
    )
    weights: str = setting(
        "equal",
        "Weights of the uploads: equal, or samples (proportional to the number of samples).",
        one_of(("equal", "samples")),
    )
    quorum: int = setting(1, "Smallest number of valid uploads that makes a round.", positive)
    byzantine: int = setting(0, "Number of simulated Byzantine workers.")
    byzantine_attack: str = setting(
        "sign-flip",
        f"Attack of the Byzantine workers: {', '.join(BYZANTINE_ATTACKS)}; append :STRENGTH to set its strength.",
        accepted_by(find_byzantine_attack),
    )
    evaluate_every: int | None = setting(
        None, "Number of rounds between two measurements of the test error.", positive, usual="never"
    )

    @property
    def asked(self) -> int:
        """How many workers are asked in a round."""
        return max(1, math.ceil(self.participation * self.workers - 1e-9))

    @property
    def rate_idles(self) -> bool:
        """Whether `local_learning_rate` was set and no worker takes a step of its own."""
        rate = self.local_learning_rate
        given = 0 < rate < math.inf and rate != Federation.local_learning_rate
        return given and self.local_steps == 1 and self.server_update == "gradient"

    def method_name(self, central: str) -> str:
        """What the federation of a central method is called."""
        if self.server_update == "average":
            return "fedavg" if central == "erm" else f"fedavg of {central}"
        return next(
            (name for name, of in FEDERATED.items() if of == central and name != "fedavg"), f"federated {central}"
        )

    def problems(self) -> list[str]:
        """Everything that is wrong with the settings, each by itself and together."""
        wrong = problems_by_key(self)
        found = [*chain(*wrong.values())]
        if not 0 <= self.byzantine < max(self.workers, 1):
            found.append(
                f"byzantine must be at least 0 and fewer than the {self.workers} workers, not {self.byzantine}"
            )
        attack = self.byzantine_attack
        if not self.byzantine and attack != Federation.byzantine_attack and "byzantine_attack" not in wrong:
            found.append(
                f"byzantine_attack is '{attack}', but byzantine is 0: set byzantine to the number of Byzantine workers"
            )
        aggregator = None if "aggregator" in wrong else find_aggregator(self.aggregator)
        if aggregator and self.weights == "samples" and not isinstance(aggregator, Mean):
            found.append(
                f"weights 'samples' trusts the numbers that workers report, which defeats the robust aggregator "
                f"'{self.aggregator}'. Set weights to equal"
            )
        return found if wrong.keys() & {"workers", "participation"} else found + self._too_few(aggregator)

    def _too_few(self, aggregator: Aggregator | None) -> list[str]:
        """What needs more workers than are asked."""
        found = []
        if self.quorum > self.asked:
            found.append(f"quorum is {self.quorum}, but only {self.asked} workers are asked in a round")
        if aggregator and aggregator.min_workers > self.asked:
            found.append(
                f"aggregator '{self.aggregator}' needs {aggregator.min_workers} uploads, but only {self.asked} workers "
                "are asked"
            )
        return found


def as_federated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose method is a federated one, as the central method and the federation it stands for.

    >>> as_federated({"method": "fedavg", "rounds": 100})
    {'method': 'erm', 'rounds': 100, 'local_steps': 5, 'server_update': 'average'}
    """
    name = settings.get("method")
    if not isinstance(name, str) or name not in FEDERATED:
        return dict(settings)
    found = dict(settings) | {"method": FEDERATED[name]}
    found.setdefault("rounds", Federation.rounds)
    if name == "fedavg":
        found.setdefault("local_steps", 5)
        found.setdefault("server_update", "average")
    return found
