"""The moving average of the weights (EMA)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rhobust.checks import is_number
from rhobust.errors import Refused

EVERY = 10  # steps: weights change little in them, and each look reads and writes all of them


class WeightAverage:
    """In every tenth step: mean <- mean + w (theta - mean), with w = max(1 / k, 1 - decay^10) at the k-th time.

    So it is the plain mean of these thetas at first, and later one that forgets: `decay` 0.999 looks back about a
    thousand steps. The running statistics of BatchNorm layers are averaged along: those of the last theta would not
    fit the average.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = WeightAverage(model, decay=0.99)
    >>> for step in range(1, 31):
    ...     _ = nn.init.constant_(model.weight, step)
    ...     average.update()
    >>> average.put()
    >>> f"{model.weight.item():.3f}"  # of 10, 20 and 30
    '20.000'
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not is_number(decay) or not 0 <= decay < 1:
            raise Refused(f"the decay of an average is a number at least 0 and below 1, not {decay!r}")
        self.decay = decay
        self.weights: list[Tensor] = [*model.parameters(), *_running_statistics(model)]
        # Not below float32: in bfloat16 a hundredth of a small difference rounds to nothing.
        self.means = [theta.detach().to(_at_least_float32(theta), copy=True) for theta in self.weights]
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Theta after a step."""
        self.steps += 1
        if self.steps % EVERY == 0:
            share = max(EVERY / self.steps, 1 - self.decay**EVERY)
            thetas = [theta.to(mean.dtype) for theta, mean in zip(self.weights, self.means, strict=True)]
            torch._foreach_lerp_(self.means, thetas, share)

    @torch.no_grad()
    def put(self) -> None:
        """The average in place of theta; before the tenth step there is none, and theta stays."""
        if self.steps >= EVERY:
            for mean, theta in zip(self.means, self.weights, strict=True):
                theta.copy_(mean)

    def state_dict(self) -> dict[str, Any]:
        """What the next update depends on."""
        return {"means": self.means, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.steps = int(state["steps"])
        with torch.no_grad():
            for mean, before in zip(self.means, state["means"], strict=True):
                mean.copy_(before)


def reach(decay: float) -> float:
    """How many steps an average of this decay looks back, about."""
    return 1 / (1 - decay)


def _running_statistics(model: nn.Module) -> list[Tensor]:
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    return [kept for layer in layers for kept in (layer.running_mean, layer.running_var) if kept is not None]


def _at_least_float32(theta: Tensor) -> torch.dtype:
    return torch.promote_types(theta.dtype, torch.float32)
