"""Attacks in a ball, each made of the steps that also train, with verified results.

Named attacks live in a ball of radius epsilon (in the data's own units, here pixels in [-1, 1]):

    fgsm, ifgsm     one step of epsilon; ten steps of epsilon / 10
    pgd             forty steps of 2.5 epsilon / 40 from a random start
    pgd-margin      the same, up the margin between the classes, which a confident model cannot flatten
    apgd            a hundred whose size each sample finds for itself, beginning with 2 epsilon (Auto-PGD)
    apgd-margin     the same, up the margin in units of the spread of the logits
    pgd-t           forty that begin with 2 epsilon and shorten, toward each of nine other classes (DecayingSteps)
    apgd-t          Auto-PGD toward each of them, on the ratio of differences of logits
    pgd-paper       ten steps of size 1, the paper's alpha, projected on the ball around x
    square          black box: 200 random squares, no gradient at all
    ...-l2          the same in the l2 ball

An attack is over for a sample as soon as the model errs on it; only the others go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rhobust.ascent.steps import Ball, Identity
from rhobust.attacks.auto_pgd import AutoPGD
from rhobust.attacks.climb import climb, mistaken
from rhobust.attacks.decaying_steps import DecayingSteps
from rhobust.attacks.square import random_squares
from rhobust.box import Bounds, limits
from rhobust.costs import per_sample, rows
from rhobust.errors import ConfigError, unknown
from rhobust.inputs import Inputs, Perturb, bound, mask_of, part_of
from rhobust.losses import PerSampleLoss, margin, scaled_margin, scaled_targeted_margin, targeted_margin
from rhobust.objective import RobustObjective
from rhobust.support.probing import probing

# Rounding allowed when a result is checked against its ball and box, in units of the last place.
_SLACK_ULPS = 8
_MANY_STEPS = 40  # an attack of at least this many is a strong one
MOST_TARGETS = 9
"""Other classes that a targeted attack tries, those of the largest logits."""

TargetedLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""loss(model(x), y, target) -> (B,), above 0 where the target is ahead of y"""


@dataclass(frozen=True)
class Attack:
    """A ball and a way through it: the ball's own steps up a loss, or, with `queries`, a search without gradients."""

    ball: Ball
    climbs: PerSampleLoss | None = None
    """What the steps go up; None: the loss that the caller gives."""
    queries: int = 0
    toward: TargetedLoss | None = None
    """What the steps go up toward each of `MOST_TARGETS` other classes, one after the other."""

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


def _pgd_t(epsilon: float, norm: float = math.inf) -> Ball:
    return DecayingSteps(epsilon, norm, steps=40, random_start=True)


ATTACKS: dict[str, Callable[[float], Attack]] = {
    "fgsm": lambda epsilon: Attack(_fgsm(epsilon)),
    "ifgsm": lambda epsilon: Attack(_ifgsm(epsilon)),
    "pgd": lambda epsilon: Attack(_pgd(epsilon)),
    "pgd-margin": lambda epsilon: Attack(_pgd(epsilon), climbs=margin),
    "apgd": lambda epsilon: Attack(_apgd(epsilon)),
    "apgd-margin": lambda epsilon: Attack(_apgd(epsilon), climbs=scaled_margin),
    "pgd-t": lambda epsilon: Attack(_pgd_t(epsilon), toward=targeted_margin),
    "apgd-t": lambda epsilon: Attack(_apgd(epsilon), toward=scaled_targeted_margin),
    "pgd-paper": lambda epsilon: Attack(Ball(epsilon, steps=10, step_size=1.0)),
    "square": lambda epsilon: Attack(Ball(epsilon), queries=200),
    "fgsm-l2": lambda epsilon: Attack(_fgsm(epsilon, 2)),
    "ifgsm-l2": lambda epsilon: Attack(_ifgsm(epsilon, 2)),
    "pgd-l2": lambda epsilon: Attack(_pgd(epsilon, 2)),
    "pgd-margin-l2": lambda epsilon: Attack(_pgd(epsilon, 2), climbs=margin),
    "apgd-l2": lambda epsilon: Attack(_apgd(epsilon, 2)),
    "apgd-margin-l2": lambda epsilon: Attack(_apgd(epsilon, 2), climbs=scaled_margin),
    "pgd-t-l2": lambda epsilon: Attack(_pgd_t(epsilon, 2), toward=targeted_margin),
    "apgd-t-l2": lambda epsilon: Attack(_apgd(epsilon, 2), toward=scaled_targeted_margin),
}
"""epsilon > 0 -> the attack, by name."""


