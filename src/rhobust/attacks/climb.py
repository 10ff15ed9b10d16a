"""The ascent of an attack in its ball, which is over for a sample as soon as the model errs on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Problem
from rhobust.ascent.maximizer import Step
from rhobust.ascent.steps import Ball
from rhobust.attacks.decaying_steps import BestStep
from rhobust.box import Bounds, limits
from rhobust.costs import SquaredL2, per_sample
from rhobust.inputs import mask_of, part_of
from rhobust.validator import check_countable

Height = Callable[[Tensor, Tensor], Tensor]
"""(outputs, the numbers of their samples in the batch) -> (B,): what the ascent goes up."""


@dataclass(frozen=True)
class Climbed:
    """Where the ascents of a batch ended."""

    zeta: Tensor  # (B, ...) where the model first erred, else the ball's answer
    erred: Tensor  # (B,) bool: whether it was seen to err there
    best: Tensor  # (B,) the height of the answer; -inf where the ball does not keep it


def climb(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    height: Height,
    bounds: Bounds = None,
    start: Tensor | None = None,
) -> Climbed:
    """The steps of the ball from `start`, by default the ball's own, up a height; a sample stays where the model errs.

    The pass that climbs also judges. The model is used as it is: see `probing`.
    """
    left = torch.arange(len(x), device=x.device)
    theirs = model  # the model for the samples that are left
    wrong = torch.zeros(0, dtype=torch.bool)

    def judged(zeta: Tensor) -> Tensor:
        nonlocal wrong
        output = theirs(zeta)
        wrong = mistaken(output.detach(), y[left])
        return height(output, left)

    def problem() -> Problem:
        return Problem(
            x[left], judged, torch.zeros((), device=x.device), SquaredL2(), *limits(bounds, x[left], mask_of(theirs))
        )

    zeta = (ball.start(problem()) if start is None else start).clone()
    erred, best = torch.zeros(len(x), dtype=torch.bool, device=x.device), x.new_full((len(x),), -math.inf)
    step = Step(zeta, zeta)
    for t in range(ball.gradients):
        here = problem()
        point = here.at(step.zeta)
        step = ball.move(here, point, t, step)
        zeta[left] = torch.where(per_sample(wrong, point.zeta), point.zeta, step.answer)
        erred[left] = wrong
        if isinstance(step, BestStep):
            best[left] = step.best.to(best)
        going = (~wrong).nonzero()[:, 0]  # the one thing that a step reads back from the device
        if not len(going):
            break
        left, theirs, step = left[going], part_of(theirs, going), _of(step, going)
    return Climbed(zeta, erred, best)


def _of(step: Step, samples: Tensor) -> Step:
    """The same step for some of its samples: whatever it remembers has a row for each."""
    remembered = {field.name: getattr(step, field.name) for field in fields(step)}
    theirs: dict[str, Any] = {name: of[samples] for name, of in remembered.items() if isinstance(of, Tensor)}
    return replace(step, **theirs)


def mistaken(output: Tensor, y: Tensor) -> Tensor:
    """Where an output (B, classes) does not say y, (B,). NaN says nothing, though argmax takes it for its place."""
    check_countable(output, y)
    return (output.argmax(1) != y) | output.isnan().any(1)
