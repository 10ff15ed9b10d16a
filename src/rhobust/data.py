"""Data sets: samples with their bounds, ready to train on.

By name: `digits` (embedded), `mnist`, `fashion-mnist`. By path: a `.npz` file with arrays x and y, or a folder with one
folder of images for each class. Pixels come in [-1, 1], and the bounds travel with the data.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rhobust.archives import FASHION_MNIST, MNIST, Archive
from rhobust.errors import ConfigError, DataError, LengthMismatch, unknown

# Data without a split of their own get one from this seed, the same for everybody, whatever a run's seed is.
_SPLIT_SEED = 0
_TEST_SHARE = 0.2
_CHANNELS = (1, 3, 4)
_PIXELS = (-1.0, 1.0)
_FULL = {torch.float32, torch.float64}  # precisions that give way to the model's
_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
_IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
_TIFF_BITS = 258  # the tag that holds the bits of each channel
_ARRAYS = ("x", "y", "x_test", "y_test", "bounds")
_MOST_NAMES, _LONGEST_NAME = 10, 40  # of arrays that a file has instead, in a message
# A small file that unpacks into a large one is a bomb: real data shrink by far less, a run of zeros a thousandfold.
_UNPACKS_TO, _UNPACKS_BY = 2**28, 200


@dataclass(frozen=True)
class Samples:
    """Inputs and labels of the same length."""

    x: Tensor  # (N, ...)
    y: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, chosen: slice | Tensor) -> Samples:
        return Samples(self.x[chosen], self.y[chosen])

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
    if not (isinstance(data, tuple | list) and len(data) == 2):
        raise DataError(f"samples are a pair (x, y) of tensors or arrays, not a {type(data).__name__}")
    some = next(model.parameters(), torch.zeros(()))
    return Samples(*(tensor_of(part, some.dtype) for part in data))


def tensor_of(part: object, precision: torch.dtype) -> Tensor:
    """A tensor, float32 and float64 in this precision; of an array, all floating point numbers, and others as int64.

    Tensors of less precision are left alone, and so are all for a model of less: it may cast them, or autocast does.
    """
    if isinstance(part, Tensor):
        return part.to(precision) if {part.dtype, precision} <= _FULL else part
    array = np.asarray(part)
    if array.dtype.kind == "f":
        return torch.from_numpy(np.ascontiguousarray(array)).to(precision)
    if array.dtype.kind in "iub":
        return torch.from_numpy(array.astype(np.int64))
    raise DataError(f"cannot use values of type {array.dtype}; give numbers")


@dataclass(frozen=True)
class DataSet:
    """A named classification task."""

    name: str
    train: Samples
    test: Samples
    bounds: tuple[float, float]
    classes: int


def digits() -> DataSet:
    """The 1,797 handwritten 8 x 8 digits that ship with scikit-learn.

    >>> digits().train.x.shape
    torch.Size([1437, 1, 8, 8])
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = torch.from_numpy(raw.images.astype(np.float32) / 8 - 1).unsqueeze(1)
    train, test = _split(Samples(x, torch.from_numpy(raw.target.astype(np.int64))))
    return DataSet("digits", train, test, _PIXELS, classes=10)


def _archived(archive: Archive, directory: Path | None) -> DataSet:
    def part(name: str) -> Samples:
        images, labels = archive.load(name, directory)
        return Samples(_pixels(images[:, None]), torch.from_numpy(labels.astype(np.int64)))

    return DataSet(archive.name, part("train"), part("t10k"), _PIXELS, classes=10)


