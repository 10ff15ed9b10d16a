"""Transport costs between samples, and the radius that covers a ball, both in units of rho = E c.

Three estimates of W_c(P, Q) = min over couplings of E c(x, x') between two samples:

    exact         the optimal transport of the samples, by linear programming
    subsampled    its mean over disjoint subsamples, for samples too large for that
    sliced        the sum of the 1-d transport costs along an orthonormal basis; l2 only, never above `exact`

Two samples of the *same* distribution are at a positive cost too, a large one in many dimensions. So each comes with a
comparison of equal sizes: what no drift at all looks like, and the excess over it. Labels are left out of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rhobust.box import Bounds, limits
from rhobust.checks import seed_problems
from rhobust.costs import Cost, SquaredL2, rows
from rhobust.errors import ConfigError, DataError, unknown

METHODS = ("auto", "exact", "subsampled", "sliced")
NORMS = ("inf", "2")

_EXACT = 2_000  # samples a side that are transported exactly without being asked: about two seconds
_LARGEST = 10_000  # ... and if asked: minutes, and a matrix of 0.8 GB
_REPEATS = 5  # disjoint subsamples, so that their spread is an honest error
_CHANCE = 2.776  # standard errors that hold 95 % of chance: Student's t for a mean of five, not the 2 of a large sample
_FARTHEST = 1e100  # whose square is still a number
_DRAWN = 1_000  # samples in each at most: in many dimensions the cost hardly depends on it
_DIRECTIONS, _POINTS = 64, 4_096  # projected, or looked at, at a time: this bounds the memory


Price = Callable[[Tensor, Tensor], float]
"""Transport cost between two samples."""


@dataclass(frozen=True)
class Estimate:
    """A mean over independent repeats, and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Of two values or more.

        >>> Estimate.of([1.0, 3.0])
        Estimate(value=2.0, error=1.0)
        """
        return cls(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)))


@dataclass(frozen=True)
class Comparison:
    """Drift against no drift, both from disjoint subsamples of one size, so that the same bias is in both."""

    repeats: int
    size: int
    """Samples a side."""
    drifted: Estimate
    """Cost between subsamples of the one and of the other."""
    baseline: Estimate
    """Cost between two disjoint subsamples of the first: what no drift looks like."""
    excess: Estimate
    """drifted - baseline, repeat by repeat. For a translation by v its mean is ||v||^2 under squared l2."""

    @property
    def drift(self) -> int:
        """1 or -1, the sign of the excess, where it is more than chance (95 %, Student's t); else 0."""
        return 0 if abs(self.excess.value) <= _CHANCE * self.excess.error else (1 if self.excess.value > 0 else -1)


@dataclass(frozen=True)
class Transport:
    """What it costs to move one sample onto another, in the units of rho."""

    kind: str
    """exact, subsampled or sliced."""
    value: float
    error: float | None
    """Standard error where the value is a mean over subsamples; None where it is a fact about the two samples."""
    samples: tuple[int, int]
    comparison: Comparison | None
    """None where the samples are too few to be divided."""


@dataclass(frozen=True)
class Covering:
    """The smallest rho whose Wasserstein ball holds every distribution that moves no sample farther than epsilon."""

    free: float
    """If a sample may go anywhere."""
    boxed: float | None
    """If it has to stay within the bounds of the data; None where none are known."""
    features: int


def transport_cost(x: Tensor, y: Tensor, cost: Cost | None = None, method: str = "auto", seed: int = 0) -> Transport:
    """Transport cost between the samples x (N, ...) and y (M, ...), and what it would be without any drift.

    `auto` is exact up to 2,000 samples a side, subsampled above. `seed` draws the subsamples and the directions.

    >>> x = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    >>> transport_cost(x, x.flip(0) + torch.tensor([3.0, 4.0])).value  # a translation by v costs ||v||^2
    25.0
    """
    cost = cost or SquaredL2()
    _check_samples(x, y)
    largest = max(len(x), len(y))
    kind = method if method != "auto" else "exact" if largest <= _EXACT else "subsampled"
    wrong = [] if method in METHODS else [unknown("method", method, METHODS)]
    wrong += seed_problems(seed)
    if kind == "sliced" and not isinstance(cost, SquaredL2):
        wrong.append("method 'sliced' adds up squared differences along directions, so it needs the cost l2")
    if kind == "exact" and largest > _LARGEST:
        wrong.append(f"method 'exact' takes at most {_LARGEST} samples a side, not {largest}: choose subsampled")
    if wrong:
        raise ConfigError(wrong)
    draws = torch.Generator().manual_seed(seed)
    if kind == "sliced":
        price: Price = partial(_sliced, basis=_orthonormal(rows(x).shape[1], draws))
    else:
        price = partial(_exact, cost=cost)
    comparison = _compared(x, y, price, draws)
    if kind != "subsampled":
        return Transport(kind, price(x, y), None, (len(x), len(y)), comparison)
    if comparison is None:
        raise DataError(f"too few samples to be divided: {len(x)} and {len(y)}; choose the method exact")
    return Transport(kind, comparison.drifted.value, comparison.drifted.error, (len(x), len(y)), comparison)


def covering_radius(epsilon: float, norm: str, cost: Cost | None, x: Tensor, bounds: Bounds = None) -> Covering:
    """The rho that covers an l_inf or l_2 ball: the mean over samples of the largest c within ||d|| <= epsilon.

    Without bounds, for d features and c = ||.||_p^2: d^(2/p) epsilon^2 for l_inf, and for l_2 d^(2/p - 1) epsilon^2
    where p <= 2, else epsilon^2.

    >>> x = torch.zeros(1, 784)
    >>> round(covering_radius(0.1, "inf", None, x).free, 6), round(covering_radius(0.1, "2", None, x).free, 6)
    (7.84, 0.01)
    >>> covering_radius(3.0, "inf", None, torch.tensor([[0.5]]), bounds=(-1, 1)).boxed  # there is room for 1.5
    2.25
    """
    cost = cost or SquaredL2()
    wrong = [] if norm in NORMS else [unknown("norm", norm, NORMS)]
    if not 0 <= epsilon <= _FARTHEST:
        wrong.append(f"epsilon must be >= 0 and at most {_FARTHEST:g}, not {epsilon}")
    if wrong:
        raise ConfigError(wrong)
    _check_samples(x, x)
    features = rows(x).shape[1]
    anywhere = torch.full((1, features), epsilon, dtype=torch.double)  # the ball itself asks for no more room
    free = float(_largest_costs(epsilon, norm, cost, anywhere))
    if bounds is None:
        return Covering(free, None, features)
    ends, mask = limits(bounds, x[:1].double())
    low, high = (torch.as_tensor(end).reshape(-1) for end in ends or (-math.inf, math.inf))
    moves = 1.0 if mask is None else mask.reshape(-1).double()  # what is fixed has no room
    if bool((rows(x) < low).any() or (rows(x) > high).any()):
        raise DataError(f"samples lie outside the bounds {bounds}")
    parts = map(Tensor.double, torch.split(rows(x), _POINTS))
    rooms = (torch.maximum(part - low, high - part) * moves for part in parts)
    boxed = torch.cat([_largest_costs(epsilon, norm, cost, room) for room in rooms])
    return Covering(free, float(boxed.mean()), features)


def _check_samples(x: Tensor, y: Tensor) -> None:
    if x.ndim < 2 or x.shape[1:] != y.shape[1:]:
        raise DataError(f"samples must be (N, ...) and (M, ...) alike, not {tuple(x.shape)} and {tuple(y.shape)}")
    if not (x.numel() and y.numel()):
        raise DataError(f"nothing to transport: {tuple(x.shape)} and {tuple(y.shape)}")
    if not bool(x.isfinite().all() and y.isfinite().all()):
        raise DataError("samples hold NaN or infinite values; clean the data")


def _compared(x: Tensor, y: Tensor, price: Price, draws: torch.Generator) -> Comparison | None:
    """Drift and no drift over disjoint subsamples of one size."""
    size = min(len(x) // (2 * _REPEATS), len(y) // _REPEATS, _DRAWN)
    if size == 0:
        return None
    own = torch.split(torch.randperm(len(x), generator=draws), size)
    other = torch.split(torch.randperm(len(y), generator=draws), size)
    drifted, baseline = [], []
    for repeat in range(_REPEATS):
        centre = x[own[2 * repeat]]
        drifted.append(price(centre, y[other[repeat]]))
        baseline.append(price(centre, x[own[2 * repeat + 1]]))
    excess = [with_drift - without for with_drift, without in zip(drifted, baseline, strict=True)]
    return Comparison(_REPEATS, size, Estimate.of(drifted), Estimate.of(baseline), Estimate.of(excess))


def _exact(x: Tensor, y: Tensor, cost: Cost) -> float:
    """min over couplings of E c: a linear program over the matrix of all costs."""
    import ot

    points, targets = rows(x).double(), rows(y).double()
    matrix = torch.stack([cost(point.unsqueeze(0), targets) for point in points])  # (N, M)
    return float(ot.emd2([], [], matrix.numpy(), numItermax=10**9))


def _sliced(x: Tensor, y: Tensor, basis: Tensor) -> float:
    """Sum over the basis of the 1-d transport costs.

    Any coupling has E ||x - x'||^2 = sum_i E (b_i.x - b_i.x')^2, and no term is below the 1-d optimum along b_i.
    """
    import ot

    points, targets = rows(x).double(), rows(y).double()
    along = torch.split(basis, _DIRECTIONS, dim=1)
    return sum(float(ot.wasserstein_1d((points @ b).numpy(), (targets @ b).numpy(), p=2).sum()) for b in along)


def _orthonormal(features: int, draws: torch.Generator) -> Tensor:
    basis: Tensor = torch.linalg.qr(torch.randn(features, features, generator=draws, dtype=torch.double)).Q
    return basis


def _largest_costs(epsilon: float, norm: str, cost: Cost, room: Tensor) -> Tensor:
    """The largest c in the ball, where coordinate i can move by room_i at most: (N, d) -> (N,)."""
    if norm == "inf":
        candidates = [room.clamp_max(epsilon)]
    else:  # ||d||_p over an l_2 ball is largest spread out for p <= 2, along one coordinate for p >= 2
        peak, where = room.max(1, keepdim=True)
        candidates = [_spread(epsilon, room), torch.zeros_like(room).scatter(1, where, peak.clamp_max(epsilon))]
    costs = [cost(torch.zeros_like(moved), moved) for moved in candidates]
    return torch.stack(costs).amax(0)


def _spread(epsilon: float, room: Tensor) -> Tensor:
    """The flattest d <= room with ||d||_2 = epsilon: min(height, room); all of the room where it is less than that."""
    ascending = room.sort(1).values.square()
    used = torch.cumsum(ascending, 1) - ascending  # by the coordinates with less room
    free = torch.arange(room.shape[1], 0, -1)
    level = (epsilon**2 - used) / free  # squared, if exactly these are free to move
    fits = level <= ascending
    first = fits.int().argmax(1, keepdim=True)
    height = torch.where(fits.any(1, keepdim=True), level.gather(1, first).sqrt(), math.inf)
    return torch.minimum(room, height)
