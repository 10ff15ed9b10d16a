"""What is known of the worst expected loss, at one radius and at several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from rhobust.charts.axes import drawable
from rhobust.charts.drawings import draw_bounds
from rhobust.support.display import Displayed, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Certificate(Displayed):
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

    def plot(self, axes: Axes | None = None) -> Axes:
        """Bound and attained loss at the radius, on `axes` or on those of a new figure, which are returned."""
        return _plotted([self], axes)

    def _shown(self) -> list[Table | str]:
        return _parts("worst expected loss in the ball of this radius", [self])


@dataclass(frozen=True)
class Certification(Sequence[Certificate], Displayed):
    """Certificates around the same samples, one for each radius that was asked for, in that order."""

    samples: int
    certificates: list[Certificate]

    @overload
    def __getitem__(self, place: int) -> Certificate: ...
    @overload
    def __getitem__(self, place: slice) -> list[Certificate]: ...
    def __getitem__(self, place: int | slice) -> Certificate | list[Certificate]:
        return self.certificates[place]

    def __len__(self) -> int:
        return len(self.certificates)

    @property
    def by_radius(self) -> dict[float, Certificate]:
        """The certificate of every radius."""
        return {one.radius: one for one in self}

    @property
    def status(self) -> Literal["proved", "estimated"]:
        """`proved` where all are."""
        return _status(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"samples": self.samples, "certificates": [one.to_json() for one in self]}

    def plot(self, axes: Axes | None = None) -> Axes:
        """Bound and attained loss against the radius, on `axes` or on those of a new figure, which are returned."""
        return _plotted(self, axes)

    def _shown(self) -> list[Table | str]:
        return _parts(f"worst expected loss in the ball of each radius around {self.samples} samples", self)


def _status(certificates: Sequence[Certificate]) -> Literal["proved", "estimated"]:
    return "proved" if all(one.status == "proved" for one in certificates) else "estimated"


def _plotted(certificates: Sequence[Certificate], axes: Axes | None) -> Axes:
    axes = drawable(axes, "radius (average squared distance)", "worst expected loss")
    places = sorted(certificates, key=lambda one: one.radius)
    radii, bounds = [one.radius for one in places], [one.bound for one in places]
    attained = [one.attained for one in places]
    draw_bounds(axes, radii, bounds, attained, proved=_status(places) == "proved", marker="o", markersize=4)
    axes.legend()
    return axes


def _parts(caption: str, certificates: Sequence[Certificate]) -> list[Table | str]:
    """A table, what its columns mean, and why a certificate is only estimated."""
    rows = [
        [f"{one.radius:g}", one.status]
        + [f"{value:.4g}" for value in (one.bound, one.attained, one.gap, one.gamma, one.rho_hat)]
        for one in certificates
    ]
    table = Table(caption, ["radius", "status", "bound", "attained", "gap", "gamma", "tight at"], rows)
    meaning = "gap: bound less attained; gamma: the dual variable; tight at: the radius at which this gamma is the best"
    reasons = dict.fromkeys(one.reason for one in certificates if one.status == "estimated")
    return [
        table,
        meaning,
        *(f"estimated, so the bound is an estimate and not a bound: {reason}" for reason in reasons),
    ]
