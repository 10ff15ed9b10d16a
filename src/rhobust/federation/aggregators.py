"""Aggregators: how a server makes one gradient of the uploads.

K workers upload v_1, ..., v_K, each with a weight w_k > 0 (normalized here, so that they sum to 1). F, the field
`byzantine`, is the number of Byzantine workers that a rule tolerates. The server aggregates theta's gradient, (K, P),
and gamma's, (K, 1), apart, since gamma can be attacked by itself. No rule depends on the order of the workers, beyond
rounding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rhobust.errors import ConfigError, Refused
from rhobust.federation.coordinate_blocks import isometric, sorted_blocks
from rhobust.support.spec import parse_spec

# Weights or scores this near, in float64, count as equal: rounding has changed them.
_TIE = 1e-12
# Two points this near, for their size, count as one: rounding leaves such a distance of 0, in float64.
_RESOLUTION = 1e-13


class Aggregator(ABC):
    """A rule that makes one vector (P,) of K vectors (K, P) with K positive weights."""

    def __call__(self, vectors: Tensor, weights: Tensor) -> Tensor:
        """The aggregate alone."""
        return self.aggregate(vectors, weights)[0]

    def aggregate(self, vectors: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The aggregate (P,), and which workers it leaves out, (K,).

        Refuses wrong shapes, values that are not finite and too few workers.
        """
        if vectors.ndim != 2 or not vectors.numel() or weights.shape != vectors.shape[:1]:
            shapes = f"{tuple(vectors.shape)} and {tuple(weights.shape)}"
            raise Refused(f"an aggregator takes vectors (K, P) and weights (K,), none of them empty, not {shapes}")
        if len(vectors) < self.min_workers:
            raise Refused(f"{self} needs at least {self.min_workers} workers, and got the uploads of {len(vectors)}")
        if not all(bool(extreme.isfinite()) for extreme in vectors.aminmax()):  # NaN is passed on by aminmax
            raise Refused("an upload is not finite; drop those before aggregating")
        share = weights.to(vectors.device, torch.float64)
        if not bool((share.isfinite() & (share > 0)).all()):
            raise Refused(f"the weights of workers must be finite and > 0, not {weights.tolist()}")
        return self.selecting(vectors.detach(), share / share.sum())

    @property
    def min_workers(self) -> int:
        """The smallest number of workers that the rule is defined for."""
        return 1

    def relaxed(self, dropped: int) -> Aggregator:
        """The rule after `dropped` Byzantine workers were found and dropped: it tolerates that many fewer."""
        return self

    @abstractmethod
    def combined(self, vectors: Tensor, weights: Tensor) -> Tensor:
        """The rule itself, for checked vectors and weights (float64) that sum to 1."""

    def selecting(self, vectors: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The rule, and which workers it leaves out: none, unless the rule selects among the workers."""
        return self.combined(vectors, weights), torch.zeros(len(vectors), dtype=torch.bool)


@dataclass(frozen=True)
class Mean(Aggregator):
    """sum_k w_k v_k. A single Byzantine worker can move it anywhere.

    >>> Mean()(torch.tensor([[0.0], [1.0]]), torch.tensor([1, 3]))
    tensor([0.7500])
    """

    def combined(self, vectors: Tensor, weights: Tensor) -> Tensor:
        return weights.to(vectors.dtype) @ vectors


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of each coordinate: at most half of the weight lies below it, and at most half above.

    If that leaves an interval (an even number of equal weights), its midpoint. While Byzantine workers have less than
    half of the weight, every coordinate is between two honest ones.

    >>> Median()(torch.tensor([[0.0], [1.0], [5.0], [1e30]]), torch.ones(4))
    tensor([3.])
    """

    def combined(self, vectors: Tensor, weights: Tensor) -> Tensor:
        return torch.cat([_middle(values, shares) for values, shares in sorted_blocks(vectors, weights)])


def _middle(values: Tensor, shares: Tensor) -> Tensor:
    reached = shares.cumsum(1)  # the weight up to each value, itself included
    low = (reached < 0.5 - _TIE).sum(1, keepdim=True)  # the first with half of the weight
    high = (reached <= 0.5 + _TIE).sum(1, keepdim=True)  # the first with more than that
    # Halved first: the sum may overflow.
    return (values.take_along_dim(low, 1) / 2 + values.take_along_dim(high, 1) / 2)[:, 0]


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The weighted mean of each coordinate without its F = `byzantine` largest and smallest values.

    Needs K > 2 F; then every coordinate is between two honest ones. Of equal values the lighter count as smaller.

    >>> TrimmedMean(byzantine=1)(torch.tensor([[0.0], [1.0], [5.0], [1e30]]), torch.ones(4))
    tensor([3.])
    """

    byzantine: int

    def __post_init__(self) -> None:
        _check_byzantine(self.byzantine)

    @property
    def min_workers(self) -> int:
        return 2 * self.byzantine + 1

    def relaxed(self, dropped: int) -> TrimmedMean:
        return replace(self, byzantine=max(0, self.byzantine - dropped))

    def combined(self, vectors: Tensor, weights: Tensor) -> Tensor:
        kept = slice(self.byzantine, len(vectors) - self.byzantine)
        rest = ((values[:, kept], shares[:, kept]) for values, shares in sorted_blocks(vectors, weights))
        return torch.cat([(values * shares).sum(1) / shares.sum(1) for values, shares in rest]).to(vectors.dtype)


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """argmin over x of f(x) = sum_k w_k ||x - v_k||_2, by Weiszfeld's iteration as modified by Vardi and Zhang (2000).

    x is a minimizer where || sum_k w_k (v_k - x) / ||v_k - x|| ||, over the v_k other than x, is at most the weight of
    those equal to x. The iteration stops where it exceeds that weight by at most `accuracy`, a number without a unit
    (neither the scale of the vectors nor a distant one matters), or after `max_steps`, which suffice for points that
    are almost on a line. If several v_k are minimizers (all on a line, the weight cut in halves) the answer is their
    midpoint. It stays near the honest uploads while Byzantine workers have less than half of the weight.

    >>> GeometricMedian()(torch.tensor([[0.0, 0.0], [0.0, 4.0], [3.0, 0.0], [1.0, 1.0], [0.0, 1e30]]), torch.ones(5))
    tensor([1., 1.])
    """

    accuracy: float = 1e-8
    max_steps: int = 1000

    def __post_init__(self) -> None:
        if not (self.accuracy > 0 and self.max_steps >= 1):
            raise Refused(f"a geometric median needs accuracy > 0 and max_steps >= 1, not {self}")

    def combined(self, vectors: Tensor, weights: Tensor) -> Tensor:
        points, weights = isometric(vectors).cpu(), weights.cpu()  # K x K: no work for a GPU
        # From the v_k nearest to being a minimizer: if one is, this is the end.
        slopes, helds = torch.tensor([_pull(points, weights, x)[1:] for x in points], dtype=torch.float64).unbind(1)
        gaps = slopes - helds
        best = (gaps <= gaps.min().clamp_min(self.accuracy)) * weights / helds  # workers that agree count once
        shares = best / best.sum()  # x = sum_k shares_k v_k
        for _ in range(self.max_steps):
            pulls, slope, held = _pull(points, weights, shares @ points)
            if slope <= held + self.accuracy:
                break
            stay = held / slope  # 0 unless x is one of the points: then as much of it stays as its weight holds
            shares = stay * shares + (1 - stay) * pulls / pulls.sum()
        return shares.to(vectors) @ vectors


def _pull(points: Tensor, weights: Tensor, x: Tensor) -> tuple[Tensor, float, float]:
    """w_k / ||v_k - x|| for the points other than x, the norm of their joint pull, and the weight of points at x."""
    ways = points - x
    distances = ways.norm(dim=1)
    here = distances <= _RESOLUTION * points.norm(dim=1)
    pulls = (weights / distances).masked_fill(here, 0.0)
    return pulls, float((pulls @ ways).norm()), float(weights[here].sum())


@dataclass(frozen=True)
class MultiKrum(Aggregator):
    """The weighted mean of the `keep` workers with the lowest scores (Blanchard et al., 2017).

    score_k = the sum of ||v_k - v_j||^2 over the K - F - 2 others j nearest to k, with F = `byzantine`. `keep` is
    K - F unless given. Needs K >= 2 F + 3. Workers whose scores tie for the last places share them.

    >>> MultiKrum(byzantine=1)(torch.tensor([[0.0], [1.0], [1.0], [2.0], [1e30]]), torch.ones(5))
    tensor([1.])
    """

    byzantine: int
    keep: int | None = None

    def __post_init__(self) -> None:
        _check_byzantine(self.byzantine)
        if self.keep is not None and self.keep < 1:
            raise Refused(f"multi-Krum must keep at least 1 worker, not {self.keep}")

    @property
    def min_workers(self) -> int:
        return max(2 * self.byzantine + 3, (self.keep or 0) + self.byzantine)

    def relaxed(self, dropped: int) -> MultiKrum:
        return replace(self, byzantine=max(0, self.byzantine - dropped))

    def combined(self, vectors: Tensor, weights: Tensor) -> Tensor:
        return self.selecting(vectors, weights)[0]

    def selecting(self, vectors: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        points = isometric(vectors)
        others = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
        others.fill_diagonal_(math.inf)
        scores = others.sort(dim=1).values[:, : len(vectors) - self.byzantine - 2].sum(1)
        keep = len(vectors) - self.byzantine if self.keep is None else self.keep
        edge = scores.sort().values[keep - 1]
        inside, tied = scores < edge * (1 - _TIE), scores <= edge * (1 + _TIE)
        places = (keep - inside.sum()) / (tied & ~inside).sum()
        kept = weights * torch.where(inside, 1.0, tied * places)
        return (kept / kept.sum()).to(vectors.dtype) @ vectors, kept == 0


@dataclass(frozen=True)
class Clipped(Aggregator):
    """Each v_k scaled down to a norm of at most `norm`, by default the weighted median of the norms; then aggregated.

    >>> Clipped(Mean())(torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 1e30]]), torch.ones(3))
    tensor([1.0000, 4.6667])
    """

    aggregator: Aggregator
    norm: float | None = None

    def __post_init__(self) -> None:
        if self.norm is not None and not (self.norm > 0 and math.isfinite(self.norm)):
            raise Refused(f"the norm to clip to must be finite and > 0, not {self.norm}")

    @property
    def min_workers(self) -> int:
        return self.aggregator.min_workers

    def relaxed(self, dropped: int) -> Clipped:
        return replace(self, aggregator=self.aggregator.relaxed(dropped))

    def combined(self, vectors: Tensor, weights: Tensor) -> Tensor:
        return self.selecting(vectors, weights)[0]

    def selecting(self, vectors: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True, dtype=torch.float64)  # (K, 1)
        limit = Median().combined(norms, weights) if self.norm is None else self.norm
        factors = (limit / norms.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
        return self.aggregator.selecting(vectors * factors.to(vectors.dtype), weights)


def _check_byzantine(byzantine: int) -> None:
    if byzantine < 0:
        raise Refused(f"the number of Byzantine workers must be >= 0, not {byzantine}")


def _whole(number: float) -> int:
    if not number.is_integer():
        raise Refused(f"the number of Byzantine workers must be a whole number, not {number}")
    return int(number)


_PLAIN: dict[str, tuple[int, Callable[..., Aggregator]]] = {
    "mean": (0, Mean),
    "median": (0, Median),
    "trimmed-mean": (1, lambda byzantine: TrimmedMean(_whole(byzantine))),
    "geometric-median": (0, GeometricMedian),
    "multi-krum": (1, lambda byzantine: MultiKrum(_whole(byzantine))),
}
AGGREGATORS: dict[str, tuple[int, Callable[..., Aggregator]]] = {
    **_PLAIN,
    **{
        f"clipped-{name}": (count, lambda *numbers, build=build: Clipped(build(*numbers)))
        for name, (count, build) in _PLAIN.items()
    },
}
"""Every aggregator by name: the count of its numbers, and the function that builds it from them."""


def find_aggregator(spec: str) -> Aggregator:
    """The aggregator named by `name` or `name:F`.

    >>> find_aggregator("clipped-trimmed-mean:3")
    Clipped(aggregator=TrimmedMean(byzantine=3), norm=None)
    """
    try:
        return parse_spec("aggregator", spec, AGGREGATORS)
    except Refused as problem:
        raise ConfigError([f"aggregator '{spec}': {problem}"]) from None
