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
