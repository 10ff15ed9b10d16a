"""Certificates: how bad the expected loss can get inside a Wasserstein ball, from above and from below.

Every gamma > 0 gives a line in rho that is never below the worst expected loss, and the maximizers zeta of its sup give
a point that is really attained; the line touches the curve of worst cases at that point, rho_hat = E c(z, zeta):

    worst(rho)  <=  gamma rho + E sup over zeta of { loss(zeta) - gamma c(z, zeta) }                 (weak duality)
    worst(rho)  >=  E loss of any mixture of such points with E c <= rho                             (it is in the ball)

The bound is the lowest line, `attained` the highest mixture. A mixture that is not good enough names the next gamma to
try: the slope of the chord between its two points, the price at which both are worth the same (column generation).
Where E c jumps over rho as gamma falls, the worst case splits samples in two, and the mixture is that worst case.
Lines and points hold for every radius, so all radii share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rhobust.ascent import Identity
from rhobust.costs import Cost, SquaredL2
from rhobust.data import Samples, samples_of
from rhobust.errors import ConfigError, DataError, Refused, is_number
from rhobust.losses import cross_entropy
from rhobust.maximizer import check_count, check_size
from rhobust.objective import PerSampleLoss, RobustObjective
from rhobust.problem import Problem
from rhobust.sups import AscentSup, LinearSup, cost_at, curvature_bound, linear_sup, loss_at
from rhobust.undisturbed import undisturbed
from rhobust.validator import check_batch

# Where a gamma above L / mu is wanted and none is given: near enough to matter, far enough to converge.
_ABOVE = 1.01
_RADII = (1e-100, 1e100)
# A mixture's weight is rounded down by this much, so that the budget holds in floating point too.
_ROUNDING = 4 * torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Certificate:
    """What is known about the worst expected loss over the ball of one radius: attained <= worst, and a bound.

    `proved`: worst <= bound, up to floating-point rounding. `estimated`: the inner sup was approached by ascent, which
    can only fall short of it, so `bound` is an estimate and NOT a bound; `attained` is one (from below) in both cases.
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

    @property
    def gap(self) -> float:
        """bound - attained, never negative: what is not known (the sup's own error apart, where estimated)."""
        return self.bound - self.attained

    def to_json(self) -> dict[str, Any]:
        """Plain values, the gap too; an infinite gamma is null."""
        return asdict(self) | {"gap": self.gap, "gamma": self.gamma if math.isfinite(self.gamma) else None}


def certify(
    model: nn.Module,
    data: Samples | tuple[Any, Any],
    *,
    loss: PerSampleLoss = cross_entropy,
    radii: Sequence[float],
    cost: Cost | None = None,
    bounds: tuple[float, float] | None = None,
    curvature: float | None = None,
    accuracy: float | None = None,
    max_steps: int | None = None,
    batch_size: int = 1024,
    done: Callable[[str], None] | None = None,
) -> list[Certificate]:
    """A certificate for every radius, in the order given. The model is used in evaluation mode and left as it was.

    `data` are `Samples`, or a pair (x, y) of tensors or arrays, where the model is.

    The inner sup is
    - exact, so the bound is proved and tight, for a linear model without a box whose loss sees one direction only:
      two-class cross-entropy, squared error (then for every cost and every gamma);
    - proved, by adding the oracle's proved gap, where a bound L on the curvature of the loss in its input is known
      and gamma > L / mu. L is `curvature` (in the cost's norm; one in l2 serves for every p <= 2) or else
      `curvature_bound(model, loss)`. A large radius may want a smaller gamma: the bound is then still valid, since
      any gamma gives one, but loose, and the gap says how much at most;
    - estimated otherwise: see `Certificate`.

    `accuracy` is the gap, relative to the bound, at which the search over gamma ends: by default 1e-9 where the sup is
    exact, 1e-6 where proved, 1e-3 where estimated. `max_steps` gradients are spent on each sup: 200, or 10 where
    estimated. At radius 0 the certificate is the clean loss, which needs no sup and is proved for every model.

    One copy of the samples is kept for each gamma in use, about two for each radius: certify a subset if that is much.

    >>> model, squared = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double(), nn.MSELoss(reduction="none")
    >>> x, y = torch.rand(9, 2).double(), torch.rand(9).double()
    >>> (found,) = certify(model, (x, y), loss=squared, radii=[0.1])
    >>> exact = (squared(model(x), y).mean().sqrt() + math.sqrt(0.1) * model[0].weight.norm()) ** 2
    >>> abs(found.bound - exact.item()) < 1e-8, found.gap < 1e-8, found.status
    (True, True, 'proved')
    """
    samples = samples_of(data, model)
    cost = cost or SquaredL2()
    _check_request(radii, cost, curvature)
    check_batch(samples.x, samples.y)
    check_count("batch_size", batch_size)
    check_size("accuracy", 1.0 if accuracy is None else accuracy, infinite=True)
    objective = RobustObjective(model, loss, radius=0.0, cost=cost, maximizer=Identity(), bounds=bounds)
    parts = list(zip(torch.split(samples.x, batch_size), torch.split(samples.y, batch_size), strict=True))
    for x, y in parts:
        objective.maximum(x, y)  # refuses a model, loss, label or value that breaks the theory, before any work
    known = curvature_bound(model, loss) if curvature is None and samples.y.ndim == 1 else curvature
    line = linear_sup(model, loss, cost) if bounds is None and samples.y.ndim == 1 else None
    sup = line or AscentSup(known if cost.strong_convexity > 0 else None, cost, max_steps, accuracy)
    with undisturbed(model):
        dual = Dual([(objective.problem(x, y), y) for x, y in parts], sup, accuracy or sup.accuracy)
        for radius in sorted({float(radius) for radius in radii if radius > 0}):
            dual.refine(radius, keep=radii)
            if done:
                done(f"radius {radius:g}")
        return [dual.certificate(float(radius)) for radius in radii]


