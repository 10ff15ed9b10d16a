"""Predictions of a model, by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rhobust.support.fitting import in_batches
from rhobust.support.probing import probing

_BATCH = 10_000


def outputs_of(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs of a model for many samples, in evaluation mode, on the CPU."""
    device = next((weight.device for weight in model.parameters()), x.device)
    with torch.no_grad(), probing(model):
        parts, _ = in_batches(len(x), _BATCH, lambda part: model(x[part].to(device)).cpu())
    return torch.cat(parts)


def predictions(outputs: Tensor, classes: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The class of each row by name, and the probability of every class.

    >>> predictions(torch.tensor([[0.0, 0.0], [0.0, 9.0]]), ["no", "yes"])["prediction"].tolist()
    ['no', 'yes']
    """
    probabilities = outputs.float().softmax(1).numpy()
    found: dict[str, NDArray[Any]] = {"prediction": np.array(classes)[probabilities.argmax(1)]}
    return found | {f"probability of {name}": probabilities[:, number] for number, name in enumerate(classes)}
