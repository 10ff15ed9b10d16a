"""Samples from a folder with one folder of images for each class."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rhobust.data.samples import PIXELS, DataSet, Samples, pixels, split
from rhobust.errors import DataError

_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
_IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
_TIFF_BITS = 258  # the tag that holds the bits of each channel


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
    values = pixels(np.stack(images).transpose(0, 3, 1, 2))
    names = tuple(folder.name for folder in folders)
    train, test = split(Samples(values, torch.tensor([label for _, label in files]), names))
    return DataSet(str(path), train, test, PIXELS, classes=len(folders))


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
