"""The Wasserstein attack: a budget on the average squared distance, or a fixed gamma."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import project
from rhobust.ascent.multistart import AscentSup
from rhobust.ascent.steps import Identity
from rhobust.attacks.attack import errs, verified
from rhobust.box import Bounds, limits
from rhobust.checks import check_count, check_size
from rhobust.costs import SquaredL2
from rhobust.errors import Refused
from rhobust.inputs import mask_of, part_of
from rhobust.losses import PerSampleLoss, is_regression, losses_of
from rhobust.objective import RobustObjective
from rhobust.support.probing import probing


@dataclass(frozen=True)
class Transported:
    """A worst-case distribution that was attained: its samples, what they cost on average, and the price."""

    zeta: Tensor  # (B, ...)
    fooled: Tensor  # (B,) bool; False for a regression, which has no mistakes
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
    bounds: Bounds = None,
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

    sup = AscentSup(None, SquaredL2(), max_steps, None)  # from margin steps too: they move confident samples
    parts = [slice(start, start + batch_size) for start in range(0, max(len(x), 1), batch_size)]
    models = [part_of(model, part) for part in parts]
    objectives = [RobustObjective(one, loss, radius=0.0, maximizer=Identity(), bounds=bounds) for one in models]

    def at(price: float) -> Tensor:
        found = []
        with probing(model):
            for objective, part in zip(objectives, parts, strict=True):
                problem = replace(objective.problem(x[part], y[part]), gamma=torch.tensor(price).to(x))
                found.append(sup.solve(problem, y[part], [])[0])
        return torch.cat(found)

    def spent(zeta: Tensor) -> float:
        return float(SquaredL2()(x, zeta).mean())

    def batched(function: Callable[..., Tensor], zeta: Tensor) -> Tensor:
        return torch.cat([function(one, zeta[part], y[part]) for one, part in zip(models, parts, strict=True)])

    def harm(zeta: Tensor) -> float:
        with torch.no_grad(), probing(model):
            return float(batched(lambda one, zeta, y: losses_of(loss, one(zeta.clone()), y), zeta).mean())

    for objective, part in zip(objectives, parts, strict=True):
        objective.maximum(x[part], y[part])  # refuses what breaks the theory, before any work
    zeta, price = (at(given), given) if gamma is not None else _spend(given, x, at, spent, harm, bounds)
    zeta, discarded = verified(x, zeta, None, bounds, mask_of(model))  # back to x costs nothing: the budget holds
    numbers = is_regression(loss) or y.is_floating_point()
    fooled = (
        torch.zeros(len(x), dtype=torch.bool, device=x.device) if numbers else batched(errs, zeta) | batched(errs, x)
    )
    return Transported(zeta, fooled, spent(zeta), price, discarded)


def _spend(
    budget: float,
    x: Tensor,
    at: Callable[[float], Tensor],
    spent: Callable[[Tensor], float],
    harm: Callable[[Tensor], float],
    bounds: Bounds,
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
        return project(x, shorter, *limits(bounds, x))  # the sum may round to just outside

    cheap, dear = within(cheap), within(dear)
    return (cheap, low) if harm(cheap) >= harm(dear) else (dear, high)
