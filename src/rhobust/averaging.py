"""The weights averaged over the steps: less noise than in the last ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rhobust.errors import Refused


class WeightAverage:
    """mean <- mean + w (theta - mean), with w = 1 / t for the first steps and 1 - decay from then on.

    So it is the plain mean of all thetas at first, and later one that forgets: `decay` 0.999 looks back about a
    thousand steps.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = WeightAverage(model, decay=0.9)
    >>> for value in (1.0, 3.0, 5.0):
    ...     _ = nn.init.constant_(model.weight, value)
    ...     average.update()
    >>> average.put()
    >>> f"{model.weight.item():.3f}"
    '3.000'
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise Refused(f"the decay of an average is at least 0 and below 1, not {decay}")
        self.decay = decay
        self.weights: list[Tensor] = list(model.parameters())
        self.means = [theta.detach().clone() for theta in self.weights]
        # On the weights' device, and changed in place, so that a step can be captured.
        self.steps = torch.zeros((), device=self.weights[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Theta after a step."""
        self.steps.add_(1)
        share = (1 / self.steps).clamp_min(1 - self.decay)
        ways = torch._foreach_sub(self.weights, self.means)  # all weights at once: on a GPU they are many small kernels
        torch._foreach_mul_(ways, share)
        torch._foreach_add_(self.means, ways)

    @torch.no_grad()
    def put(self) -> None:
        """The average in place of theta."""
        for mean, theta in zip(self.means, self.weights, strict=True):
            theta.copy_(mean)

    def state_dict(self) -> dict[str, Any]:
        """What the next update depends on."""
        return {"means": self.means, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        with torch.no_grad():
            self.steps.copy_(state["steps"])
            for mean, before in zip(self.means, state["means"], strict=True):
                mean.copy_(before)
