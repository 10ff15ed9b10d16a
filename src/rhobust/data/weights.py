"""Weights of samples, from data in memory and from batches that bring their own."""

from __future__ import annotations

import torch
from torch import Tensor

from rhobust.data.samples import tensor_of
from rhobust.errors import DataError
from rhobust.sample_weights import check_weight


def relative_weights(weights: object, count: int, precision: torch.dtype) -> Tensor:
    """The weights of samples in memory over the largest of them, checked, (N,).

    >>> relative_weights([1, 4, 0], 3, torch.float32)
    tensor([0.2500, 1.0000, 0.0000])
    """
    try:
        weight = tensor_of(weights, torch.float64).cpu()
    except DataError:
        raise DataError(
            f"weights must be {count} numbers, one for each sample; this {type(weights).__name__} holds none"
        ) from None
    check_weight(weight, count)
    # Only ratios count, and around 1 they keep their digits in every precision.
    return (weight.double() / weight.double().max()).to(torch.promote_types(precision, torch.float32))


def third_part(part: object, source: str, precision: torch.dtype) -> Tensor:
    """The weights in the triples of a source, (B,); the objective checks them with their batch."""
    weight = tensor_of(part, precision)
    if not weight.is_floating_point():
        raise DataError(
            f"the third part that the {source} gives is the weight of a sample, of floating point, not {weight.dtype}: "
            "row numbers and labels are no weights. For pairs drop it, or make it a float"
        )
    return weight
