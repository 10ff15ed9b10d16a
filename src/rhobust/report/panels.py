"""The figures of a report, one panel each, with a value at every point."""

from __future__ import annotations

import base64
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rhobust.certificates.certificate import Certification
from rhobust.charts import curves, svg
from rhobust.charts.axes import GRAY
from rhobust.charts.curves import Panel
from rhobust.charts.drawings import draw_bounds, error_scale, mark_radius
from rhobust.evaluation.evaluation import WASSERSTEIN, WORST
from rhobust.report.gather import Report
from rhobust.report.rows import Row
from rhobust.report.scale import Scale, number
from rhobust.report.spread import Spread
from rhobust.report.tables import attack_name, shifted
from rhobust.runs.measurements import CERTIFICATES

_LONGEST_NAME = 36  # letters beside an axis
_LOWEST_COST = 1e-6  # the logarithm of no cost at all
_MOST_POINTS = 30
_TITLES = {
    "cascade": "Cascade of attacks in l_inf",
    "cascade-l2": "Cascade of attacks in l2",
    WORST[math.inf]: "Worst of the attacks by name in l_inf",
    WORST[2.0]: "Worst of the attacks by name in l2",
}


def swatches(report: Report) -> dict[str, str]:
    """For every row, a piece of its line, as the address of an image."""
    from matplotlib.lines import Line2D

    drawn = {}
    for name, style in _styles(report).items():
        figure, axes = curves.new_figure(1, 1, 0.4, 0.17)
        axes[0][0].remove()
        figure.set_facecolor("none")
        figure.add_artist(Line2D([0.05, 0.5, 0.95], [0.5] * 3, markevery=[1], **(style | {"markersize": 5})))
        drawing = svg.to_svg(figure, f"line of {name}").encode()
        drawn[name] = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    return drawn


def _styles(report: Report) -> dict[str, dict[str, Any]]:
    """The style of every row: its method's; the second of the same method is thinner and dotted."""
    seen: dict[str, int] = {}
    styles = {}
    for row in report.rows:
        again = seen[row.method] = seen.get(row.method, -1) + 1
        other = {"linestyle": (":", "-.", (0, (5, 1, 1, 1, 1, 1)))[(again - 1) % 3], "linewidth": 1.5} if again else {}
        styles[row.name] = curves.style(row.method) | other
    return styles


def _shown(found: Spread, scale: Scale) -> str:
    return found.text(scale.text) + scale.unit


def error_curves(report: Report) -> list[Panel]:
    """Error against epsilon, a panel for each attack."""
    panels, scale = [], report.scale
    for attack, epsilons in report.grid().items():
        name, size = attack_name(attack), "budget on E[c]" if attack == WASSERSTEIN else "epsilon"
        description = f"Error of every method against the {size} of the {name} attack; the numbers are in the tables"
        panel = Panel(_TITLES.get(attack, f"{name} attack"), size, scale.axis, description)
        for row in report.rows:
            points = [(epsilon, spread) for epsilon in epsilons if (spread := row.attacked(attack, epsilon))]
            hints = [f"{row.name}, {name} {epsilon:g}: {_shown(spread, scale)}" for epsilon, spread in points]
            xs, ys = [epsilon for epsilon, _ in points], [scale.factor * spread.mean for _, spread in points]
            panel.line(xs, ys, hints, **_styles(report)[row.name])
        error_scale(panel.axis, epsilons, scale.top)
        panels.append(panel)
    return panels


