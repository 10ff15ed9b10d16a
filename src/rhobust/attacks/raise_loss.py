"""An ascent in a ball that has no mistake to stop at: it takes every step, and keeps the best point seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Problem
from rhobust.ascent.maximizer import Step
from rhobust.ascent.steps import Ball, Identity
from rhobust.attacks.attack import ATTACKS, Attack, verified
from rhobust.attacks.cascade import CASCADES
from rhobust.box import Bounds
from rhobust.costs import per_sample
from rhobust.errors import ConfigError, unknown
from rhobust.losses import PerSampleLoss
from rhobust.objective import RobustObjective
from rhobust.support.probing import probing


@dataclass(frozen=True)
class Raised:
    """Where the loss of each sample was largest. Every zeta lies in its ball and box: that was checked."""

    zeta: Tensor  # (B, ...)
    loss: Tensor  # (B,)
    discarded: int  # results outside ball or box; they were not counted


def raises_loss(name: str) -> bool:
    """Whether a named attack goes up the loss itself, and not up a margin between classes.

    >>> raises_loss("apgd"), raises_loss("apgd-margin"), raises_loss("pgd-t"), raises_loss("square")
    (True, False, False, False)
    """
    way = ATTACKS[name](1.0)
    return way.climbs is None and way.toward is None and not way.queries


def check_raises_loss(names: Sequence[str]) -> None:
    """Refuse names that are no attacks on a loss of numbers."""
    known = [name for name in ATTACKS if raises_loss(name)]
    wrong = [name for name in names if name not in known]
    if not wrong:
        return
    of_classes = [name for name in wrong if name in (*ATTACKS, *CASCADES)]
    problems = [unknown("attack in a ball", name, known) for name in wrong if name not in of_classes]
    if of_classes:
        problems.append(
            f"{' and '.join(of_classes)} cannot attack a regression, which has no classes; take of {', '.join(known)}"
        )
    raise ConfigError(problems)


def raise_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    way: Attack,
    *,
    loss: PerSampleLoss,
    bounds: Bounds = None,
    restarts: int = 1,
) -> Raised:
    """The largest loss of each sample that `restarts` runs of an attack have seen; x itself counts.

    The first run begins at x, from where a linear model is climbed on the right side; those after it begin where the
    attack likes to. The model is used in evaluation mode and left as it was found.

    >>> model = nn.Linear(2, 1)
    >>> absolute = nn.L1Loss(reduction="none")
    >>> found = raise_loss(model, torch.zeros(3, 2), torch.zeros(3), ATTACKS["fgsm"](0.1), loss=absolute)
    >>> exact = model.bias.abs() + 0.1 * model.weight.abs().sum()
    >>> bool(torch.allclose(found.loss, exact.detach()))
    True
    """
    objective = RobustObjective(model, loss, radius=0.0, maximizer=Identity(), bounds=bounds)
    objective.maximum(x, y)  # refuses what breaks the theory, before any work
    with probing(model):
        problem = objective.problem(x, y)
        best = Raised(problem.z, _at(problem, problem.z), 0)
        for run in range(restarts if way.ball.random_start else 1):
            ball = way.ball if run else replace(way.ball, random_start=False)
            zeta, outside = verified(problem.z, _climbed(problem, ball), ball, bounds, problem.mask)
            best = _better(best, Raised(zeta, _at(problem, zeta), outside))
    return best


def _climbed(problem: Problem, ball: Ball) -> Tensor:
    """The best point that the steps of a ball have seen."""
    start = ball.start(problem)
    step, best = Step(start, start), Raised(start, _at(problem, start), 0)
    for t in range(ball.gradients):
        point = problem.at(step.zeta)
        best = _better(best, Raised(point.zeta, point.loss, 0))
        step = ball.move(problem, point, t, step)
    return _better(best, Raised(step.answer, _at(problem, step.answer), 0)).zeta


def _at(problem: Problem, zeta: Tensor) -> Tensor:
    with torch.no_grad():
        return problem.loss(zeta)


def _better(one: Raised, other: Raised) -> Raised:
    """The larger loss of each sample."""
    ahead = other.loss > one.loss
    zeta = torch.where(per_sample(ahead, one.zeta), other.zeta, one.zeta)
    return Raised(zeta, torch.where(ahead, other.loss, one.loss), one.discarded + other.discarded)
