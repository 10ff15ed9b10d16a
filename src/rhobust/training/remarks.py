"""Warnings before a training that cannot do what was asked, and after one that learned nothing."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from rhobust.ascent.maximizer import Maximizer
from rhobust.costs import Cost
from rhobust.data.samples import Samples
from rhobust.evaluation.regression import learned_nothing as nothing_predicted
from rhobust.evaluation.trust import learned_nothing
from rhobust.losses import is_regression
from rhobust.objective import RobustObjective
from rhobust.training.weight_average import reach

_MOST_SAMPLES = 1000  # that the cost of a move to one point is estimated on


def remarks(objective: RobustObjective, x: Tensor | None, steps: int | None, ema: float | None) -> list[str]:
    """Why a training with these settings may not do what was asked for.

    `x` are the inputs, where they are in memory, `steps` how many there are in all, and `ema` is the decay of the
    averaged weights.
    """
    found = (
        objective.unreachable_radius,
        objective.check_model(),
        one_point_suffices(objective, x),
        average_looks_back_too_far(ema, steps),
    )
    return [remark for remark in found if remark is not None]


def one_point_suffices(objective: RobustObjective, x: Tensor | None) -> str | None:
    """The radius pays for moving every sample to one and the same point."""
    if x is None or not objective.radius:
        return None
    enough = _cost_of_one_point(objective.cost, x)
    if objective.radius < enough:
        return None
    return (
        f"radius {objective.radius:g} pays for moving every sample to one and the same point, which costs "
        f"{enough:.2g} on average: there is nothing left to learn. Lower it"
    )


def average_looks_back_too_far(decay: float | None, steps: int | None) -> str | None:
    """An average of the weights over more steps than there are."""
    if decay is None or steps is None or steps >= reach(decay):
        return None
    return (
        f"an average of decay {decay:g} looks back over {reach(decay):.0f} steps, and there are {steps}: the first, of "
        "a model that knows nothing, count as much as the last. Lower ema"
    )


def useless(objective: RobustObjective, samples: Samples, batch_size: int) -> str | None:
    """The model that was trained has learned nothing: judged on samples whose labels are class numbers, or numbers.

    A model that cannot be judged, because it takes full batches only or the device has no room, is not.
    """
    moves = objective.maximizer.gradients or objective.noise
    hidden = "The moves of its training may hide what tells samples apart: lower epsilon, noise or the radius"
    cause = hidden if moves else "Try another learning rate, or more epochs"
    with suppress(RuntimeError):
        if is_regression(objective.loss):
            return nothing_predicted(objective.model, objective.loss, samples, batch_size, cause)
        return learned_nothing(objective.model, samples, batch_size, cause)
    return None


def apart(spent: float, radius: float, gamma: float, gamma_min: float, maximizer: Maximizer) -> str:
    """What keeps the average transport cost from meeting the radius, where something does; the end of a sentence."""
    if spent < 0.95 * radius and (why := maximizer.why_short_of(radius)):
        return f" and no more: {why}, or take a smaller rho"
    if spent == 0:
        return ": nothing moves, for the loss has no slope. Look at the scale of the data, or lower the learning rate"
    if spent < 0.95 * radius and gamma <= 1.01 * gamma_min:
        # At the least price that is allowed, samples go as far as they gain by it.
        return " and no more: gamma is at its floor. Lower gamma_min, or take a smaller rho"
    return "" if abs(spent - radius) < 0.1 * radius else ": gamma has not settled. Train longer"


def _cost_of_one_point(cost: Cost, x: Tensor) -> float:
    """What a move to one point costs samples drawn from the data, with the better of two points."""
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_MOST_SAMPLES]
    x = x[chosen.to(x.device)]
    points = x.mean(0), (x.amin(0) + x.amax(0)) / 2  # the best for costs of squares, and for the largest change
    return min(float(cost(x, point.expand_as(x)).mean()) for point in points)
