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


def predictions(outputs: Tensor, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The class of each row, by name where classes have names, and the probability of every class.

    >>> predictions(torch.tensor([[0.0, 0.0], [0.0, 9.0]]), ["no", "yes"])["prediction"].tolist()
    ['no', 'yes']
    """
    probabilities = outputs.float().softmax(1).numpy()
    classes = np.array(names) if names else np.arange(outputs.shape[1])
    found: dict[str, NDArray[Any]] = {"prediction": classes[probabilities.argmax(1)]}
    return found | {f"probability of {name}": probabilities[:, number] for number, name in enumerate(classes)}


def predicted_numbers(outputs: Tensor) -> dict[str, NDArray[Any]]:
    """The numbers of each row of a regression: one, or several that are counted from 0.

    >>> predicted_numbers(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))["prediction 1"].tolist()
    [2.0, 4.0]
    """
    values = outputs.float().reshape(len(outputs), -1).numpy()
    if values.shape[1] == 1:
        return {"prediction": values[:, 0]}
    return {f"prediction {number}": values[:, number] for number in range(values.shape[1])}
