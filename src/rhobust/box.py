"""Where a sample may be: within bounds, of all features or of each, and with features that stay as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.checks import is_number
from rhobust.costs import Cost
from rhobust.errors import DataError, Refused

Ends = tuple[float, float] | tuple[Tensor, Tensor]
"""The least and the largest value, as numbers or in the shape of a sample."""


@dataclass(frozen=True, eq=False)
class Box:
    """Bounds of each feature, and features that nothing moves.

    `lower`, `upper` and `fixed` have the shape of one sample; bounds may also be numbers for all features. Whatever
    takes `bounds` takes a box: training, attacks, certificates and shifts keep to its bounds and leave `fixed` alone.

    >>> box = Box(lower=torch.tensor([0.0, -1.0]), upper=torch.tensor([1.0, 1.0]), fixed=torch.tensor([False, True]))
    >>> ends, mask = limits(box, torch.zeros(2, 2))
    >>> mask
    tensor([[ True, False],
            [ True, False]])
    """

    lower: float | Tensor = -math.inf
    upper: float | Tensor = math.inf
    fixed: Tensor | None = None

    def __post_init__(self) -> None:
        shapes = {tuple(part.shape) for part in (self.lower, self.upper, self.fixed) if isinstance(part, Tensor)}
        if len(shapes) > 1:
            raise Refused(f"lower, upper and fixed must have the shape of one sample, not {sorted(shapes)}")
        if not all(isinstance(end, Tensor) or is_number(end) for end in (self.lower, self.upper)):
            kinds = f"{type(self.lower).__name__} and {type(self.upper).__name__}"
            raise Refused(
                f"bounds are numbers or tensors, not {kinds}; of an array make a tensor, torch.as_tensor(...)"
            )
        if self.fixed is not None and not (isinstance(self.fixed, Tensor) and self.fixed.dtype == torch.bool):
            raise Refused("fixed must be a tensor of True and False in the shape of one sample")
        lower, upper = (torch.as_tensor(end, dtype=torch.float64) for end in (self.lower, self.upper))
        wrong = ~(lower <= upper)  # NaN, too
        if wrong.any():
            raise Refused(f"lower must be at most upper, and is not at feature {_first(wrong)}")

    def __iter__(self) -> Iterator[float | Tensor]:
        yield self.lower
        yield self.upper

    def to_state(self) -> dict[str, float | Tensor | None]:
        """Plain values, from which `Box(**state)` makes it again."""
        return {"lower": self.lower, "upper": self.upper, "fixed": self.fixed}

    def ends(self, z: Tensor) -> Ends | None:
        """The bounds on the device and in the precision of z; none where there is no finite one."""
        if isinstance(self.lower, Tensor) or isinstance(self.upper, Tensor):
            lower, upper = (torch.as_tensor(end).to(z).expand(z.shape[1:]) for end in (self.lower, self.upper))
            return lower, upper
        return None if math.isinf(self.lower) and math.isinf(self.upper) else (self.lower, self.upper)


Bounds = tuple[float, float] | Box | None
"""What is said of where samples may be: (lower, upper), a `Box`, or nothing."""


def check_bounds(bounds: object) -> None:
    """Refuse what are no bounds."""
    if bounds is None or isinstance(bounds, Box):
        return
    pair = isinstance(bounds, tuple | list) and len(bounds) == 2 and all(map(is_number, bounds))
    if not (pair and bounds[0] < bounds[1]):  # type: ignore[index]
        kinds = " and ".join(type(end).__name__ for end in bounds) if isinstance(bounds, tuple | list) else bounds
        given = bounds if pair else kinds
        raise Refused(
            f"bounds must be two numbers (lower, upper) with lower < upper, or a rhobust.Box with bounds of each "
            f"feature, not {given}"
        )


def ends_of(bounds: Bounds, z: Tensor) -> Ends | None:
    """The bounds of a batch z (B, ...), where there are any."""
    if not isinstance(bounds, Box):
        return bounds
    for name in ("lower", "upper", "fixed"):
        part = getattr(bounds, name)
        if isinstance(part, Tensor) and part.ndim and part.shape != z.shape[1:]:
            raise Refused(
                f"{name} of the box has shape {tuple(part.shape)}, and a sample has shape {tuple(z.shape[1:])}"
            )
    return bounds.ends(z)


def limits(
    bounds: Bounds, z: Tensor, mask: Tensor | None = None, cost: Cost | None = None
) -> tuple[Ends | None, Tensor | None]:
    """The bounds of a batch, and which of its positions may move, (B, ...); None where all may.

    What stays is what `mask` says, what the box has fixed, and what has an infinite price in `cost`.
    """
    ends = ends_of(bounds, z)
    for fixed in (bounds.fixed if isinstance(bounds, Box) else None, None if cost is None else cost.fixed):
        if fixed is not None:
            if fixed.shape != z.shape[1:]:
                raise Refused(f"what stays has shape {tuple(fixed.shape)}, and a sample has shape {tuple(z.shape[1:])}")
            moves = ~fixed.to(z.device).expand_as(z)
            mask = moves if mask is None else mask & moves
    return ends, mask


def check_inside(x: Tensor, box: Box) -> None:
    """Refuse samples outside of the bounds of their features."""
    ends = ends_of(box, x)
    if ends is None:
        return
    lower, upper = (torch.as_tensor(end).to(x).expand(x.shape[1:]) for end in ends)
    low, high = x.amin(0), x.amax(0)
    outside = (low < lower) | (high > upper)
    if outside.any():
        feature = _first(outside)
        least, most, start, end = (float(values.reshape(-1)[feature]) for values in (low, high, lower, upper))
        raise DataError(
            f"feature {feature} of x runs from {least:g} to {most:g}, outside its bounds {start:g} to {end:g}; clip "
            "the data or widen the bounds"
        )


def _first(chosen: Tensor) -> int:
    return int(chosen.reshape(-1).nonzero()[0, 0])


def widest(bounds: Bounds, x: Tensor) -> float:
    """The longest way that a feature can go: across its bounds, or where they are infinite across the data."""
    ends = ends_of(bounds, x)
    low, high = x.aminmax()
    if ends is not None:
        width = float((torch.as_tensor(ends[1]) - torch.as_tensor(ends[0])).max())
        if math.isfinite(width):
            return width
    return float(high - low)


def pair(bounds: Bounds) -> tuple[float, float]:
    """Bounds that must be two numbers for all features."""
    if not isinstance(bounds, tuple):
        raise Refused("bounds of each feature, or fixed features, are not possible here: two numbers are needed")
    return bounds
