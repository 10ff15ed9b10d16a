"""A number for every seed of a row, with its mean and its interval."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from rhobust.evaluation.intervals import interval


@dataclass(frozen=True)
class Spread:
    """A number for every seed: their mean, and half of their range.

    >>> Spread((0.2, 0.3)).text(lambda error: f"{100 * error:.1f}")
    '25.0 ± 5.0'
    """

    values: tuple[float, ...]
    samples: int | None = None
    """Test samples behind each, where they are errors."""
    ends: tuple[float, float] | None = None
    """The mean ends of their 95 % intervals, where they have intervals of their own."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of a mean error: what chance in drawing the samples leaves open."""
        if self.ends is not None:
            return self.ends
        return None if self.samples is None else interval(self.mean, self.samples)

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.values)

    @property
    def half_range(self) -> float:
        """(highest - lowest) / 2."""
        return (max(self.values) - min(self.values)) / 2

    def text(self, show: Callable[[float], str]) -> str:
        """mean ± half of the range, the latter only where there are several seeds."""
        return show(self.mean) + (f" ± {show(self.half_range)}" if len(self.values) > 1 else "")
