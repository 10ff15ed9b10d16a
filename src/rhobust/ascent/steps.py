"""Maximizers with a fixed number of plain gradient steps: none, in a ball, or on psi."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.ascent.inner_problem import Point, Problem
from rhobust.ascent.maximizer import Climb, Maximizer, Step
from rhobust.checks import check_size
from rhobust.costs import per_sample, rows
from rhobust.errors import Refused


@dataclass(frozen=True)
class Identity(Maximizer):
    """zeta = z: no transport, plain empirical risk."""

    penalized = False

    @property
    def gradients(self) -> int:
        return 0

    def start(self, problem: Problem) -> Tensor:
        return problem.z

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        return last


@dataclass(frozen=True)
class Ball(Climb):
    """Ascent on the loss inside ||zeta - z|| <= epsilon, norm infinity or 2, projected after every step.

    The ball is centered at z. (The paper prints it centered at the previous iterate, where ten steps walk
    ten times epsilon.) `step_size` defaults to epsilon / steps; `random_start` draws the first zeta uniformly
    from the ball, with torch's global generator.
    """

    epsilon: float
    norm: float = math.inf
    step_size: float | None = None
    random_start: bool = False

    penalized = False

    def __post_init__(self) -> None:
        if self.norm not in (2, math.inf):
            raise Refused(f"a ball has norm 2 or infinity, not {self.norm}")
        check_size("epsilon", self.epsilon, zero=True)
        super().__post_init__()
        if self.step_size is not None:
            check_size("step_size", self.step_size)

    def start(self, problem: Problem) -> Tensor:
        z = problem.z
        if not self.random_start:
            return z
        if self.norm == math.inf:
            return problem.project(z + self.epsilon * (2 * torch.rand_like(z) - 1))
        # Uniform in the l2 ball: a uniform direction, and a radius whose d-th power is uniform.
        features = rows(z).shape[1]
        radius = torch.rand(len(z), dtype=z.dtype, device=z.device).pow(1 / features)
        return problem.project(z + self.epsilon * per_sample(radius, z) * _unit(torch.randn_like(z)))

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        size = self.epsilon / self.count if self.step_size is None else self.step_size
        zeta = self.stepped(problem, point, size)
        return Step(zeta, zeta)

    def stepped(self, problem: Problem, point: Point, size: float) -> Tensor:
        """Where a step of this size up the slope leads, in ball and box."""
        direction = point.slope.sign() if self.norm == math.inf else _unit(point.slope)
        return problem.project(self.nearest(problem.z, point.zeta + size * direction))

    def nearest(self, z: Tensor, zeta: Tensor) -> Tensor:
        """The point of the ball around z that is nearest to zeta."""
        if self.norm == math.inf:
            return torch.minimum(torch.maximum(zeta, z - self.epsilon), z + self.epsilon)
        away = zeta - z
        excess = (rows(away).norm(dim=1) / max(self.epsilon, torch.finfo(z.dtype).tiny)).clamp_min(1)
        return z + away / per_sample(excess, z)


def _unit(v: Tensor) -> Tensor:
    return v / per_sample(rows(v).norm(dim=1).clamp_min(torch.finfo(v.dtype).tiny), v)


@dataclass(frozen=True, kw_only=True)
class PenalizedAscent(Climb):
    """A fixed number of steps on psi.

    By default the step knows psi's curvature: move a fraction tau_t = 1 / sqrt(t + 1) of the way to the point
    that would be best if the loss were linear. With the cost ||.||_2^2 this is the gradient step
    eta_t = tau_t / (2 gamma), so the displacement, and with it E c, answers to gamma.

    `eta` gives the constant step printed in the paper, zeta <- zeta + eta grad psi. One such step from z does not
    see gamma at all, since grad c vanishes at zeta = z.
    """

    eta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eta is not None:
            check_size("eta", self.eta)

    def start(self, problem: Problem) -> Tensor:
        return problem.z

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        if self.eta is None:
            zeta = problem.project(point.zeta + (problem.response(point.slope) - point.zeta) / math.sqrt(t + 1))
        else:  # Alg. 2, line 3, and Alg. 3, line 5, as printed
            zeta = problem.project(point.zeta + self.eta * problem.gradient(point))
        return Step(zeta, zeta)
