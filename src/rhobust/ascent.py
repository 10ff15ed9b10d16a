"""Maximizers of zeta: how the inner sup over zeta of loss(zeta) - gamma c(z, zeta) is approached.

There is one loop, `maximize`; what differs arrives as a value:

    Identity         zeta = z                                            ERM
    Ball             signed or normalized steps inside a norm ball       FGSM, IFGSM, PGD
    PenalizedAscent  a fixed number of steps on psi                      WRM, SPGDA (one step)
    Oracle           steps on psi until an accuracy is reached           SPGD
    MarginAscent     steps that linearize the margin, not the loss       ours

Gradients are per sample (the batch is summed, never averaged), and zeta stays in the box of the data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.costs import Cost, per_sample, rows
from rhobust.errors import Refused
from rhobust.problem import Accuracy, Maximum, Point, Problem

# Scalar Newton iterations of the margin problem; each of its two branches converges monotonically.
_NEWTON_STEPS = 25


@dataclass(frozen=True)
class Step:
    """What a maximizer hands the loop: where to look next, and what to return if the loop ends here."""

    zeta: Tensor
    answer: Tensor
    accuracy: Accuracy | None = None


class Maximizer(ABC):
    """How zeta starts and how it moves."""

    penalized: bool = True
    """Whether gamma prices the transport (psi), or the maximizer is its own constraint (the loss alone)."""

    @property
    @abstractmethod
    def gradients(self) -> int:
        """The most gradients it asks for."""

    @abstractmethod
    def start(self, problem: Problem) -> Tensor:
        """The first zeta."""

    @abstractmethod
    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        """The step number t (from 0), given the loss and slope where the last one said to look."""


def maximize(problem: Problem, maximizer: Maximizer, start: Tensor | None = None) -> Maximum:
    """The loop; every maximizer runs through here. `start` replaces the maximizer's own first zeta.

    >>> from rhobust.costs import SquaredL2
    >>> slope = torch.tensor([[3.0, -1.0]])
    >>> problem = Problem(torch.zeros(1, 2), lambda zeta: (zeta * slope).sum(1), torch.tensor(0.5), SquaredL2())
    >>> maximize(problem, PenalizedAscent(steps=1)).zeta  # a linear loss: one step is exact, g / (2 gamma)
    tensor([[ 3., -1.]])
    """
    zeta = maximizer.start(problem) if start is None else start
    step, paid = Step(zeta, zeta), 0
    for t in range(maximizer.gradients):
        step, paid = maximizer.move(problem, problem.at(step.zeta), t, step), t + 1
        if step.accuracy is not None and step.accuracy.reached:
            break
    return Maximum(step.answer.to(problem.z.dtype), step.accuracy, paid)


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise Refused(f"{name} must be at least 1, not {count}")


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise Refused(f"{name} must be > 0, not {value}")


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
class Ball(Maximizer):
    """Ascent on the loss inside ||zeta - z|| <= epsilon, norm infinity or 2, projected after every step.

    The ball is centered at z. (The paper prints it centered at the previous iterate, where ten steps walk
    ten times epsilon.) `step_size` defaults to epsilon / steps; `random_start` draws the first zeta uniformly
    from the ball, with torch's global generator.
    """

    epsilon: float
    norm: float = math.inf
    steps: int = 1
    step_size: float | None = None
    random_start: bool = False

    penalized = False

    def __post_init__(self) -> None:
        if self.norm not in (2, math.inf):
            raise Refused(f"a ball has norm 2 or infinity, not {self.norm}")
        if not self.epsilon >= 0:
            raise Refused(f"epsilon must be >= 0, not {self.epsilon}")
        _check_count("steps", self.steps)
        if self.step_size is not None:
            _check_positive("step_size", self.step_size)

    @property
    def gradients(self) -> int:
        return self.steps

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
        size = self.epsilon / self.steps if self.step_size is None else self.step_size
        direction = point.slope.sign() if self.norm == math.inf else _unit(point.slope)
        zeta = problem.project(self._into(problem.z, point.zeta + size * direction))
        return Step(zeta, zeta)

    def _into(self, z: Tensor, zeta: Tensor) -> Tensor:
        if self.norm == math.inf:
            return torch.minimum(torch.maximum(zeta, z - self.epsilon), z + self.epsilon)
        away = zeta - z
        excess = (rows(away).norm(dim=1) / max(self.epsilon, torch.finfo(z.dtype).tiny)).clamp_min(1)
        return z + away / per_sample(excess, z)


def _unit(v: Tensor) -> Tensor:
    return v / per_sample(rows(v).norm(dim=1).clamp_min(torch.finfo(v.dtype).tiny), v)


@dataclass(frozen=True)
class PenalizedAscent(Maximizer):
    """A fixed number of steps on psi.

    By default the step knows psi's curvature: move a fraction tau_t = 1 / sqrt(t + 1) of the way to the point
    that would be best if the loss were linear. With the cost ||.||_2^2 this is the gradient step
    eta_t = tau_t / (2 gamma), so the displacement, and with it E c, answers to gamma.

    `eta` gives the constant step printed in the paper, zeta <- zeta + eta grad psi. One such step from z does not
    see gamma at all, since grad c vanishes at zeta = z.
    """

    steps: int = 1
    eta: float | None = None

    def __post_init__(self) -> None:
        _check_count("steps", self.steps)
        if self.eta is not None:
            _check_positive("eta", self.eta)

    @property
    def gradients(self) -> int:
        return self.steps

    def start(self, problem: Problem) -> Tensor:
        return problem.z

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        if self.eta is None:
            zeta = point.zeta + (problem.response(point.slope) - point.zeta) / math.sqrt(t + 1)
        else:  # Alg. 2, line 3, as printed
            gradient = point.slope - problem.gamma * problem.cost.gradient(point.zeta - problem.z)
            zeta = problem.project(point.zeta + self.eta * gradient)
        return Step(zeta, zeta)


@dataclass(frozen=True)
class _OracleStep(Step):
    """What an oracle remembers."""

    best: Point | None = None  # the last accepted point; its zeta is the answer
    tau: Tensor | None = None  # (B,) how much of the way to the response it dares to go


@dataclass(frozen=True)
class Oracle(Maximizer):
    """The eps-accurate oracle of Alg. 1: steps on psi until every sample's gap is at most `accuracy`.

    Each step goes a fraction tau of the way to the best response to the current slope; where psi did not rise, the
    step is taken back and that sample's tau halved, so psi(zeta) never falls below psi(z). What is returned is
    always a point whose gap was measured (`Accuracy`), also when `max_steps` gradients did not suffice.

    `curvature` is a known bound L on the curvature of the loss in zeta (linear softmax: ||W||^2 / 2, logistic:
    ||theta||^2 / 4). With it, and gamma > L / mu, the gap is proved; without it, estimated.
    """

    accuracy: float = 1e-2
    max_steps: int = 10
    curvature: float | None = None

    def __post_init__(self) -> None:
        if not self.accuracy >= 0:
            raise Refused(f"accuracy must be >= 0, not {self.accuracy}")
        _check_count("max_steps", self.max_steps)
        if self.curvature is not None and not self.curvature >= 0:
            raise Refused(f"curvature, a bound on L_zz, must be >= 0, not {self.curvature}")

    @property
    def gradients(self) -> int:
        return self.max_steps

    def start(self, problem: Problem) -> Tensor:
        return problem.z

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        seen = torch.zeros_like(point.loss)  # curvature of the loss along the last move
        tau = torch.ones_like(point.loss)
        best = point
        if isinstance(last, _OracleStep) and last.best is not None and last.tau is not None:
            old = last.best
            seen = _secant(problem.cost, old, point)
            before = problem.penalized(old)
            slack = 4 * torch.finfo(before.dtype).eps * before.abs()  # rounding is no fall
            rose = problem.penalized(point) >= before - slack
            best = Point(*(torch.where(per_sample(rose, new), new, kept) for new, kept in _pairs(point, old)))
            tau = torch.where(rose, last.tau, last.tau / 2)
        response = problem.response(best.slope)
        gap = self._gap(problem, best, response, seen)
        zeta = best.zeta + per_sample(tau, best.zeta) * (response - best.zeta)
        return _OracleStep(zeta, best.zeta, gap, best, tau)

    def _gap(self, problem: Problem, point: Point, response: Tensor, seen: Tensor) -> Accuracy:
        concavity = problem.cost.strong_convexity * problem.gamma  # of -gamma c
        if self.curvature is not None:
            slack = (concavity - self.curvature).clamp_min(0)
            gap = problem.cost.dual_norm(problem.gradient(point)).square() / (2 * slack)
            return Accuracy(gap, "proved", self.accuracy)
        cost, gamma = problem.cost, problem.gamma
        gain = rows(point.slope * (response - point.zeta)).sum(1)
        gain = gain - gamma * (cost(problem.z, response) - cost(problem.z, point.zeta))
        if cost.strong_convexity > 0:
            gain = gain / (1 - seen.clamp_min(0) / concavity).clamp_min(0)
        # A sample at its optimum has gain 0, which is no gap whatever the curvature: 0 / 0 is 0 here.
        return Accuracy(torch.nan_to_num(gain.clamp_min(0), nan=0.0, posinf=math.inf), "estimated", self.accuracy)


def _pairs(new: Point, old: Point) -> tuple[tuple[Tensor, Tensor], ...]:
    return (new.zeta, old.zeta), (new.loss, old.loss), (new.slope, old.slope)


def _secant(cost: Cost, old: Point, new: Point) -> Tensor:
    """Curvature of the loss between two points: s.(g' - g) / ||s||^2, (B,); 0 where they coincide."""
    along = new.zeta - old.zeta
    bent = rows(along * (new.slope - old.slope)).sum(1)
    length = cost.norm(along).square()
    return torch.where(length > 0, bent / length.clamp_min(torch.finfo(length.dtype).tiny), 0.0)


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
        _check_count("steps", self.steps)
        _check_positive("cap", self.cap)

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
