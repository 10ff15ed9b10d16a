"""The inner sup by ascent from several starts, the best answer of each sample kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rhobust.ascent.inner_problem import Problem
from rhobust.ascent.margin import MarginAscent
from rhobust.ascent.maximizer import maximize
from rhobust.ascent.oracle import Oracle
from rhobust.costs import Cost, per_sample


class AscentSup:
    """The sup by ascent: with the proved gap on top where gamma > L / mu, as found where L is unknown."""

    floor = 0.0

    def __init__(self, curvature: float | None, cost: Cost, max_steps: int | None, accuracy: float | None) -> None:
        self.proof = math.inf if curvature is None else curvature / cost.strong_convexity
        self.accuracy, self.searches = (1e-3, 20) if curvature is None else (1e-6, 40)
        # Relative to the loss; a tenth of the gap is left to the sup, the rest to the choice of gamma.
        target = (accuracy or self.accuracy) / 10
        self.oracle = Oracle(target, 200 if max_steps is None else max_steps, curvature)
        self.ascent = Oracle(target, 10 if max_steps is None else max_steps)

    def solve(self, problem: Problem, y: Tensor, starts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(zeta, upper), from the best of z and `starts`; upper is infinite where a proof was asked for and fails."""
        zeta, psi = problem.z, _penalized(problem, problem.z)
        proved = float(problem.gamma) > self.proof
        if not proved:  # no concavity, so the start matters: margin ascent moves confident samples too
            starts = [*starts, maximize(problem, MarginAscent(steps=2)).zeta]
        oracle = self.oracle if proved else self.ascent
        oracle = replace(oracle, accuracy=oracle.accuracy * float(psi.abs().mean()))
        for start in starts:
            zeta, psi = _better(problem, zeta, psi, start)
        found = maximize(problem, oracle, zeta)
        zeta, psi = _better(problem, zeta, psi, found.zeta)
        if proved and found.accuracy is not None:
            gap = found.accuracy.gap.cpu().double()
            return zeta, torch.nan_to_num(_penalized(problem, found.zeta) + gap, nan=math.inf, posinf=math.inf)
        return zeta, psi if math.isinf(self.proof) else torch.full_like(psi, math.inf)


def loss_at(problem: Problem, zeta: Tensor) -> Tensor:
    """loss(zeta), in double precision on the CPU, (B,)."""
    with torch.no_grad():
        return problem.loss(zeta.clone()).cpu().double()


def cost_at(problem: Problem, zeta: Tensor) -> Tensor:
    """c(z, zeta), in double precision whatever the model's, (B,)."""
    return problem.cost(problem.z.cpu().double(), zeta.cpu().double())


def _penalized(problem: Problem, zeta: Tensor) -> Tensor:
    """loss(zeta) - gamma c(z, zeta), the cost in double precision whatever the model's, (B,)."""
    return loss_at(problem, zeta) - float(problem.gamma) * cost_at(problem, zeta)


def _better(problem: Problem, zeta: Tensor, psi: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Sample by sample the one with the larger psi, and psi there; what is not finite never wins."""
    value = _penalized(problem, other)
    better = value.isfinite() & (value > psi)
    return torch.where(per_sample(better, zeta).to(zeta.device), other, zeta), torch.where(better, value, psi)