@dataclass(frozen=True)
class Column:
    """One gamma: its line gamma rho + upper, and the distribution of its maximizers as a point (cost, loss)."""

    gamma: float
    cost: float
    loss: float
    upper: float  # at least E sup, or infinite; where estimated, E of what was found
    zeta: Tensor | None = None  # None: no radius needs it any more


@dataclass(frozen=True)
class Mixture:
    """A distribution in the ball: `near` with probability 1 - weight, the costlier `far` with probability weight."""

    near: Column
    far: Column
    weight: float

    @property
    def loss(self) -> float:
        """Its expected loss."""
        return self.near.loss + self.weight * (self.far.loss - self.near.loss)

    @property
    def cost(self) -> float:
        """Its E c."""
        return self.near.cost + self.weight * (self.far.cost - self.near.cost)


class Dual:
    """The dual of one model on its samples as a growing set of columns; made by `certify`."""

    def __init__(self, problems: Sequence[tuple[Problem, Tensor]], sup: LinearSup | AscentSup, accuracy: float) -> None:
        self.problems, self.sup, self.accuracy = problems, sup, accuracy
        z = torch.cat([problem.z for problem, _ in problems])
        clean = torch.cat([loss_at(problem, problem.z) for problem, _ in problems])
        if not clean.isfinite().all():
            raise DataError(f"the loss is not finite at sample {int((~clean.isfinite()).nonzero()[0])}: no certificate")
        self.columns = [Column(math.inf, 0.0, float(clean.mean()), math.inf, z)]  # where transport is too dear

    def certificate(self, rho: float) -> Certificate:
        """The lowest line and the highest mixture at rho."""
        mixture = self.mixture(rho)
        if rho == 0:
            return Certificate(0.0, mixture.loss, mixture.loss, math.inf, 0.0, 0.0, "proved")
        bound, column = min(((self.line(column, rho), column) for column in self.columns[1:]), key=lambda pair: pair[0])
        bound = max(bound, mixture.loss)  # a line through the mixture may round below it
        status: Literal["proved", "estimated"] = "estimated" if math.isinf(self.sup.proof) else "proved"
        return Certificate(rho, bound, mixture.loss, column.gamma, column.cost, mixture.cost, status)

    def line(self, column: Column, rho: float, proved: bool = True) -> float:
        """gamma rho + E sup; no sup is less than what any column attains at this gamma."""
        attained = max(other.loss - column.gamma * other.cost for other in self.columns)
        return column.gamma * rho + (max(attained, column.upper) if proved else attained)

    def mixture(self, rho: float) -> Mixture:
        """The best of all mixtures of two columns that spend no more than rho."""
        near = [column for column in self.columns if column.cost <= rho]
        far = [column for column in self.columns if column.cost > rho]
        alone = (Mixture(a, a, 0.0) for a in near)
        mixed = (Mixture(a, b, (rho - a.cost) / (b.cost - a.cost) * (1 - _ROUNDING)) for a in near for b in far)
        return max((*alone, *mixed), key=lambda mixture: mixture.loss)

    def refine(self, rho: float, keep: Iterable[float]) -> None:
        """Add columns until line and mixture meet at rho; then forget every zeta that no radius of `keep` uses."""
        for _ in range(self.sup.searches):
            gamma = self._next(rho)
            if gamma is None or any(gamma == column.gamma for column in self.columns):
                break
            self._add(gamma)
        mixtures = [self.mixture(radius) for radius in keep]
        used = {gamma for mixture in mixtures for gamma in (mixture.near.gamma, mixture.far.gamma)}
        self.columns = [c if c.gamma in used else replace(c, zeta=None) for c in self.columns]

    def _next(self, rho: float) -> float | None:
        """The gamma to try next; None where the gap is small enough."""
        floor, proof = self.sup.floor, self.sup.proof
        if len(self.columns) == 1:
            return self._guess(rho)
        mixture = self.mixture(rho)
        found, bound = (min(self.line(c, rho, proved) for c in self.columns[1:]) for proved in (False, True))
        untried = proof < math.inf and not any(proof < column.gamma <= _ABOVE * proof for column in self.columns)
        if untried and math.isinf(bound):  # of so steep a loss that the first guess was not above it
            return _ABOVE * proof
        # Small enough is: as asked for, or a thousandth of what the proof adds.
        if found - mixture.loss <= max(self.accuracy * abs(found), 0.001 * (bound - found)):
            return None
        near, far = mixture.near, mixture.far
        if far is near:  # nothing spends rho yet: transport must get cheaper
            least = min(self.columns, key=lambda column: column.gamma)
            gamma = floor + (least.gamma - floor) * min(1 / 4, max(1 / 64, math.sqrt(least.cost / rho) / 2))
        else:
            above = min(column.gamma for column in self.columns if column.cost <= rho)
            gamma = floor + (far.gamma - floor) * math.sqrt(far.cost / rho)  # a loss about linear: c ~ 1 / gamma^2
            if far.cost <= 4 * rho or gamma >= above:  # near by, or not linear at all: the chord, once it is short
                gamma = (far.loss - near.loss) / (far.cost - near.cost)
                if math.inf > above - floor > 16 * (far.gamma - floor):
                    gamma = floor + math.sqrt((above - floor) * (far.gamma - floor))
        if not gamma > floor:
            return None
        if untried and gamma <= proof:
            return _ABOVE * proof  # below it nothing is proved: the best bound there is
        return gamma

    def _guess(self, rho: float) -> float:
        """The gamma at which a loss linear from z on would spend rho, above the sup's floor: exact for a regression."""
        slopes = torch.cat([p.cost.dual_norm(p.at(p.z).slope).cpu().double() for p, _ in self.problems])
        proof = self.sup.proof if math.isfinite(self.sup.proof) else 0.0
        return proof + (float(slopes.square().mean() / (4 * rho)) ** 0.5 or 1.0)

    def _add(self, gamma: float) -> None:
        """Solve the sup at gamma, from the maximizers of the nearest gammas on both sides, and add the column."""
        ready = sorted((c for c in self.columns[1:] if c.zeta is not None), key=lambda column: column.gamma)
        beside = [c for c in ready if c.gamma < gamma][-1:] + [c for c in ready if c.gamma > gamma][:1]
        parts, start = [], 0
        for problem, y in self.problems:
            part, start = slice(start, start + len(problem.z)), start + len(problem.z)
            priced = replace(problem, gamma=torch.tensor(gamma, dtype=torch.float64, device=problem.z.device))
            zeta, upper = self.sup.solve(priced, y, [c.zeta[part] for c in beside if c.zeta is not None])
            parts.append((zeta, cost_at(problem, zeta), loss_at(problem, zeta), upper))
        zeta, cost, loss, upper = (torch.cat(values) for values in zip(*parts, strict=True))
        self.columns.append(Column(gamma, float(cost.mean()), float(loss.mean()), float(upper.mean()), zeta))


def _check_request(radii: Sequence[float], cost: Cost, curvature: float | None) -> None:
    if not isinstance(radii, Sequence) or not all(map(is_number, radii)):
        raise ConfigError([f"radii are a list of numbers, such as [0.1, 0.5], not {radii!r}"])
    wrong = [f"a radius must be finite and >= 0, not {r}" for r in radii if not (r >= 0 and math.isfinite(r))]
    least, most = _RADII
    wrong += [
        f"a radius must be 0 or between {least:g} and {most:g}, where squares are numbers, not {r}"
        for r in radii
        if 0 < r < least or most < r < math.inf
    ]
    if not len(radii):
        wrong.append("radii is empty: name at least one radius to certify")
    if curvature is not None and not (curvature >= 0 and math.isfinite(curvature)):
        wrong.append(f"curvature, a bound on that of the loss in its input, must be finite and >= 0, not {curvature}")
    if wrong:
        raise ConfigError(wrong)
    if math.isfinite(cost.kappa):
        raise Refused(
            f"certificates are for labels that stay, but flipping one costs kappa = {cost.kappa:g} here; "
            "leave kappa infinite"
        )
