"""The compiled model and maximizer of an objective, for recorded steps with fewer kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Point, Problem
from rhobust.ascent.maximizer import Maximizer, Step
from rhobust.objective import RobustObjective
from rhobust.support.compiling import fusing


class Fusion:
    """The compiled model and maximizer of an objective, to be put in place of its own for a while."""

    def __init__(self, objective: RobustObjective) -> None:
        self.objective = objective
        self.plain = objective.model, objective.maximizer
        model = cast(nn.Module, torch.compile(objective.model, dynamic=False))
        self.fused = model, _FusedMaximizer(objective.maximizer)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The objective computes the same, in fewer kernels."""
        try:
            self.objective.model, self.objective.maximizer = self.fused
            with fusing():
                yield
        finally:
            self.objective.model, self.objective.maximizer = self.plain


class _FusedMaximizer(Maximizer):
    """Another maximizer whose moves are compiled."""

    def __init__(self, plain: Maximizer) -> None:
        self.plain, self.penalized, self.classifies = plain, plain.penalized, plain.classifies
        self.turns, self.cap = plain.turns, plain.cap
        self._move = torch.compile(plain.move)
        self._of_turn: dict[int, Maximizer] = {}

    @property
    def gradients(self) -> int:
        return self.plain.gradients

    def on(self, step: int) -> Maximizer:
        if self.turns == 1:
            return self
        turn = self.plain.turn(step)
        if turn not in self._of_turn:
            self._of_turn[turn] = _FusedMaximizer(self.plain.on(turn))
        return self._of_turn[turn]

    def start(self, problem: Problem) -> Tensor:
        return self.plain.start(problem)

    def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
        return self._move(problem, point, t, last)