def from_npz(path: Path) -> DataSet:
    """A file with x (N, ...) and y (N,), and, if it has a test set of its own, x_test and y_test.

    Bytes are pixels and are scaled to [-1, 1]; other numbers are taken as they are, within `bounds` from the file or
    within their own range. Without a test set, a fifth is held out. Other arrays in the file are not looked at.
    """
    arrays, names = _arrays(path)
    needed = ("x", "y", "x_test", "y_test") if {"x_test", "y_test"} & arrays.keys() else ("x", "y")
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise DataError(f"{path} has no array {' nor '.join(missing)}; it has {names or 'none'}")
    if arrays["x"].ndim == 4 and arrays["x"].shape[3] in _CHANNELS and arrays["x"].shape[1] not in _CHANNELS:
        raise DataError(f"{path}: x looks like images (N, H, W, C); give (N, C, H, W): x.transpose(0, 3, 1, 2)")
    bytes_ = arrays["x"].dtype == np.uint8
    if "x_test" in arrays and (arrays["x_test"].dtype == np.uint8) != bytes_:
        raise DataError(f"{path}: x is {arrays['x'].dtype} and x_test {arrays['x_test'].dtype}; give both in one unit")
    whole = _samples(arrays["x"], arrays["y"], path)
    if "x_test" in arrays:
        train, test = whole, _samples(arrays["x_test"], arrays["y_test"], path)
        if train.x.shape[1:] != test.x.shape[1:]:
            raise DataError(f"{path}: samples of x are {arrays['x'].shape[1:]}, of x_test {arrays['x_test'].shape[1:]}")
    else:
        train, test = _split(whole)
    low, high = float(min(train.x.min(), test.x.min())), float(max(train.x.max(), test.x.max()))
    bounds = _PIXELS if bytes_ else (low, high)
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
    lowest = min(int(arrays[name].min()) for name in needed if name[0] == "y")
    if lowest > 0:
        raise DataError(f"{path}: the labels begin with {lowest}, and nothing is of class 0; number classes from 0")
    classes, samples = 1 + max(int(arrays[name].max()) for name in needed if name[0] == "y"), len(train) + len(test)
    if classes > samples:
        raise DataError(f"{path}: y holds the label {classes - 1} with {samples} samples in all; number classes from 0")
    return DataSet(str(path), train, test, bounds, classes)


def _arrays(path: Path) -> tuple[dict[str, NDArray[Any]], str]:
    """The arrays of an .npz file that we know, each checked against its own header before it is unpacked.

    And the names of all that it has, for a message; those are not unpacked.
    """
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            names = _named(archive.namelist())
            for name in (name for name in _ARRAYS if f"{name}.npy" in archive.namelist()):
                member = archive.getinfo(f"{name}.npy")
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


