"""A wrapper of a model that computes exactly what its model computes."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from rhobust.errors import DataError


class ModelWrapper(nn.Module):
    """The model under a wrapper that adds attributes and changes no output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The model's output."""
        if isinstance(x, list | tuple | np.ndarray):
            raise DataError(f"the model takes a tensor, not {type(x).__name__}; use torch.as_tensor(x).float()")
        output: Tensor = self.model(x)
        return output


def unwrapped(model: nn.Module) -> nn.Module:
    """The model in a `ModelWrapper`, or the model itself if its class computes something of its own.

    >>> linear = nn.Linear(2, 1)
    >>> unwrapped(ModelWrapper(linear)) is linear
    True
    """
    return model.model if isinstance(model, ModelWrapper) and type(model).forward is ModelWrapper.forward else model
