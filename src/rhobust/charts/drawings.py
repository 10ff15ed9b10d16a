"""Drawings of results on given axes, from plain numbers: errors, bounds, the course of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, groupby
from typing import TYPE_CHECKING, Any

from rhobust.charts.axes import GRAY, on_the_right

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_MOST_TICKS = 7
_MARKERS = "osv^DPX"  # nothing is told by color alone
_SPENT = "average transport cost"


def error_scale(axes: Axes, epsilons: Sequence[float], top: float | None = 100) -> None:
    """From 0 to 100 percent, or as high as it goes, with a tick at every epsilon where they are few."""
    axes.set_ylim(0, top)
    if len(epsilons) <= _MOST_TICKS:
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])


def draw_errors(
    axes: Axes, curves: Mapping[str, Sequence[tuple[float, float, float, float]]], top: float | None = 100
) -> None:
    """A line with a band for each name; a point is epsilon, the error (in percent), and the ends of its interval."""
    for (name, points), marker in zip(curves.items(), cycle(_MARKERS), strict=False):
        epsilons, errors, lows, highs = zip(*sorted(points), strict=True)
        (line,) = axes.plot(epsilons, errors, marker=marker, markersize=4, label=name)
        # The edge of the band is all that is seen of it at a single epsilon.
        axes.fill_between(epsilons, lows, highs, color=line.get_color(), alpha=0.15, linewidth=1.5)
    error_scale(axes, sorted({point[0] for points in curves.values() for point in points}), top)


def draw_bounds(
    axes: Axes, radii: Sequence[float], bounds: Sequence[float], attained: Sequence[float], proved: bool, **style: Any
) -> None:
    """Bound, solid where proved and dashed where estimated, and what is attained; the gap between them is shaded."""
    label = "bound, proved" if proved else "dual value, estimated"
    (line,) = axes.plot(radii, bounds, label=label, **(style | {"linestyle": "-" if proved else "--"}))
    triangle: dict[str, Any] = {"linestyle": "none", "marker": "v", "markersize": 8, "markerfacecolor": "none"}
    axes.plot(radii, attained, color=GRAY, label="attained by a distribution in the ball", **triangle)
    axes.fill_between(radii, attained, bounds, color=line.get_color(), alpha=0.12, linewidth=0)
    if all(loss >= 0 for loss in attained):  # from 0, so that a small gap looks small
        line.sticky_edges.y.append(0)
        axes.update_datalim([(radius, 0) for radius in radii])


def draw_training(
    axes: Axes, losses: Sequence[float], costs: Sequence[float], epochs: Sequence[int], radius: float
) -> None:
    """The loss of every step and, on a scale on the right, its transport cost, with the radius if there is one."""
    right = on_the_right(axes, f"{_SPENT} (squared distance)")
    lines = [
        _course(axes, losses, epochs, label="loss", color="C0", marker="o"),
        _course(right, costs, epochs, label=_SPENT, color="C1", marker="s"),
    ]
    if radius > 0:
        lines.append(mark_radius(right, radius))
    right.set_ylim(bottom=0)
    right.legend(handles=lines)


def mark_radius(axes: Axes, radius: float) -> Line2D:
    """The radius as a dotted line, for the average transport cost to meet."""
    return axes.axhline(radius, color=GRAY, linestyle=":", linewidth=1.4, label=f"radius {radius:g}")


def _course(axes: Axes, values: Sequence[float], epochs: Sequence[int], *, color: str, **style: Any) -> Line2D:
    """A thin line of all steps, and over it the means of the epochs, each at its last step."""
    axes.plot(range(1, len(values) + 1), values, color=color, alpha=0.3, linewidth=0.8)
    ends, means = [], []
    for _, numbered in groupby(enumerate(values), lambda one: epochs[one[0]]):
        places, own = zip(*numbered, strict=True)
        ends.append(places[-1] + 1)
        means.append(sum(own) / len(own))
    (line,) = axes.plot(ends, means, color=color, markersize=3, **style)
    return line
