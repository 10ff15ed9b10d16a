"""Axes to draw on: the caller's, or those of a new figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhobust.errors import Refused

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRAY = "#808080"  # of lines and ticks: visible on white and on black


def drawable(axes: Axes | None, x: str, y: str) -> Axes:
    """The given axes with these labels, or those of a new figure of pyplot's.

    A notebook shows such a figure at the end of its cell, and `pyplot.show()` in a window. pyplot keeps it until it is
    closed; axes that are given leave pyplot alone.
    """
    from matplotlib.axes import Axes as AnyAxes

    if axes is None:
        from matplotlib import pyplot

        _, axes = pyplot.subplots(layout="constrained")
    elif not isinstance(axes, AnyAxes):
        kind = type(axes).__name__
        raise Refused(f"axes must be one matplotlib Axes, such as pyplot.figure().subplots(), not {kind}")
    dress(axes, x, y)
    return axes


def dress(axes: Axes, x: str, y: str) -> None:
    """Labels and a light grid, without a frame."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRAY)
    axes.tick_params(which="both", color=GRAY)
    axes.grid(axis="both", color=GRAY, alpha=0.2, linewidth=0.8)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def on_the_right(axes: Axes, y: str) -> Axes:
    """Axes in the same place with a scale of their own on the right."""
    right = axes.twinx()
    right.spines[["top", "left", "bottom"]].set_visible(False)
    right.spines["right"].set_color(GRAY)
    right.tick_params(which="both", color=GRAY)
    right.set_ylabel(y)
    axes.figure.sca(axes)  # a title goes to the axes that were asked for
    return right
