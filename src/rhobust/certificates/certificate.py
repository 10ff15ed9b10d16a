"""What is known of the worst expected loss at one radius."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Certificate:
    """What is known about the worst expected loss over the ball of one radius: attained <= worst, and a bound.

    `proved`: worst <= bound, up to floating-point rounding. `estimated`: the inner sup was approached by ascent, which
    can only fall short of it, so `bound` is an estimate and NOT a bound; `attained` is one (from below) in both cases.
    `reason` says why a certificate is only estimated.
    """

    radius: float
    bound: float
    """gamma rho + E sup{...} at the best gamma; an upper bound only where `status` is 'proved'."""
    attained: float
    """Expected loss of a distribution inside the ball and the box."""
    gamma: float
    """The price of the bound; infinite at radius 0."""
    rho_hat: float
    """E c at gamma's maximizers: the radius at which this gamma is the best one, and its bound tight."""
    spent: float
    """E c of the distribution that attains, at most `radius`."""
    status: Literal["proved", "estimated"]
    reason: str | None = None

    @property
    def gap(self) -> float:
        """bound - attained, never negative: what is not known (the sup's own error apart, where estimated)."""
        return self.bound - self.attained

    @property
    def tight(self) -> tuple[float, float]:
        """(rho_hat, bound there): where the line of a finite gamma touches the curve of worst cases."""
        return self.rho_hat, self.bound + self.gamma * (self.rho_hat - self.radius)

    def to_json(self) -> dict[str, Any]:
        """Plain values, the gap too; an infinite gamma is null."""
        return asdict(self) | {"gap": self.gap, "gamma": self.gamma if math.isfinite(self.gamma) else None}
