"""Data sets: samples with their bounds, ready to train on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rhobust.errors import ConfigError, unknown

# The digits come without a split of their own: this seed fixes one for everybody, whatever a run's seed is.
_SPLIT_SEED = 0
_DIGITS_TEST = 360


@dataclass(frozen=True)
class Samples:
    """Inputs and labels of the same length."""

    x: Tensor  # (N, ...)
    y: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class DataSet:
    """A named classification task; the bounds of its inputs travel with it."""

    name: str
    train: Samples
    test: Samples
    bounds: tuple[float, float]
    classes: int


def digits() -> DataSet:
    """The 1,797 handwritten 8 x 8 digits that ship with scikit-learn, pixels scaled to [-1, 1].

    >>> digits().train.x.shape
    torch.Size([1437, 1, 8, 8])
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = torch.from_numpy(raw.images.astype(np.float32) / 8 - 1).unsqueeze(1)
    y = torch.from_numpy(raw.target.astype(np.int64))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held_out, kept = order[:_DIGITS_TEST], order[_DIGITS_TEST:]
    return DataSet("digits", Samples(x[kept], y[kept]), Samples(x[held_out], y[held_out]), (-1.0, 1.0), classes=10)


DATA = {"digits": digits}
"""Loader of every data set by name."""


def load_data(name: str) -> DataSet:
    """A data set by name."""
    if name not in DATA:
        raise ConfigError([unknown("data set", name, DATA)])
    return DATA[name]()
