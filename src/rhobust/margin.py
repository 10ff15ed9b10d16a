"""Margin ascent: linearize the margin instead of the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.costs import per_sample, rows
from rhobust.maximizer import Maximizer, Step, check_count, check_positive
from rhobust.problem import Point, Problem

# Scalar Newton iterations; each of the two branches converges monotonically.
_NEWTON_STEPS = 25


@dataclass(frozen=True)
class MarginAscent(Maximizer):
    """Steps that linearize the margin instead of the loss; for losses of the form softplus(-margin).

    A confident sample has a vanishing loss gradient, and a step on the loss leaves it alone even where a longer move
    would pay. From the loss l and slope g at zeta: l = softplus(-m), so -m = log(e^l - 1), and the margin falls
    along g / (1 - e^-l). With d the direction of steepest descent of the margin and s its rate, the scalar problem

        max over 0 <= t <= cap of  softplus(b + s t) - gamma t^2

    is solved exactly, without a further pass through the model, and zeta = z + t d. Cross-entropy has this form with
    the margin of the true class over the soft maximum of the others. With `steps` > 1 the margin is linearized again
    at each zeta, and step t goes 1 / sqrt(t + 1) of the way.
    """

    steps: int = 1
    cap: float = math.inf

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_positive("cap", self.cap)

    @property
    def gradients(self) -> int:
        return self.steps

    def start(self, problem: Problem) -> Tensor:
        return problem.z

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        # Below machine precision a loss says nothing about its margin any more.
        loss = point.loss.clamp_min(torch.finfo(point.loss.dtype).eps)
        doubt = -torch.expm1(-loss)  # 1 - e^-l = sigmoid(-m), (B,)
        fall = point.slope / per_sample(doubt, point.slope)  # gradient of -m
        bias = loss + torch.log(doubt) - rows(fall * (point.zeta - problem.z)).sum(1)  # -m, extended back to z
        length = margin_length(bias, problem.cost.dual_norm(fall), problem.gamma, self.cap)
        target = problem.project(problem.z + per_sample(length, fall) * problem.cost.direction(fall))
        zeta = point.zeta + (target - point.zeta) / math.sqrt(t + 1)
        return Step(zeta, zeta)


def margin_length(bias: Tensor, rate: Tensor, gamma: Tensor, cap: float = math.inf) -> Tensor:
    """argmax over 0 <= t <= cap of softplus(bias + rate t) - gamma t^2, for each sample.

    The stationary points solve rate sigmoid(bias + rate t) = 2 gamma t. The left side is convex below u = 0 and
    concave above (u = bias + rate t), so there are at most two local maxima: Newton from t = 0 rises to the lower,
    Newton from t = rate / (2 gamma) falls to the upper, both monotonically. The better one wins.

    >>> margin_length(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor(0.25))  # sigmoid(t) = t / 2
    tensor([1.6879])
    """
    top = rate / (2 * gamma)
    lower, upper = torch.zeros_like(top), top
    for _ in range(_NEWTON_STEPS):
        lower = _newton(lower, bias, rate, gamma).clamp(torch.zeros_like(top), top)
        upper = _newton(upper, bias, rate, gamma).clamp(torch.zeros_like(top), top)
    lower, upper = lower.clamp_max(cap), upper.clamp_max(cap)

    def gain(t: Tensor) -> Tensor:
        return torch.nn.functional.softplus(bias + rate * t) - gamma * t.square()

    return torch.where(gain(upper) > gain(lower), upper, lower)


def _newton(t: Tensor, bias: Tensor, rate: Tensor, gamma: Tensor) -> Tensor:
    chance = torch.sigmoid(bias + rate * t)
    value = rate * chance - 2 * gamma * t
    bend = rate.square() * chance * (1 - chance) - 2 * gamma
    # Where the curve does not bend down there is no maximum on this side; stay, the other branch has it.
    return torch.where(bend < 0, t - value / bend.clamp_max(-torch.finfo(t.dtype).tiny), t)
