"""The samples that a model is shown, counted: a measure of work that does not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Passes:
    """Samples forwarded so far."""

    plain: int = 0
    """Without a gradient in the sample."""
    with_gradient: int = 0
    """For a gradient in the sample: a backward pass follows."""

    @property
    def forwarded(self) -> int:
        """All of them."""
        return self.plain + self.with_gradient


@contextmanager
def counted_passes(model: nn.Module) -> Iterator[Passes]:
    """The samples of every pass through the model meanwhile."""
    passes = Passes()

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        if torch.is_grad_enabled() and inputs[0].requires_grad:
            passes.with_gradient += len(inputs[0])
        else:
            passes.plain += len(inputs[0])

    hook = model.register_forward_hook(note)
    try:
        yield passes
    finally:
        hook.remove()
