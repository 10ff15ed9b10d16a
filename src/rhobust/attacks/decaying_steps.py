"""Ascent in a ball by steps that begin long and become shorter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.ascent.inner_problem import Point, Problem
from rhobust.ascent.maximizer import Step
from rhobust.ascent.steps import Ball
from rhobust.costs import per_sample


@dataclass(frozen=True, kw_only=True)
class BestStep(Step):
    """A step whose answer is the best point seen."""

    best: Tensor  # (B,) loss at the answer

    @classmethod
    def unmoved(cls, point: Point) -> BestStep:
        """Before the first step: nothing was seen."""
        return cls(zeta=point.zeta, answer=point.zeta, best=torch.full_like(point.loss, -math.inf))


@dataclass(frozen=True)
class DecayingSteps(Ball):
    """A ball in which step t of T has the size `peak` epsilon (1 - t / T); the answer is the best point seen.

    The first steps cross the ball, the last ones are fine.

    >>> from rhobust.costs import SquaredL2
    >>> problem = Problem(torch.zeros(1, 1), lambda zeta: -(zeta[:, 0] - 0.25).square(), torch.tensor(0.0), SquaredL2())
    >>> ball, step = DecayingSteps(1.0, steps=4), Step(problem.z, problem.z)
    >>> for t in range(ball.gradients):
    ...     step = ball.move(problem, problem.at(step.zeta), t, step)
    >>> step.answer
    tensor([[0.]])
    """

    peak: float = 2.0

    @property
    def gradients(self) -> int:
        return self.count + 1  # the last one is of where the last step led: it may be the best

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        known = last if isinstance(last, BestStep) else BestStep.unmoved(point)
        better = point.loss > known.best
        return BestStep(
            zeta=self.stepped(problem, point, self.peak * self.epsilon * (1 - t / self.count)),
            answer=torch.where(per_sample(better, point.zeta), point.zeta, known.answer),
            best=torch.where(better, point.loss, known.best),
        )
