"""Starting points far from the samples, for ascents on losses that are flat or have several maxima."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Problem
from rhobust.ascent.multistart import cost_at, loss_at
from rhobust.costs import per_sample, rows

_ROUTES = 10  # followed for each sample at most
_TIMES = (1.25, 2.0)  # times the distance of the border
_FEWEST, _MOST, _FACTOR = 4, 8, 4.0  # lengths beyond the border, and the largest factor between two of them


@dataclass(frozen=True)
class Route:
    """What is to rise, for each sample: an output times a sign; for a classifier the lead of a class over class y."""

    output: Tensor  # (B,) an index
    sign: Tensor  # (B,)


class StartingPoints:
    """Points around each sample of a batch, with the losses and the costs there, of which ascents begin at the best.

    An ascent on the loss stays where the loss is flat, and finds only one of several maxima. Outputs have a slope where
    the loss has none. A route follows one of them: the lead of another class over y, or an output up or down. Its
    points lie in the direction of the slope: some way beyond the border, where a linear output would be 0, and in the
    corner of the box. The slope is taken at the sample, just beyond the border, in the opposite corner, and in the
    corner that the slope there names. For a linear model the first slope is all of them, and its corners are the worst.
    """

    def __init__(self, model: nn.Module, problem: Problem, y: Tensor, classifies: bool, radii: Sequence[float]) -> None:
        self.model, self.problem = model, problem
        self.label = y.long()[:, None] if classifies else None
        least, longest = math.sqrt(min(radii)) / 2, 4 * math.sqrt(max(radii))
        count = min(max(_FEWEST, 1 + math.ceil(math.log(longest / least, _FACTOR))), _MOST)
        self.lengths = [least * (longest / least) ** (number / (count - 1)) for number in range(count)]
        self.routes = self._routes()
        found = [(loss_at(problem, end), cost_at(problem, end)) for route in self.routes for end in self._ends(route)]
        self.losses, self.costs = (torch.stack(values) for values in zip(*found, strict=True))  # (routes * ends, B)

    def best(self, gamma: float) -> Tensor:
        """For each sample the point that is worth most at this gamma, (B, ...)."""
        worth = (self.losses - gamma * self.costs).nan_to_num(nan=-torch.inf)
        best, ends = worth.argmax(0).to(self.problem.z.device), len(worth) // len(self.routes)
        chosen = best // ends, torch.arange(len(best), device=best.device)
        output, sign = (torch.stack([getattr(one, name) for one in self.routes])[chosen] for name in ("output", "sign"))
        zeta = self.problem.z
        for number, end in enumerate(self._ends(Route(output, sign))):
            zeta = torch.where(per_sample(best % ends == number, zeta), end, zeta)
        return zeta

    def _routes(self) -> list[Route]:
        """To the most likely classes; without classes along the largest outputs, up and down."""
        with torch.no_grad():
            outputs = rows(self.model(self.problem.z.clone()))
        up = torch.ones_like(outputs[:, 0])
        if self.label is not None:
            others = outputs.scatter(1, self.label, -torch.inf).topk(min(_ROUTES, outputs.shape[1] - 1)).indices
            return [Route(output, up) for output in others.unbind(1)]
        largest = outputs.abs().topk(min(_ROUTES // 2, outputs.shape[1])).indices
        return [Route(output, sign) for output in largest.unbind(1) for sign in (up, -up)]

    def _ends(self, route: Route) -> Iterator[Tensor]:
        """The points of a route, (B, ...) each."""
        near, _, opposite = yield from self._along_slope(route, self.problem.z)
        yield from self._along_slope(route, near)
        _, corner, _ = yield from self._along_slope(route, opposite)
        yield from self._along_slope(route, corner)

    def _along_slope(self, route: Route, at: Tensor) -> Generator[Tensor, None, tuple[Tensor, Tensor, Tensor]]:
        """The points in the direction of one slope; returns the near one, the corner and the opposite corner."""
        z, cost = self.problem.z, self.problem.cost
        point = replace(self.problem, loss=lambda zeta: self._height(zeta, route)).at(at)
        direction, rate = cost.direction(point.slope), cost.dual_norm(point.slope)
        height = point.loss - rows(point.slope * (at - z)).sum(1)  # at the sample, were the output linear
        border = torch.where(rate > 0, -height / rate, 0.0).clamp_min(0)  # how far it is, (B,)
        for length in (*(times * border for times in _TIMES), *(border + length for length in self.lengths)):
            yield self._moved(direction, length)
        corner, opposite = (self._far(way, border, at) for way in (direction, -direction))
        yield corner
        return self._moved(direction, border + self.lengths[0]), corner, opposite

    def _moved(self, direction: Tensor, length: Tensor) -> Tensor:
        z = self.problem.z
        return self.problem.project(z + per_sample(length.nan_to_num(), z) * direction)

    def _far(self, direction: Tensor, border: Tensor, at: Tensor) -> Tensor:
        """The corner of the box in this direction; without a box, beyond the last length."""
        if self.problem.bounds is None:
            return self._moved(direction, 2 * (border + self.lengths[-1]))
        lower, upper = (torch.as_tensor(end).to(at).expand_as(at) for end in self.problem.bounds)
        return torch.where(direction > 0, upper, torch.where(direction < 0, lower, at))

    def _height(self, zeta: Tensor, route: Route) -> Tensor:
        outputs = torch.real(rows(self.model(zeta)))
        height = route.sign * outputs.gather(1, route.output[:, None])[:, 0]
        return height if self.label is None else height - outputs.gather(1, self.label)[:, 0]
