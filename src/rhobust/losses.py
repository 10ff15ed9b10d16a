"""Losses with one value per sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rhobust.checks import check_size, is_number
from rhobust.errors import DataError, Refused
from rhobust.support.compiling import compilable

PerSampleLoss = Callable[[Any, Tensor], Tensor]
"""loss(model(x), y) -> (B,); the output of the model is mostly a tensor, and whatever the loss can read"""


@compilable
def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample, (B,), for class numbers (B,) or probabilities (B, classes)."""
    check_cross_entropy(output, y)
    return F.cross_entropy(output, y if y.is_floating_point() else y.long(), reduction="none")


def check_cross_entropy(output: object, y: Tensor) -> None:
    """Refuse outputs that are not one for each class, and a y that is neither class numbers nor probabilities."""
    if not isinstance(output, Tensor):
        raise Refused(
            f"the model returned a {type(output).__name__}, and cross-entropy wants one tensor of class scores. Pass a "
            "loss= that picks them, such as lambda output, y: rhobust.losses.cross_entropy(output[0], y), with the key "
            "or the index of the scores"
        )
    if y.is_floating_point():
        if output.ndim < 2 or y.shape != output.shape:
            raise DataError(
                f"y holds floating point numbers, of shape {tuple(y.shape)} for outputs {tuple(output.shape)}, and "
                "cross-entropy wants whole class numbers, or probabilities of the outputs' shape; for regression pass "
                "another loss="
            )
    elif output.ndim < 2 or y.shape != output.shape[:1] + output.shape[2:]:  # one label, or one for each pixel
        if output.ndim != 2 or len(output) != len(y):
            raise Refused(
                f"the model's outputs have shape {tuple(output.shape)} for {len(y)} samples, and cross-entropy wants "
                "(B, classes); if the inputs have too many dimensions, begin the model with nn.Flatten()"
            )
        fix = "y[:, 0] (y.squeeze(1))" if y.shape[1] == 1 else "y.argmax(1) where they are one-hot"
        raise DataError(f"y has shape {tuple(y.shape)}, and class labels are (B,), one for each sample; use {fix}")
    if output.shape[1] == 1:
        raise Refused(
            "the model has one output, and a classifier needs one for each class: two for labels 0 and 1. For "
            "regression pass another loss="
        )


def tempered(loss: Tensor, temper: float) -> Tensor:
    """(1 - e^(-temper loss)) / temper, at most 1 / temper, for losses >= 0: what is hopeless pulls less.

    For temper 0 it is the loss itself. Its curvature is below any bound >= 0 on the loss's. With p the probability of
    the right class, cross-entropy becomes (1 - p^temper) / temper (Zhang and Sabuncu, 2018); for temper 1 that is the
    chance of an error, 1 - p.

    >>> tempered(torch.tensor([0.0, 1.0, 100.0]), 0.5)
    tensor([0.0000, 0.7869, 2.0000])
    """
    if temper == 0:
        return loss
    scaled = temper * loss
    # Near 0 the one has all digits, far out the other's slope: expm1 rounds to -1 there, and its slope to 0.
    return torch.where(scaled < 1, -torch.expm1(-scaled), 1 - torch.exp(-scaled)) / temper


def margin(output: Tensor, y: Tensor) -> Tensor:
    """How far the best wrong class is ahead of the right one, (B,): above 0 where the model errs.

    >>> import torch
    >>> margin(torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]]), torch.tensor([0, 2]))
    tensor([-0.5000,  3.0000])
    """
    chosen = y.long()[:, None]  # (B, 1)
    right = output.gather(1, chosen)
    others = output.scatter(1, chosen, -float("inf"))
    return others.amax(1) - right[:, 0]


def scaled_margin(output: Tensor, y: Tensor) -> Tensor:
    """The margin over the spread of the three largest logits, (B,): the same whatever the logits are multiplied by.

    It is the ratio of differences of logits of Croce and Hein (2020). Two classes have one difference, whose ratio to
    itself says nothing: there it is the margin as it is. So it is where the three are equal.

    >>> output, y = torch.tensor([[3.0, 1.0, 2.5, 0.0], [0.0, 4.0, 1.0, -1.0]]), torch.tensor([0, 2])
    >>> scaled_margin(output, y)
    tensor([-0.2500,  0.7500])
    >>> scaled_margin(100 * output, y)
    tensor([-0.2500,  0.7500])
    """
    if output.shape[1] < 3:
        return margin(output, y)
    top = output.topk(3, dim=1).values
    spread = top[:, 0] - top[:, 2]
    return margin(output, y) / torch.where(spread > 0, spread, 1.0)


