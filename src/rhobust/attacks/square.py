"""The square attack: random search in an l_inf ball, which needs no gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rhobust.ascent.inner_problem import project
from rhobust.box import Ends
from rhobust.costs import per_sample

# The share of an image that one square covers, halved whenever this part of the queries is spent: coarse, then fine.
_FIRST_SHARE = 0.8
_HALVED_AT = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


def random_squares(
    harm: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    epsilon: float,
    queries: int,
    bounds: Ends | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """zeta with ||zeta - x||_inf <= epsilon that does the most harm found in so many queries of each sample.

    `harm(zeta, chosen)` is (len(chosen),) for the samples of x numbered `chosen`; above 0 the search is over for a
    sample. It starts from vertical stripes of +-epsilon; each query sets one random square to +-epsilon in every
    channel and keeps it where that does more harm (the idea of the Square attack, Andriushchenko et al. 2020).
    Data that are not images, (N, features), get runs of features instead of squares. Draws from torch's global
    generator.
    """
    images = x.reshape(len(x), *_as_image(x.shape[1:]))  # (B, C, H, W)

    def moved(chosen: Tensor, away: Tensor) -> Tensor:
        zeta = (images[chosen] + away).reshape(-1, *x.shape[1:])
        return project(x[chosen], zeta, bounds, None if mask is None else mask[chosen])

    _, channels, height, width = images.shape
    everyone = torch.arange(len(x), device=x.device)
    stripes = torch.ones_like(images) * _signs((len(x), channels, 1, width), x)
    away = epsilon * stripes
    best = harm(moved(everyone, away), everyone)  # (B,)
    for query in range(1, queries):
        left = (best <= 0).nonzero()[:, 0]
        if not len(left):
            break
        inside = _squares(len(left), height, width, _share(query / queries), x.device)  # (B, 1, H, W)
        tried = torch.where(inside, epsilon * _signs((len(left), channels, 1, 1), x), away[left])
        done = harm(moved(left, tried), left)
        better = done > best[left]
        away[left] = torch.where(per_sample(better, tried), tried, away[left])
        best[left] = torch.where(better, done, best[left])
    return moved(everyone, away)


def _as_image(shape: torch.Size) -> tuple[int, int, int]:
    """(C, H, W) of one sample; what is no image is one row."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    return 1, 1, math.prod(shape)


def _share(spent: float) -> float:
    halvings = sum(spent > mark for mark in _HALVED_AT)
    return _FIRST_SHARE * 0.5**halvings


def _squares(count: int, height: int, width: int, share: float, device: torch.device) -> Tensor:
    """One square each, (count, 1, H, W), of about that share of the image and at least one pixel."""
    side = math.sqrt(share * height * width) if height > 1 else share * width
    rows, columns = _band(count, height, side, device), _band(count, width, side, device)
    return rows[:, None, :, None] & columns[:, None, None, :]


def _band(count: int, length: int, size: float, device: torch.device) -> Tensor:
    """A random run of so many out of `length` places, (count, length)."""
    taken = min(max(round(size), 1), length)
    first = torch.randint(length - taken + 1, (count, 1), device=device)
    place = torch.arange(length, device=device)
    return (place >= first) & (place < first + taken)


def _signs(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return 2 * torch.randint(2, shape, device=like.device).to(like) - 1