def find_attack(name: str, others: Iterable[str] = ()) -> Callable[[float], Attack]:
    """A named attack; `others`: what else the caller would have understood."""
    if name not in ATTACKS:
        problem = unknown("attack in a ball", name, [*others, *ATTACKS])
        raise ConfigError([f"{problem}; the Wasserstein attack is asked for by its budgets"])
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
    x: Inputs,
    y: Tensor,
    way: Attack,
    *,
    loss: PerSampleLoss,
    bounds: Bounds = None,
    restarts: int = 1,
    perturb: Perturb | str | int | None = None,
) -> Attacked:
    """The worst of `restarts` runs of an attack. x itself is in the ball, so a sample the model errs on is fooled.

    `perturb` names the part of x that moves, or a submodule (`Perturb`); the result's zeta is then that part's.
    A sample that is fooled is left alone from then on. The model is used in evaluation mode and left as it was found,
    and so are the global generators, which random starts are drawn from: to draw others, ask for restarts or seed them.

    >>> model = nn.Linear(2, 2)
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> result = attack(model, torch.zeros(3, 2), torch.tensor([0, 1, 0]), ATTACKS["fgsm"](0.1), loss=loss)
    >>> bool((result.zeta.abs() <= 0.1).all())
    True
    """
    model, z = bound(model, x, perturb)
    z = z.detach()
    check_attackable(model, z, y, way.climbs or loss, bounds)
    fooled = errs(model, z, y)
    rivals = None if way.toward is None else rivals_of(model, z, y)  # (B, targets)
    zeta, discarded = z.clone(), 0
    with probing(model):  # around them all: each restart goes on drawing where the last one stopped
        for target in [*range(1 if rivals is None else rivals.shape[1])] * restarts:
            right = (~fooled).nonzero()[:, 0]
            if not len(right):
                break
            toward = None if rivals is None else rivals[right, target]
            theirs = part_of(model, right)
            if way.queries:
                found = _searched(theirs, z[right], y[right], way, bounds)
            else:
                found = _climbed(theirs, z[right], y[right], way, loss, toward, bounds)
            found, outside = verified(z[right], found, way.ball, bounds, mask_of(theirs))
            discarded += outside
            zeta[right] = found  # where nothing fools the model, the last attempt is the one to show
            fooled[right] = errs(theirs, found, y[right])
    return Attacked(zeta, fooled, discarded)


def check_attackable(model: nn.Module, x: Tensor, y: Tensor, loss: PerSampleLoss, bounds: Bounds) -> None:
    """Refuse what cannot be attacked, before any work."""
    RobustObjective(model, loss, radius=0.0, maximizer=Identity(), bounds=bounds).maximum(x, y)


def rivals_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The other classes of each sample in the order of their logits, (B, at most `MOST_TARGETS`)."""
    with torch.no_grad(), probing(model):
        output = model(x.clone())
    others = output.nan_to_num(nan=-math.inf).scatter(1, y.long()[:, None], -math.inf)
    order: Tensor = others.argsort(1, descending=True)
    return order[:, : min(MOST_TARGETS, output.shape[1] - 1)]


def _climbed(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    way: Attack,
    loss: PerSampleLoss,
    target: Tensor | None,
    bounds: Bounds,
) -> Tensor:
    """The steps of the ball up what the attack goes up."""

    def height(output: Tensor, chosen: Tensor) -> Tensor:
        if way.toward is not None and target is not None:
            return way.toward(output, y[chosen], target[chosen])
        return (way.climbs or loss)(output, y[chosen])

    return climb(model, x, y, way.ball, height, bounds).zeta


def _searched(model: nn.Module, x: Tensor, y: Tensor, way: Attack, bounds: Bounds) -> Tensor:
    """Random squares; the margin is all that is asked of the model."""

    def harm(zeta: Tensor, chosen: Tensor) -> Tensor:
        with torch.no_grad():
            return margin(part_of(model, chosen)(zeta), y[chosen])

    return random_squares(harm, x, way.ball.epsilon, way.queries, *limits(bounds, x, mask_of(model)))


def errs(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Where the model's prediction is not y, (B,), in evaluation mode and without a trace."""
    with torch.no_grad(), probing(model):
        return mistaken(model(x.clone()), y)  # a copy: the model may change its input in place


def verified(
    x: Tensor, zeta: Tensor, ball: Ball | None, bounds: Bounds, mask: Tensor | None = None
) -> tuple[Tensor, int]:
    """Results outside ball (where there is one) or box put back to x, and their number; so are those that moved where
    the mask, if there is one, lets nothing move."""
    inside = rows(zeta).isfinite().all(1)
    if ball is not None:
        away = rows(zeta - x)
        size = away.abs().amax(1) if ball.norm == math.inf else away.norm(dim=1)
        # What rounds is of the size of x and of the move.
        reach = ball.epsilon + _SLACK_ULPS * torch.finfo(x.dtype).eps * (1 + ball.epsilon + rows(x).abs().amax(1))
        inside &= size <= reach
    ends, moves = limits(bounds, x, mask)
    if ends is not None:
        inside &= rows((zeta >= ends[0]) & (zeta <= ends[1])).all(1)
    if moves is not None:
        inside &= rows((zeta == x) | moves).all(1)
    return torch.where(per_sample(inside, x), zeta, x), int((~inside).sum())
