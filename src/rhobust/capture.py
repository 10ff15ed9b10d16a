"""Whether work is being recorded into a CUDA graph, where no value can be read back."""

from __future__ import annotations

import torch
from torch import Tensor


def capturing(tensor: Tensor) -> bool:
    """Whether work on this tensor is being recorded instead of done."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
