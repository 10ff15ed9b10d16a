"""Samples from a .npz file, checked before it is unpacked."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rhobust.data.arrays import class_numbers
from rhobust.data.samples import PIXELS, REGRESSION, TASKS, DataSet, Samples, pixels, split
from rhobust.errors import DataError, LengthMismatch

_CHANNELS = (1, 3, 4)
_ARRAYS = ("x", "y", "x_test", "y_test", "bounds")
_MOST_NAMES, _LONGEST_NAME = 10, 40  # of arrays that a file has instead, in a message
# A small file that unpacks into a large one is a bomb: real data shrink by far less, a run of zeros a thousandfold.
_UNPACKS_TO, _UNPACKS_BY = 2**28, 200


def from_npz(path: Path, task: str = TASKS[0]) -> DataSet:
    """A file with x (N, ...) and y (N,), and, if it has a test set of its own, x_test and y_test; or X, Y and so on.

    y are class numbers, or the names of classes as text. For a regression they are numbers in a unit of their own, of
    which a sample may have several, (N, k). Bytes are pixels and are scaled to [-1, 1]; other numbers are taken as they
    are, within `bounds` from the file or within their own range. Without a test set, a fifth is held out. Other arrays
    in the file are not looked at.
    """
    arrays, found = _arrays(path)
    needed = ("x", "y", "x_test", "y_test") if {"x_test", "y_test"} & arrays.keys() else ("x", "y")
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise DataError(f"{path} has no array {' nor '.join(missing)}; it has {found or 'none'}")
    if arrays["x"].ndim == 4 and arrays["x"].shape[3] in _CHANNELS and arrays["x"].shape[1] not in _CHANNELS:
        raise DataError(f"{path}: x looks like images (N, H, W, C); give (N, C, H, W): x.transpose(0, 3, 1, 2)")
    bytes_ = arrays["x"].dtype == np.uint8
    if "x_test" in arrays and (arrays["x_test"].dtype == np.uint8) != bytes_:
        raise DataError(f"{path}: x is {arrays['x'].dtype} and x_test {arrays['x_test'].dtype}; give both in one unit")
    labels = [name for name in needed if name[0] == "y"]
    names = () if task == REGRESSION else _numbered(arrays, labels)
    whole = _samples(arrays["x"], arrays["y"], path, task)
    if "x_test" in arrays:
        train, test = whole, _samples(arrays["x_test"], arrays["y_test"], path, task)
        if train.x.shape[1:] != test.x.shape[1:]:
            raise DataError(f"{path}: samples of x are {arrays['x'].shape[1:]}, of x_test {arrays['x_test'].shape[1:]}")
    else:
        train, test = split(whole)
    low, high = float(min(train.x.min(), test.x.min())), float(max(train.x.max(), test.x.max()))
    bounds = PIXELS if bytes_ else (low, high)
    if "bounds" in arrays:
        ends = arrays["bounds"]
        if ends.shape != (2,) or ends.dtype.kind not in "fiu":
            raise DataError(f"{path}: bounds must be two numbers (lower, upper), not {ends.dtype} {ends.shape}")
        bounds = (float(ends[0]), float(ends[1]))
        if not (math.isfinite(bounds[0]) and math.isfinite(bounds[1])):
            raise DataError(f"{path}: bounds must be finite, not {bounds}; leave them out, and they are those of x")
    lower, upper = torch.tensor(bounds, dtype=torch.float32).tolist()  # as x's own precision has them
    if lower == upper and "bounds" not in arrays:
        raise DataError(f"{path}: every number in x is {low:g}; there is nothing to tell samples apart by")
    if not lower < upper:
        raise DataError(f"{path}: bounds must be (lower, upper) with lower < upper, not {bounds}")
    if not lower <= low <= high <= upper:
        raise DataError(f"{path}: x runs from {low:g} to {high:g}, which does not fit the bounds {bounds}")
    if task == REGRESSION:
        _check_targets(train, test, path)
        return DataSet(str(path), train, test, bounds, classes=0)
    lowest = min(int(arrays[name].min()) for name in labels)
    if lowest > 0:
        raise DataError(f"{path}: the labels begin with {lowest}, and nothing is of class 0; number classes from 0")
    classes, samples = 1 + max(int(arrays[name].max()) for name in labels), len(train) + len(test)
    if classes > samples:
        raise DataError(f"{path}: y holds the label {classes - 1} with {samples} samples in all; number classes from 0")
    train, test = replace(train, names=names), replace(test, names=names)
    return DataSet(str(path), train, test, bounds, classes)


def _numbered(arrays: dict[str, NDArray[Any]], labels: Sequence[str]) -> tuple[str, ...]:
    """Put class numbers in the place of labels that are text; what the classes are called."""
    if any(arrays[name].dtype.kind != "U" or arrays[name].ndim != 1 for name in labels):
        return ()
    named = class_numbers(np.concatenate([arrays[name] for name in labels]))
    ends = np.cumsum([len(arrays[name]) for name in labels])
    for name, numbers in zip(labels, np.split(named[0], ends), strict=False) if named else ():
        arrays[name] = numbers
    return named[1] if named else ()


def _check_targets(train: Samples, test: Samples, path: Path) -> None:
    if train.y.shape[1:] != test.y.shape[1:]:
        raise DataError(f"{path}: a sample has {train.y[0].numel()} numbers in y, and {test.y[0].numel()} in y_test")
    if bool((train.y == train.y[:1]).all()):
        raise DataError(f"{path}: every y is {train.y[0].tolist()}; there is nothing to predict")


def _arrays(path: Path) -> tuple[dict[str, NDArray[Any]], str]:
    """The arrays of an .npz file that we know, each checked against its own header before it is unpacked.

    And the names of all that it has, for a message; those are not unpacked.
    """
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            names = _named(archive.namelist())
            for name in _ARRAYS:
                called = [one for one in archive.namelist() if one.lower() == f"{name}.npy"]
                if len(called) > 1:
                    raise ValueError(f"it has both {called[0]} and {called[1]}")
                if not called:
                    continue
                member = archive.getinfo(called[0])
                if member.file_size > max(_UNPACKS_TO, _UNPACKS_BY * path.stat().st_size):
                    raise ValueError(f"{name} would unpack to {member.file_size} bytes")
                with archive.open(member) as file:
                    _check_header(file, member.file_size)
                with archive.open(member) as file:
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
    except Exception as problem:  # zip, zlib and numpy's parser each fail in ways of their own on damaged bytes
        raise DataError(f"{path} cannot be read as an .npz file: {str(problem) or type(problem).__name__}") from None
    return arrays, names


def _named(members: Sequence[str]) -> str:
    """The arrays among the members of an archive, as far as names of any kind can stand in one line.

    >>> _named(["X.npy", "Y.npy", "../y.npy", "notes.txt"])
    'X, Y'
    """
    stems = [member.removesuffix(".npy")[:_LONGEST_NAME] for member in members if member.endswith(".npy")]
    fit = [stem for stem in stems if stem.isprintable() and "/" not in stem]
    return ", ".join(fit[:_MOST_NAMES]) + (f" and {len(fit) - _MOST_NAMES} more" if len(fit) > _MOST_NAMES else "")


def _check_header(file: IO[bytes], size: int) -> None:
    """Numpy makes room for what a header claims before it reads: refuse a claim that the bytes do not back."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"a header claims {dtype} {shape}, but {size - file.tell()} bytes follow")


