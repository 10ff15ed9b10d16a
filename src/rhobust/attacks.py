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
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rhobust.ascent import Ball, Identity
from rhobust.costs import per_sample, rows
from rhobust.errors import ConfigError, Refused, unknown
from rhobust.objective import PerSampleLoss, RobustObjective, undisturbed
from rhobust.sups import AscentSup

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
        known = f"{unknown('attack in a ball', name, ATTACKS)}; the Wasserstein attack is asked for by its budgets"
        raise ConfigError([known])
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
    objective = RobustObjective(model, loss, radius=0.0, maximizer=ball, bounds=bounds)
    zeta, discarded = x, 0
    fooled = errs(model, x, y)
    for _ in range(restarts):
        found, outside = _verified(x, objective.maximum(x, y).zeta, ball, bounds)
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
    the bisection leaves over the budget is scaled back: the constraint holds up to rounding.
    """
    if (gamma is None) == (budget is None):
        raise Refused("the Wasserstein attack needs gamma= (a price) or budget= (a bound on E c), and not both")
    given = gamma if gamma is not None else budget
    if not (given is not None and given > 0 and math.isfinite(given)):
        raise Refused(f"gamma or budget must be finite and > 0, not {given}")

    objective = RobustObjective(model, loss, radius=0.0, maximizer=Identity(), bounds=bounds)
    sup = AscentSup(None, objective.cost, max_steps, None)  # from margin steps too: they move confident samples

    def batched(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        return torch.cat(
            [function(*parts) for parts in zip(*(torch.split(t, batch_size) for t in tensors), strict=True)]
        )

    def at(price: float) -> Tensor:
        def solved(x: Tensor, y: Tensor) -> Tensor:
            problem = replace(objective.problem(x, y), gamma=torch.tensor(price).to(x))
            return sup.solve(problem, y, [])[0]

        with undisturbed(model):
            return batched(solved, x, y)

    def spent(zeta: Tensor) -> float:
        return float(objective.cost(x, zeta).mean())

    def harm(zeta: Tensor) -> float:
        with torch.no_grad(), undisturbed(model):
            return float(batched(lambda zeta, y: loss(model(zeta), y), zeta, y).mean())

    batched(lambda x, y: objective.maximum(x, y).zeta, x, y)  # refuses what breaks the theory, before any work
    zeta, price = (at(given), given) if gamma is not None else _spend(given, x, at, spent, harm)
    zeta, _ = _verified(x, zeta, Ball(math.inf), bounds)  # back to x costs nothing, so the budget holds all the more
    fooled = batched(lambda zeta, x, y: errs(model, zeta, y) | errs(model, x, y), zeta, x, y)
    return Transported(zeta, fooled, spent(zeta), price)


def _spend(
    budget: float,
    x: Tensor,
    at: Callable[[float], Tensor],
    spent: Callable[[Tensor], float],
    harm: Callable[[Tensor], float],
) -> tuple[Tensor, float]:
    """Bisection on log gamma between prices that overspend and prices that do not (E c falls as gamma grows).

    E c may jump over the budget, so both ends count: the dearer as it is, the cheaper scaled back into the budget (a
    squared norm scales with the square). The more harmful one is the attack.
    """
    low, high = 1e-4, 1e4
    cheap, dear = at(low), at(high)
    for _ in range(16):
        if spent(dear) >= 0.98 * budget or spent(cheap) <= 1.02 * budget:
            break
        middle = math.sqrt(low * high)
        zeta = at(middle)
        if spent(zeta) > budget:
            cheap, low = zeta, middle
        else:
            dear, high = zeta, middle
    within = x + min(1.0, math.sqrt(budget / max(spent(cheap), budget))) * (cheap - x)
    return (within, low) if harm(within) >= harm(dear) else (dear, high)


def errs(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Where the model's prediction is not y, (B,), in evaluation mode and without a trace."""
    with torch.no_grad(), undisturbed(model):
        wrong: Tensor = model(x).argmax(1) != y
    return wrong


def _verified(x: Tensor, zeta: Tensor, ball: Ball, bounds: tuple[float, float] | None) -> tuple[Tensor, int]:
    """Results outside ball or box put back to x, and their number."""
    away = rows(zeta - x)
    size = away.abs().amax(1) if ball.norm == math.inf else away.norm(dim=1)
    reach = ball.epsilon + _SLACK_ULPS * torch.finfo(x.dtype).eps * (1 + rows(x).abs().amax(1))
    inside = (size <= reach) & rows(zeta).isfinite().all(1)
    if bounds is not None:
        inside &= ((rows(zeta) >= bounds[0]) & (rows(zeta) <= bounds[1])).all(1)
    return torch.where(per_sample(inside, x), zeta, x), int((~inside).sum())
