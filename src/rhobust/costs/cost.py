"""The interface of a transport cost, and samples as rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor


def rows(z: Tensor) -> Tensor:
    """One row per sample: (B, ...) -> (B, features)."""
    return z.reshape(len(z), -1)


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Shape (B,) so that it broadcasts against `like`: (B,) -> (B, 1, ...)."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def lp_norm(d: Tensor, p: float) -> Tensor:
    """||d||_p for each sample: (B, ...) -> (B,)."""
    norm: Tensor = torch.linalg.vector_norm(rows(d), p, dim=1)
    return norm


class Cost(ABC):
    """A squared norm and the few facts about it that the ascent needs."""

    kappa: float
    """Cost of flipping a label; infinity means labels are never transported."""

    separable: ClassVar[bool] = False
    """Whether ||d||^2 is a sum over coordinates: then clipping a best response to the box keeps it best."""

    fixed: Tensor | None = None
    """Which features have no price at which they move, in the shape of a sample."""

    largest_l2: float = 1.0
    """The largest ||d||_2^2 of a d of norm 1, of the costs that are strongly convex."""

    def __call__(self, z: Tensor, zeta: Tensor) -> Tensor:
        """c(z, zeta) = ||zeta - z||^2 for each sample: (B, ...) -> (B,)."""
        return self.norm(zeta - z).square()

    @property
    @abstractmethod
    def strong_convexity(self) -> float:
        """mu: c(z, .) is mu-strongly convex in this cost's own norm; 0 where it is not."""

    @abstractmethod
    def norm(self, displacement: Tensor) -> Tensor:
        """||d|| for each sample: (B, ...) -> (B,)."""

    @abstractmethod
    def dual_norm(self, slope: Tensor) -> Tensor:
        """||g||_* = max g.d over ||d|| <= 1: (B, ...) -> (B,)."""

    @abstractmethod
    def direction(self, slope: Tensor) -> Tensor:
        """A d of norm 1 that attains the dual norm; 0 where the slope is 0."""

    @abstractmethod
    def gradient(self, displacement: Tensor) -> Tensor:
        """Gradient (where there is a kink, a subgradient) of ||d||^2."""

    @abstractmethod
    def response(self, slope: Tensor, gamma: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
        """argmax over lower <= d <= upper of slope.d - gamma ||d||^2: the best move for a linear loss."""
