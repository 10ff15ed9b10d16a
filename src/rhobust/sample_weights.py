"""Weights of samples: means over a weighted empirical distribution, and what is no weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rhobust.errors import DataError
from rhobust.support.compiling import capturing


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """sum of w v / sum of w over the samples, or their mean where there are no weights.

    >>> float(weighted_mean(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 1.0])))
    2.0
    """
    if weight is None:
        return values.mean()
    precise = torch.promote_types(torch.promote_types(weight.dtype, values.dtype), torch.float32)
    return (_shares(weight.to(precise)).to(values) * values).mean()


def _shares(weight: Tensor) -> Tensor:
    """The weights over their mean, (B,); equal weights are exactly 1."""
    relative = weight / weight.amax()  # first: the mean of equal weights need not be exactly equal to them
    return relative / (relative.sum() / len(relative))


def check_weight(weight: object, count: int) -> None:
    """Refuse weights that are not one number a sample, finite and >= 0, with one above 0."""
    if not isinstance(weight, Tensor) or weight.shape != (count,) or weight.is_complex():
        got = f"{weight.dtype} of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__
        raise DataError(f"weights must be real numbers in a tensor ({count},), one for each sample, not {got}")
    if capturing(weight):
        return  # the engine that captures has checked them
    low, high = torch.stack(weight.detach().aminmax()).tolist()  # NaN passes through
    if math.isfinite(low) and math.isfinite(high) and 0 <= low <= high and high > 0:
        return
    if high == 0 == low:
        raise DataError(f"all {count} weights of samples are 0: nothing counts. Leave out samples of weight 0")
    sound = weight.isfinite() & (weight >= 0)
    bad = int((~sound).nonzero()[0].item())
    raise DataError(f"weights must be finite and >= 0; that of sample {bad} is {weight[bad].item():g}")
