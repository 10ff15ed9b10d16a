"""Margin ascent: a step on the linearized margin instead of the linearized loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.ascent.inner_problem import Point, Problem
from rhobust.ascent.maximizer import Climb, Step
from rhobust.checks import check_size
from rhobust.costs import per_sample, rows

# Scalar Newton iterations; the tests of the exact maximum need twelve.
_NEWTON_STEPS = 15


@dataclass(frozen=True, kw_only=True)
class MarginAscent(Climb):
    """Steps that linearize the margin instead of the loss; for losses of the form softplus(-margin).

    A confident sample has a vanishing loss gradient, and a step on the loss leaves it alone even where a longer move
    would pay. From the loss l and slope g at zeta: l = softplus(-m), so -m = log(e^l - 1), and the margin falls
    along g / (1 - e^-l). With d the direction of steepest descent of the margin and s its rate, the scalar problem

        max over 0 <= t <= cap of  softplus(b + s t) - gamma t^2

    is solved exactly, without a further pass through the model, and zeta = z + t d. Cross-entropy has this form with
    the margin of the true class over the soft maximum of the others. With more `steps` the margin is linearized again
    at each zeta, and step t goes 1 / sqrt(t + 1) of the way.
    """

    cap: float = math.inf

    classifies = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("cap", self.cap, infinite=True)

    def start(self, problem: Problem) -> Tensor:
        return problem.z

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        # Below machine precision a loss says nothing about its margin any more.
        loss = point.loss.clamp_min(torch.finfo(point.loss.dtype).eps)
        doubt = -torch.expm1(-loss)  # 1 - e^-l = sigmoid(-m), (B,)
        fall = point.slope / per_sample(doubt, point.slope)  # gradient of -m
        bias = loss + torch.log(doubt) - rows(fall * (point.zeta - problem.z)).sum(1)  # -m, extended back to z
        length = self.length(bias, problem.cost.dual_norm(fall), problem.gamma)
        target = problem.project(problem.z + per_sample(length, fall) * problem.cost.direction(fall))
        zeta = problem.project(point.zeta + (target - point.zeta) / math.sqrt(t + 1))  # a sum rounds past the box
        return Step(zeta, zeta)

    def length(self, bias: Tensor, rate: Tensor, gamma: Tensor) -> Tensor:
        """How far to go along d, for each sample."""
        return margin_length(bias, rate, gamma, self.cap)


@dataclass(frozen=True, kw_only=True)
class ErrorAscent(MarginAscent):
    """The same for the chance of an error, 1 - e^-l = sigmoid(-m), in place of the loss l = softplus(-m).

        max over 0 <= t <= cap of  sigmoid(b + s t) - gamma t^2

    The adversary is after errors, which is what an attack is judged by; theta still descends a loss at zeta. The
    chance is at most one: a sample that is clearly wrong already hardly moves, and one that can be made wrong moves
    until that is all but certain. So the radius goes to samples near the border, and hard ones are not made harder.
    gamma is then the dual variable of the worst expected error over the ball.
    """

    def length(self, bias: Tensor, rate: Tensor, gamma: Tensor) -> Tensor:
        return error_length(bias, rate, gamma, self.cap)


def margin_length(bias: Tensor, rate: Tensor, gamma: Tensor, cap: float = math.inf) -> Tensor:
    """argmax over 0 <= t <= cap of softplus(bias + rate t) - gamma t^2, for each sample.

    With t = tau rate / (2 gamma) the stationary points solve sigmoid(bias + k tau) = tau, k = rate^2 / (2 gamma), and
    lie in [0, 1]. The sigmoid is convex below bias + k tau = 0 and concave above, so there are at most two maxima:
    Newton from tau = 0 rises to the lower, Newton from tau = 1 falls to the upper, both monotonically. The better wins.

    >>> margin_length(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor(0.25))  # sigmoid(t) = t / 2
    tensor([1.6879])
    """
    k = rate.square() / (2 * gamma)
    tau = torch.stack([torch.zeros_like(k), torch.ones_like(k)])  # (2, B): both searches at once
    for _ in range(_NEWTON_STEPS):
        chance = torch.sigmoid(bias + k * tau)
        bend = 1 - k * chance * (1 - chance)
        # Where the curve does not bend down there is no maximum on this side; stay, the other search has it.
        newton = tau + (chance - tau) / bend.clamp_min(torch.finfo(k.dtype).tiny)
        tau = torch.where(bend > 0, newton.clamp(0, 1), tau)
    low, high = (tau * rate / (2 * gamma)).clamp_max(cap)

    def gain(t: Tensor) -> Tensor:
        return torch.nn.functional.softplus(bias + rate * t) - gamma * t.square()

    return torch.where(gain(high) > gain(low), high, low)


def error_length(bias: Tensor, rate: Tensor, gamma: Tensor, cap: float = math.inf) -> Tensor:
    """argmax over 0 <= t <= cap of sigmoid(bias + rate t) - gamma t^2, for each sample.

    With u = bias + rate t the stationary points solve sigmoid'(u) = (u - bias) / k, k = rate^2 / (2 gamma): where a
    bell meets a line that rises from zero at u = bias. In v = log(u - bias) they are the roots of

        G(v) = log sigmoid'(u) - v + log k

    which is convex for small v, and concave from somewhere below u = 0 on. So there are at most two maxima, where G
    falls through zero: Newton from below rises to the lower, Newton from above falls to the upper, both monotonically.
    The better wins.

    >>> error_length(torch.tensor([-2.0]), torch.tensor([4.0]), torch.tensor(0.25))  # the border is at 0.5
    tensor([0.9563])
    """
    tiny = torch.finfo(rate.dtype).tiny
    k = (rate.square() / (2 * gamma)).clamp_min(tiny)
    # No root is above these: the bell is below 1/4, and below e^-u.
    most = torch.minimum(k / 4, (k.log() - bias).maximum(-bias).clamp_min(0) + 1).log()
    least = torch.minimum(k.log() + _log_bell(bias), most)  # below u = 0 the bell rises
    v = torch.stack([least, most])  # (2, B): both searches at once
    for _ in range(_NEWTON_STEPS):
        way = v.exp()
        fall = 1 + way * torch.tanh((bias + way) / 2)  # -G'
        newton = v + (_log_bell(bias + way) - v + k.log()) / fall.clamp_min(tiny)
        # Where G does not fall there is no maximum on this side; stay, the other search has it.
        v = torch.where(fall > 0, newton.clamp_min(math.log(tiny)).minimum(most), v)
    low, high = (v.exp() * rate / (2 * gamma * k)).clamp_max(cap)

    def gain(t: Tensor) -> Tensor:
        return torch.sigmoid(bias + rate * t) - gamma * t.square()

    return torch.where(gain(high) > gain(low), high, low)


def _log_bell(u: Tensor) -> Tensor:
    """log sigmoid'(u), also far out."""
    return -u.abs() - 2 * torch.log1p(torch.exp(-u.abs()))
