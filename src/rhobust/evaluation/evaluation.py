"""The result of an evaluation: clean and attacked errors, and whether they can be trusted."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from rhobust.evaluation.intervals import interval
from rhobust.evaluation.trust import Flag

WORST = {math.inf: "worst", 2.0: "worst-l2"}
"""The name, for each norm, under which the worst of its attacks is reported."""
WASSERSTEIN = "wasserstein"
"""The name of the attack whose budget is for all samples together."""


@dataclass(frozen=True)
class AttackedError:
    """Share of samples that the model gets wrong under one attack."""

    attack: str
    """A name of `ATTACKS` or of `CASCADES`; `worst` or `worst-l2`: any of `ATTACKS` in that norm, at this epsilon or
    below it; or `wasserstein`."""
    epsilon: float
    """Radius of the ball; for `wasserstein`, the budget on E ||zeta - x||^2."""
    error: float
    discarded: int = 0
    """Results that did not pass verification and were not counted."""
    mean_cost: float | None = None
    """For `wasserstein`: what was spent."""
    stages: dict[str, float] = field(default_factory=dict)
    """For a cascade: the error after each of its stages."""
    wrong: str = ""
    """Which samples the model gets wrong (`intervals.packed`)."""


@dataclass(frozen=True)
class Evaluation:
    """Clean error and a grid of attacked errors, as fractions."""

    samples: int
    clean: float
    attacked: list[AttackedError]
    flags: list[Flag] = field(default_factory=list)
    """Reasons not to trust the numbers; see `trust`."""
    checked: list[str] = field(default_factory=list)
    """Which of `trust.CHECKS` were made."""
    forwarded: int = field(default=0, compare=False)
    """Samples that the model was shown: a measure of work that does not depend on the machine."""
    examples: dict[str, dict[float, Tensor]] = field(default_factory=dict, repr=False, compare=False)
    """The attacked inputs by attack, then by epsilon, where they were asked for."""

    @property
    def grid(self) -> dict[str, dict[float, AttackedError]]:
        """The results by attack, then by epsilon."""
        found: dict[str, dict[float, AttackedError]] = {}
        for cell in self.attacked:
            found.setdefault(cell.attack, {})[cell.epsilon] = cell
        return found

    @property
    def in_balls(self) -> dict[str, dict[float, AttackedError]]:
        """Of the grid, the attacks in a ball."""
        return {attack: cells for attack, cells in self.grid.items() if attack != WASSERSTEIN}

    def error(self, name: str, epsilon: float) -> float:
        """One cell of the grid."""
        return self.grid[name][epsilon].error

    def interval(self, name: str, epsilon: float) -> tuple[float, float]:
        """The 95 % interval of one cell."""
        return interval(self.error(name, epsilon), self.samples)

    def to_json(self) -> dict[str, Any]:
        """Plain values; every error with its 95 % interval."""
        plain = asdict(replace(self, examples={}))
        del plain["examples"]
        for cell in plain["attacked"]:
            cell["interval"] = list(interval(cell["error"], self.samples))
        return plain | {"clean_interval": list(interval(self.clean, self.samples))}
