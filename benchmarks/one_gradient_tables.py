"""The tables and the figure of docs/one-gradient.md, from results/one-gradient.csv: one row a training."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.command import read_csv
from benchmarks.one_gradient_variants import ABLATED, ABLATION, BASELINES, DATA, DEEP, WAYS, method_of
from rhobust.charts import curves
from rhobust.reproduction.tables import markdown

EPSILONS = (0.1, 0.2, 0.3, 0.4)
WORST = tuple(f"worst_{epsilon:g}" for epsilon in EPSILONS)
NUMBERS = ("gradients", "rho_eff", "gamma", "clean", *WORST, "apgd", "apgd_in_training")
COLUMNS = ("part", "data", "variant", "seed", *NUMBERS, "device", "torch", "git", "note")
BEHIND = {"nfgsm": 2.0, "ifgsm": 5.0}  # points that each is to be behind ours, at every clean error that it reaches
COLLAPSED = 0.5  # a clean error above it: the model gives nearly every image the same answer
TICKS = {"mnist": (2, 3, 5, 10, 20, 50), "fashion-mnist": (25, 30, 40, 50, 60, 80, 100)}

Row = Mapping[str, Any]
"""A training; errors are fractions, by the columns above."""


def read(path: Path) -> list[Row]:
    return list(read_csv(path, NUMBERS))


@dataclass(frozen=True)
class Variant:
    """A way to train on one data set, and what it came to: means over the seeds that there are.

    Seeds that collapsed are counted and left out, where there are others.
    """

    name: str
    every: list[Row]

    @property
    def runs(self) -> list[Row]:
        return [run for run in self.every if run["clean"] < COLLAPSED] or self.every

    @property
    def collapsed(self) -> bool:
        """Whether all did."""
        return self.clean >= 100 * COLLAPSED

    @property
    def seeds(self) -> str:
        held = 0 if self.collapsed else len(self.runs)
        return str(held) if held == len(self.every) else f"{held} of {len(self.every)}"

    @property
    def method(self) -> str:
        return method_of(self.name)

    @property
    def gradients(self) -> float:
        return float(self.runs[0]["gradients"])

    @property
    def clean(self) -> float:
        return 100 * statistics.fmean(run["clean"] for run in self.runs)

    @property
    def spent(self) -> float:
        """E[c]."""
        return statistics.fmean(run["rho_eff"] for run in self.runs)

    @property
    def worst(self) -> list[float]:
        """The error under the worst attack at each epsilon."""
        return [100 * statistics.fmean(run[key] for run in self.runs) for key in WORST]

    @property
    def attacked(self) -> float:
        """Their average."""
        return statistics.fmean(self.worst)

    @property
    def spread(self) -> str:
        """The average, ± half the range over the seeds."""
        each = [100 * statistics.fmean(run[key] for key in WORST) for run in self.runs]
        return f"{self.attacked:.1f}" + (f" ± {(max(each) - min(each)) / 2:.1f}" if len(each) > 1 else "")


def variants(rows: Sequence[Row], data: str, part: str = "sweep") -> list[Variant]:
    """What was trained on these data, the most robust first."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        if (row["data"], row["part"]) == (data, part):
            by_name.setdefault(row["variant"], []).append(row)
    return sorted((Variant(name, runs) for name, runs in by_name.items()), key=lambda variant: variant.attacked)


def goals_table(rows: Sequence[Row]) -> str:
    """For each baseline: the best way of our sweep that is no worse on clean data, and whether the goal is met."""
    lines = []
    for data in DATA:
        made = variants(rows, data)
        for other in sorted((one for one in made if one.name in BASELINES[data]), key=lambda one: one.clean):
            if other.method in BEHIND and not other.collapsed:
                best = next((one for one in made if one.name in WAYS[data] and one.clean <= other.clean), None)
                lines.append([data, other.name, other.seeds, f"{other.clean:.2f}", other.spread, *_ahead(other, best)])
    head = ["data", "baseline", "seeds", "clean", "attacked", "ours", "clean", "attacked", "ahead by", "goal"]
    return markdown(head, lines)


