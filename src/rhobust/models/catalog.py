"""Models by name, built for the shape of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Size, nn

from rhobust.errors import ConfigError, unknown
from rhobust.models.block_convolution import BlockConv2d
from rhobust.models.factory import build_own
from rhobust.models.resnet import resnet
from rhobust.models.source import FORM, Source, is_own


def linear(shape: Size, classes: int) -> nn.Module:
    """One linear layer: logistic regression, for which sups and certificates are exact."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), classes))


def mlp(shape: Size, classes: int) -> nn.Module:
    """Two hidden layers of 128 ReLU units: enough for the digits."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape.numel(), 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, classes)
    )


def cnn(
    shape: Size, classes: int, strides: Sequence[int] = (2, 2, 1), activation: Callable[[], nn.Module] = nn.ReLU
) -> nn.Module:
    """The paper's network: 8 x 8, 6 x 6 and 5 x 5 filters, 64, 128 and 128 channels, ReLU, "same" padding.

    The paper names no strides; 2, 2, 1 are those of the code it descends from, which also used ELU. `cnn-stride1` and
    `cnn-elu` are the other readings; an ELU network has bounded curvature where a ReLU network has none. Where an
    image is whole blocks of pixels, strided convolutions run on those: the same network (`block_convolution`).

    >>> sum(weight.numel() for weight in cnn(Size([1, 28, 28]), 10).parameters())
    771658
    """
    channels, height, width = shape
    whole = height % math.prod(strides) == width % math.prod(strides) == 0
    layers: list[nn.Module] = []
    for number, (out, kernel, stride) in enumerate(zip((64, 128, 128), (8, 6, 5), strides, strict=True)):
        top, bottom = _same(height, kernel, stride)
        left, right = _same(width, kernel, stride)
        if whole and math.prod(strides[number:]) > 1:
            block = math.prod(strides[number + 1 :])
            layers.append(BlockConv2d(channels, out, kernel, stride, block=block, blocked=number > 0))
        elif top == bottom and left == right:
            layers.append(nn.Conv2d(channels, out, kernel, stride, padding=(top, left)))
        else:
            layers += [nn.ZeroPad2d((left, right, top, bottom)), nn.Conv2d(channels, out, kernel, stride)]
        layers.append(activation())
        channels, height, width = out, -(-height // stride), -(-width // stride)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes))


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after, so that ceil(size / stride) values come out; the odd one goes last."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


MODELS: dict[str, Callable[[Size, int], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "cnn-stride1": partial(cnn, strides=(1, 1, 1)),
    "cnn-elu": partial(cnn, activation=nn.ELU),
    "resnet": resnet,
}
"""Builder of every model by name."""


def model_problems(key: str, model: str) -> list[str]:
    """What is wrong with the name of a model: it is one of `MODELS`, or a factory."""
    try:
        if is_own(model):
            Source.parse(model)
        elif model not in MODELS:
            raise ConfigError([f"{unknown(key, model, MODELS)}; or a model of your own, {FORM}"])
    except ConfigError as error:
        return error.problems
    return []


def build_model(
    name: str, shape: Size, classes: int, args: Mapping[str, Any] | None = None, digest: str | None = None
) -> nn.Module:
    """A fresh model, for inputs of `shape` (without the batch); initialized from the global generator.

    A factory gets the keyword arguments `args`, and its source must have this digest.
    """
    if problems := model_problems("model", name):
        raise ConfigError(problems)
    if is_own(name):
        return build_own(name, shape, classes, args or {}, digest)
    if name.startswith(("cnn", "resnet")) and len(shape) != 3:
        raise ConfigError(
            [f"model '{name}' needs images (channels, height, width), not samples of shape {tuple(shape)}"]
        )
    return MODELS[name](shape, classes)