def from_folder(path: Path) -> DataSet:
    """A folder with one folder of images for each class (in the order of their names); a fifth is held out.

    Hidden files and folders, and files that are no images by their name, are passed over.
    """
    try:
        folders = [folder for folder in _visible(path) if folder.is_dir()]
        files = [(file, label) for label, folder in enumerate(folders) for file in _visible(folder)]
        files = [(file, label) for file, label in files if file.suffix.lower() in _IMAGE_SUFFIXES and file.is_file()]
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem}") from None
    if len(folders) < 2:
        raise DataError(f"{path} should hold one folder of images for each class, two or more; found {len(folders)}")
    if empty := [str(folder) for label, folder in enumerate(folders) if label not in {label for _, label in files}]:
        raise DataError(
            f"no images ({', '.join(sorted(_IMAGE_SUFFIXES))}) in {', '.join(empty)}; add some or remove it"
        )
    images: list[NDArray[np.uint8]] = []
    for file, _ in files:
        images.append(_image(file))
        if images[-1].shape != images[0].shape:
            shapes = f"{images[-1].shape} and {files[0][0]} {images[0].shape}"
            raise DataError(f"images differ in size or color: {file} is {shapes} (height, width, channels)")
    pixels = _pixels(np.stack(images).transpose(0, 3, 1, 2))
    train, test = _split(Samples(pixels, torch.tensor([label for _, label in files])))
    return DataSet(str(path), train, test, _PIXELS, classes=len(folders))


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _image(file: Path) -> NDArray[np.uint8]:
    """Pixels (height, width, channels), upright: one channel for gray, three for color."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_IMAGE_FORMATS) as image:
                gray, bits = image.mode in ("1", "L", "LA"), max(getattr(image, "tag_v2", {}).get(_TIFF_BITS, [8]))
                # What is more, Pillow would cut: in gray what is above 255, in color the lower bits.
                if image.mode.startswith(("I", "F")) or bits > 8 or re.search(";16[BLN]", str(image.tile)):
                    raise ValueError("more than 8 bits a channel; save it with 8, or use an .npz")
                return np.atleast_3d(np.asarray(ImageOps.exif_transpose(image).convert("L" if gray else "RGB")))
    except Exception as problem:  # each decoder fails in ways of its own on damaged bytes
        raise DataError(f"{file} cannot be read as an image: {str(problem) or type(problem).__name__}") from None


def unlabeled(path: Path) -> Tensor:
    """x of an .npz file, in the units that training would see; labels need not be there."""
    x = _arrays(path)[0].get("x")
    if x is None or x.ndim < 2:
        raise DataError(f"{path} has no array x of samples, (N, ...)")
    return _samples(x, np.zeros(len(x), dtype=np.int64), path).x


def _samples(x: NDArray[Any], y: NDArray[Any], path: Path) -> Samples:
    numbers = x.dtype.kind in "fiub" and y.dtype.kind in "iub"
    if not (numbers and x.ndim > 1 and y.ndim == 1):
        got = f"{x.dtype} {x.shape} and {y.dtype} {y.shape}"
        raise DataError(f"{path}: x must be numbers (N, ...) and y whole numbers (N,), not {got}")
    if len(x) != len(y):
        raise LengthMismatch(f"{path}: x has {len(x)} samples and y has {len(y)}; they must match")
    if len(x) < 2 or x.size == 0:
        raise DataError(
            f"{path} holds {len(x)} samples of shape {x.shape[1:]}; at least 2 with a number each are needed"
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        tensor = _pixels(x) if x.dtype == np.uint8 else torch.from_numpy(x.astype(np.float32))
    if not bool(tensor.isfinite().all()):
        raise DataError(f"{path}: x holds NaN or infinite values (in 32 bits); clean the data")
    if int(y.min()) < 0:
        raise DataError(f"{path}: y holds the label {int(y.min())}; labels count from 0")
    return Samples(tensor, torch.from_numpy(y.astype(np.int64)))


def _pixels(images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(images.astype(np.float32) / 127.5 - 1)


def _split(samples: Samples) -> tuple[Samples, Samples]:
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held_out = math.ceil(_TEST_SHARE * len(samples))
    return samples[order[held_out:]], samples[order[:held_out]]


DATA: dict[str, Callable[[Path | None], DataSet]] = {
    "digits": lambda directory: digits(),
    "mnist": lambda directory: _archived(MNIST, directory),
    "fashion-mnist": lambda directory: _archived(FASHION_MNIST, directory),
}
"""Loader of every data set by name, given the directory to look in first."""


def data_problem(name: str) -> str | None:
    """What is wrong with the name or path of a data set, if anything that can be told without loading it."""
    path = Path(name)
    try:
        if name in DATA or path.is_dir() or (path.suffix == ".npz" and path.is_file()):
            return None
        if path.suffix == ".npy" and path.is_file():
            return f"data '{name}': a .npy file holds one array; an .npz is needed: numpy.savez('mine.npz', x=x, y=y)"
    except OSError as problem:  # a folder on the way that may not be entered, a name too long
        return f"data set '{name}' cannot be looked for: {problem.strerror}"
    if path.suffix or len(path.parts) > 1:
        return f"data '{name}': there is no such .npz file or folder of images (looked for {path.absolute()})"
    return f"{unknown('data set', name, DATA)}, or the path of an .npz file or of a folder of images per class"


def load_data(name: str, directory: str | Path | None = None, limit: int | None = None) -> DataSet:
    """A data set by name or path; `limit` keeps only the first so many training samples."""
    if problem := data_problem(name):
        raise ConfigError([problem])
    where = directory or os.environ.get("RHOBUST_DATA")
    if name in DATA:
        data = DATA[name](Path(where) if where else None)
    else:
        data = from_npz(Path(name)) if Path(name).is_file() else from_folder(Path(name))
    return data if limit is None else DataSet(data.name, data.train[:limit], data.test, data.bounds, data.classes)
