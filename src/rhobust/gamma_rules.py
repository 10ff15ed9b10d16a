"""Update rules for gamma, whose gradient is rho - E c."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rhobust.checks import is_number
from rhobust.errors import Refused

Rate = float | Tensor
"""A learning rate; a tensor (), on the host or the device, where a schedule keeps one or a step is recorded."""


class GammaRule(ABC):
    """How gamma answers to its gradient rho - E c. Schedules of theta's learning rate leave `lr` as it is."""

    lr: float

    def __post_init__(self) -> None:
        if not is_number(self.lr) or not 0 < self.lr < math.inf:
            raise Refused(f"the rate of a rule for gamma must be finite and > 0, not {self.lr!r}")

    compilable: ClassVar[bool] = False
    """Whether `update` is to be compiled where kernels are fused: only for a formula that keeps nothing in `state`."""

    @abstractmethod
    def update(self, gamma: Tensor, gradient: Tensor, radius: float, lr: Rate, state: dict[str, Any]) -> Tensor:
        """The next gamma, before it is projected on [gamma_min, infinity); `state` is kept between calls."""


@dataclass(frozen=True)
class FixedGamma(GammaRule):
    """gamma never moves: WRM."""

    lr: float = 0.0

    def __post_init__(self) -> None:
        """It has no rate."""

    def update(self, gamma: Tensor, gradient: Tensor, radius: float, lr: Rate, state: dict[str, Any]) -> Tensor:
        return gamma


@dataclass(frozen=True)
class ProjectedGradient(GammaRule):
    """gamma <- gamma - lr (rho - E c), as printed in Alg. 1-3 (where lr is theta's alpha)."""

    compilable = True

    lr: float = 1e-3

    def update(self, gamma: Tensor, gradient: Tensor, radius: float, lr: Rate, state: dict[str, Any]) -> Tensor:
        return gamma - lr * gradient


@dataclass(frozen=True)
class AdamGamma(GammaRule):
    """Adam on gamma, as in the paper's experiments: it moves by about lr a step, whatever rho is."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def update(self, gamma: Tensor, gradient: Tensor, radius: float, lr: Rate, state: dict[str, Any]) -> Tensor:
        for buffer in ("step", "mean", "square"):
            state.setdefault(buffer, torch.zeros_like(gamma))
        # In place: a captured step finds its buffers where they were.
        step = state["step"].add_(1)
        mean = state["mean"].mul_(self.beta1).add_((1 - self.beta1) * gradient)
        square = state["square"].mul_(self.beta2).add_((1 - self.beta2) * gradient.square())
        scale = (square / (1 - self.beta2**step)).sqrt() + self.eps
        move: Tensor = lr * mean / (1 - self.beta1**step) / scale
        return gamma - move


@dataclass(frozen=True)
class Multiplicative(GammaRule):
    """gamma <- gamma exp(-lr clip((rho - E c) / rho, -1, 1)): free of scale, and at rest only where E c = rho.

    E c is a batch's; one that spends more than twice rho counts as twice, so where many do, their mean stays above rho.

    >>> rule = Multiplicative(lr=0.1)
    >>> rule.update(torch.tensor(2.0), torch.tensor(-50.0), radius=5.0, lr=0.1, state={})  # E c = 55: dearer
    tensor(2.2103)
    """

    compilable = True

    lr: float = 0.05

    def update(self, gamma: Tensor, gradient: Tensor, radius: float, lr: Rate, state: dict[str, Any]) -> Tensor:
        return gamma * torch.exp(-lr * (gradient / radius).clamp(-1, 1))


GAMMA_RULES: dict[str, tuple[int, Callable[..., GammaRule]]] = {
    "multiplicative": (1, Multiplicative),
    "projected": (1, ProjectedGradient),
    "adam": (1, AdamGamma),
    "fixed": (0, FixedGamma),
}
"""Every rule by name: how many numbers it takes, and what makes it of them."""
