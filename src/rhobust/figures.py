"""Figures, each drawn from plain numbers; matplotlib is imported when the first one is."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

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
    "wrm": "#CC79A7",
    "spgd": "#0072B2",
    "spgda": "#009E73",
    "spgda-margin": "#56B4E9",
}
_RIGHT, _WRONG = "#1B7837", "#B2182B"


def _style(method: str) -> dict[str, Any]:
    literal = method.endswith("-literal")
    color = _COLORS.get(method.removesuffix("-literal"), "#000000")
    return {"color": color, "linestyle": "--" if literal else "-", "linewidth": 1.4 if literal else 2.0}


def _new(columns: int, rows: int, width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    return figure, figure.subplots(rows, columns, squeeze=False)


def error_curves(errors: Mapping[str, Mapping[str, Mapping[float, float]]]) -> Figure:
    """Error against epsilon, a panel for each attack: errors[method][attack][epsilon], fractions."""
    attacks = list(next(iter(errors.values())))
    figure, axes = _new(len(attacks), 1, 4.2 * len(attacks), 4.2)
    for axis, attack in zip(axes[0], attacks, strict=True):
        for method, by_attack in errors.items():
            points = sorted(by_attack[attack].items())
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3.5, label=method, **_style(method))
        axis.set_title(f"{attack.upper()} attack")
        axis.set_xlabel("epsilon (pixels in [-1, 1])")
        axis.set_ylim(0, 1)
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("error")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 9), frameon=False)
    return figure


def trajectories(metrics: Mapping[str, Sequence[Mapping[str, Any]]], radius: float) -> Figure:
    """gamma and E[c] against steps, for the methods that learn gamma; the radius is the dotted line."""
    figure, axes = _new(2, 1, 10, 3.8)
    price, spent = axes[0]
    for method, records in metrics.items():
        steps = [record["step"] for record in records]
        price.plot(steps, [record["gamma"] for record in records], label=method, **_style(method))
        costs = [max(record["rho_eff"], 1e-6) for record in records]
        spent.plot(steps, costs, alpha=0.25, **(_style(method) | {"linewidth": 0.8}))
        spent.plot(steps, _smoothed(costs), label=method, **_style(method))
    spent.axhline(radius, color="black", linestyle=":", linewidth=1.2)
    spent.annotate(f"rho = {radius:g}", (0.01, radius), xycoords=("axes fraction", "data"), va="bottom", fontsize=9)
    for axis, title in ((price, "gamma, the price of transport"), (spent, "E[c], what the worst case spends")):
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.set_yscale("log")
        axis.grid(alpha=0.25)
    handles, labels = price.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def certificate_curve(certificates: Sequence[Mapping[str, Any]], method: str) -> Figure:
    """Bound and attained worst-case loss against the radius; the tight points rho_hat are marked on the bound."""
    figure, axes = _new(1, 1, 6.4, 4.2)
    axis = axes[0][0]
    found = sorted(certificates, key=lambda one: one["radius"])
    radii = [one["radius"] for one in found]
    bounds, attained = [one["bound"] for one in found], [one["attained"] for one in found]
    proved = all(one["status"] == "proved" for one in found)
    name = "bound, proved" if proved else "dual value, estimated"
    axis.plot(radii, bounds, marker="o", label=name, **(_style(method) | {"linestyle": "-" if proved else "--"}))
    axis.plot(radii, attained, marker="v", color="black", linewidth=1.2, label="attained by a distribution in the ball")
    axis.fill_between(radii, attained, bounds, color=_style(method)["color"], alpha=0.12, linewidth=0)
    tight = [
        (one["rho_hat"], one["bound"] + one["gamma"] * (one["rho_hat"] - one["radius"]))
        for one in found
        if one["gamma"] is not None and one["rho_hat"] <= max(radii)
    ]
    if tight:
        axis.plot(*zip(*tight, strict=True), "x", color="#B2182B", label="rho_hat = E c, where a gamma is tight")
    axis.set_xlabel("radius rho, in squared pixels")
    axis.set_ylabel("worst expected loss")
    axis.set_title(f"certificates of {method}")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    return figure


def _smoothed(values: Sequence[float], window: int = 12) -> list[float]:
    """Mean of the last `window` values."""
    return [sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def example_grid(
    clean: Tensor, labels: Tensor, attacked: Mapping[str, tuple[Tensor, Tensor]], bounds: tuple[float, float], note: str
) -> Figure:
    """Samples in columns; the clean ones on top, below them what the attack made of each for every model.

    attacked[method] = (images, predictions); a prediction is green where it is right and red where it is wrong.
    """
    count = len(clean)
    figure, axes = _new(count, 1 + len(attacked), 1.05 * count + 1.7, 1.3 * (1 + len(attacked)) + 0.4)
    rows = {"clean, true label": (clean, labels), **attacked}
    for row, (name, (images, predictions)) in zip(axes, rows.items(), strict=True):
        for axis, image, label, prediction in zip(row, images, labels, predictions, strict=True):
            axis.imshow(image.squeeze().numpy(), cmap="gray", vmin=bounds[0], vmax=bounds[1])
            axis.set_xticks([])
            axis.set_yticks([])
            right = int(prediction) == int(label)
            axis.set_xlabel(f"{int(prediction)}", color=_RIGHT if right else _WRONG, fontweight="bold", labelpad=2)
            for side in axis.spines.values():
                side.set_color(_RIGHT if right else _WRONG)
                side.set_linewidth(1.5)
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.suptitle(note, fontsize=10)
    return figure


def to_svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element to put into a page, the same bytes at every drawing."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*pt"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*pt"', r"\1", svg, count=1))
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def save(figure: Figure, path: Path) -> None:
    """Write PNG or SVG, by the suffix, atomically."""
    kind = path.suffix.lstrip(".")
    if kind not in ("png", "svg"):
        raise ConfigError([f"a figure is written as .png or .svg, not '{path.name}'"])
    if kind == "svg":
        write_atomically(path, to_svg(figure, path.stem).encode())
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomically(path, buffer.getvalue())
