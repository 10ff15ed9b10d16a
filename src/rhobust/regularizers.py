"""Regularizers r(theta): a value and a proximal map, over all parameter tensors together.

    prox(v, steps) = argmin over theta of  r(theta) + sum_i (theta_i - v_i)^2 / (2 steps_i)

`steps` holds one positive step per tensor, or one per coordinate: plain SGD has the scalar alpha of Alg. 1-2,
Adam has a step of its own for every coordinate, and a prox that ignores it converges to the wrong point.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rhobust.errors import Refused

# The group prox solves one scalar equation per group by a Newton iteration that converges quadratically.
_NEWTON_STEPS = 30


class Regularizer(ABC):
    """r(theta) >= 0, convex, with a prox that can be computed."""

    separable: ClassVar[bool] = False
    """Whether each coordinate is shrunk by itself: such a prox is a kernel, where kernels are fused."""

    @abstractmethod
    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        """r(theta), a scalar."""

    @abstractmethod
    def prox(self, tensors: Sequence[Tensor], steps: Sequence[Tensor]) -> list[Tensor]:
        """The proximal map in the metric of `steps` (each a scalar or of its tensor's shape)."""


def _check_weight(**weights: float) -> None:
    for name, weight in weights.items():
        if not (weight >= 0 and math.isfinite(weight)):
            raise Refused(f"{name} must be finite and >= 0, not {weight}")


def _soft(v: Tensor, threshold: Tensor) -> Tensor:
    return v.sign() * (v.abs() - threshold).clamp_min(0)


@dataclass(frozen=True)
class NoRegularizer(Regularizer):
    """r = 0; its prox changes nothing."""

    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].new_zeros(())

    def prox(self, tensors: Sequence[Tensor], steps: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """r = l1 ||theta||_1 + l2 ||theta||_2^2.

    >>> r = ElasticNet(l1=1.0, l2=0.5)
    >>> r.prox([torch.tensor([3.0, -0.5])], [torch.tensor(1.0)])  # soft(v, 1) / (1 + 2 * 0.5)
    [tensor([1., -0.])]
    """

    separable = True

    l1: float
    l2: float

    def __post_init__(self) -> None:
        _check_weight(l1=self.l1, l2=self.l2)

    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack([self.l1 * v.abs().sum() + self.l2 * v.square().sum() for v in tensors]).sum()

    def prox(self, tensors: Sequence[Tensor], steps: Sequence[Tensor]) -> list[Tensor]:
        soft = [_soft(v, self.l1 * step) for v, step in zip(tensors, steps, strict=True)]
        # A division of lists: where kernels are fused, what led to it is fused with it, one kernel for all tensors.
        return list(torch._foreach_div(soft, [1 + 2 * self.l2 * step for step in steps]))


def L1(weight: float) -> ElasticNet:
    """r = weight ||theta||_1: the elastic net without its quadratic half."""
    return ElasticNet(l1=weight, l2=0.0)


def SquaredL2(weight: float) -> ElasticNet:
    """r = weight ||theta||_2^2 (not half of it): the elastic net without its l1 half."""
    return ElasticNet(l1=0.0, l2=weight)


@dataclass(frozen=True)
class SquaredL1(Regularizer):
    """r = weight ||theta||_1^2, the paper's first example; it couples all coordinates of all tensors.

    The prox soft-thresholds, v_i -> soft(v_i, 2 weight step_i S), at the S = ||theta||_1 that is consistent
    with itself: sort by |v_i| / step_i; among the k largest, S_k = sum |v_i| / (1 + 2 weight sum step_i).

    >>> SquaredL1(0.5).prox([torch.tensor([2.0, 0.5])], [torch.tensor(1.0)])  # k = 1, S = 2 / (1 + 1) = 1
    [tensor([1., 0.])]
    """

    weight: float

    def __post_init__(self) -> None:
        _check_weight(weight=self.weight)

    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.weight * torch.stack([v.abs().sum() for v in tensors]).sum().square()

    def prox(self, tensors: Sequence[Tensor], steps: Sequence[Tensor]) -> list[Tensor]:
        sizes = torch.cat([v.abs().flatten() for v in tensors])
        scales = torch.cat([step.expand(v.shape).flatten() for v, step in zip(tensors, steps, strict=True)])
        ratios, order = torch.sort((sizes / scales).nan_to_num(nan=0.0, posinf=math.inf), descending=True)  # 0 / 0 is 0
        sums = sizes[order].cumsum(0) / (1 + 2 * self.weight * scales[order].cumsum(0))  # S_k for every k
        active = int((ratios > 2 * self.weight * sums).sum())  # the condition holds for a prefix of k
        total = sums[active - 1] if active else sums.new_zeros(())
        return [_soft(v, 2 * self.weight * step * total) for v, step in zip(tensors, steps, strict=True)]


@dataclass(frozen=True)
class GroupL2(Regularizer):
    """r = weight sum over groups of ||theta_g||_2, which removes whole groups.

    A group is a slice along the first dimension of a tensor (a neuron, a filter); a tensor of one dimension
    or none is one group.

    >>> GroupL2(1.0).prox([torch.tensor([[3.0, 4.0], [0.3, 0.4]])], [torch.tensor(1.0)])  # 5 -> 4, 0.5 -> 0
    [tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])]
    """

    weight: float

    def __post_init__(self) -> None:
        _check_weight(weight=self.weight)

    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.weight * torch.stack([_groups(v).norm(dim=1).sum() for v in tensors]).sum()

    def prox(self, tensors: Sequence[Tensor], steps: Sequence[Tensor]) -> list[Tensor]:
        return [
            self._shrink(_groups(v), _groups(step.expand(v.shape))).reshape(v.shape)
            for v, step in zip(tensors, steps, strict=True)
        ]

    def _shrink(self, v: Tensor, step: Tensor) -> Tensor:
        # KKT: theta_i = v_i N / (N + weight step_i) with N = ||theta||, so ||v_i / (N + weight step_i)|| = 1.
        # 1 / ||.|| is concave and increasing in N: Newton from the left never overshoots.
        pull = self.weight * step
        still = torch.where(pull > 0, 0.0, v).norm(dim=1)  # what nothing pulls at
        length = torch.maximum(v.norm(dim=1) - pull.amax(1), still)  # lower bounds on N; (groups,)
        kept = (v / pull).nan_to_num(0.0, math.inf, -math.inf).norm(dim=1) > 1  # else the group is zero; 0 / 0 is 0
        tiny = torch.finfo(v.dtype).tiny
        for _ in range(_NEWTON_STEPS):
            damped = v / (length[:, None] + pull).clamp_min(tiny)
            size = damped.norm(dim=1).clamp_min(tiny)
            slope = (damped.square() / (length[:, None] + pull).clamp_min(tiny)).sum(1).clamp_min(tiny)
            length = length + (size - 1).clamp_min(0) * size.square() / slope
        shrunk = v * (length[:, None] / (length[:, None] + pull).clamp_min(tiny))
        # A coordinate with step 0 (the start of a warm-up), or with weight 0, stays where it is.
        return torch.where(pull > 0, torch.where(kept[:, None], shrunk, torch.zeros_like(v)), v)


def _groups(v: Tensor) -> Tensor:
    return v.reshape(len(v), -1) if v.ndim > 1 else v.reshape(1, -1)


@dataclass(frozen=True)
class Box(Regularizer):
    """r = 0 where every coordinate of theta lies in [lower, upper], infinity elsewhere; prox clips.

    >>> Box(-1.0, 1.0).prox([torch.tensor([2.0, -0.5])], [torch.tensor(0.1)])
    [tensor([ 1.0000, -0.5000])]
    """

    separable = True

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise Refused(f"a box needs lower <= upper, not [{self.lower}, {self.upper}]")

    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        inside = all(bool(((v >= self.lower) & (v <= self.upper)).all()) for v in tensors)
        return tensors[0].new_tensor(0.0 if inside else math.inf)

    def prox(self, tensors: Sequence[Tensor], steps: Sequence[Tensor]) -> list[Tensor]:
        return [v.clamp(self.lower, self.upper) for v in tensors]


REGULARIZERS: dict[str, tuple[int, Callable[..., Regularizer]]] = {
    "none": (0, NoRegularizer),
    "l1": (1, L1),
    "squared-l1": (1, SquaredL1),
    "squared-l2": (1, SquaredL2),
    "elastic-net": (2, ElasticNet),
    "group-l2": (1, GroupL2),
    "box": (2, Box),
}
"""Every regularizer by name: how many numbers it takes, and what makes it of them."""
