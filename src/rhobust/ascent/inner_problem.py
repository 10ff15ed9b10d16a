"""The inner problem of one batch, and how accurately it was solved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rhobust.box import Ends
from rhobust.costs import Cost
from rhobust.errors import Unmovable
from rhobust.support.compiling import compilable

_UNMOVABLE = (
    "the loss has no gradient in the inputs, so no ascent can move them: the model or the loss detaches them, rounds "
    "them, or runs under torch.inference_mode(). Without gradients there is the attack 'square'"
)


@dataclass(frozen=True)
class Point:
    """A candidate zeta with the loss there and its gradient in zeta."""

    zeta: Tensor  # (B, ...)
    loss: Tensor  # (B,)
    slope: Tensor  # (B, ...)


@dataclass(frozen=True)
class Problem:
    """The inner problem of one batch: sup over zeta in the box of loss(zeta) - gamma c(z, zeta)."""

    z: Tensor  # (B, ...)
    loss: Callable[[Tensor], Tensor]  # zeta -> (B,)
    gamma: Tensor  # ()
    cost: Cost
    bounds: Ends | None = None
    mask: Tensor | None = None  # (B, ...) bool: which positions may move; None: all

    def at(self, zeta: Tensor) -> Point:
        """Loss and slope at zeta: one forward and one backward pass."""
        with torch.enable_grad():
            zeta = zeta.detach().to(self.z.dtype).requires_grad_(True)  # a loss of higher precision lifts it
            loss = self.loss(zeta.clone())  # a copy: the model may change its input in place
            if not loss.requires_grad:
                raise Unmovable(_UNMOVABLE)
            (slope,) = torch.autograd.grad(loss, zeta, torch.ones_like(loss), allow_unused=True)
            if slope is None:
                raise Unmovable(_UNMOVABLE)
        return Point(zeta.detach(), loss.detach(), slope if self.mask is None else slope.where(self.mask, 0))

    def project(self, zeta: Tensor) -> Tensor:
        """zeta in the box, and at z where nothing may move."""
        return project(self.z, zeta, self.bounds, self.mask)

    def room(self, zeta: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """How far zeta may go down and up in every coordinate; none without a box."""
        return (None, None) if self.bounds is None else (self.bounds[0] - zeta, self.bounds[1] - zeta)

    def response(self, slope: Tensor) -> Tensor:
        """The point of the box that maximizes slope.zeta - gamma c(z, zeta)."""
        room = (None, None) if self.cost.separable else self.room(self.z)
        return self.project(self.z + self.cost.response(slope, self.gamma, *room))  # z + room rounds past the box too

    def gradient(self, point: Point) -> Tensor:
        """Gradient of psi in zeta, (B, ...)."""
        return point.slope - self.gamma * self.cost.gradient(point.zeta - self.z)


def project(z: Tensor, zeta: Tensor, bounds: Ends | None, mask: Tensor | None) -> Tensor:
    """zeta in the box, where there is one, and at z where the mask, if there is one, lets nothing move."""
    boxed = zeta if bounds is None else zeta.clamp(*bounds)
    return boxed if mask is None else boxed.where(mask, z)


@compilable
def smoothed(z: Tensor, draws: Tensor, noise: float, bounds: Ends | None, mask: Tensor | None) -> Tensor:
    """z with uniform noise of this half-width, from draws in [0, 1], where it may move."""
    return project(z, z + noise * (2 * draws - 1), bounds, mask)


@compilable
def begun(center: Tensor, start: Tensor, bounds: Ends | None, mask: Tensor | None) -> Tensor:
    """Where an ascent begins that goes on `start` away from its center."""
    return project(center, center + start, bounds, mask)


@dataclass(frozen=True)
class Accuracy:
    """How far psi(zeta) may be below the sup, for each sample.

    `proved`: psi is lambda-strongly concave, lambda = mu gamma - L with L a known bound on the curvature of the
    loss, so sup psi - psi(zeta) <= ||grad psi||_*^2 / (2 lambda).
    `estimated`: L is unknown. The gap is what a loss linear from here on would still gain (exact for a linear,
    an upper bound for a concave loss), enlarged by the curvature seen between the last two iterates, and infinite
    where that curvature leaves no concavity or there was no move yet to see it on. A measurement, not a bound.
    """

    gap: Tensor  # (B,)
    kind: Literal["proved", "estimated"]
    target: float

    @property
    def reached(self) -> bool:
        """Whether every sample got to the target."""
        return bool((self.gap <= self.target).all())


@dataclass(frozen=True)
class Maximum:
    """What the loop found."""

    zeta: Tensor  # (B, ...)
    accuracy: Accuracy | None  # None: a fixed number of steps, nothing measured
    gradients: int  # gradients of the loss in zeta that were computed for it
