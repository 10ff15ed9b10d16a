"""The dual of the worst expected loss: lines above it, distributions below it, and the search over gamma.

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
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Problem
from rhobust.ascent.multistart import AscentSup, cost_at, loss_at
from rhobust.certificates.certificate import Certificate
from rhobust.certificates.exact import LinearSup
from rhobust.certificates.starting_points import StartingPoints
from rhobust.costs import rows
from rhobust.errors import DataError
from rhobust.validator import check_output

# Where a gamma above L / mu is wanted and none is given: near enough to matter, far enough to converge.
_ABOVE = 1.01
# What a loss in the model's precision may be off by, in units of the last place of what it is computed from.
_SLACK_ULPS = 64
_UNKNOWN = "no bound on the curvature of this loss of this model in its input is known"
# A mixture's weight is rounded down by this much, so that the budget holds in floating point too.
_ROUNDING = 4 * torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Part:
    """A batch of the samples: the model for it, its inner problem, and its labels."""

    model: nn.Module
    problem: Problem
    y: Tensor


@dataclass(frozen=True)
class Column:
    """One gamma: its line gamma rho + upper, and the distribution of its maximizers as a point (cost, loss).

    A gamma of infinity has no line: the distribution was found in another way.
    """

    gamma: float
    cost: float
    loss: float
    upper: float  # at least E sup, or infinite; where estimated, E of what was found
    zeta: Tensor | None = None  # None: no radius needs it any more
    rounding: float = 0.0  # what the loss may be off by, computed in the model's precision


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
    """The dual of one model on its samples as a growing set of columns; made by `certify`.

    `doubted` is why nothing can be proved of the model, if so. Ascents also begin at what `starting` finds around the
    samples of a batch. `unboxed` is the dual without the box, where its sup is exact: its lines hold in the box.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        sup: LinearSup | AscentSup,
        accuracy: float,
        doubted: str | None = None,
        starting: Callable[[Part], StartingPoints] | None = None,
        unboxed: Dual | None = None,
    ) -> None:
        self.parts, self.sup, self.accuracy = parts, sup, accuracy
        self.doubted, self.starting, self.unboxed = doubted, starting, unboxed
        self._starts: dict[int, StartingPoints] = {}
        with torch.no_grad():  # a loss is the difference of numbers as large as the outputs
            self._scales = [_size(part.model(part.problem.z.clone())) for part in parts]
        z = torch.cat([part.problem.z for part in parts])
        clean = torch.cat([loss_at(part.problem, part.problem.z) for part in parts])
        if not clean.isfinite().all():
            raise DataError(f"the loss is not finite at sample {int((~clean.isfinite()).nonzero()[0])}: no certificate")
        self.columns = [Column(math.inf, 0.0, float(clean.mean()), math.inf, z)]  # where transport is too dear
        self.spread: list[Column] = []  # distributions in which every sample goes equally far

    def certificate(self, rho: float) -> Certificate:
        """The lowest line and the highest mixture at rho."""
        mixture = self.mixture(rho)
        reason = self.doubted or self._disproof()
        if rho == 0:
            bound, column = mixture.loss, self.columns[0]
        else:
            lines = ((self.line(column, rho), column) for column in self._bounding())
            bound, column = min(lines, key=lambda pair: pair[0])
            bound = max(bound, mixture.loss)  # a line through the mixture may round below it
            unknown = math.isinf(self.sup.proof) and self.unboxed is None
            reason = reason or (_UNKNOWN if unknown else None)
        status: Literal["proved", "estimated"] = "estimated" if reason else "proved"
        return Certificate(rho, bound, mixture.loss, column.gamma, column.cost, mixture.cost, status, reason)

    def _bounding(self) -> list[Column]:
        """The columns whose lines are above the worst case."""
        if self.unboxed is None:
            return self.columns[1:]
        own = self.columns[1:] if math.isfinite(self.sup.proof) else []  # else they are what was found, and no bound
        return own + self.unboxed.columns[1:]

    def _disproof(self) -> str | None:
        """More was attained at some gamma than its sup: then nothing that the sups say is proved."""
        for column in self._bounding() if math.isfinite(self.sup.proof) or self.unboxed else ():
            for other in (*self.columns, *self.spread):
                slack = column.rounding + other.rounding + _ROUNDING * column.gamma * other.cost
                if other.loss - column.gamma * other.cost > column.upper + slack:
                    return "more is attained than the curvature of the loss, as given or as known, allows"
        return None

    def line(self, column: Column, rho: float, proved: bool = True) -> float:
        """gamma rho + E sup; no sup is less than what any column attains at this gamma."""
        attained = max(other.loss - column.gamma * other.cost for other in (*self.columns, *self.spread))
        return column.gamma * rho + (max(attained, column.upper) if proved else attained)

    def mixture(self, rho: float, spread: bool = True) -> Mixture:
        """The best of all mixtures of two columns that spend no more than rho; with or without the `spread` ones."""
        columns = [*self.columns, *self.spread] if spread else self.columns
        near = [column for column in columns if column.cost <= rho]
        far = [column for column in columns if column.cost > rho]
        alone = (Mixture(a, a, 0.0) for a in near)
        mixed = (Mixture(a, b, (rho - a.cost) / (b.cost - a.cost) * (1 - _ROUNDING)) for a in near for b in far)
        return max((*alone, *mixed), key=lambda mixture: mixture.loss)

    def refine(self, rho: float, keep: Iterable[float]) -> None:
        """Add columns until line and mixture meet at rho; then forget every zeta that no radius of `keep` uses."""
        if self.unboxed:
            self.unboxed.refine(rho, keep)
        if isinstance(self.sup, LinearSup) and self.sup.spreads:
            ends = [self.sup.spread(part.problem, part.y, rho) for part in self.parts]
            parts = [self._valued(number, zeta) for number, zeta in enumerate(ends)]
            self.spread.append(_column(math.inf, [(*part, torch.full_like(part[1], math.inf)) for part in parts]))
        for _ in range(self.sup.searches):
            gamma = self._next(rho)
            if gamma is None or any(gamma == column.gamma for column in self.columns):
                break
            self._add(gamma)
        mixtures = [self.mixture(radius) for radius in keep]
        used = {id(column) for mixture in mixtures for column in (mixture.near, mixture.far)}
        self.columns = [c if id(c) in used else replace(c, zeta=None) for c in self.columns]
        self.spread = [c if id(c) in used else replace(c, zeta=None) for c in self.spread]

    def _next(self, rho: float) -> float | None:
        """The gamma to try next; None where the gap is small enough."""
        floor, proof = self.sup.floor, self.sup.proof
        if len(self.columns) == 1:
            return self._guess(rho)
        mixture = self.mixture(rho)
        found = min(self.line(column, rho, proved=False) for column in self.columns[1:])
        bound = min(self.line(column, rho) for column in self._bounding())
        untried = proof < math.inf and not any(proof < column.gamma <= _ABOVE * proof for column in self.columns)
        if untried and math.isinf(bound):  # of so steep a loss that the first guess was not above it
            return _ABOVE * proof
        # Small enough is: as asked for, or a thousandth of what the proof adds.
        if found - mixture.loss <= max(self.accuracy * abs(found), 0.001 * min(bound - found, abs(found))):
            return None
        gamma = self._between(rho)
        if not gamma > floor:
            return None
        if untried and gamma <= proof:
            return _ABOVE * proof  # below it nothing is proved: the best bound there is
        return gamma

    def _between(self, rho: float) -> float:
        """A gamma between those that spend more than rho and those that do not; lower than all, where none does."""
        floor, mixture = self.sup.floor, self.mixture(rho, spread=False)
        over = max((c for c in self.columns if c.cost > rho), key=lambda column: column.gamma, default=None)
        under = min((c for c in self.columns if c.cost <= rho), key=lambda column: column.gamma)
        if over is None:  # nothing spends rho yet: transport must get cheaper
            return floor + (under.gamma - floor) * min(1 / 4, max(1 / 64, math.sqrt(under.cost / rho) / 2))
        # A loss about linear: c ~ 1 / gamma^2.
        guesses = [floor + (c.gamma - floor) * math.sqrt(c.cost / rho) for c in (over, under) if c.cost > 0]
        wide, slack = (True, 1.1) if math.inf > under.gamma - floor > 16 * (over.gamma - floor) else (False, 1.0)
        chord = 0.0
        if mixture.far is not mixture.near:
            chord = (mixture.far.loss - mixture.near.loss) / (mixture.far.cost - mixture.near.cost)
        if not wide:  # first where it is near by, or the loss steeper than linear
            guesses.insert(over.cost > 4 * rho and chord <= guesses[0], chord)
        middle = floor + math.sqrt((under.gamma - floor) * (over.gamma - floor))
        return next((gamma for gamma in (*guesses, middle) if slack * over.gamma < gamma < under.gamma / slack), chord)

    def _guess(self, rho: float) -> float:
        """The gamma at which a loss linear from z on would spend rho, above the sup's floor: exact for a regression."""
        problems = [part.problem for part in self.parts]
        slopes = torch.cat([p.cost.dual_norm(p.at(p.z).slope).cpu().double() for p in problems])
        proof = self.sup.proof if math.isfinite(self.sup.proof) else 0.0
        return proof + (float(slopes.square().mean() / (4 * rho)) ** 0.5 or 1.0)

    def _add(self, gamma: float) -> None:
        """Solve the sup at gamma, from the maximizers of the nearest gammas on both sides, and add the column."""
        ready = sorted((c for c in self.columns[1:] if c.zeta is not None), key=lambda column: column.gamma)
        beside = [c for c in ready if c.gamma < gamma][-1:] + [c for c in ready if c.gamma > gamma][:1]
        parts, start = [], 0
        for number, part in enumerate(self.parts):
            z = part.problem.z
            here, start = slice(start, start + len(z)), start + len(z)
            priced = replace(part.problem, gamma=torch.tensor(gamma, dtype=torch.float64, device=z.device))
            starts = [c.zeta[here] for c in beside if c.zeta is not None]
            if self.starting and not gamma > self.sup.proof:
                if number not in self._starts:
                    self._starts[number] = self.starting(part)
                starts.append(self._starts[number].best(gamma))
            zeta, upper = self.sup.solve(priced, part.y, starts)
            parts.append((*self._valued(number, zeta), upper))
        self.columns.append(_column(gamma, parts))

    def _valued(self, number: int, zeta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(zeta, cost, loss, rounding): what rounds is of the size of the outputs, and of zeta along the slope."""
        problem = self.parts[number].problem
        point = problem.at(zeta)
        loss = point.loss.cpu().double()
        scale = loss.abs() + self._scales[number] + rows(point.slope * zeta).abs().sum(1).cpu().double()
        return zeta, cost_at(problem, zeta), loss, _SLACK_ULPS * torch.finfo(zeta.dtype).eps * scale


def _size(output: Tensor) -> Tensor:
    """The largest output of each sample, (B,)."""
    check_output(output)
    return rows(output).abs().amax(1).cpu().double()


def _column(gamma: float, parts: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]) -> Column:
    """From (zeta, cost, loss, rounding, upper) of each batch."""
    zeta, cost, loss, rounding, upper = (torch.cat(values) for values in zip(*parts, strict=True))
    return Column(gamma, float(cost.mean()), float(loss.mean()), float(upper.mean()), zeta, float(rounding.mean()))
