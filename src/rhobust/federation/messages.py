"""The messages of Alg. 3: a task, an upload, their aggregate, and theta as one vector.

    worker     draws a minibatch, ascends to zeta, uploads the gradient of its mean psi in theta and in gamma
    server     checks every upload, aggregates, takes the one step (prox and projection included), broadcasts

A transport carries them; this module does not depend on any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

_NUMBER = 8  # bytes of a number that travels beside theta


@dataclass(frozen=True)
class Task:
    """What the server broadcasts at the start of a round."""

    round: int
    theta: Tensor  # (P,)
    gamma: float

    @property
    def size(self) -> int:
        """Bytes."""
        return self.theta.nbytes + 2 * _NUMBER


@dataclass(frozen=True)
class Upload:
    """What a worker answers: its mean gradient. No sample and no label leaves it."""

    round: int
    theta: Tensor  # (P,) gradient in theta
    gamma: float  # gradient in gamma, rho - E c
    samples: int  # how many the worker holds: its weight, where weights count
    loss: float  # mean loss at zeta
    gradients: int  # gradients in zeta that it took

    @property
    def size(self) -> int:
        """Bytes."""
        return self.theta.nbytes + 5 * _NUMBER


@dataclass(frozen=True)
class Aggregate:
    """The uploads of a round as one gradient, and what they cost."""

    theta: Tensor  # (P,)
    gamma: float
    loss: float
    gradients: int
    workers: int  # how many uploads counted
    dropped: dict[str, str]  # workers whose uploads did not count, with the reason
    bytes_up: int
    bytes_down: int
    left_out: list[str] = field(default_factory=list)  # workers whose theta a selecting aggregator did not use


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [theta for theta in model.parameters() if theta.requires_grad]


def flat(model: nn.Module) -> Tensor:
    """Theta as one vector, (P,), a copy."""
    return torch.cat([theta.detach().reshape(-1) for theta in _trained(model)])


def flat_gradient(model: nn.Module) -> Tensor:
    """The gradient in theta as one vector, (P,); zero where there is none."""
    return torch.cat(
        [torch.zeros_like(t).reshape(-1) if t.grad is None else t.grad.reshape(-1) for t in _trained(model)]
    )


@torch.no_grad()
def put(model: nn.Module, vector: Tensor) -> None:
    """Theta from one vector."""
    for theta, part in _parts(model, vector):
        theta.copy_(part)


def put_gradient(model: nn.Module, vector: Tensor) -> None:
    """The gradient in theta from one vector."""
    for theta, part in _parts(model, vector):
        theta.grad = torch.empty_like(theta).copy_(part)  # in theta's own layout, as an optimizer in one kernel wants


def _parts(model: nn.Module, vector: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Every weight with its part of the vector, in its shape."""
    start = 0
    for theta in _trained(model):
        yield theta, vector[start : start + theta.numel()].view_as(theta)
        start += theta.numel()
