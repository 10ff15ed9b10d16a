"""Curves of methods, each with its color, marker and line, on panels that show their values."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhobust.charts.axes import dress
from rhobust.charts.svg import save, to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# One color a method everywhere, legible in print and to color-blind eyes (after Okabe and Ito); literal variants
# share the color of the method they are the letter of, dashed.
_COLORS = {
    "erm": "#666666",
    "fgsm": "#E69F00",
    "ifgsm": "#D55E00",
    "nfgsm": "#882255",
    "wrm": "#CC79A7",
    "spgd": "#0072B2",
    "spgda": "#7B61FF",
    "spgda-loss": "#009E73",
    "spgda-margin": "#56B4E9",
    "drfl": "#9467BD",
    "drfl-loss": "#117733",
    "drfl-spgd": "#332288",
    "drfl-margin": "#44AAAA",
    "fedavg": "#AA4499",
}
_LETTER_OF = {"spgd-literal": "spgd", "spgda-literal": "spgda-loss", "drfl-literal": "drfl-loss"}
# Nothing is told by color alone.
_MARKERS = {
    "erm": "o",
    "fgsm": "^",
    "ifgsm": "v",
    "nfgsm": ">",
    "wrm": "D",
    "spgd": "s",
    "spgda": "p",
    "spgda-loss": "P",
    "spgda-margin": "X",
    "drfl": "H",
    "drfl-loss": "*",
    "drfl-spgd": "d",
    "drfl-margin": "<",
    "fedavg": "h",
}
_WIDTH = 4.3  # of a panel, in inches of 72 units: about one CSS pixel a unit on a phone


def style(method: str) -> dict[str, Any]:
    """Color, marker and line of a method, the same in every figure; what follows a comma is a remark."""
    method = method.partition(",")[0]
    literal = method.endswith("-literal")
    name = _LETTER_OF.get(method, method)
    return {
        "color": _COLORS.get(name, "#8C6D31"),
        "marker": _MARKERS.get(name, "8"),
        "markersize": 4,
        "markerfacecolor": "none" if literal else None,
        "linestyle": "--" if literal else "-",
        "linewidth": 1.4 if literal else 2.0,
    }


def new_figure(columns: int, rows: int, width: float, height: float) -> tuple[Figure, Any]:
    """A figure in inches without a window, and its axes, (rows, columns)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    return figure, figure.subplots(rows, columns, squeeze=False)


def plain_ticks(axis: Any) -> None:
    """On a logarithmic axis, 0.2 and 0.000001, not 2 × 10⁻¹ and 1e-06, at the ticks that would have a number."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{Decimal(f'{x:.3g}'):f}" if super().__call__(x, pos) else ""

    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain())


class Panel:
    """A figure of one axis, whose points tell their values; the description is for those who do not see it."""

    def __init__(self, title: str, x: str, y: str, description: str, height: float = 2.8) -> None:
        self.title, self.description = title, description
        self.figure, axes = new_figure(1, 1, _WIDTH, height)
        self.figure.set_facecolor("none")
        self.axis = axes[0][0]
        self.axis.set_facecolor("none")
        dress(self.axis, x, y)
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

    @property
    def svg(self) -> str:
        """An element for a page, which says the title and has a legend for all its panels."""
        return to_svg(self.figure, self.description, self._hints)

    def save(self, path: Path) -> None:
        """A larger file of its own, with title and legend."""
        self.axis.set_title(self.title)
        self.figure.set_size_inches(*(1.5 * self.figure.get_size_inches()))
        self.figure.set_facecolor("white")
        self.figure.legend(loc="outside lower center", frameon=False)
        save(self.figure, path, self._hints)