def _ahead(other: Variant, best: Variant | None) -> list[str]:
    if best is None:
        return ["none as good on clean data", "", "", "", "missed"]
    ahead, goal = other.attacked - best.attacked, BEHIND[other.method]
    met = f">= {goal:g}: {'met' if ahead >= goal else 'missed'}"
    return [best.name, f"{best.clean:.2f}", best.spread, f"{ahead:.1f}", met]


def confirmed_table(rows: Sequence[Row]) -> str:
    """What was trained again with other seeds and attacked on other images."""
    head = ["data", "variant", "seeds", "gradients", "E[c]", "clean", *(f"worst {e:g}" for e in EPSILONS), "average"]
    lines = []
    for data in DATA:
        for one in variants(rows, data, "confirmed"):
            start = [data, one.name, one.seeds, f"{one.gradients:.3g}", f"{one.spent:.3g}"]
            lines.append([*start, *(f"{value:.1f}" for value in (one.clean, *one.worst)), one.spread])
    return markdown(head, lines)


def ablation_table(rows: Sequence[Row]) -> str:
    """One seed."""
    there = {row["variant"]: row for row in rows if (row["part"], row["data"], row["seed"]) == ("sweep", *ABLATED)}
    lines = []
    for label, name in ABLATION:
        one = Variant(name, [there[name]])
        cells = [f"{value:.1f}" for value in (one.clean, *one.worst, one.attacked)]
        lines.append([label, f"{one.gradients:.3g}", *cells])
    return markdown(["variant", "gradients", "clean", *(f"worst {e:g}" for e in EPSILONS), "average"], lines)


TABLES = {"goals": goals_table, "confirmed": confirmed_table, "ablation": ablation_table}


def frontier(made: Sequence[Variant]) -> list[Variant]:
    """Those that no other is ahead of in both errors, the least clean error first."""
    edge: list[Variant] = []
    for one in sorted(made, key=lambda one: (one.clean, one.attacked)):
        if not edge or one.attacked < edge[-1].attacked:
            edge.append(one)
    return edge


def figure(rows: Sequence[Row]) -> Figure:
    """A row for each data set: clean against attacked error, and gradients against attacked error."""
    drawn, axes = curves.new_figure(2, len(DATA), 11, 4.4 * len(DATA))
    for (left, right), data in zip(axes, DATA, strict=True):
        held = [one for one in variants(rows, data) if not one.collapsed]
        for method in dict.fromkeys(one.method for one in held):
            _draw_method(left, right, method, [one for one in held if one.method == method], data)
        left.set_ylabel(f"{data}: attacked error, %, average over epsilon")
        left.set_xlabel("clean error, %; pale: other variants")
        right.set_xlabel("ascent gradients a sample, the best of each")
        left.legend(frameon=False, fontsize="small")
        for axis in (left, right):
            axis.grid(alpha=0.25)
            axis.set_yscale("log")
            axis.set_yticks(TICKS[data], [f"{tick:g}" for tick in TICKS[data]])
            axis.minorticks_off()
    return drawn


def _draw_method(left: Any, right: Any, method: str, made: Sequence[Variant], data: str) -> None:
    look = curves.style(method)
    dots = {"color": look["color"], "marker": look["marker"]}
    main = [one for one in made if one.name in (*BASELINES[data], *WAYS[data])]
    rest = [one for one in made if one not in main and one.name != DEEP[data]]
    left.scatter([one.clean for one in main], [one.attacked for one in main], label=method, **dots)
    left.scatter([one.clean for one in rest], [one.attacked for one in rest], s=18, alpha=0.35, **dots)
    edge = frontier(main)
    left.plot([one.clean for one in edge], [one.attacked for one in edge], linewidth=1, color=look["color"])
    least: dict[float, float] = {}  # the most robust for each number of gradients
    for one in made:
        least.setdefault(one.gradients, one.attacked)
        if one.name == DEEP[data]:
            ring = {"s": 80, "facecolors": "none", "edgecolors": look["color"]}
            left.scatter([one.clean], [one.attacked], label="spgda, five gradients", **ring)
    right.scatter(list(least), list(least.values()), label=method, **dots)
