"""Starting points beyond the borders between classes, for ascents where the loss is flat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Problem
from rhobust.costs import per_sample

_TARGETS = 9  # classes looked at for each sample, in the order of their logits
_BEYOND = (1.25, 2.0, 4.0, 16.0)  # times the distance of a border, were the model linear


class Borders:
    """Ways out of the class of each sample of a batch, with the losses and the costs at their ends.

    Where a model is sure, its loss has no slope that leads anywhere, and an ascent on the loss stays. The margin of
    another class over y has one. Along it each sample is moved some way beyond the border and, in a box, into the
    corner: for a linear model and two classes these are points of the path that is best at each length.
    """

    def __init__(self, model: nn.Module, problem: Problem, y: Tensor) -> None:
        self.model, self.problem, self.y = model, problem, y
        with torch.no_grad():
            logits = model(problem.z).scatter(1, y[:, None], -torch.inf)
        self.targets = logits.topk(min(_TARGETS, logits.shape[1] - 1)).indices  # (B, targets)
        found: list[tuple[Tensor, Tensor]] = []
        for target in self.targets.unbind(1):
            found += [self._valued(zeta) for zeta in self._ways(target)]
        self.ways = len(found) // self.targets.shape[1]
        self.losses, self.costs = (torch.stack(values) for values in zip(*found, strict=True))  # (targets * ways, B)

    def best(self, gamma: float) -> Tensor:
        """For each sample the end that is worth most at this price, (B, ...)."""
        worth = (self.losses - gamma * self.costs).nan_to_num(nan=-torch.inf)
        best = worth.argmax(0).to(self.y.device)
        ends = torch.stack(self._ways(self.targets.gather(1, (best // self.ways)[:, None])[:, 0]))  # (ways, B, ...)
        return ends[best % self.ways, torch.arange(len(best), device=best.device)]

    def _ways(self, target: Tensor) -> list[Tensor]:
        """Ends of the ways to one class for each sample."""
        problem, cost = self.problem, self.problem.cost
        point = replace(problem, loss=self._margin(target)).at(problem.z)
        rate = cost.dual_norm(point.slope).clamp_min(torch.finfo(point.slope.dtype).tiny)
        distance = -point.loss.clamp_max(0) / rate  # to the border, (B,)
        half = torch.full_like(problem.gamma, 0.5)  # at which price a slope of dual norm t goes t far
        lengths = [per_sample(times * distance / rate, point.slope) for times in _BEYOND]
        ends = [replace(problem, gamma=half).response(point.slope * length) for length in lengths]
        if problem.bounds is not None:
            lower, upper = (torch.full_like(problem.z, bound) for bound in problem.bounds)
            ends.append(torch.where(point.slope > 0, upper, torch.where(point.slope < 0, lower, problem.z)))
        return ends

    def _margin(self, target: Tensor) -> Callable[[Tensor], Tensor]:
        def margin(zeta: Tensor) -> Tensor:
            logits = self.model(zeta)
            ahead: Tensor = logits.gather(1, target[:, None]) - logits.gather(1, self.y[:, None])
            return ahead[:, 0]

        return margin

    def _valued(self, zeta: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            loss = self.problem.loss(zeta).cpu().double()
        return loss, self.problem.cost(self.problem.z.cpu().double(), zeta.cpu().double())
