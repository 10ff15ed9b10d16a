"""The eps-accurate oracle of Alg. 1: gradient steps on psi until the optimality gap is small."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.ascent.inner_problem import Accuracy, Point, Problem
from rhobust.ascent.maximizer import Maximizer, Step
from rhobust.checks import check_count, check_size
from rhobust.costs import Cost, per_sample, rows
from rhobust.errors import Refused

# A step counts as a rise if it makes at least this share of the gain that a linear loss would have made: enough to
# break a cycle between two points of equal psi, too little to turn good steps down.
_ENOUGH = 0.01


@dataclass(frozen=True, kw_only=True)
class _OracleStep(Step):
    """What an oracle remembers of the last accepted point, whose zeta is the answer."""

    best: Point
    psi: Tensor  # (B,)
    cost: Tensor  # (B,)
    gain: Tensor  # (B,) what the response to its slope would gain, were the loss linear
    gap: Tensor  # (B,) as in `accuracy`
    tau: Tensor  # (B,) how much of the way to the response to go


@dataclass(frozen=True)
class Oracle(Maximizer):
    """Steps on psi for each sample until its gap is at most `accuracy`, or `max_steps` gradients are spent.

    Each step goes a fraction tau of the way to the best response to the current slope; where psi did not rise, the
    step is taken back and that sample's tau halved, so psi never falls below what it is at the start. What is returned
    is always a point whose gap was measured (`Accuracy`), also when the gradients did not suffice; so the last gradient
    moves nothing, and a single one measures the start.

    `curvature` is a known bound L on the curvature of the loss in zeta (linear softmax: ||W||^2 / 2, logistic:
    ||theta||^2 / 4). With it, and gamma > L / mu, the gap is proved; without it, or with slopes that autocast has
    rounded, estimated.
    """

    accuracy: float = 1e-3
    max_steps: int = 10
    curvature: float | None = None

    def __post_init__(self) -> None:
        check_size("accuracy", self.accuracy, zero=True, infinite=True)
        check_count("max_steps", self.max_steps)
        if self.curvature is not None and not self.curvature >= 0:
            raise Refused(f"curvature, a bound on L_zz, must be >= 0, not {self.curvature}")

    @property
    def gradients(self) -> int:
        return self.max_steps

    def refusal(self, cost: Cost, gamma_min: float) -> str | None:
        if self.curvature is None:
            return None
        needed = math.inf if cost.strong_convexity == 0 else self.curvature / cost.strong_convexity
        if gamma_min > needed:
            return None
        return (
            f"an accuracy can be proved only where psi is strongly concave: gamma_min > curvature / mu = {needed:g}, "
            f"but gamma_min = {gamma_min:g} with {type(cost).__name__} (mu = {cost.strong_convexity:g}). "
            "Raise gamma_min, choose a strongly convex cost, or drop curvature= for an estimated accuracy"
        )

    def why_short_of(self, radius: float) -> str | None:
        if radius > 0 and self.max_steps == 1:
            return "with max_steps 1 the one gradient measures the start and moves nothing. Raise max_steps"
        return None

    def start(self, problem: Problem) -> Tensor:
        return problem.z

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        # Alg. 1, line 3
        best, cost = point, problem.cost(problem.z, point.zeta)
        psi = point.loss - problem.gamma * cost
        tau = torch.ones_like(psi)
        seen = torch.full_like(psi, math.inf)  # curvature of the loss along the last move: before one, anything
        settled = torch.zeros_like(psi, dtype=torch.bool)
        before = torch.zeros_like(psi)  # the gap of those
        if isinstance(last, _OracleStep):
            # A sample that got there stays there, whatever the rest of its batch still does: the sup is per sample.
            before, settled = last.gap, last.gap <= self.accuracy
            seen = _secant(problem.cost, last.best, point)
            rounding = 4 * torch.finfo(psi.dtype).eps * last.psi.abs()
            rose = (psi >= last.psi + _ENOUGH * last.tau * last.gain - rounding) & ~settled
            best = _chosen(rose, point, last.best)
            psi, cost = torch.where(rose, psi, last.psi), torch.where(rose, cost, last.cost)
            tau = torch.where(rose, last.tau, last.tau / 2)
        response = problem.response(best.slope)
        way = response - best.zeta
        gain = rows(best.slope * way).sum(1) - problem.gamma * (problem.cost(problem.z, response) - cost)
        zeta = problem.project(best.zeta + per_sample(tau, way) * way)
        gap = self._estimated(problem, gain, seen) if self.curvature is None else self._proved(problem, best)
        gap = torch.where(settled, before, gap)
        estimated = self.curvature is None or torch.is_autocast_enabled(zeta.device.type)
        accuracy = Accuracy(gap, "estimated" if estimated else "proved", self.accuracy)
        return _OracleStep(zeta, best.zeta, accuracy, best=best, psi=psi, cost=cost, gain=gain, gap=gap, tau=tau)

    def _proved(self, problem: Problem, point: Point) -> Tensor:
        """max over d in the box of grad psi.d - lambda / 2 ||d||^2; without a box, ||grad psi||_*^2 / (2 lambda)."""
        concavity = problem.cost.strong_convexity * problem.gamma - (self.curvature or 0.0)  # lambda
        uphill = problem.gradient(point)
        d = problem.cost.response(uphill, concavity / 2, *problem.room(point.zeta))
        gap = rows(uphill * d).sum(1) - concavity / 2 * problem.cost.norm(d).square()
        return torch.where(concavity > 0, gap, math.inf)

    def _estimated(self, problem: Problem, gain: Tensor, seen: Tensor) -> Tensor:
        """The gain of a linear loss, enlarged by the curvature seen; a cost without curvature of its own cannot."""
        concavity = problem.cost.strong_convexity * problem.gamma
        enlarged = gain
        if problem.cost.strong_convexity > 0:
            enlarged = gain / (1 - seen.clamp_min(0) / concavity).clamp_min(0)
        # A sample at its optimum has gain 0, which is no gap whatever the curvature. A slope that is no number has any.
        return torch.where(gain <= 0, 0.0, enlarged.nan_to_num(nan=math.inf, posinf=math.inf))


def _chosen(first: Tensor, a: Point, b: Point) -> Point:
    """Sample by sample, a where `first`, else b."""
    return Point(
        zeta=torch.where(per_sample(first, a.zeta), a.zeta, b.zeta),
        loss=torch.where(first, a.loss, b.loss),
        slope=torch.where(per_sample(first, a.slope), a.slope, b.slope),
    )


def _secant(cost: Cost, old: Point, new: Point) -> Tensor:
    """Curvature of the loss between two points: s.(g' - g) / ||s||^2, (B,); 0 where they coincide."""
    along = new.zeta - old.zeta
    bent = rows(along * (new.slope - old.slope)).sum(1)
    length = cost.norm(along).square()
    return torch.where(length > 0, bent / length.clamp_min(torch.finfo(length.dtype).tiny), 0.0)
