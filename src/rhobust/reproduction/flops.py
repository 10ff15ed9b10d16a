"""The arithmetic of a training, counted from the network; a multiplication with its addition counts as two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rhobust.losses import cross_entropy
from rhobust.models.block_convolution import on_pixels
from rhobust.models.catalog import build_model

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


@contextmanager
def counted_passes(model: nn.Module, each: Flops) -> Iterator[list[float]]:
    """The work of every pass through the model meanwhile: forward alone, or with a gradient in the sample."""
    spent: list[float] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        with_gradient = torch.is_grad_enabled() and inputs[0].requires_grad
        spent.append(len(inputs[0]) * (each.zeta if with_gradient else each.forward))

    hook = model.register_forward_hook(note)
    try:
        yield spent
    finally:
        hook.remove()
