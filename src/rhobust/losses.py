"""Losses with one value per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
            "loss= that picks them, such as lambda output, y: cross_entropy(output[0], y)"
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
