"""Auto-PGD: ascent in a ball with a step size for each sample (Croce and Hein, 2020, Alg. 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from rhobust.ascent.inner_problem import Point, Problem
from rhobust.ascent.maximizer import Step
from rhobust.ascent.steps import Ball
from rhobust.attacks.decaying_steps import BestStep
from rhobust.costs import SquaredL2, SquaredLinf, per_sample

_ALPHA = 0.75  # weight of the new step; the rest is that of the one before it
_RHO = 0.75  # share of the steps that must raise the loss, or they are too long


@dataclass(frozen=True, kw_only=True)
class AutoStep(BestStep):
    """What Auto-PGD remembers of each sample; the answer is the best point seen, x_max, with the loss f_max."""

    before: Tensor  # (B, ...) where the last step set out from
    loss: Tensor  # (B,) there
    size: Tensor  # (B,) of the steps, eta
    rises: Tensor  # (B,) steps since the last checkpoint that raised the loss
    marked: Tensor  # (B,) f_max at the last checkpoint
    halved: Tensor  # (B,) whether eta was halved there


@dataclass(frozen=True)
class AutoPGD(Ball):
    """A ball in which the steps have momentum, begin long, and shorten where they no longer pay.

    The first step has `step_size`, by default 2 epsilon: across the ball. At the `checkpoints` a sample's step is
    halved, and it goes on from the best point seen, if fewer than 3/4 of its steps since the last checkpoint raised
    the loss, or if neither its step nor its best loss has changed since then. The answer is the best point seen.
    """

    @property
    def gradients(self) -> int:
        return self.count + 1  # the last one is of where the last step led: it may be the best

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        known = last if isinstance(last, AutoStep) else self._first(point)
        here, momentum = point.zeta, point.zeta - known.before
        toward = SquaredLinf() if self.norm == math.inf else SquaredL2()
        ahead = self._inside(problem, here + per_sample(known.size, here) * toward.direction(point.slope))  # line 7
        if t > 0:  # line 8; the first step, line 2, has nothing behind it
            ahead = self._inside(problem, here + _ALPHA * (ahead - here) + (1 - _ALPHA) * momentum)
        better = point.loss > known.best  # lines 3, 4 and 10 to 12
        step = replace(
            known,
            zeta=ahead,
            answer=torch.where(per_sample(better, here), here, known.answer),
            before=here,
            loss=point.loss,
            best=torch.where(better, point.loss, known.best),
            rises=known.rises + (point.loss > known.loss),
        )
        since = {late: late - early for early, late in pairwise(checkpoints(self.count))}
        return _judged(step, since[t]) if t in since else step  # line 13

    def _first(self, point: Point) -> AutoStep:
        size = 2 * self.epsilon if self.step_size is None else self.step_size
        return AutoStep(
            zeta=point.zeta,
            answer=point.zeta,
            before=point.zeta,
            loss=point.loss,
            best=point.loss,
            size=torch.full((len(point.zeta),), size, dtype=point.zeta.dtype, device=point.zeta.device),
            rises=torch.zeros_like(point.loss, dtype=torch.long),
            marked=point.loss,
            halved=torch.zeros_like(point.loss, dtype=torch.bool),
        )

    def _inside(self, problem: Problem, zeta: Tensor) -> Tensor:
        return problem.project(self.nearest(problem.z, zeta))


def _judged(step: AutoStep, taken: int) -> AutoStep:
    """The step at a checkpoint, `taken` steps after the last one: lines 14 to 17, decided for each sample."""
    rare = step.rises < _RHO * taken  # condition 1
    stuck = ~step.halved & (step.best == step.marked)  # condition 2
    halved = rare | stuck
    return replace(
        step,
        # The paper looks at the step ahead before it is dropped; that pass is saved here.
        zeta=torch.where(per_sample(halved, step.zeta), step.answer, step.zeta),
        size=torch.where(halved, step.size / 2, step.size),
        rises=torch.zeros_like(step.rises),
        marked=step.best,
        halved=halved,
    )


def checkpoints(steps: int) -> list[int]:
    """After how many of so many steps to look back: at 0, 22 %, 41 %, ..., 3 % sooner each time, at least 6 % apart.

    >>> checkpoints(100)
    [0, 22, 41, 57, 70, 80, 87, 93, 99]
    """
    percent, apart, found = 0, 22, []
    while percent <= 100:  # whole numbers: floating point makes 57 % of 100 steps 58
        found.append(-(-percent * steps // 100))
        percent, apart = percent + apart, max(apart - 3, 6)
    return list(dict.fromkeys(found))  # a few steps alone meet some of them twice
