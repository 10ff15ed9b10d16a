"""The figures of a report: one panel each, so that they stay legible at any width, with a value at every point."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhobust import figures
from rhobust.report import Report
from rhobust.report.rows import Row, Spread
from rhobust.report.tables import attack_name, number, percent, shifted

_WIDTH, _HEIGHT = 4.3, 2.8  # inches, of 72 units: about one CSS pixel a unit on a phone
_LONGEST_NAME = 36  # letters beside an axis
_GRAY = "#808080"  # for axes: visible on white and on black
_LOWEST_COST = 1e-6  # the logarithm of no cost at all
_MOST_POINTS = 30
_MOST_TICKS = 7
_WORST = {"worst": "Worst of all attacks in l_inf", "worst-l2": "Worst of all attacks in l2"}


@dataclass(frozen=True)
class Chart:
    """A figure with its title; the SVG carries a description for those who do not see it."""

    title: str
    svg: str


class _Panel:
    """One axis to draw on, whose points tell their values."""

    def __init__(self, height: float = _HEIGHT) -> None:
        self.figure, axes = figures.new_figure(1, 1, _WIDTH, height)
        self.figure.set_facecolor("none")
        self.axis = axes[0][0]
        self.axis.set_facecolor("none")
        self.axis.spines[["top", "right"]].set_visible(False)
        self.axis.spines[["left", "bottom"]].set_color(_GRAY)
        self.axis.tick_params(which="both", color=_GRAY, labelsize=10)
        self.axis.grid(axis="both", color=_GRAY, alpha=0.2, linewidth=0.8)
        self._hints: dict[str, Sequence[str]] = {}

    def line(self, xs: Sequence[float], ys: Sequence[float], hints: Sequence[str], **style: Any) -> None:
        """A line with a text for each point."""
        self.axis.plot(xs, ys, clip_on=False, **style)
        self.hint(xs, ys, hints)

    def hint(self, xs: Sequence[float], ys: Sequence[float], hints: Sequence[str]) -> None:
        """Texts for points, on invisible markers that are easier to hit than what is seen."""
        name = f"hints-{len(self._hints)}"
        self.axis.plot(xs, ys, "o", markersize=10, alpha=0, markeredgewidth=0, clip_on=False, gid=name, zorder=9)
        self._hints[name] = hints

    def chart(self, title: str, x: str, y: str, description: str) -> Chart:
        """Finished, with the names of its axes."""
        self.axis.set_xlabel(x)
        self.axis.set_ylabel(y)
        return Chart(title, figures.to_svg(self.figure, description, self._hints))


def swatches(report: Report) -> dict[str, str]:
    """For every row, a piece of its line, as the address of an image."""
    from matplotlib.lines import Line2D

    drawn = {}
    for name, style in _styles(report).items():
        figure, axes = figures.new_figure(1, 1, 0.4, 0.17)
        axes[0][0].remove()
        figure.set_facecolor("none")
        figure.add_artist(Line2D([0.05, 0.5, 0.95], [0.5] * 3, markevery=[1], **(style | {"markersize": 5})))
        drawing = figures.to_svg(figure, f"line of {name}").encode()
        drawn[name] = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    return drawn


def _styles(report: Report) -> dict[str, dict[str, Any]]:
    """The style of every row: its method's; the second of the same method is thinner and dotted."""
    seen: dict[str, int] = {}
    styles = {}
    for row in report.rows:
        again = seen[row.method] = seen.get(row.method, -1) + 1
        other = {"linestyle": (":", "-.", (0, (5, 1, 1, 1, 1, 1)))[(again - 1) % 3], "linewidth": 1.5} if again else {}
        styles[row.name] = figures.style(row.method) | other
    return styles


def _percents(found: Spread) -> str:
    return f"{found.text(percent)} %"


def error_curves(report: Report) -> list[Chart]:
    """Error against epsilon, a panel for each attack."""
    charts = []
    for attack, epsilons in report.grid().items():
        panel, name = _Panel(), attack_name(attack)
        for row in report.rows:
            points = [(epsilon, spread) for epsilon in epsilons if (spread := row.attacked(attack, epsilon))]
            hints = [f"{row.name}, {name} {epsilon:g}: {_percents(spread)}" for epsilon, spread in points]
            xs, ys = [epsilon for epsilon, _ in points], [100 * spread.mean for _, spread in points]
            panel.line(xs, ys, hints, **_styles(report)[row.name])
        panel.axis.set_ylim(0, 100)
        if len(epsilons) <= _MOST_TICKS:
            panel.axis.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        size = "budget on E[c]" if attack == "wasserstein" else "epsilon"
        description = f"Error of every method against the {size} of the {name} attack; the numbers are in the tables"
        charts.append(panel.chart(_WORST.get(attack, f"{name} attack"), size, "error, %", description))
    return charts


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


def trajectories(report: Report) -> list[Chart]:
    """gamma and E[c] over the epochs, or the rounds, for methods that learn gamma."""
    learned = [row for row in report.rows if row.first.config.make_method().robust]
    units = dict.fromkeys(row.unit for row in learned)  # epochs and rounds do not go on one axis
    return [chart for unit in units for chart in _trajectories(report, unit, [r for r in learned if r.unit == unit])]


