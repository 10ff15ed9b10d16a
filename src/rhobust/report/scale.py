"""How the errors of a report are shown: shares in percent, or the RMSE of regressions in the unit of y."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rhobust.data.samples import REGRESSION


def percent(error: float) -> str:
    """A fraction in percent, without the sign."""
    return f"{100 * error:.1f}"


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}"


@dataclass(frozen=True)
class Scale:
    """What an error is called, and how it is written and drawn."""

    name: str
    measured: str
    """With its unit."""
    axis: str
    unit: str
    factor: float
    """From the error to what an axis shows."""
    top: float | None
    """Where the axis ends."""
    text: Callable[[float], str]

    @property
    def caption(self) -> str:
        """At the head of a table."""
        return self.measured[0].upper() + self.measured[1:]


PERCENT = Scale("error", "error in percent", "error, %", " %", 100, 100, percent)
RMSE = Scale("RMSE", "RMSE in the unit of y", "RMSE", "", 1, None, number)


def scale_of(task: str) -> Scale:
    """The scale of the errors of a task."""
    return RMSE if task == REGRESSION else PERCENT