def unlabeled(path: Path) -> Tensor:
    """x of an .npz file, in the units that training would see; labels need not be there."""
    x = _arrays(path)[0].get("x")
    if x is None or x.ndim < 2:
        raise DataError(f"{path} has no array x of samples, (N, ...)")
    return _samples(x, np.zeros(len(x), dtype=np.int64), path).x


def _samples(x: NDArray[Any], y: NDArray[Any], path: Path, task: str = TASKS[0]) -> Samples:
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise DataError(f"{path}: x must be numbers (N, ...), not {x.dtype} {x.shape}")
    targets = _targets(y, path) if task == REGRESSION else _labels(y, path)
    if len(x) != len(y):
        raise LengthMismatch(f"{path}: x has {len(x)} samples and y has {len(y)}; they must match")
    if len(x) < 2 or x.size == 0:
        raise DataError(
            f"{path} holds {len(x)} samples of shape {x.shape[1:]}; at least 2 with a number each are needed"
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        tensor = pixels(x) if x.dtype == np.uint8 else torch.from_numpy(x.astype(np.float32))
    if not bool(tensor.isfinite().all()):
        raise DataError(f"{path}: x holds NaN or infinite values (in 32 bits); clean the data")
    return Samples(tensor, targets)


def _labels(y: NDArray[Any], path: Path) -> Tensor:
    """Class numbers."""
    if y.dtype.kind not in "iub" or y.ndim != 1:
        hint = "; for numbers set task=regression" if y.dtype.kind == "f" else ""
        raise DataError(f"{path}: y must be whole numbers (N,), not {y.dtype} {y.shape}{hint}")
    if y.size and int(y.min()) < 0:
        raise DataError(f"{path}: y holds the label {int(y.min())}; labels count from 0")
    return torch.from_numpy(y.astype(np.int64))


def _targets(y: NDArray[Any], path: Path) -> Tensor:
    """The numbers of a regression; one a sample is (N,)."""
    if y.dtype.kind not in "fiub" or y.ndim not in (1, 2) or (y.ndim == 2 and y.shape[1] == 0):
        raise DataError(f"{path}: y must be numbers, (N,) or (N, k), for a regression, not {y.dtype} {y.shape}")
    with np.errstate(over="ignore"):
        targets = torch.from_numpy(y.astype(np.float32))
    if not bool(targets.isfinite().all()):
        raise DataError(f"{path}: y holds NaN or infinite values (in 32 bits); clean the data")
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
