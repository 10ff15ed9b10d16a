"""Schedules of the learning rate of the weights: its share at every step of a training whose length is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

_WARM_UP = 0.3  # share of the steps in which one-cycle rises
_FIRST = 0.04  # where it begins


def _constant(done: float) -> float:
    return 1.0


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _one_cycle(done: float) -> float:
    if done < _WARM_UP:
        return 1 - (1 - _FIRST) * _cosine(done / _WARM_UP)
    return _cosine((done - _WARM_UP) / (1 - _WARM_UP))


SCHEDULES: dict[str, Callable[[float], float]] = {"constant": _constant, "cosine": _cosine, "one-cycle": _one_cycle}
"""share of the steps that are done, in [0, 1) -> share of the learning rate, by name.

>>> [round(SCHEDULES["cosine"](done), 3) for done in (0, 0.5, 1)]
[1.0, 0.5, 0.0]
>>> [round(SCHEDULES["one-cycle"](done), 3) for done in (0, 0.15, 0.3, 1)]
[0.04, 0.52, 1.0, 0.0]
"""


class Schedule:
    """Sets the rates of an optimizer before each step, from the number of the step alone.

    So a training that goes on from a checkpoint takes the rates of one that was not stopped. Where a step is captured
    in a CUDA graph, rates are tensors on the device, which the graph reads.
    """

    def __init__(self, name: str, optimizer: Optimizer, total: int) -> None:
        self.share, self.optimizer, self.total = SCHEDULES[name], optimizer, total
        self.rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.kept = [_on_device(group) for group in optimizer.param_groups]

    def set(self, step: int) -> None:
        """The rates of this step, counted from 0."""
        share = self.share(min(step / self.total, 1.0))
        for group, rate, tensor in zip(self.optimizer.param_groups, self.rates, self.kept, strict=True):
            group["lr"] = rate * share if tensor is None else tensor.fill_(rate * share)


def _on_device(group: dict[str, object]) -> Tensor | None:
    """A tensor for the rate of a group whose step reads it from the device; none for a plain number."""
    thetas = group["params"]
    cuda = isinstance(thetas, list) and all(theta.is_cuda for theta in thetas)
    if not cuda or not (group.get("capturable") or group.get("fused")):
        return None
    return torch.full((), float(group["lr"]), device=thetas[0].device)  # type: ignore[index, arg-type]
