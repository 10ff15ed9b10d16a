"""Refusals of settings, data and losses that would break the theory, each with its reason and its fix."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rhobust.ascent.maximizer import Maximizer
from rhobust.box import Bounds, Box, check_bounds, check_inside
from rhobust.checks import is_number
from rhobust.costs import Cost
from rhobust.errors import DataError, Refused
from rhobust.losses import PerSampleLoss, is_regression
from rhobust.support.compiling import capturing


def check_settings(
    radius: float,
    cost: Cost,
    maximizer: Maximizer,
    gamma: float,
    gamma_min: float,
    bounds: Bounds,
    noise: float,
    temper: float,
) -> None:
    """Refuse settings outside the theory: radius < 0, gamma_min <= 0, gamma < gamma_min, an empty box, noise < 0,
    temper outside [0, 1], an oracle asked for a proof that the cost or gamma_min cannot carry."""
    numbers = {"radius": radius, "gamma": gamma, "gamma_min": gamma_min, "noise": noise, "temper": temper}
    for name, value in numbers.items():
        if not is_number(value):
            raise Refused(f"{name} must be a number, not {value!r}")
    if not isinstance(cost, Cost):
        raise Refused(f"cost must be a Cost, SquaredL2(), SquaredLp(p) or SquaredLinf() of rhobust.costs, not {cost!r}")
    if not isinstance(maximizer, Maximizer):
        raise Refused(f"maximizer must be a Maximizer such as rhobust.ascent.Oracle(), not {maximizer!r}")
    if not (radius >= 0 and math.isfinite(radius)):
        raise Refused(f"radius must be finite and >= 0, not {radius}: it bounds the expected transport cost E c")
    if not (gamma_min > 0 and math.isfinite(gamma_min)):
        raise Refused(
            f"gamma_min must be finite and > 0, not {gamma_min}: at gamma = 0 transport is free and the inner sup is "
            "unbounded. The theory wants gamma_min > L_zz / mu"
        )
    if not (gamma >= gamma_min and math.isfinite(gamma)):
        raise Refused(f"gamma must start finite and at or above its floor gamma_min = {gamma_min}, not at {gamma}")
    if not (noise >= 0 and math.isfinite(noise)):
        raise Refused(f"noise must be finite and >= 0, not {noise}: it is the half-width of what is added to a sample")
    if not 0 <= temper <= 1:
        raise Refused(f"temper must lie in [0, 1], not be {temper}: 0 is the loss itself, 1 the chance of an error")
    check_bounds(bounds)
    if math.isfinite(cost.kappa) and not maximizer.penalized:
        raise Refused(
            f"flipping a label costs kappa = {cost.kappa:g}, but {type(maximizer).__name__} does not price transport; "
            "use a penalized maximizer (PenalizedAscent, Oracle, MarginAscent), or leave kappa infinite"
        )
    if problem := maximizer.refusal(cost, gamma_min):
        raise Refused(problem)


def check_batch(x: Tensor, y: Tensor, bounds: Bounds = None) -> None:
    """Refuse an empty batch, x and y of different length, inputs that are not real, not finite or out of bounds."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise DataError(f"x and y must be tensors, not {type(x).__name__} and {type(y).__name__}; use torch.as_tensor")
    if x.numel() == 0:
        raise DataError(f"the batch is empty, of shape {tuple(x.shape)}: nothing to learn from")
    if not (x.ndim and y.ndim):
        raise DataError("x and y must have a dimension for the samples; of a single one, x[None] and y[None]")
    if len(x) != len(y):
        raise DataError(f"x has {len(x)} samples and y has {len(y)}; they must match")
    check_movable(x, x.dtype)
    if capturing(x):
        return  # reading values back is not possible there; whoever captures has checked the data
    for name, values in (("x", x), ("y", y)):
        if not values.is_floating_point():
            continue
        low, high = _ends(values)  # NaN passes through: one look at the data
        if not (math.isfinite(low) and math.isfinite(high)):
            bad = (~values.reshape(len(values), -1).isfinite().all(1)).nonzero()[0].item()
            raise DataError(f"{name} holds NaN or infinite values (first in sample {bad}); clean the data")
        if name == "y" or bounds is None:
            continue
        if isinstance(bounds, Box):
            check_inside(x, bounds)
            continue
        # The bounds as x's own precision has them: a float32 clamped to -0.1 lies below the double -0.1.
        lower, upper = torch.tensor(bounds, dtype=values.dtype).tolist()
        if not lower <= low <= high <= upper:
            raise DataError(
                f"x runs from {low:g} to {high:g}, outside its bounds {bounds}; scale the data or widen the bounds"
            )