def _by_epoch(row: Row, key: str) -> list[tuple[int, float]]:
    """The mean of a logged number over each epoch and over the seeds, at not too many epochs."""
    values: dict[int, list[float]] = {}
    for entry in row.entries:
        for record in entry.records:
            values.setdefault(record["epoch"], []).append(record[key])
    epochs = sorted(values)
    every = -(-len(epochs) // _MOST_POINTS)
    return [(epoch + 1, sum(values[epoch]) / len(values[epoch])) for epoch in epochs[::-every][::-1]]


def _by_round(row: Row, key: str) -> list[tuple[int, float]]:
    """The mean of a logged number over not too many blocks of rounds and over the seeds, at the last of each."""
    values: dict[int, list[float]] = {}
    rounds = 1 + max(record["step"] for entry in row.entries for record in entry.records)
    every = -(-rounds // _MOST_POINTS)
    for entry in row.entries:
        for record in entry.records:
            last = rounds - (rounds - 1 - record["step"]) // every * every
            values.setdefault(last, []).append(record[key])
    return [(last, sum(values[last]) / len(values[last])) for last in sorted(values)]


def trajectories(report: Report) -> list[Panel]:
    """gamma and E[c] over the epochs, or the rounds, for methods that learn gamma."""
    learned = [row for row in report.rows if row.first.config.make_method().robust]
    units = dict.fromkeys(row.unit for row in learned)  # epochs and rounds do not go on one axis
    return [panel for unit in units for panel in _trajectories(report, unit, [r for r in learned if r.unit == unit])]


def _trajectories(report: Report, unit: str, learned: Sequence[Row]) -> list[Panel]:
    panels = []
    for key, name in (("gamma", "gamma"), ("rho_eff", "E[c]")):
        title = "gamma, the price of transport" if key == "gamma" else "E[c], what the worst case spends"
        description = f"{title}, over the {unit}s of training, for the methods that learn gamma"
        panel = Panel(title, unit, name, description)
        panel.axis.set_yscale("log")
        curves.plain_ticks(panel.axis.yaxis)
        for row in learned:
            points = _by_round(row, key) if unit == "round" else _by_epoch(row, key)
            hints = [f"{row.name}, {unit} {place}: {name} {number(value)}" for place, value in points]
            xs, ys = [place for place, _ in points], [max(value, _LOWEST_COST) for _, value in points]
            panel.line(xs, ys, hints, **(_styles(report)[row.name] | {"markersize": 3}))
        if key == "rho_eff":
            for radius in sorted({row.first.config.radius or 0.0 for row in learned}):
                mark_radius(panel.axis, radius)
                where = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "top", "fontsize": 10}
                panel.axis.annotate(f"rho = {radius:g}", (0.99, 0.65 * radius), **where)
        panel.axis.xaxis.get_major_locator().set_params(integer=True)
        panels.append(panel)
    return panels


def certificate_curves(report: Report) -> list[Panel]:
    """Bound and attained worst loss against rho, a panel for each row, all on one scale."""
    panels = []
    for row in report.rows:
        if found := row.first.result(CERTIFICATES):
            seed = f", seed {row.first.config.seed}" if len(row.entries) > 1 else ""
            panels.append(certificate_panel(row.name, row.method, found, seed))
    highest = max((panel.axis.get_ylim()[1] for panel in panels), default=1.0)
    for panel in panels:
        panel.axis.set_ylim(0, highest)
    return panels


def certificate_panel(name: str, method: str, found: Certification, seed: str = "") -> Panel:
    """Bound (solid where proved, dashed where estimated), attained, and a cross where a gamma is tight."""
    description = f"Worst expected loss of {name}{seed} against the radius rho: {found.status} bound, and attained"
    panel = Panel(f"{name}{seed}: {found.status}", "rho", "worst expected loss", description, height=2.3)
    certificates = sorted(found, key=lambda one: one.radius)
    radii = [one.radius for one in certificates]
    bounds, attained = [one.bound for one in certificates], [one.attained for one in certificates]
    style = curves.style(method)
    draw_bounds(panel.axis, radii, bounds, attained, proved=found.status == "proved", **style)
    if tight := [one for one in certificates if math.isfinite(one.gamma) and one.rho_hat <= radii[-1]]:
        cross = {"linestyle": "none", "color": "#D1495B", "marker": "x", "markersize": 6, "markeredgewidth": 1.4}
        xs, ys = zip(*(one.tight for one in tight), strict=True)
        hints = [f"{name}: gamma {number(one.gamma)} is tight at rho_hat {number(one.rho_hat)}" for one in tight]
        panel.axis.plot(xs, ys, label="rho_hat = E c, where a gamma is tight", **cross)
        panel.hint(xs, ys, hints)
    values = [f"{one.status} {number(one.bound)}, attained {number(one.attained)}" for one in certificates]
    hints = [f"{name}, rho {radius:g}: {value}" for radius, value in zip(radii, values, strict=True)]
    panel.hint(radii, bounds, hints)
    panel.axis.set_ylim(0, 1.05 * max(bounds))
    return panel


def shift_charts(report: Report) -> list[Panel]:
    """Mean error under each shift, and over shifts beside ERM's."""
    shifts, styles, scale = report.shifts(), _styles(report), report.scale
    if not shifts:
        return []
    drawn = [
        (row.name, styles[row.name], {shift: spread for shift in shifts if (spread := shifted(row, shift))})
        for row in report.rows
    ]
    beside = "; dotted: erm" if any(row.method == "erm" for row in report.rows) else ""
    description, height = "Mean error over shifts by method", 0.9 + 0.3 * len(report.rows)
    every = Panel("Mean over shifts", f"mean {scale.axis}{beside}", "", description, height)
    for i, row in enumerate(report.rows):
        if spread := shifted(row):
            style, mean = styles[row.name], scale.factor * spread.mean
            every.axis.plot([0, mean], [i, i], color=style["color"], linewidth=5, alpha=0.4, solid_capstyle="butt")
            hint = f"{row.name}, mean over shifts: {_shown(spread, scale)}"
            every.line([mean], [float(i)], [hint], **(style | {"markersize": 7}))
            if row.method == "erm":
                every.axis.axvline(mean, color=GRAY, linestyle=":", linewidth=1.4)
    _names(every, [row.name for row in report.rows])
    return [shift_panel(shifts, drawn, scale), every]


def shift_panel(
    shifts: Sequence[str], drawn: Sequence[tuple[str, dict[str, Any], Mapping[str, Spread]]], scale: Scale
) -> Panel:
    """Names, in a style each, with their errors under the shifts."""
    band = 0.8 / len(drawn)  # names below each other, so that equal errors do not hide each other
    height = 0.9 + len(shifts) * max(0.25, 0.05 * len(drawn))
    description = "Mean error of every method under each shift"
    panel = Panel("Every shift", f"mean over severities: {scale.axis}", "", description, height)
    for place, (name, style, errors) in enumerate(drawn):
        points = [(i, shift, errors[shift]) for i, shift in enumerate(shifts) if shift in errors]
        hints = [f"{name}, {shift}: {_shown(spread, scale)}" for _, shift, spread in points]
        heights = [i - 0.4 + band * (place + 0.5) for i, _, _ in points]
        bare = style | {"linestyle": "none", "markersize": 4.5}
        panel.line([scale.factor * spread.mean for _, _, spread in points], heights, hints, label=name, **bare)
    for i in range(len(shifts) - 1):
        panel.axis.axhline(i + 0.5, color=GRAY, alpha=0.25, linewidth=0.8)
    _names(panel, shifts)
    return panel


def _names(panel: Panel, names: Sequence[str]) -> None:
    short = [textwrap.shorten(name, _LONGEST_NAME, placeholder="…") for name in names]  # the tables have them whole
    panel.axis.set_yticks(range(len(names)), short, parse_math=False)
    panel.axis.set_ylim(len(names) - 0.5, -0.5)
    panel.axis.set_xlim(left=0)
    panel.axis.grid(visible=False, axis="y")
