"""Common corruptions of images, each at five severities.

Images are arrays (N, C, H, W) with values in `bounds`, and stay in them. `CORRUPTIONS` is the one table of how strong a
severity is, in units that mean the same for every image: shares of the image's width W, or of the width of the bounds.
At amount 0 every corruption gives the image back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import affine_grid, grid_sample

Images = NDArray[np.float64]
Bounds = tuple[Any, Any]  # two numbers, or two arrays in the shape of a sample
Draws = np.random.Generator

SEVERITIES = (1, 2, 3, 4, 5)


# Each corruption makes its draws in one call, sample after sample: cutting the samples into batches changes nothing.
def _gaussian_noise(images: Images, amount: float, bounds: Bounds, draws: Draws) -> Images:
    noisy: Images = images + amount * (bounds[1] - bounds[0]) * draws.standard_normal(images.shape)
    return noisy


def _impulse_noise(images: Images, amount: float, bounds: Bounds, draws: Draws) -> Images:
    chance = draws.random(images.shape)
    pepper, salt = chance < amount / 2, chance >= 1 - amount / 2
    return np.where(pepper, bounds[0], np.where(salt, bounds[1], images))


def _blur(images: Images, amount: float, bounds: Bounds, draws: Draws) -> Images:
    from scipy.ndimage import gaussian_filter

    blurred: Images = gaussian_filter(images, amount * images.shape[-1], mode="nearest", axes=(-2, -1))
    return blurred


def _contrast(images: Images, amount: float, bounds: Bounds, draws: Draws) -> Images:
    mean: Images = images.mean((-2, -1), keepdims=True)  # of each channel of each image
    return mean + (1 - amount) * (images - mean)


def _brightness(images: Images, amount: float, bounds: Bounds, draws: Draws) -> Images:
    brighter: Images = images + amount * (bounds[1] - bounds[0])
    return brighter


def _rotation(images: Images, amount: float, bounds: Bounds, draws: Draws) -> Images:
    return rotated(images, np.where(draws.random(len(images)) < 0.5, amount, -amount), bounds[0])


def _translation(images: Images, amount: float, bounds: Bounds, draws: Draws) -> Images:
    direction = 2 * np.pi * draws.random(len(images))
    length = amount * images.shape[-1]
    return translated(images, length * np.sin(direction), length * np.cos(direction), bounds[0])


def _occlusion(images: Images, amount: float, bounds: Bounds, draws: Draws) -> Images:
    size = np.array(images.shape[-2:])
    patch = np.rint(amount * size).astype(int)  # (height, width)
    corners = np.floor(draws.random((len(images), 2)) * (size - patch + 1)).astype(int)  # wholly inside
    result = images.copy()
    for image, (top, left) in zip(result, corners, strict=True):
        image[:, top : top + patch[0], left : left + patch[1]] = bounds[0]
    return result


def rotated(images: Images, degrees: NDArray[np.float64], background: float) -> Images:
    """Each image turned counterclockwise around its center by its own angle, with linear interpolation."""
    height, width = images.shape[-2:]
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    zero = np.zeros_like(cosine)
    # Coordinates run from -1 to 1 along both sides, whatever their lengths: the ratio undoes that.
    source = [[cosine, -sine * height / width, zero], [sine * width / height, cosine, zero]]
    return _resampled(images, np.array(source), background)


def translated(images: Images, down: NDArray[np.float64], right: NDArray[np.float64], background: float) -> Images:
    """Each image moved by its own number of pixels, with linear interpolation."""
    height, width = images.shape[-2:]
    one, zero = np.ones_like(down), np.zeros_like(down)
    source = [[one, zero, -2 * right / width], [zero, one, -2 * down / height]]
    return _resampled(images, np.array(source), background)


def _resampled(images: Images, source: NDArray[np.float64], background: float) -> Images:
    """Each pixel read from where the affine map `source` (2, 3, N) says; the background goes on beyond the edge."""
    grid = affine_grid(torch.from_numpy(source).permute(2, 0, 1), list(images.shape), align_corners=False)
    above = torch.from_numpy(images - background)  # what lies outside is read as 0
    resampled: Images = grid_sample(above, grid, padding_mode="zeros", align_corners=False).numpy()
    return resampled + background


@dataclass(frozen=True)
class Corruption:
    """One way to corrupt, and how much of it each severity is."""

    apply: Callable[[Images, float, Bounds, Draws], Images]
    amounts: tuple[float, float, float, float, float]
    unit: str
    images_only: bool = True
    """Whether it needs a height and a width; if not, samples of any shape will do."""


_RANGE = "of the width of the bounds"
CORRUPTIONS: dict[str, Corruption] = {
    "gaussian-noise": Corruption(
        _gaussian_noise, (0.08, 0.16, 0.24, 0.32, 0.4), f"standard deviation, {_RANGE}", False
    ),
    "impulse-noise": Corruption(_impulse_noise, (0.05, 0.1, 0.15, 0.2, 0.3), "share of the values", False),
    "blur": Corruption(_blur, (0.02, 0.035, 0.05, 0.065, 0.08), "standard deviation, of the image's width"),
    "contrast": Corruption(_contrast, (0.2, 0.35, 0.5, 0.65, 0.8), "share that is lost"),
    "brightness": Corruption(_brightness, (0.1, 0.2, 0.3, 0.4, 0.5), f"added, {_RANGE}"),
    "rotation": Corruption(_rotation, (8, 16, 24, 32, 40), "degrees to the left or to the right"),
    "translation": Corruption(_translation, (0.02, 0.05, 0.08, 0.11, 0.14), "of the image's width, in any direction"),
    "occlusion": Corruption(_occlusion, (0.12, 0.24, 0.36, 0.48, 0.6), "sides of the patch, of the image's sides"),
}
"""Severities 1 to 5 of every corruption. Noise takes samples of any shape; what is uncovered or occluded gets the lower
bound, the background."""


def corrupt(name: str, severity: int, images: Images, bounds: Bounds, draws: Draws) -> Images:
    """The images under a corruption of `CORRUPTIONS`, clipped to the bounds.

    >>> corrupt("brightness", 5, np.array([[[[-1.0, 0.5]]]]), (-1.0, 1.0), np.random.default_rng(0))
    array([[[[0., 1.]]]])
    """
    corruption = CORRUPTIONS[name]
    return np.clip(corruption.apply(images, corruption.amounts[severity - 1], bounds, draws), *bounds)
