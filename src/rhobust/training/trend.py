"""The trend of a training: whether its objective still falls where it ends.

The means of psi over the epochs are a curve with noise, and so are those of the proximal residual
||theta - prox(theta - alpha g)|| / alpha. A line through the last quarter of a curve says by how much it fell there,
and the distances from that line by how much noise alone would make it fall. What counts is the share of all that the
curve has fallen since it was highest: a loss that went from 2.3 to 0.01 may go on to 0.009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

_FEWEST = 10  # points of a curve that tell a trend
_STEPS_A_POINT = 10  # where there are too few epochs, blocks of at least this number of steps take their place
_WINDOW = 0.25  # share of the points that is looked at, the last ones
_SHARE = 0.02  # of the fall since the highest point: less is no fall
_DEVIATIONS = 2.0  # standard errors that noise does not explain


@dataclass(frozen=True)
class Trend:
    """How a curve ended."""

    fall: float
    """By how much it fell over the last quarter of the points; below 0 where it rose."""
    noise: float
    """The standard error of that."""
    whole: float
    """By how much it has fallen since its highest point."""

    @property
    def share(self) -> float:
        """The fall over the last quarter as a share of the whole."""
        return self.fall / self.whole if self.whole > 0 else 0.0

    @property
    def falls(self) -> bool:
        """Whether it still falls: by more than noise explains, and enough to matter."""
        return self.fall > _DEVIATIONS * self.noise and self.share > _SHARE


@dataclass(frozen=True)
class Trends:
    """Of the mean of psi and of the proximal residual."""

    value: Trend
    stationarity: Trend

    @property
    def settled(self) -> bool:
        """Whether neither falls any more."""
        return not (self.value.falls or self.stationarity.falls)

    @property
    def doubt(self) -> str | None:
        """Why the training should have gone on, if it should."""
        if not self.value.falls:
            return None
        residual = f"and the proximal residual by {max(self.stationarity.share, 0):.0%}"
        return (
            f"the objective still falls: over the last quarter of the training by {self.value.fall:.3g}, "
            f"{self.value.share:.0%} of all that it has fallen, {residual}. Train longer (epochs), or raise the "
            "learning rate"
        )


def trends(records: Sequence[Mapping[str, Any]]) -> Trends | None:
    """The trends of some metrics, in their order; none where there are too few to tell."""
    points = _points(records)
    if points is None:
        return None
    value, stationarity = (
        trend([fmean(record[key] for record in point) for point in points]) for key in ("value", "stationarity")
    )
    return Trends(value, stationarity)


def unsettled(records: Sequence[Mapping[str, Any]], schedule: str = "constant") -> str | None:
    """Why a training with these metrics should have gone on, if it should.

    Only a constant rate lets its metrics tell: one that falls to zero flattens any curve.
    """
    found = trends(records) if schedule == "constant" else None
    return None if found is None else found.doubt


def trend(curve: Sequence[float]) -> Trend:
    """The trend of a curve at its end, by least squares.

    >>> trend([10, 8, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3]).falls, trend([10, 5, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]).falls
    (True, False)
    """
    last = list(curve[-max(4, math.ceil(_WINDOW * len(curve))) :])
    count = len(last)
    middle, mean = (count - 1) / 2, fmean(last)
    spread = math.fsum((i - middle) ** 2 for i in range(count))
    slope = math.fsum((i - middle) * (y - mean) for i, y in enumerate(last)) / spread
    error = math.fsum((y - mean - slope * (i - middle)) ** 2 for i, y in enumerate(last)) / (count - 2)
    return Trend(-slope * (count - 1), math.sqrt(error / spread) * (count - 1), max(curve) - last[-1])


def _points(records: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]] | None:
    """The records by epoch, or, where there are too few epochs, in blocks."""
    epochs: dict[int, list[Mapping[str, Any]]] = {}
    for record in records:
        epochs.setdefault(record["epoch"], []).append(record)
    if len(epochs) >= _FEWEST:
        return list(epochs.values())
    size = len(records) // _FEWEST
    if size < _STEPS_A_POINT:
        return None
    used = records[len(records) % size :]  # the first steps of all are the least telling
    return [list(used[start : start + size]) for start in range(0, len(used), size)]