def _trajectories(report: Report, unit: str, learned: Sequence[Row]) -> list[Chart]:
    charts = []
    for key, name in (("gamma", "gamma"), ("rho_eff", "E[c]")):
        panel = _Panel()
        panel.axis.set_yscale("log")
        figures.plain_ticks(panel.axis.yaxis)
        for row in learned:
            points = _by_round(row, key) if unit == "round" else _by_epoch(row, key)
            hints = [f"{row.name}, {unit} {place}: {name} {number(value)}" for place, value in points]
            xs, ys = [place for place, _ in points], [max(value, _LOWEST_COST) for _, value in points]
            panel.line(xs, ys, hints, **(_styles(report)[row.name] | {"markersize": 3}))
        if key == "rho_eff":
            for radius in sorted({row.first.config.radius or 0.0 for row in learned}):
                panel.axis.axhline(radius, color=_GRAY, linestyle=":", linewidth=1.4)
                where = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "top", "fontsize": 10}
                panel.axis.annotate(f"rho = {radius:g}", (0.99, 0.65 * radius), **where)
        panel.axis.xaxis.get_major_locator().set_params(integer=True)
        title = "gamma, the price of transport" if key == "gamma" else "E[c], what the worst case spends"
        description = f"{title}, over the {unit}s of training, for the methods that learn gamma"
        charts.append(panel.chart(title, unit, name, description))
    return charts


def certificate_curves(report: Report) -> list[Chart]:
    """Bound and attained worst loss against rho, a panel for each row, all on one scale."""
    found = [(row, (row.first.result("certificates") or {}).get("certificates", [])) for row in report.rows]
    highest = max((one["bound"] for _, certificates in found for one in certificates), default=1.0)
    return [_certificates(row, certificates, highest) for row, certificates in found if certificates]


def _certificates(row: Row, certificates: Sequence[Mapping[str, Any]], highest: float) -> Chart:
    panel = _Panel(2.3)
    figures.draw_certificates(panel.axis, certificates, row.method)
    last = max(one["radius"] for one in certificates)
    for one in certificates:
        if one["gamma"] is not None and one["rho_hat"] <= last:
            tight = f"{row.name}: gamma {number(one['gamma'])} is tight at rho_hat {number(one['rho_hat'])}"
            panel.hint([one["rho_hat"]], [figures.tight_bound(one)], [tight])
    for one in certificates:
        values = f"{one['status']} {number(one['bound'])}, attained {number(one['attained'])}"
        panel.hint([one["radius"]], [one["bound"]], [f"{row.name}, rho {one['radius']:g}: {values}"])
    panel.axis.set_ylim(0, 1.05 * highest)
    status = "proved" if all(one["status"] == "proved" for one in certificates) else "estimated"
    seed = f", seed {row.first.config.seed}" if len(row.entries) > 1 else ""
    description = f"Worst expected loss of {row.name}{seed} against the radius rho: {status} bound, and attained"
    return panel.chart(f"{row.name}{seed}: {status}", "rho", "worst expected loss", description)


def shift_charts(report: Report) -> list[Chart]:
    """Mean error under each shift, and over shifts beside ERM's."""
    shifts = report.shifts()
    if not shifts:
        return []
    band = 0.8 / len(report.rows)  # rows below each other, so that equal errors do not hide each other
    each = _Panel(0.9 + len(shifts) * max(0.25, 0.05 * len(report.rows)))
    for place, row in enumerate(report.rows):
        points = [(spread, i) for i, shift in enumerate(shifts) if (spread := shifted(row, shift))]
        hints = [f"{row.name}, {shifts[i]}: {_percents(spread)}" for spread, i in points]
        heights = [i - 0.4 + band * (place + 0.5) for _, i in points]
        bare = _styles(report)[row.name] | {"linestyle": "none", "markersize": 4.5}
        each.line([100 * spread.mean for spread, _ in points], heights, hints, **bare)
    for i in range(len(shifts) - 1):
        each.axis.axhline(i + 0.5, color=_GRAY, alpha=0.25, linewidth=0.8)
    _names(each, shifts)
    every = _Panel(0.9 + 0.3 * len(report.rows))
    for i, row in enumerate(report.rows):
        if spread := shifted(row):
            style, mean = _styles(report)[row.name], 100 * spread.mean
            every.axis.plot([0, mean], [i, i], color=style["color"], linewidth=5, alpha=0.4, solid_capstyle="butt")
            hint = f"{row.name}, mean over shifts: {_percents(spread)}"
            every.line([mean], [float(i)], [hint], **(style | {"markersize": 7}))
            if row.method == "erm":
                every.axis.axvline(100 * spread.mean, color=_GRAY, linestyle=":", linewidth=1.4)
    _names(every, [row.name for row in report.rows])
    beside = "; dotted: erm" if any(row.method == "erm" for row in report.rows) else ""
    return [
        each.chart("Every shift", "mean error over severities, %", "", "Mean error of every method under each shift"),
        every.chart("Mean over shifts", f"mean error, %{beside}", "", "Mean error over shifts by method"),
    ]


def _names(panel: _Panel, names: Sequence[str]) -> None:
    short = [textwrap.shorten(name, _LONGEST_NAME, placeholder="…") for name in names]  # the tables have them whole
    panel.axis.set_yticks(range(len(names)), short, parse_math=False)
    panel.axis.set_ylim(len(names) - 0.5, -0.5)
    panel.axis.set_xlim(left=0)
    panel.axis.grid(visible=False, axis="y")
