"""The samples that a model is shown, counted: a measure of work that does not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not isinstance(output, Tensor) or not output.ndim:
            return  # refused by whatever asked for it
        moves = any(isinstance(one, Tensor) and one.requires_grad for one in inputs)
        # What moves inside of the model is no input; the gradient is then asked for with the weights at rest.
        if output.requires_grad and (moves or not any(weight.requires_grad for weight in model.parameters())):
            passes.with_gradient += len(output)
        else:
            passes.plain += len(output)

    hook = model.register_forward_hook(note)
    try:
        yield passes
    finally:
        hook.remove()
