"""How far apart the inputs of a training are: their deviations, and what it costs to move them to one point.

`radius_per_feature` is the a for which a move of every feature by a of its standard deviations costs the radius. Costs
are squared norms, so rho = a^2 c(0, sigma): for the squared l2 cost, a = sqrt(rho / sum of the variances).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rhobust.box import Bounds, Box
from rhobust.costs import Cost
from rhobust.data.batches import Batch, Batches

MOST_SAMPLES = 1000
"""As many are looked at before something is said."""


def deviations(x: Tensor, cost: Cost, bounds: Bounds = None) -> Tensor:
    """The standard deviation of every feature that may move, else 0, in the shape of a sample."""
    found = x.std(0, correction=0)
    for fixed in (cost.fixed, bounds.fixed if isinstance(bounds, Box) else None):
        found = found if fixed is None else found.masked_fill(fixed.to(x.device), 0)
    return found


def price_of(sigma: Tensor, cost: Cost) -> float:
    """c(0, sigma), the cost of a move by one standard deviation of every feature.

    >>> from rhobust.costs import SquaredL2
    >>> price_of(torch.tensor([3.0, 4.0]), SquaredL2())
    25.0
    """
    return float(cost(torch.zeros_like(sigma)[None], sigma[None])[0])


def per_feature(radius: float, price: float) -> float | None:
    """The radius in standard deviations of every feature; none where nothing differs.

    >>> per_feature(0.25, 25.0)
    0.1
    """
    return math.sqrt(radius / price) if 0 < price < math.inf else None


class InputSpread:
    """Deviations of inputs and the cost of moving them to one point, from batches that are not kept."""

    def __init__(self, cost: Cost) -> None:
        self.cost, self.count = cost, 0
        self._mean = self._squares = self._low = self._high = torch.zeros(())
        # On moves to the mean, the best for costs of squares, and to the middle, that for the largest change.
        self._spent = (0.0, 0.0)

    def add(self, x: Tensor) -> None:
        """Some more inputs, (B, ...)."""
        values, before, self.count = x.detach().double(), self.count, self.count + len(x)
        center = values.mean(0)
        apart = center - self._mean
        self._squares = (
            self._squares + (values - center).square().sum(0) + apart.square() * before * len(x) / self.count
        )
        self._mean = self._mean + apart * len(x) / self.count
        self._low = torch.minimum(self._low, values.amin(0)) if before else values.amin(0)
        self._high = torch.maximum(self._high, values.amax(0)) if before else values.amax(0)
        mean, middle = (
            float(self.cost(x, point.to(x).expand_as(x)).sum()) for point in (self._mean, (self._low + self._high) / 2)
        )
        self._spent = self._spent[0] + mean, self._spent[1] + middle

    @property
    def to_one_point(self) -> float:
        """What a move to one point costs on average, with the better of two points."""
        return min(self._spent) / max(self.count, 1)

    @property
    def deviations(self) -> Tensor:
        """Of every feature, in the shape of a sample."""
        return (self._squares / max(self.count, 1)).sqrt()


def spread_of(cost: Cost, x: Tensor) -> InputSpread:
    """The spread of inputs in memory, estimated on some that are drawn from them."""
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:MOST_SAMPLES]
    found = InputSpread(cost)
    found.add(x[chosen.to(x.device)])
    return found


class WatchedBatches(Batches):
    """Batches of a loader or a `Dataset`, whose first samples are looked at as they pass, and not kept."""

    def __init__(self, batches: Batches, cost: Cost, told: Callable[[InputSpread], None]) -> None:
        self.batches, self.told, self.full = batches, told, batches.full
        self._spread: InputSpread | None = InputSpread(cost)

    def steps(self) -> int | None:
        return self.batches.steps()

    def smallest(self) -> int | None:
        return self.batches.smallest()

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        for batch in self.batches.epoch(number, skip):
            if self._spread is not None:
                self._look_at(self._spread, batch.x)
            yield batch
        self._tell()

    def _look_at(self, spread: InputSpread, x: Tensor) -> None:
        if not x.is_floating_point() or (spread.count and x.shape[1:] != spread.deviations.shape):
            self._spread = None  # the training has its own words for that
            return
        spread.add(x)
        if spread.count >= MOST_SAMPLES:
            self._tell()

    def _tell(self) -> None:
        if self._spread is not None and self._spread.count > 1:
            self.told(self._spread)
        self._spread = None
