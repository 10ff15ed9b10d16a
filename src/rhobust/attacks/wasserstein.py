"""The Wasserstein attack: a budget on the average squared distance, or a fixed gamma."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.ascent.multistart import AscentSup
from rhobust.ascent.steps import Identity
from rhobust.attacks.attack import errs, verified
from rhobust.checks import check_count, check_size
from rhobust.errors import Refused
from rhobust.losses import PerSampleLoss
from rhobust.objective import RobustObjective
from rhobust.support.probing import probing


@dataclass(frozen=True)
class Transported:
    """A worst-case distribution that was attained: its samples, what they cost on average, and the price."""

    zeta: Tensor  # (B, ...)
    fooled: Tensor  # (B,) bool
    mean_cost: float  # E ||zeta - x||^2
    gamma: float
    discarded: int  # results outside the box; those samples were put back to x


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
    given: Any = gamma if gamma is not None else budget
    check_size("gamma" if gamma is not None else "budget", given)
    check_count("batch_size", batch_size)

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

        with probing(model):
            return batched(solved, x, y)

    def spent(zeta: Tensor) -> float:
        return float(objective.cost(x, zeta).mean())

    def harm(zeta: Tensor) -> float:
        with torch.no_grad(), probing(model):
            return float(batched(lambda zeta, y: loss(model(zeta), y), zeta, y).mean())

    batched(lambda x, y: objective.maximum(x, y).zeta, x, y)  # refuses what breaks the theory, before any work
    zeta, price = (at(given), given) if gamma is not None else _spend(given, x, at, spent, harm, bounds)
    zeta, discarded = verified(x, zeta, None, bounds)  # back to x costs nothing, so the budget holds all the more
    fooled = batched(lambda zeta, x, y: errs(model, zeta, y) | errs(model, x, y), zeta, x, y)
    return Transported(zeta, fooled, spent(zeta), price, discarded)


def _spend(
    budget: float,
    x: Tensor,
    at: Callable[[float], Tensor],
    spent: Callable[[Tensor], float],
    harm: Callable[[Tensor], float],
    bounds: tuple[float, float] | None,
) -> tuple[Tensor, float]:
    """Bisection on log gamma between prices that overspend and prices that do not (E c falls as gamma grows).

    E c may jump over the budget, so both ends count, each scaled back into the budget where it overspends (a squared
    norm scales with the square). The more harmful one is the attack.
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

    def within(zeta: Tensor) -> Tensor:
        if spent(zeta) <= budget:
            return zeta
        shorter = x + math.sqrt(budget / spent(zeta)) * (zeta - x)
        return shorter if bounds is None else shorter.clamp(*bounds)  # the sum may round to just outside

    cheap, dear = within(cheap), within(dear)
    return (cheap, low) if harm(cheap) >= harm(dear) else (dear, high)
