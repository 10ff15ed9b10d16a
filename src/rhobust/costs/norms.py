"""Squared norms: l2, lp for 1 < p <= 2, and l_inf."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.costs.cost import Cost, lp_norm, per_sample, rows
from rhobust.errors import Refused

# Halvings of the bracket when a box couples with a norm: past float64's 53 bits nothing moves any more.
_BISECTIONS = 60


def _check_kappa(kappa: float) -> None:
    if not kappa >= 0:
        raise Refused(f"kappa, the cost of flipping a label, must be >= 0 (infinity: never), not {kappa}")


@dataclass(frozen=True)
class SquaredL2(Cost):
    """c = ||zeta - z||_2^2, the default: 2-strongly convex, so psi is strongly concave for gamma > L_zz / 2.

    >>> cost = SquaredL2()
    >>> cost(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
    tensor([25.])
    """

    kappa: float = math.inf

    separable = True

    def __post_init__(self) -> None:
        _check_kappa(self.kappa)

    @property
    def strong_convexity(self) -> float:
        return 2.0

    def norm(self, displacement: Tensor) -> Tensor:
        return lp_norm(displacement, 2)

    def dual_norm(self, slope: Tensor) -> Tensor:
        return self.norm(slope)

    def direction(self, slope: Tensor) -> Tensor:
        length = self.norm(slope).clamp_min(torch.finfo(slope.dtype).tiny)
        return slope / per_sample(length, slope)

    def gradient(self, displacement: Tensor) -> Tensor:
        return 2 * displacement

    def response(self, slope: Tensor, gamma: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
        # sup_d g.d - gamma ||d||^2 = ||g||^2 / (4 gamma) at d = g / (2 gamma). Coordinates do not
        # interact, so in a box clipping is exact.
        best = slope / (2 * gamma)
        return best if lower is None or upper is None else best.clamp(lower, upper)


@dataclass(frozen=True)
class SquaredLp(Cost):
    """c = ||zeta - z||_p^2 for 1 < p <= 2, where it is 2 (p - 1)-strongly convex in ||.||_p.

    The paper says p >= 1; outside (1, 2] strong convexity fails, so other p are refused.

    >>> SquaredLp(1.5)(torch.zeros(1, 2), torch.tensor([[1.0, 1.0]])).item()  # (1 + 1)^(2 / 1.5)
    2.519...
    """

    p: float
    kappa: float = math.inf

    def __post_init__(self) -> None:
        if not 1 < self.p <= 2:
            raise Refused(
                f"||.||_p^2 is strongly convex only for 1 < p <= 2, not p = {self.p}: the inner problem would "
                "have no unique maximizer. Choose p in (1, 2], or SquaredLinf() and do without the guarantee"
            )
        _check_kappa(self.kappa)

    @property
    def q(self) -> float:
        """The dual exponent, 1/p + 1/q = 1."""
        return self.p / (self.p - 1)

    @property
    def strong_convexity(self) -> float:
        return 2 * (self.p - 1)

    def norm(self, displacement: Tensor) -> Tensor:
        return lp_norm(displacement, self.p)

    def dual_norm(self, slope: Tensor) -> Tensor:
        # Scaled by the largest entry first: |g|^q leaves the floating-point range for q near infinity.
        peak = rows(slope).abs().amax(1)
        return peak * lp_norm(slope / per_sample(peak.clamp_min(torch.finfo(slope.dtype).tiny), slope), self.q)

    def direction(self, slope: Tensor) -> Tensor:
        # Scaled by the largest entry first: |g|^(q-1) underflows for q near infinity.
        peak = rows(slope).abs().amax(1).clamp_min(torch.finfo(slope.dtype).tiny)
        shape = (slope.abs() / per_sample(peak, slope)).pow(self.q - 1) * slope.sign()
        return shape / per_sample(self.norm(shape).clamp_min(torch.finfo(slope.dtype).tiny), slope)

    def gradient(self, displacement: Tensor) -> Tensor:
        length = per_sample(self.norm(displacement), displacement)
        relative = displacement.abs() / length.clamp_min(torch.finfo(displacement.dtype).tiny)
        return 2 * length * relative.pow(self.p - 1) * displacement.sign()

    def response(self, slope: Tensor, gamma: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
        free = per_sample(self.dual_norm(slope) / (2 * gamma), slope)  # the norm of the unconstrained answer
        if lower is None or upper is None:
            return free * self.direction(slope)
        # KKT, given the answer's norm N: 2 gamma N^(2-p) |d_i|^(p-1) = |g_i| or d_i lies on the box, so that
        # d_i = clip((|g_i| / (2 gamma N^(2-p)))^(q-1)), increasing as N falls; N must equal the norm of that d. The
        # right side falls in N, so bisect. In logarithms: q - 1 may be large, and what is small now may grow.
        steepness = slope.double().abs().log() - (2 * gamma.double()).log()

        def given(length: Tensor) -> Tensor:
            shortest = length.double().clamp_min(torch.finfo(torch.float64).tiny)
            grown = torch.exp((self.q - 1) * (steepness - (2 - self.p) * shortest.log()))
            return (grown.to(slope.dtype) * slope.sign()).clamp(lower, upper)

        return given(_self_consistent(lambda length: per_sample(self.norm(given(length)), slope), free))


@dataclass(frozen=True)
class SquaredLinf(Cost):
    """c = ||zeta - z||_inf^2: every pixel moves for the price of the largest move.

    Not strongly convex, so the inner maximizer need not be unique and no accuracy can be *proved* with it;
    it is offered because its best response is a signed step with an epsilon of its own for each sample.

    >>> SquaredLinf()(torch.zeros(1, 3), torch.tensor([[1.0, -2.0, 0.5]]))
    tensor([4.])
    """

    kappa: float = math.inf

    def __post_init__(self) -> None:
        _check_kappa(self.kappa)

    @property
    def strong_convexity(self) -> float:
        return 0.0

    def norm(self, displacement: Tensor) -> Tensor:
        return rows(displacement).abs().amax(1)

    def dual_norm(self, slope: Tensor) -> Tensor:
        return rows(slope).abs().sum(1)

    def direction(self, slope: Tensor) -> Tensor:
        return slope.sign()

    def gradient(self, displacement: Tensor) -> Tensor:
        length = per_sample(self.norm(displacement), displacement)
        top = (displacement.abs() == length) & (length > 0)
        share = top.to(displacement) / per_sample(rows(top).sum(1).clamp_min(1), displacement)
        return 2 * displacement * share

    def response(self, slope: Tensor, gamma: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
        free = per_sample(self.dual_norm(slope) / (2 * gamma), slope)
        if lower is None or upper is None:
            return free * slope.sign()
        room = torch.where(slope > 0, upper, -lower)  # how far each coordinate can follow its sign
        # The gain sum |g_i| min(N, room_i) - gamma N^2 is concave in N: its derivative vanishes where N equals
        # the mass of the coordinates still free to move, over 2 gamma.
        pull = slope.abs() / (2 * gamma)

        def mass(length: Tensor) -> Tensor:
            return per_sample(rows(pull * (room > length)).sum(1), slope)

        length = _self_consistent(mass, free)
        return (length * slope.sign()).clamp(lower, upper)


def _self_consistent(falling: Callable[[Tensor], Tensor], top: Tensor) -> Tensor:
    """The N in [0, top] with N = falling(N), by bisection, for every sample at once."""
    low, high = torch.zeros_like(top), top
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = falling(middle) > middle
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return high


COSTS: dict[str, tuple[int, Callable[..., Cost]]] = {
    "l2": (0, SquaredL2),
    "lp": (1, SquaredLp),
    "linf": (0, SquaredLinf),
}
"""Every cost by name: how many numbers it takes, and what makes it of them."""
