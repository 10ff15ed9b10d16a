"""Attacks for evaluation: presets over the same loop that trains, and nothing counts before it is verified.

Named attacks live in a ball of radius epsilon (in the data's own units, here pixels in [-1, 1]):

    fgsm, ifgsm     one step of epsilon; ten steps of epsilon / 10
    pgd             forty steps of 2.5 epsilon / 40 from a random start
    pgd-paper       ten steps of size 1, the paper's alpha, projected on the ball around x
    ...-l2          the same in the l2 ball

The Wasserstein attack has a budget on the *average* squared distance instead, or a price gamma.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rhobust.ascent import Ball, Maximizer, Oracle
from rhobust.costs import SquaredL2, per_sample, rows
from rhobust.errors import ConfigError, Refused, unknown
from rhobust.objective import PerSampleLoss, RobustObjective, undisturbed

# Rounding allowed when a result is checked against its ball and box, in units of the last place.
_SLACK_ULPS = 8


def _fgsm(epsilon: float, norm: float = math.inf) -> Ball:
    return Ball(epsilon, norm)


def _ifgsm(epsilon: float, norm: float = math.inf) -> Ball:
    return Ball(epsilon, norm, steps=10)


def _pgd(epsilon: float, norm: float = math.inf) -> Ball:
    return Ball(epsilon, norm, steps=40, step_size=2.5 * epsilon / 40, random_start=True)


ATTACKS: dict[str, Callable[[float], Ball]] = {
    "fgsm": _fgsm,
    "ifgsm": _ifgsm,
    "pgd": _pgd,
    "pgd-paper": lambda epsilon: Ball(epsilon, steps=10, step_size=1.0),
    "fgsm-l2": lambda epsilon: _fgsm(epsilon, 2),
    "ifgsm-l2": lambda epsilon: _ifgsm(epsilon, 2),
    "pgd-l2": lambda epsilon: _pgd(epsilon, 2),
}
"""epsilon > 0 -> the ball and the way through it, for every named attack."""


def find_attack(name: str) -> Callable[[float], Ball]:
    """A named attack."""
    if name not in ATTACKS:
        raise ConfigError([unknown("attack", name, ATTACKS)])
    return ATTACKS[name]


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
    ball: Ball,
    *,
    loss: PerSampleLoss,
    bounds: tuple[float, float] | None = None,
    restarts: int = 1,
) -> Attacked:
    """The worst of `restarts` runs of a ball attack. x itself is in the ball, so a sample the model errs on is fooled.

    The model is used in evaluation mode and left as it was found.

    >>> model = nn.Linear(2, 2)
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> result = attack(model, torch.zeros(3, 2), torch.tensor([0, 1, 0]), ATTACKS["fgsm"](0.1), loss=loss)
    >>> bool((result.zeta.abs() <= 0.1).all())
    True
    """
    zeta, discarded = x, 0
    fooled = errs(model, x, y)
    for _ in range(restarts):
        found = _ascend(model, x, y, ball, loss=loss, bounds=bounds)
        found, outside = _verified(x, found, ball, bounds)
        discarded += outside
        fresh = errs(model, found, y) & ~fooled
        # Where nothing fools the model, the last attempt is the one to show.
        zeta = torch.where(per_sample(fresh | ~fooled, x), found, zeta)
        fooled = fooled | fresh
    return Attacked(zeta, fooled, discarded)


@dataclass(frozen=True)
class Transported:
    """A worst-case distribution that was attained: its samples, what they cost on average, and the price."""

    zeta: Tensor  # (B, ...)
    fooled: Tensor  # (B,) bool
    mean_cost: float  # E ||zeta - x||^2
    gamma: float


def wasserstein(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    loss: PerSampleLoss,
    gamma: float | None = None,
    budget: float | None = None,
    bounds: tuple[float, float] | None = None,
    max_steps: int = 20,
    batch_size: int = 1024,
) -> Transported:
    """Penalized ascent on loss - gamma ||zeta - x||^2, at a given price gamma or at the price that spends the budget.

    With `budget`, gamma is found by bisection so that E ||zeta - x||^2 over all samples is at most `budget`, and what
    the bisection leaves over the budget is scaled back: the constraint holds exactly.
    """
    if (gamma is None) == (budget is None):
        raise Refused("the Wasserstein attack needs gamma= (a price) or budget= (a bound on E c), and not both")
    given = gamma if gamma is not None else budget
    if not (given is not None and given > 0 and math.isfinite(given)):
        raise Refused(f"gamma or budget must be finite and > 0, not {given}")

    def at(price: float) -> Tensor:
        maximizer = Oracle(accuracy=0.0, max_steps=max_steps)
        parts = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
        return torch.cat([_ascend(model, a, b, maximizer, loss=loss, bounds=bounds, gamma=price) for a, b in parts])

    def spent(zeta: Tensor) -> float:
        return float(SquaredL2()(x, zeta).mean())

    zeta, price = (at(given), given) if gamma is not None else _spend(given, at, spent)
    if gamma is None and spent(zeta) > given:
        zeta = x + math.sqrt(given / spent(zeta)) * (zeta - x)
    return Transported(zeta, errs(model, zeta, y) | errs(model, x, y), spent(zeta), price)


def _spend(budget: float, at: Callable[[float], Tensor], spent: Callable[[Tensor], float]) -> tuple[Tensor, float]:
    """The cheapest price (largest E c) found whose E c is within budget, or barely over; E c falls as gamma grows."""
    low, high = 1e-4, 1e4
    best = at(high), high
    for _ in range(16):
        middle = math.sqrt(low * high)
        zeta = at(middle)
        cost = spent(zeta)
        if cost <= 1.02 * budget:  # the excess is scaled back by the caller
            best, high = (zeta, middle), middle
            if cost >= 0.98 * budget:
                break
        else:
            low = middle
    return best


def errs(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Where the model's prediction is not y, (B,), in evaluation mode and without a trace."""
    with torch.no_grad(), undisturbed(model):
        wrong: Tensor = model(x).argmax(1) != y
    return wrong


def _ascend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    maximizer: Maximizer,
    *,
    loss: PerSampleLoss,
    bounds: tuple[float, float] | None,
    gamma: float = 1.0,
) -> Tensor:
    objective = RobustObjective(
        model, loss, radius=0.0, maximizer=maximizer, gamma=gamma, gamma_min=gamma, bounds=bounds
    )
    return objective.maximum(x, y).zeta


def _verified(x: Tensor, zeta: Tensor, ball: Ball, bounds: tuple[float, float] | None) -> tuple[Tensor, int]:
    """Results outside ball or box put back to x, and their number."""
    away = rows(zeta - x)
    size = away.abs().amax(1) if ball.norm == math.inf else away.norm(dim=1)
    reach = ball.epsilon + _SLACK_ULPS * torch.finfo(x.dtype).eps * (1 + rows(x).abs().amax(1))
    inside = (size <= reach) & rows(zeta).isfinite().all(1)
    if bounds is not None:
        inside &= ((rows(zeta) >= bounds[0]) & (rows(zeta) <= bounds[1])).all(1)
    return torch.where(per_sample(inside, x), zeta, x), int((~inside).sum())
