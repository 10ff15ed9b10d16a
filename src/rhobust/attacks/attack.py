"""Attacks in a ball, each made of the steps that also train, with verified results.

Named attacks live in a ball of radius epsilon (in the data's own units, here pixels in [-1, 1]):

    fgsm, ifgsm     one step of epsilon; ten steps of epsilon / 10
    pgd             forty steps of 2.5 epsilon / 40 from a random start
    pgd-margin      the same, up the margin between the classes, which a confident model cannot flatten
    apgd            a hundred whose size each sample finds for itself, beginning with 2 epsilon (Auto-PGD)
    apgd-margin     the same, up the margin in units of the spread of the logits
    pgd-paper       ten steps of size 1, the paper's alpha, projected on the ball around x
    square          black box: 200 random squares, no gradient at all
    ...-l2          the same in the l2 ball

An attack is over for a sample as soon as the model errs on it; only the others go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.ascent.maximizer import Step
from rhobust.ascent.steps import Ball, Identity
from rhobust.attacks.auto_pgd import AutoPGD
from rhobust.attacks.square import random_squares
from rhobust.costs import per_sample, rows
from rhobust.errors import ConfigError, unknown
from rhobust.losses import PerSampleLoss, margin, scaled_margin
from rhobust.objective import RobustObjective
from rhobust.support.probing import probing
from rhobust.validator import check_countable

# Rounding allowed when a result is checked against its ball and box, in units of the last place.
_SLACK_ULPS = 8
_MANY_STEPS = 40  # an attack of at least this many is a strong one


@dataclass(frozen=True)
class Attack:
    """A ball and a way through it: the ball's own steps up a loss, or, with `queries`, a search without gradients."""

    ball: Ball
    climbs: PerSampleLoss | None = None
    """What the steps go up; None: the loss that the caller gives."""
    queries: int = 0

    @property
    def strong(self) -> bool:
        """Whether it takes many steps."""
        return self.ball.count >= _MANY_STEPS


def _fgsm(epsilon: float, norm: float = math.inf) -> Ball:
    return Ball(epsilon, norm)


def _ifgsm(epsilon: float, norm: float = math.inf) -> Ball:
    return Ball(epsilon, norm, steps=10)


def _pgd(epsilon: float, norm: float = math.inf) -> Ball:
    return Ball(epsilon, norm, steps=40, step_size=2.5 * epsilon / 40, random_start=True)


def _apgd(epsilon: float, norm: float = math.inf) -> Ball:
    return AutoPGD(epsilon, norm, steps=100, random_start=True)


ATTACKS: dict[str, Callable[[float], Attack]] = {
    "fgsm": lambda epsilon: Attack(_fgsm(epsilon)),
    "ifgsm": lambda epsilon: Attack(_ifgsm(epsilon)),
    "pgd": lambda epsilon: Attack(_pgd(epsilon)),
    "pgd-margin": lambda epsilon: Attack(_pgd(epsilon), climbs=margin),
    "apgd": lambda epsilon: Attack(_apgd(epsilon)),
    "apgd-margin": lambda epsilon: Attack(_apgd(epsilon), climbs=scaled_margin),
    "pgd-paper": lambda epsilon: Attack(Ball(epsilon, steps=10, step_size=1.0)),
    "square": lambda epsilon: Attack(Ball(epsilon), queries=200),
    "fgsm-l2": lambda epsilon: Attack(_fgsm(epsilon, 2)),
    "ifgsm-l2": lambda epsilon: Attack(_ifgsm(epsilon, 2)),
    "pgd-l2": lambda epsilon: Attack(_pgd(epsilon, 2)),
    "pgd-margin-l2": lambda epsilon: Attack(_pgd(epsilon, 2), climbs=margin),
    "apgd-l2": lambda epsilon: Attack(_apgd(epsilon, 2)),
    "apgd-margin-l2": lambda epsilon: Attack(_apgd(epsilon, 2), climbs=scaled_margin),
}
"""epsilon > 0 -> the attack, by name."""


def find_attack(name: str) -> Callable[[float], Attack]:
    """A named attack."""
    if name not in ATTACKS:
        known = f"{unknown('attack in a ball', name, ATTACKS)}; the Wasserstein attack is asked for by its budgets"
        raise ConfigError([known])
    return ATTACKS[name]


def only_weak(names: Iterable[str]) -> bool:
    """Whether none of these attacks takes many steps."""
    return not any(find_attack(name)(1.0).strong for name in names)


def norm_of(name: str) -> float:
    """The norm of a named attack's ball: 2 or infinity."""
    return find_attack(name)(1.0).ball.norm


@dataclass(frozen=True)
class Attacked:
    """What an attack did to a batch. Every zeta lies in its ball and box: that was checked."""

    zeta: Tensor  # (B, ...)
    fooled: Tensor  # (B,) bool: the model errs at zeta
    discarded: int  # results outside ball or box; those samples were put back to x


def attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    way: Attack,
    *,
    loss: PerSampleLoss,
    bounds: tuple[float, float] | None = None,
    restarts: int = 1,
) -> Attacked:
    """The worst of `restarts` runs of an attack. x itself is in the ball, so a sample the model errs on is fooled.

    A sample that is fooled is left alone from then on. The model is used in evaluation mode and left as it was found,
    and so are the global generators, which random starts are drawn from: to draw others, ask for restarts or seed them.

    >>> model = nn.Linear(2, 2)
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> result = attack(model, torch.zeros(3, 2), torch.tensor([0, 1, 0]), ATTACKS["fgsm"](0.1), loss=loss)
    >>> bool((result.zeta.abs() <= 0.1).all())
    True
    """
    watched = _Watched(way.climbs or loss)
    objective = RobustObjective(model, watched, radius=0.0, maximizer=Identity(), bounds=bounds)
    objective.maximum(x, y)  # refuses what cannot be attacked, before any work
    fooled = errs(model, x, y)
    zeta, discarded = x.clone(), 0
    with probing(model):  # around them all: each restart goes on drawing where the last one stopped
        for _ in range(restarts):
            right = (~fooled).nonzero()[:, 0]
            if not len(right):
                break
            if way.queries:
                found = _searched(model, x[right], y[right], way, bounds)
            else:
                found = _climbed(objective, watched, x[right], y[right], way)
            found, outside = verified(x[right], found, way.ball, bounds)
            discarded += outside
            zeta[right] = found  # where nothing fools the model, the last attempt is the one to show
            fooled[right] = errs(model, found, y[right])
    return Attacked(zeta, fooled, discarded)


class _Watched:
    """A loss that remembers where the model erred when it was last asked: the pass that climbs also judges."""

    def __init__(self, loss: PerSampleLoss) -> None:
        self.loss = loss
        self.wrong = torch.zeros(0, dtype=torch.bool)

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.wrong = mistaken(output.detach(), y)
        return self.loss(output, y)


def _climbed(objective: RobustObjective, watched: _Watched, x: Tensor, y: Tensor, way: Attack) -> Tensor:
    """The steps of the ball; a sample stays where the model first errs, or has the ball's answer."""
    zeta = way.ball.start(objective.problem(x, y)).clone()
    left = torch.arange(len(x), device=x.device)
    step = Step(zeta, zeta)
    for t in range(way.ball.gradients):
        problem = objective.problem(x[left], y[left])
        point = problem.at(step.zeta)
        step = way.ball.move(problem, point, t, step)
        zeta[left] = torch.where(per_sample(watched.wrong, point.zeta), point.zeta, step.answer)
        going = (~watched.wrong).nonzero()[:, 0]  # the one thing that a step reads back from the device
        if not len(going):
            break
        left, step = left[going], _of(step, going)
    return zeta


def _of(step: Step, samples: Tensor) -> Step:
    """The same step for some of its samples: whatever it remembers has a row for each."""
    remembered = {field.name: getattr(step, field.name) for field in fields(step)}
    theirs: dict[str, Any] = {name: of[samples] for name, of in remembered.items() if isinstance(of, Tensor)}
    return replace(step, **theirs)


def _searched(model: nn.Module, x: Tensor, y: Tensor, way: Attack, bounds: tuple[float, float] | None) -> Tensor:
    """Random squares; the margin is all that is asked of the model."""

    def harm(zeta: Tensor, chosen: Tensor) -> Tensor:
        with torch.no_grad():
            return margin(model(zeta), y[chosen])

    return random_squares(harm, x, way.ball.epsilon, way.queries, bounds)


def errs(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Where the model's prediction is not y, (B,), in evaluation mode and without a trace."""
    with torch.no_grad(), probing(model):
        return mistaken(model(x), y)


def mistaken(output: Tensor, y: Tensor) -> Tensor:
    """Where an output (B, classes) does not say y, (B,). NaN says nothing, though argmax takes it for its place."""
    check_countable(output, y)
    return (output.argmax(1) != y) | output.isnan().any(1)


def verified(x: Tensor, zeta: Tensor, ball: Ball | None, bounds: tuple[float, float] | None) -> tuple[Tensor, int]:
    """Results outside ball (where there is one) or box put back to x, and their number."""
    inside = rows(zeta).isfinite().all(1)
    if ball is not None:
        away = rows(zeta - x)
        size = away.abs().amax(1) if ball.norm == math.inf else away.norm(dim=1)
        # What rounds is of the size of x and of the move.
        reach = ball.epsilon + _SLACK_ULPS * torch.finfo(x.dtype).eps * (1 + ball.epsilon + rows(x).abs().amax(1))
        inside &= size <= reach
    if bounds is not None:
        inside &= ((rows(zeta) >= bounds[0]) & (rows(zeta) <= bounds[1])).all(1)
    return torch.where(per_sample(inside, x), zeta, x), int((~inside).sum())
