"""Samples and data sets: tensors with their labels, their bounds and their split."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rhobust.box import Box
from rhobust.data.arrays import features_of
from rhobust.errors import DataError
from rhobust.inputs import Inputs, Perturb, as_inputs, bound

TASKS = ("classification", "regression")
"""What is learned of a sample: its class, or its number."""
REGRESSION = TASKS[1]

PIXELS = (-1.0, 1.0)
"""The bounds of pixels."""

# Data without a split of their own get one from this seed, the same for everybody, whatever a run's seed is.
_SPLIT_SEED = 0
_TEST_SHARE = 0.2
_FULL = {torch.float32, torch.float64}  # precisions that give way to the model's


@dataclass(frozen=True)
class Samples:
    """Inputs and labels of the same length."""

    x: Tensor  # (N, ...)
    y: Tensor  # (N,), or (N, k) for a regression of k numbers
    names: tuple[str, ...] = ()
    """What the classes are called, where they are not called by number."""

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, chosen: slice | Tensor) -> Samples:
        return Samples(self.x[chosen], self.y[chosen], self.names)

    def to(self, device: torch.device | str) -> Samples:
        """The same on a device."""
        return Samples(self.x.to(device), self.y.to(device), self.names)

    def called(self, label: int) -> str:
        """The name of a class."""
        return self.names[label] if self.names else str(label)

    def digest(self) -> str:
        """What these samples are, in 32 letters: others, or in another order, have another."""
        found = hashlib.blake2b(digest_size=16)
        for values in (self.x, self.y):
            found.update(f"{values.dtype} {tuple(values.shape)}".encode())
            found.update(values.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()


def samples_of(data: object, model: nn.Module) -> Samples:
    """Samples, or a pair (x, y) of tensors or arrays as such, in the model's precision."""
    if isinstance(data, Samples):
        return data
    some = next(model.parameters(), torch.zeros(()))
    x, y = _pair(data)
    return Samples(tensor_of(features_of(x, model), some.dtype), tensor_of(y, some.dtype))


def _pair(data: object) -> tuple[object, object]:
    if isinstance(data, Samples):
        return data.x, data.y
    if not (isinstance(data, tuple | list) and len(data) == 2):
        raise DataError(f"samples are a pair (x, y) of tensors or arrays, not a {type(data).__name__}")
    return data[0], data[1]


def moving_samples(data: object, model: nn.Module, perturb: Perturb | str | int | None) -> tuple[nn.Module, Samples]:
    """The model as a function of the part of x that moves, and samples of that part (`inputs.bound`)."""
    if perturb is None:
        return model, samples_of(data, model)
    x, y = _pair(data)
    some = next(model.parameters(), torch.zeros(()))
    of_z, z = bound(model, inputs_of(x, some.dtype), perturb)
    return of_z, Samples(z.detach(), tensor_of(y, some.dtype))


def inputs_of(x: object, precision: torch.dtype) -> Inputs:
    """One tensor, or a dict or a tuple of tensors, each as `tensor_of` has it."""
    if isinstance(x, Mapping):
        return as_inputs({key: tensor_of(part, precision) for key, part in x.items()})
    if isinstance(x, tuple | list):
        return as_inputs(tuple(tensor_of(part, precision) for part in x))
    return tensor_of(x, precision)


def tensor_of(part: object, precision: torch.dtype) -> Tensor:
    """A tensor, float32 and float64 in this precision; of an array, all floating point numbers, and others as int64.

    Tensors of less precision are left alone, and so are all for a model of less: it may cast them, or autocast does.
    """
    if isinstance(part, Tensor):
        if part.requires_grad:
            raise DataError(
                "a tensor of the data has a gradient (requires_grad), which would go unused: pass x.detach(). In a "
                "loop of your own RobustObjective keeps it"
            )
        return part.to(precision) if {part.dtype, precision} <= _FULL else part
    if isinstance(part, Mapping):
        raise DataError(f"a dict (with {', '.join(map(str, part))}) is no tensor; of inputs, perturb= names what moves")
    array = np.asarray(part)
    if array.dtype.kind == "f":
        return torch.from_numpy(np.ascontiguousarray(array)).to(precision)
    if array.dtype.kind in "iub":
        return torch.from_numpy(array.astype(np.int64))
    raise DataError(
        f"cannot use values of type {array.dtype}; give numbers. Of labels that are text, rhobust.data.Table.encode "
        "makes class numbers"
    )


@dataclass(frozen=True)
class DataSet:
    """A named task."""

    name: str
    train: Samples
    test: Samples
    bounds: tuple[float, float] | Box
    classes: int
    """How many there are; 0 for a regression."""
    preprocessing: dict[str, Any] | None = None
    """How rows of a table become samples, as plain values (`Table.from_json`)."""
    remarks: tuple[str, ...] = ()
    """What was found while the data were prepared."""

    @property
    def task(self) -> str:
        """Which of `TASKS` it is."""
        return TASKS[0] if self.classes else REGRESSION

    @property
    def outputs(self) -> int:
        """How many numbers a model says of a sample: one for each class, or for each number of y."""
        return self.classes or self.train.y[:1].numel()


def pixels(images: NDArray[np.uint8]) -> Tensor:
    """Bytes as numbers in [-1, 1]."""
    return torch.from_numpy(images.astype(np.float32) / 127.5 - 1)


def split(samples: Samples) -> tuple[Samples, Samples]:
    """A training part, and a fifth that is held out."""
    train, test = split_rows(len(samples))
    return samples[train], samples[test]


def split_rows(count: int) -> tuple[Tensor, Tensor]:
    """The numbers of the samples for training, and of the fifth that is held out."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held_out = math.ceil(_TEST_SHARE * count)
    return order[held_out:], order[:held_out]
