"""95 % intervals of errors, and of differences between errors on the same samples."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_Z = 1.959963984540054  # of a normal distribution, 97.5 % lie below


def interval(error: float, samples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of an error, for the chance in drawing the samples.

    (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    >>> [round(end, 3) for end in interval(0.1, 100)], interval(0.0, 100)[0]
    ([0.055, 0.174], 0.0)
    """
    error, samples = min(max(error, 0.0), 1.0), max(samples, 1)  # a file that was edited may hold anything
    shrink = 1 + _Z**2 / samples
    middle = (error + _Z**2 / (2 * samples)) / shrink
    half = _Z * math.sqrt(error * (1 - error) / samples + _Z**2 / (4 * samples**2)) / shrink
    return max(0.0, middle - half) if error > 0 else 0.0, min(1.0, middle + half) if error < 1 else 1.0


def mean_interval(values: Tensor) -> tuple[float, float]:
    """The 95 % interval of the mean of numbers >= 0, (N,), by the delta method on its logarithm.

    mean e^(+- z sd / (mean sqrt(n))); of one number nothing is known. Its roots are the interval of a root mean square.

    >>> [round(end, 3) for end in mean_interval(torch.tensor([1.0, 2.0, 3.0]))]
    [1.136, 3.522]
    """
    mean = float(values.double().mean())
    if len(values) < 2:
        return 0.0, math.inf
    if mean == 0:
        return 0.0, 0.0
    factor = math.exp(_Z * float(values.double().std()) / (mean * math.sqrt(len(values))))
    return mean / factor, mean * factor


def difference(first: Tensor, second: Tensor) -> tuple[float, float, float]:
    """The first error less the second with its 95 % interval, from which samples (..., N) each has wrong.

    Samples are paired: what both have right, or both wrong, says nothing of the difference. With several rows, the
    seeds, a sample counts by its mean over them. One sample is added that speaks for each side (Agresti and Min, 2005),
    so that an interval from few samples is not too short.

    >>> same = torch.tensor([True, False, False, True])
    >>> difference(same, same)[0]
    0.0
    """
    each = (first.double() - second.double()).reshape(-1, first.shape[-1]).mean(0)  # (N,)
    count = len(each) + 2
    middle = float(each.sum()) / count
    spread = math.sqrt(max(0.0, (float(each.square().sum()) + 1) / count - middle**2) / count)
    return float(each.mean()), max(-1.0, middle - _Z * spread), min(1.0, middle + _Z * spread)


def packed(wrong: Tensor) -> str:
    """Which samples are wrong, (N,), as text.

    >>> packed(torch.tensor([True, False, True])), unpacked(packed(torch.tensor([True, False, True])), 3).tolist()
    ('a0', [True, False, True])
    """
    return np.packbits(wrong.cpu().numpy()).tobytes().hex()


def unpacked(text: str, count: int) -> Tensor:
    """What was packed, (count,)."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=count)
    return torch.from_numpy(bits.astype(bool))
