"""Another cost with a price for each feature."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from rhobust.costs.cost import Cost, rows
from rhobust.errors import Refused


@dataclass(frozen=True, eq=False)
class Weighted(Cost):
    """Another cost with a price for each feature: c = ||w^(1/2) (zeta - z)||^2; of infinite price, a feature stays.

    >>> import torch
    >>> from rhobust.costs import SquaredL2
    >>> cost = Weighted(SquaredL2(), torch.tensor([4.0, 1.0, torch.inf]))
    >>> cost(torch.zeros(2, 3), torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    tensor([8.0000,    inf])
    """

    cost: Cost
    weights: Tensor
    """In the shape of a sample, above 0."""

    def __post_init__(self) -> None:
        if not isinstance(self.cost, Cost) or not isinstance(self.weights, Tensor):
            raise Refused("a weighted cost is made of a cost and a tensor of weights in the shape of a sample")
        if not self.weights.is_floating_point() or not bool((self.weights > 0).all()):
            raise Refused("the weights of a cost are numbers above 0; an infinite one keeps its feature where it is")
        if bool(self.weights.isinf().all()):
            raise Refused("all weights of the cost are infinite: nothing can move")

    @property
    def kappa(self) -> float:  # type: ignore[override]
        return self.cost.kappa

    @property
    def separable(self) -> bool:  # type: ignore[override]
        return self.cost.separable

    @property
    def fixed(self) -> Tensor | None:  # type: ignore[override]
        return self.weights.isinf()

    @property
    def largest_l2(self) -> float:  # type: ignore[override]
        return self.cost.largest_l2 / float(self.weights.min())

    @property
    def strong_convexity(self) -> float:
        return self.cost.strong_convexity

    def _root(self, like: Tensor) -> Tensor:
        """w^(1/2); 1 where a feature stays."""
        return self.weights.where(self.weights.isfinite(), 1).sqrt().to(like)

    def _pull(self, slope: Tensor) -> Tensor:
        """A slope in units of the other cost; 0 where a feature stays."""
        return (slope / self._root(slope)).where(self.weights.isfinite().to(slope.device), 0)

    def norm(self, displacement: Tensor) -> Tensor:
        stays = self.weights.isinf().to(displacement.device)
        moved = rows((displacement != 0) & stays).any(1)
        return self.cost.norm(displacement * self._root(displacement)).masked_fill(moved, math.inf)

    def dual_norm(self, slope: Tensor) -> Tensor:
        return self.cost.dual_norm(self._pull(slope))

    def direction(self, slope: Tensor) -> Tensor:
        return self.cost.direction(self._pull(slope)) / self._root(slope)

    def gradient(self, displacement: Tensor) -> Tensor:
        root = self._root(displacement)
        return root * self.cost.gradient(root * displacement)

    def response(self, slope: Tensor, gamma: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
        root = self._root(slope)
        room = (None if end is None else root * end for end in (lower, upper))
        return self.cost.response(self._pull(slope), gamma, *room) / root
