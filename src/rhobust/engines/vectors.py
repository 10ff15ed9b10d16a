"""Theta and its gradient as one vector: what travels between a server and its workers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


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