def check_movable(x: Tensor, dtype: object) -> None:
    """Refuse inputs that are not real; `dtype` is that of what was passed."""
    if not x.is_floating_point():
        raise DataError(
            f"x must be of floating point, not {dtype}. If it holds token numbers, name the layer whose output moves: "
            "perturb='NAME OF THE LAYER'. For other numbers use x.float(), or for an array x.astype('float32')"
        )


def check_labels(y: Tensor, classes: int) -> None:
    """Refuse class labels outside 0 .. classes - 1."""
    if capturing(y):
        return
    low, high = _ends(y)
    if low < 0 or high >= classes:
        raise DataError(f"labels run from {low} to {high}, but the model has {classes} classes (0 to {classes - 1})")


def check_classes(y: Tensor, output: object, loss: PerSampleLoss) -> None:
    """Refuse numbers where classes are wanted: y must be class numbers or probabilities, for one output -1, 0 or 1.

    Of an output that is no tensor the loss alone knows what it means.
    """
    numeric = is_regression(loss)
    if capturing(y) and not numeric:
        return
    several = not isinstance(output, Tensor) or (output.ndim == 2 and output.shape[1] > 1)
    numbers = several and not y.is_floating_point()
    probabilities = isinstance(output, Tensor) and several and y.shape == output.shape
    if numeric or not (numbers or probabilities or bool(torch.isin(y, y.new_tensor([-1, 0, 1])).all())):
        raise Refused(
            "an ascent on the margin (methods spgda and spgda-margin) is for classifiers, and y does not hold classes: "
            "for regression take method 'spgda-loss' (PenalizedAscent) or 'spgd' (Oracle)"
        )


def _ends(values: Tensor) -> list[Any]:
    """The least and the largest, in one reading from the device."""
    found: list[Any] = torch.stack(values.detach().aminmax()).tolist()
    return found


def check_start(start: object, x: Tensor) -> None:
    """Refuse a start of an ascent that is not one move for each sample."""
    if not isinstance(start, Tensor) or start.shape != x.shape:
        got = tuple(start.shape) if isinstance(start, Tensor) else type(start).__name__
        raise Refused(f"start must be a tensor like x, {tuple(x.shape)}, one move for each sample, not {got}")
    if not capturing(start) and not bool(start.isfinite().all()):
        raise Refused("start holds NaN or infinite moves")


def check_sign(loss: Tensor) -> None:
    """Refuse a loss below 0, which tempering would blow up."""
    if not capturing(loss) and bool((loss < 0).any()):
        raise Refused(
            f"temper is for losses >= 0, and this one falls to {float(loss.detach().min()):g}; shift it, or drop temper"
        )


def check_output(output: object) -> None:
    """Refuse a model that answers with anything but a tensor."""
    if not isinstance(output, Tensor):
        raise Refused(
            f"the model returned a {type(output).__name__}, and its output must be one tensor here; wrap the model in "
            "one that returns the class scores, or for training pass a loss= that picks what it needs"
        )


def check_countable(output: Tensor, y: Tensor) -> None:
    """Refuse outputs and labels whose errors cannot be counted."""
    check_output(output)
    if output.ndim != 2 or output.shape[1] < 2 or y.ndim != 1 or y.is_floating_point():
        raise Refused(
            "errors are counted for classifiers: outputs (B, classes), two classes or more, and whole class numbers "
            f"(B,). Here the outputs have shape {tuple(output.shape)} and y is {y.dtype} of shape {tuple(y.shape)}. "
            "For a regression pass its loss, such as loss=rhobust.losses.squared_error, or task='regression'"
        )


def check_loss(loss: object, batch: int) -> None:
    """Refuse a loss that is not one number per sample."""
    if not isinstance(loss, Tensor):
        raise Refused(f"the loss returned a {type(loss).__name__}, and it must be a tensor ({batch},), one per sample")
    if loss.shape != (batch,):
        fix = "use reduction='none'"
        if loss.shape == (batch, batch):
            fix = "an output (B, 1) and a y (B,) were broadcast against each other; squeeze the output or unsqueeze y"
        elif loss.ndim > 1:
            fix = "sum or average over all dimensions but the first, for example loss(...).flatten(1).mean(1)"
        raise Refused(
            f"the loss returned shape {tuple(loss.shape)} for {batch} samples; the sup is per sample, so it must be "
            f"({batch},): {fix}"
        )
