"""Warnings before a training that cannot do what was asked, and after one that learned nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from rhobust.ascent.maximizer import Maximizer
from rhobust.data.batches import Batches
from rhobust.data.samples import Samples
from rhobust.evaluation.regression import learned_nothing as nothing_predicted
from rhobust.evaluation.trust import learned_nothing
from rhobust.losses import is_regression
from rhobust.objective import RobustObjective
from rhobust.training.spread import InputSpread, WatchedBatches, spread_of
from rhobust.training.weight_average import reach

_LARGEST_DEVIATION = 100.0  # of inputs that are taken to be scaled
_MOST_UNEVEN = 100.0  # times the middle one


def remarks(objective: RobustObjective, x: Tensor | None, steps: int | None, ema: float | None) -> list[str]:
    """Why a training with these settings may not do what was asked for.

    `x` are the inputs, where they are in memory, `steps` how many there are in all, and `ema` is the decay of the
    averaged weights.
    """
    found = [objective.unreachable_radius, objective.check_model(), average_looks_back_too_far(ema, steps)]
    of_inputs = [] if x is None else remarks_on_inputs(objective, spread_of(objective.cost, x))
    return [*(remark for remark in found if remark is not None), *of_inputs]


def remarks_on_inputs(objective: RobustObjective, inputs: InputSpread) -> list[str]:
    """Why the radius may not mean for these inputs what it should."""
    found = (one_point_suffices(objective, inputs), unscaled(objective, inputs))
    return [remark for remark in found if remark is not None]


def watched(batches: Batches, objective: RobustObjective, warned: Callable[[str], None]) -> Batches:
    """The same batches; the first ones of a loader or a `Dataset` are remarked on as they pass."""
    if batches.whole() is not None or objective.perturb is not None:
        return batches

    def tell(inputs: InputSpread) -> None:
        for remark in remarks_on_inputs(objective, inputs):
            warned(remark)

    return WatchedBatches(batches, objective.cost, tell)


def one_point_suffices(objective: RobustObjective, inputs: InputSpread) -> str | None:
    """The radius pays for moving every sample to one and the same point; equal inputs are there already."""
    enough = inputs.to_one_point
    if not 0 < enough <= objective.radius:
        return None
    return (
        f"radius {objective.radius:g} pays for moving every sample to one and the same point, which costs "
        f"{enough:.2g} on average: there is nothing left to learn. Lower it"
    )


def unscaled(objective: RobustObjective, inputs: InputSpread) -> str | None:
    """Features of a table whose deviations are so large, or so different, that one radius cannot fit them all.

    Of pixels, some hardly ever differ, and all have one unit.
    """
    sigma = inputs.deviations
    varying = sigma[sigma > 0]
    if not objective.maximizer.gradients or not len(varying):
        return None
    least, middle, most = (float(value) for value in (varying.min(), varying.median(), varying.max()))
    uneven = sigma.ndim == 1 and most > _MOST_UNEVEN * middle
    if most <= _LARGEST_DEVIATION and not uneven:
        return None
    return (
        f"the inputs are not scaled: standard deviations of their features run from {least:.2g} to {most:.2g}, and "
        "radius and epsilon are in one unit for all of them. Standardize each feature, (x - mean) / deviation, or "
        "scale it to bounds such as (0, 1)"
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
