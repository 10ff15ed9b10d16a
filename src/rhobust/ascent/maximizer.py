"""The interface of a maximizer of zeta, and the one loop that runs all of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Self

from torch import Tensor

from rhobust.ascent.inner_problem import Accuracy, Maximum, Point, Problem
from rhobust.checks import check_count
from rhobust.costs import Cost
from rhobust.errors import Refused
from rhobust.support.compiling import capturing


@dataclass(frozen=True)
class Step:
    """What a maximizer hands the loop: where to look next, and what to return if the loop ends here."""

    zeta: Tensor
    answer: Tensor
    accuracy: Accuracy | None = None  # None: not measured


class Maximizer(ABC):
    """How zeta starts and how it moves."""

    penalized: bool = True
    """Whether gamma prices the transport (psi), or the maximizer is its own constraint (the loss alone)."""

    classifies: bool = False
    """Whether it climbs a margin, which only a classifier has."""

    random_start: bool = False
    """Whether the first zeta is drawn, with torch's global generator."""

    turns: int = 1
    """After how many training steps it does the same again."""

    cap: float = math.inf
    """The longest move of a sample, in the units of the cost's norm."""

    @property
    @abstractmethod
    def gradients(self) -> int:
        """The most gradients it asks for."""

    @property
    def mean_gradients(self) -> float:
        """The same on average over the training steps."""
        return fmean(self.on(step).gradients for step in range(self.turns))

    def on(self, step: int) -> Maximizer:
        """The maximizer of this training step, counted from 0; most do the same in every step."""
        return self

    def turn(self, step: int) -> int:
        """The first training step that is like this one."""
        return step % self.turns

    def is_logged(self, step: int, every: int) -> bool:
        """Whether a training step is in metrics that have a look in `every` steps.

        A look is at as many steps as there are turns: what moves cost differs from turn to turn, and steps that always
        meet the same one would not tell what they cost on average.
        """
        return step % every < self.turns

    def why_short_of(self, radius: float) -> str | None:
        """Why no gamma can make E c as large as the radius, and what to raise, if none can."""
        if radius <= self.cap**2:
            return None
        return f"with cap {self.cap:g} no sample costs more than {self.cap**2:.4g}. Raise cap"

    def refusal(self, cost: Cost, gamma_min: float) -> str | None:
        """Why it cannot do what it was asked for with this cost and this floor of gamma, if it cannot."""
        return None

    @abstractmethod
    def start(self, problem: Problem) -> Tensor:
        """The first zeta."""

    @abstractmethod
    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        """Step number t, given the loss and slope where the last one said to look; an ascent that begins has t = 0."""


@dataclass(frozen=True)
class Climb(Maximizer):
    """An ascent of a fixed number of steps, a gradient each.

    Several numbers take turns: with `steps` (1, 1, 1, 1, 3) every fifth training step climbs three times and the
    others once, 1.4 gradients on average. A model can learn to resist the one gradient of an ascent and no other; what
    it learns from the deeper ones undoes that. Outside of training the deepest counts.

    >>> from rhobust.ascent.margin import ErrorAscent
    >>> ascent = ErrorAscent(steps=(1, 1, 1, 1, 3))
    >>> [ascent.on(step).gradients for step in range(6)], ascent.mean_gradients
    ([1, 1, 1, 1, 3, 1], 1.4)
    """

    steps: int | tuple[int, ...] = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.steps, list):
            object.__setattr__(self, "steps", tuple(self.steps))
        if not self._each or not all(type(count) is int for count in self._each):
            raise Refused(f"steps is a whole number, or several that take turns, not {self.steps!r}")
        for count in self._each:
            check_count("steps", count)

    @property
    def _each(self) -> tuple[int, ...]:
        return self.steps if isinstance(self.steps, tuple) else (self.steps,)

    @property
    def turns(self) -> int:  # type: ignore[override]
        return len(self._each)

    @property
    def count(self) -> int:
        """How many steps, the most where numbers take turns."""
        return max(self._each)

    @property
    def gradients(self) -> int:
        return self.count

    def on(self, step: int) -> Self:
        return replace(self, steps=self.steps[step % self.turns]) if isinstance(self.steps, tuple) else self

    def turn(self, step: int) -> int:
        return self._each.index(self._each[step % self.turns])


def maximize(problem: Problem, maximizer: Maximizer, start: Tensor | None = None, behind: int = 0) -> Maximum:
    """The loop; every maximizer runs through here. `start` replaces the maximizer's own first zeta, and so many steps
    lie `behind` it: those that go a share of their way go the shorter one of later steps.

    >>> import torch
    >>> from rhobust.ascent.steps import PenalizedAscent
    >>> from rhobust.costs import SquaredL2
    >>> slope = torch.tensor([[3.0, -1.0]])
    >>> problem = Problem(torch.zeros(1, 2), lambda zeta: (zeta * slope).sum(1), torch.tensor(0.5), SquaredL2())
    >>> maximize(problem, PenalizedAscent(steps=1)).zeta  # a linear loss: one step is exact, g / (2 gamma)
    tensor([[ 3., -1.]])
    """
    zeta = maximizer.start(problem) if start is None else start
    step, paid = Step(zeta, zeta), 0
    for t in range(maximizer.gradients):  # Alg. 1 and 2, line 3; Alg. 3, line 5
        step, paid = maximizer.move(problem, problem.at(step.zeta), behind + t, step), t + 1
        # A graph has a fixed number of steps; those that were accurate before stay where they are.
        if step.accuracy is not None and not capturing(zeta) and step.accuracy.reached:
            break
    return Maximum(step.answer.to(problem.z.dtype), step.accuracy, paid)
