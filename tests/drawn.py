"""What is drawn on axes, as plain values."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D


def points(line: Line2D) -> list[list[float]]:
    """The corners of a line."""
    found: list[list[float]] = np.asarray(line.get_xydata()).tolist()
    return found


def legend(axes: Axes) -> list[str]:
    """The words of the legend."""
    found = axes.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]
