"""The trend of a training: whether its objective still falls where it ends.

The means of psi over the epochs are a curve with noise, and so are those of the proximal residual
||theta - prox(theta - alpha g)|| / alpha. A line through the last quarter of a curve says by how much it fell there,
and the distances from that line by how much noise alone would make it fall. What counts is the share of all that the
curve has fallen since it was highest: a loss that went from 2.3 to 0.01 may go on to 0.009.

A curve that cannot be shown to fall is not yet flat: with few points noise hides any fall. So there are two questions.
`falls`, for a warning, wants a fall that noise does not explain. `flat`, to end a training, wants that noise hides none
that matters. For a curve like 1 / t what is left to fall is three times the fall over the last quarter.
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
_LEFT = 0.005  # of the fall since the highest point: a fall that may be hidden in a flat curve


@dataclass(frozen=True)
class Trend:
    """How a curve ended."""

    fall: float
    """By how much it fell over the last quarter of the points; below 0 where it rose."""
    noise: float
    """The standard error of that."""
    deviation: float
    """The standard deviation of a point from the line."""
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

    @property
    def flat(self) -> bool:
        """Whether noise hides no fall that matters, one above half a percent of the whole and above a single deviation.

        Without the second a curve that is all noise, whose whole is noise, too, would never be flat. A rise is no
        evidence against a fall: of curves that are looked at again and again, some seem to rise.
        """
        hidden = max(self.fall, 0.0) + _DEVIATIONS * self.noise
        return not self.falls and hidden <= max(_LEFT * self.whole, self.deviation)


@dataclass(frozen=True)
class Trends:
    """Of the mean of psi and of the proximal residual."""

    value: Trend
    stationarity: Trend

    @property
    def settled(self) -> bool:
        """Whether both are flat."""
        return self.value.flat and self.stationarity.flat

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
    deviation = math.sqrt(math.fsum((y - mean - slope * (i - middle)) ** 2 for i, y in enumerate(last)) / (count - 2))
    noise = deviation / math.sqrt(spread) * (count - 1)
    return Trend(-slope * (count - 1), noise, deviation, max(curve) - last[-1])


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
