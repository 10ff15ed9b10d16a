"""Figures, each drawn from plain numbers; matplotlib is imported when the first one is."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from rhobust.errors import ConfigError
from rhobust.files import write_atomically

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
_MOST_COLUMNS = 9  # of a legend; more are put in two rows
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


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


def error_curves(errors: Mapping[str, Mapping[str, Mapping[float, float]]]) -> Figure:
    """Error against epsilon, a panel for each attack: errors[method][attack][epsilon], fractions."""
    attacks = list(next(iter(errors.values())))
    figure, axes = new_figure(len(attacks), 1, 4.2 * len(attacks), 4.2)
    for axis, attack in zip(axes[0], attacks, strict=True):
        for method, by_attack in errors.items():
            points = sorted(by_attack[attack].items())
            axis.plot(*zip(*points, strict=True), label=method, **style(method))
        axis.set_title("the worst of all attacks" if attack == "worst" else f"{attack.upper()} attack")
        axis.set_xlabel("epsilon (pixels in [-1, 1])")
        axis.set_ylim(0, 1)
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("error")
    handles, labels = axes[0][0].get_legend_handles_labels()
    columns = len(labels) if len(labels) <= _MOST_COLUMNS else -(-len(labels) // 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def shift_curves(errors: Mapping[str, Mapping[str, Mapping[int, float]]], means: Mapping[str, float]) -> Figure:
    """Error against severity, a panel for each shift, and the mean over all: errors[method][shift][severity]."""
    shifts = list(next(iter(errors.values())))
    columns = min(5, len(shifts) + 1)
    figure, axes = new_figure(columns, math.ceil((len(shifts) + 1) / columns), 2.6 * columns, 5.2)
    panels = list(axes.flat)
    for panel, shift in zip(panels, shifts, strict=False):
        for method, by_shift in errors.items():
            panel.plot(*zip(*sorted(by_shift[shift].items()), strict=True), label=method, **style(method))
        panel.set_title(shift)
        panel.set_xlabel("severity")
        panel.set_xticks(sorted(next(iter(errors.values()))[shift]))
        panel.grid(alpha=0.25)
    overall = panels[len(shifts)]
    overall.bar(list(means), list(means.values()), color=[style(method)["color"] for method in means])
    overall.set_title("mean over shifts")
    for panel in panels[: len(shifts) + 1]:
        panel.set_ylim(bottom=0)
        panel.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    for panel in panels[len(shifts) + 1 :]:
        panel.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def certificate_curve(certificates: Sequence[Mapping[str, Any]], method: str) -> Figure:
    """Bound and attained worst-case loss against the radius, with a legend."""
    figure, axes = new_figure(1, 1, 6.4, 4.2)
    axis = axes[0][0]
    draw_certificates(axis, certificates, method)
    axis.set_xlabel("radius rho, in squared pixels")
    axis.set_ylabel("worst expected loss")
    axis.set_title(f"certificates of {method}")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    return figure


def draw_certificates(axis: Any, certificates: Sequence[Mapping[str, Any]], method: str) -> None:
    """Bound (solid where proved, dashed where estimated), attained, and a cross where a gamma is tight."""
    found = sorted(certificates, key=lambda one: one["radius"])
    radii = [one["radius"] for one in found]
    bounds, attained = [one["bound"] for one in found], [one["attained"] for one in found]
    proved = all(one["status"] == "proved" for one in found)
    name = "bound, proved" if proved else "dual value, estimated"
    axis.plot(radii, bounds, label=name, **(style(method) | {"linestyle": "-" if proved else "--"}))
    own = {"color": "#808080", "linestyle": "none", "marker": "v", "markersize": 8, "markerfacecolor": "none"}
    axis.plot(radii, attained, label="attained by a distribution in the ball", **own)
    axis.fill_between(radii, attained, bounds, color=style(method)["color"], alpha=0.12, linewidth=0)
    tight = [
        (one["rho_hat"], tight_bound(one)) for one in found if one["gamma"] is not None and one["rho_hat"] <= max(radii)
    ]
    if tight:
        crosses = {"linestyle": "none", "color": "#D1495B", "markersize": 6, "markeredgewidth": 1.4}
        axis.plot(*zip(*tight, strict=True), marker="x", label="rho_hat = E c, where a gamma is tight", **crosses)


def tight_bound(certificate: Mapping[str, Any]) -> float:
    """The line of a certificate's gamma at rho_hat, where it touches the curve of worst cases."""
    return float(certificate["bound"] + certificate["gamma"] * (certificate["rho_hat"] - certificate["radius"]))


def to_svg(figure: Figure, title: str, hints: Mapping[str, Sequence[str]] | None = None) -> str:
    """The figure as an SVG element to put into a page, the same bytes at every drawing.

    `hints` are texts that show when the pointer rests on a marker: for the gid of a line, one for each of its points.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(buffer.getvalue())
    groups = {group.get("id"): group for group in root.iter(f"{{{_SVG}}}g")}
    for line, texts in (hints or {}).items():
        for point, text in zip(groups[line].iter(f"{{{_SVG}}}use"), texts, strict=True):
            ElementTree.SubElement(point, f"{{{_SVG}}}title").text = text
    for group in groups.values():  # a page may hold many figures, and an id only once
        group.attrib.pop("id", None)
    for part in (*root.findall(f"{{{_SVG}}}metadata"), *root.findall(f"{{{_SVG}}}defs")):
        root.remove(part)  # the one on top holds a style for every element of the page
    for side in ("width", "height"):
        del root.attrib[side]
    root.attrib |= {"role": "img", "aria-label": title, "stroke-linejoin": "round", "stroke-linecap": "butt"}
    return ElementTree.tostring(root, encoding="unicode")


def check_path(path: Path | None) -> None:
    """Refuse a kind of file that no figure is written as; before the work, not after it."""
    if path is not None and path.suffix not in (".png", ".svg"):
        raise ConfigError([f"a figure is written as .png or .svg, not '{path.name}'"])


def save(figure: Figure, path: Path) -> None:
    """Write PNG or SVG, by the suffix, atomically."""
    check_path(path)
    kind = path.suffix.lstrip(".")
    if kind == "svg":
        write_atomically(path, to_svg(figure, path.stem).encode())
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomically(path, buffer.getvalue())
