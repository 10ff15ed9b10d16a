"""The arithmetic of a training, counted from the network; a multiplication with its addition counts as two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Size
from torch.utils.flop_counter import FlopCounterMode

from rhobust.losses import cross_entropy
from rhobust.models.block_convolution import on_pixels
from rhobust.models.catalog import build_model
from rhobust.support.counting import Passes

_BATCH = 2


@dataclass(frozen=True)
class Flops:
    """Of one sample."""

    forward: float
    """Its class, without any gradient."""
    zeta: float
    """A gradient in the sample."""
    theta: float
    """A gradient in the weights."""

    def spent(self, passes: Passes) -> float:
        """The work of these passes."""
        return passes.plain * self.forward + passes.with_gradient * self.zeta


@cache
def flops_of(model: str, shape: Size, classes: int) -> Flops:
    """Of a model by its name.

    A linear layer of 4 x 3 is 24 going forward, and as many more for each gradient.

    >>> flops_of("linear", Size([4]), 3)
    Flops(forward=24.0, zeta=48.0, theta=48.0)
    """
    built = on_pixels(build_model(model, shape, classes))  # zeros that only fill up a block are no work
    x, y = torch.zeros(_BATCH, *shape), torch.zeros(_BATCH, dtype=torch.long)
    with torch.no_grad():
        forward = _counted(lambda: built(x))
    theta = _counted(lambda: torch.autograd.backward(cross_entropy(built(x), y).sum()))
    built.requires_grad_(False)
    zeta = _counted(lambda: torch.autograd.backward(cross_entropy(built(x.requires_grad_()), y).sum()))
    return Flops(forward, zeta, theta)


def _counted(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops() / _BATCH)
