"""Models by name, built for the shape of the data."""

from __future__ import annotations

from collections.abc import Callable

from torch import Size, nn

from rhobust.errors import ConfigError, unknown


def linear(shape: Size, classes: int) -> nn.Module:
    """One linear layer: logistic regression, for which sups and certificates are exact."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), classes))


def mlp(shape: Size, classes: int) -> nn.Module:
    """Two hidden layers of 128 ReLU units: enough for the digits."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape.numel(), 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, classes)
    )


def cnn(shape: Size, classes: int) -> nn.Module:
    """The paper's network: 8 x 8, 6 x 6 and 5 x 5 filters, 64, 128 and 128 channels, ReLU, "same" padding.

    The paper names no strides; 2, 2, 1 are those of the code it descends from.

    >>> sum(weight.numel() for weight in cnn(Size([1, 28, 28]), 10).parameters())
    771658
    """
    channels, height, width = shape
    last = 128 * -(-height // 4) * -(-width // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 64, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.Conv2d(64, 128, 6, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(128, 128, 5, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(last, classes),
    )


MODELS: dict[str, Callable[[Size, int], nn.Module]] = {"linear": linear, "mlp": mlp, "cnn": cnn}
"""Builder of every model by name."""


def build_model(name: str, shape: Size, classes: int) -> nn.Module:
    """A fresh model by name, for inputs of `shape` (without the batch); initialized from the global generator."""
    if name not in MODELS:
        raise ConfigError([unknown("model", name, MODELS)])
    return MODELS[name](shape, classes)
