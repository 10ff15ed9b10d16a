"""Losses of one sample each."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from rhobust.errors import DataError


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample, (B,), for class numbers (B,) or probabilities (B, classes)."""
    if not y.is_floating_point():
        y = y.long()
    elif y.shape != output.shape:
        raise DataError(f"y is {y.dtype}, and cross-entropy wants class numbers; for regression pass another loss=")
    return F.cross_entropy(output, y, reduction="none")


def margin(output: Tensor, y: Tensor) -> Tensor:
    """How far the best wrong class is ahead of the right one, (B,): above 0 where the model errs.

    >>> import torch
    >>> margin(torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]]), torch.tensor([0, 2]))
    tensor([-0.5000,  3.0000])
    """
    right = output.gather(1, y[:, None])  # (B, 1)
    others = output.scatter(1, y[:, None], -float("inf"))
    return others.amax(1) - right[:, 0]
