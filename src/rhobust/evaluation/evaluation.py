"""The result of an evaluation: clean and attacked errors, and whether they can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rhobust.attacks.attack import ATTACKS, only_weak
from rhobust.attacks.cascade import CASCADES, STAGES
from rhobust.charts.axes import GRAY, drawable
from rhobust.charts.drawings import draw_errors
from rhobust.evaluation.group_errors import GroupError, GroupErrors
from rhobust.evaluation.intervals import interval
from rhobust.evaluation.trust import Flag
from rhobust.support.display import Displayed, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORST = {math.inf: "worst", 2.0: "worst-l2"}
"""The name, for each norm, under which the worst of its attacks is reported."""
WASSERSTEIN = "wasserstein"
"""The name of the attack whose budget is for all samples together."""


def percent(error: float) -> str:
    """A fraction in percent, without the sign."""
    return f"{100 * error:.2f}"


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
    wrong: str = field(default="", repr=False)
    """Which samples the model gets wrong (`intervals.packed`)."""


@dataclass(frozen=True)
class Evaluation(Displayed):
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
    groups: GroupErrors | None = field(default=None, repr=False)
    """The errors of each group and the worst group, where groups were given."""

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
        if self.groups is None:
            del plain["groups"]
        for cell in plain["attacked"]:
            cell["interval"] = list(interval(cell["error"], self.samples))
        return plain | {"clean_interval": list(interval(self.clean, self.samples))}

    def plot(self, axes: Axes | None = None) -> Axes:
        """Error against epsilon, a line with its 95 % band for each attack in a ball; dotted: the clean error.

        Draws on `axes`, or on those of a new figure, and returns them. Where no attack was in a ball, the Wasserstein
        attack is drawn against its budget.
        """
        balls = self.in_balls
        size = (
            "budget (average squared distance)"
            if WASSERSTEIN in self.grid and not balls
            else "perturbation size epsilon"
        )
        axes = drawable(axes, size, "error, %")
        axes.axhline(100 * self.clean, color=GRAY, linestyle=":", label="clean")
        draw_errors(axes, {name: self._points(cells) for name, cells in (balls or self.grid).items()})
        axes.legend()
        return axes

    def _points(self, cells: Mapping[float, AttackedError]) -> list[tuple[float, float, float, float]]:
        """Epsilon, error and the ends of its interval for each cell, in percent."""
        return [(epsilon, 100 * cell.error, *self._ends(cell.error)) for epsilon, cell in cells.items()]

    def _ends(self, error: float) -> tuple[float, float]:
        """The 95 % interval of an error, in percent."""
        low, high = interval(error, self.samples)
        return 100 * low, 100 * high

    def _between(self, error: float) -> str:
        low, high = self._ends(error)
        return f"{low:.1f}-{high:.1f}"

    def _shown(self) -> list[Table | str]:
        """The clean error, a table for each cascade, one for the attacks by name, one for the Wasserstein attack, and
        whether they can be trusted."""
        balls = self.in_balls
        named = {attack: cells for attack, cells in balls.items() if attack not in CASCADES}
        tables = [self._of_cascade(name, balls[name]) for name in CASCADES if name in balls]
        tables += [self._by_name(named)] if named else []
        tables += [self._by_budget(self.grid[WASSERSTEIN])] if WASSERSTEIN in self.grid else []
        between = f"95 % interval {self._between(self.clean)}"
        clean = f"clean error {percent(self.clean)} % ({between}) on {self.samples} samples"
        if self.groups is not None:
            tables += self.groups.tables("error in percent, and its 95 % interval", self._of_group)
        return [clean, *tables, *self._judgement(named)]

    def _of_group(self, one: GroupError) -> tuple[str, str]:
        low, high = one.interval
        return percent(one.error), f"{100 * low:.1f}-{100 * high:.1f}"

    def _of_cascade(self, name: str, cells: Mapping[float, AttackedError]) -> Table:
        rows = []
        for epsilon, cell in cells.items():
            errors = [cell.stages.get(stage, self.clean) for stage in STAGES]
            added = [percent(errors[0]), *(f"+{percent(b - a)}" for a, b in pairwise(errors))]
            stages = added if cell.stages else [""] * len(STAGES)
            rows.append([f"{epsilon:g}", percent(cell.error), self._between(cell.error), *stages])
        caption = f"{name}: error in percent, and what each stage adds"
        return Table(caption, ["epsilon", "error", "95 % interval", *STAGES], rows)

    def _by_name(self, named: Mapping[str, Mapping[float, AttackedError]]) -> Table:
        """Attacks in columns, epsilons in rows, the intervals below the errors."""
        rows = []
        for epsilon in dict.fromkeys(epsilon for cells in named.values() for epsilon in cells):
            found = [cells.get(epsilon) for cells in named.values()]
            rows.append([f"{epsilon:g}", *(percent(cell.error) if cell else "" for cell in found)])
            rows.append(["", *(self._between(cell.error) if cell else "" for cell in found)])
        return Table("attacks by name: error in percent, and its 95 % interval", ["epsilon", *named], rows)

    def _by_budget(self, cells: Mapping[float, AttackedError]) -> Table:
        rows = [
            [
                f"{budget:g}",
                "" if cell.mean_cost is None else f"{cell.mean_cost:.4g}",
                percent(cell.error),
                self._between(cell.error),
            ]
            for budget, cell in cells.items()
        ]
        caption = f"{WASSERSTEIN} attack: error in percent"
        return Table(caption, ["budget", "average transport cost", "error", "95 % interval"], rows)

    def _judgement(self, named: Mapping[str, object]) -> list[str]:
        """Which checks failed, or that none did."""
        said = [str(flag) for flag in self.flags]
        alone = [attack for attack in named if attack in ATTACKS]
        if alone and len(named) == len(self.in_balls) and only_weak(alone):
            said.append(f"only weak attacks were run ({', '.join(alone)}): stronger ones, such as cascade, find more")
        elif self.checked and not self.flags:
            said.append(f"passed checks: {', '.join(self.checked)}")
        if "learned" not in self.checked:
            said.append(f"not checked: {self.samples} samples do not tell whether the model has learned anything")
        return said
