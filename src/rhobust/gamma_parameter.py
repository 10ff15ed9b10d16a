"""Gamma as a parameter, never below float32: it is a sum of many small steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def gamma_parameter(gamma: float, model: nn.Module, learned: bool) -> nn.Parameter:
    """Gamma where the model is, in its precision or float32."""
    some = next(model.parameters(), torch.zeros(()))
    precision = torch.promote_types(some.dtype, torch.float32) if some.is_floating_point() else torch.float32
    return nn.Parameter(torch.tensor(float(gamma), dtype=precision, device=some.device), requires_grad=learned)


def but_precise(convert: Callable[[Tensor], Tensor], gamma: nn.Parameter) -> Callable[[Tensor], Tensor]:
    """A conversion of tensors, such as to bfloat16, that leaves gamma and its gradient at least float32.

    >>> gamma = nn.Parameter(torch.tensor(0.1))
    >>> but_precise(Tensor.bfloat16, gamma)(gamma).dtype
    torch.float32
    """
    own = [gamma, gamma.grad]

    def precise(tensor: Tensor) -> Tensor:
        converted = convert(tensor)
        low = converted.is_floating_point() and torch.finfo(converted.dtype).bits < 32
        if not low or not any(tensor is one for one in own):
            return converted
        return tensor.to(converted.device, torch.float32)

    return precise