def targeted_margin(output: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """How far the logit of a target class is ahead of the right one's, (B,).

    >>> targeted_margin(torch.tensor([[3.0, 1.0, 2.5]]), torch.tensor([0]), torch.tensor([1]))
    tensor([-2.])
    """
    right, wrong = (output.gather(1, chosen.long()[:, None])[:, 0] for chosen in (y, target))
    return wrong - right


def scaled_targeted_margin(output: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The same over pi_1 - (pi_3 + pi_4) / 2, where pi are the logits from the largest: the scale does not matter.

    It is the targeted ratio of differences of logits of Croce and Hein (2020). With fewer than four classes, or
    four equal logits, it is the margin as it is.

    >>> output, y, target = torch.tensor([[3.0, 1.0, 2.5, 0.0]]), torch.tensor([0]), torch.tensor([2])
    >>> scaled_targeted_margin(output, y, target), scaled_targeted_margin(100 * output, y, target)
    (tensor([-0.2000]), tensor([-0.2000]))
    """
    ahead = targeted_margin(output, y, target)
    if output.shape[1] < 4:
        return ahead
    top = output.topk(4, dim=1).values
    spread = top[:, 0] - top[:, 2:].mean(1)
    return ahead / torch.where(spread > 0, spread, 1.0)


# Regression. With k numbers a sample, its loss is the mean over them, as torch's own losses have it.


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    """(output - y)^2 of each sample, (B,), in the square of y's unit; of several numbers a sample, their mean.

    Outputs and y are (B,), (B, 1) or (B, k), and have as many numbers a sample: (B, 1) goes with (B,).

    >>> squared_error(torch.tensor([[1.0], [4.0]]), torch.tensor([0, 1]))
    tensor([1., 9.])
    """
    return residuals(output, y).square().mean(1)


def absolute_error(output: Tensor, y: Tensor) -> Tensor:
    """|output - y| of each sample, (B,), in y's unit; of several numbers a sample, their mean.

    >>> absolute_error(torch.tensor([[1.0, 2.0], [4.0, 4.0]]), torch.tensor([[0.0, 0.0], [1.0, 4.0]]))
    tensor([1.5000, 1.5000])
    """
    return residuals(output, y).abs().mean(1)


@dataclass(frozen=True)
class Huber:
    """Half of the squared error up to `delta`, and linear beyond: delta (|r| - delta / 2). Made by `huber`."""

    delta: float

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        away = residuals(output, y).abs()
        near = away.clamp_max(self.delta)
        return (near * (away - near / 2)).mean(1)


@dataclass(frozen=True)
class Quantile:
    """The pinball loss: tau (y - output) where that is positive, else (1 - tau) (output - y). Made by `quantile`."""

    tau: float

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        above = residuals(output, y)  # how far the output is above y
        return torch.maximum((1 - self.tau) * above, -self.tau * above).mean(1)


def huber(delta: float = 1.0) -> Huber:
    """Half of the squared error for residuals up to delta, in y's unit, and linear beyond: outliers pull less.

    >>> huber(1.0)(torch.tensor([0.5, 3.0]), torch.zeros(2))
    tensor([0.1250, 2.5000])
    """
    check_size("delta", delta)
    return Huber(float(delta))


def quantile(tau: float) -> Quantile:
    """The pinball loss, whose best prediction is the quantile tau of y given x; for tau 0.5 half the absolute error.

    >>> quantile(0.9)(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0]))
    tensor([0.9000, 0.1000])
    """
    if not (is_number(tau) and 0 < tau < 1):
        raise Refused(f"tau must lie between 0 and 1, not be {tau}: it is the share of y below the prediction")
    return Quantile(float(tau))


LOSSES: dict[str, tuple[int, Callable[..., PerSampleLoss]]] = {
    "squared": (0, lambda: squared_error),
    "absolute": (0, lambda: absolute_error),
    "huber": (1, huber),
    "quantile": (1, quantile),
}
"""Every loss of a regression by name: how many numbers it takes, and what makes it of them."""

_TORCH_S = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


def is_regression(loss: PerSampleLoss) -> bool:
    """Whether a loss is one for regression: of this module, or one of PyTorch's that compares number with number.

    >>> is_regression(squared_error), is_regression(nn.L1Loss(reduction="none")), is_regression(cross_entropy)
    (True, True, False)
    """
    return loss in (squared_error, absolute_error) or isinstance(loss, (Huber, Quantile, *_TORCH_S))


def losses_of(loss: PerSampleLoss, output: Any, y: Tensor) -> Tensor:
    """What a loss says of each sample.

    PyTorch's own losses for regression give a number for each of y. Here y takes the shape of the output first, and
    the numbers of a sample are averaged.
    """
    if not isinstance(loss, _TORCH_S) or not isinstance(output, Tensor):
        return loss(output, y)
    values: Tensor = loss(output, matched(output, y).reshape(output.shape))
    return values.reshape(len(output), -1).mean(1) if values.shape == output.shape else values


def residuals(output: Tensor, y: Tensor) -> Tensor:
    """output - y, (B, k), in the precision of the outputs."""
    wanted = matched(output, y)
    return output.reshape(wanted.shape) - wanted


def matched(output: Any, y: Tensor) -> Tensor:
    """y beside the outputs, (B, k), in their precision; where it does not say which goes with which, an error."""
    if not isinstance(output, Tensor):
        raise Refused(
            f"the model returned a {type(output).__name__}, and a regression wants one tensor of numbers. Pass a "
            "loss= that picks them, such as lambda output, y: squared_error(output[0], y)"
        )
    single = {tuple(output.shape), tuple(y.shape)} <= {(len(y),), (len(y), 1)}
    if not single and output.shape != y.shape:
        several = output.ndim > 1 and output[0].numel() > 1 and y.ndim == 1
        fix = (
            f"the model has {output[0].numel()} outputs for one number a sample: give its last layer one output"
            if several
            else "they must match: (B,) or (B, 1) for one number a sample, and (B, k) for k"
        )
        raise DataError(f"the outputs have shape {tuple(output.shape)} and y has shape {tuple(y.shape)}; {fix}")
    return y.to(output.dtype).reshape(len(y), -1)
