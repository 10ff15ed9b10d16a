"""The cascade, our default evaluation: stages of attacks, each on the samples that the ones before it left standing.

    untargeted    ten steps up the margin, at the largest epsilon first; a sample that falls goes on at the next smaller
    targeted      one step toward each of nine other classes, all from one random point
    refined       twelve steps toward the classes that came nearest
    restarted     more and more steps from new random points toward those, for samples that came ever nearer; the last
                  round is repeated while it helps

Every stage after the first works at one epsilon of each sample: the largest at which the sample still stands. A sample
that falls there has fallen at every larger epsilon, and goes on at the next smaller one. A sample that stands there is
not attacked at smaller ones, whose balls lie inside. How near a sample came to another class is the share of the way
that is left: the difference of the two logits at the best point over that at x.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Point, Problem
from rhobust.ascent.steps import Ball
from rhobust.attacks.attack import check_attackable, errs, rivals_of, verified
from rhobust.attacks.climb import Climbed, climb, mistaken
from rhobust.attacks.decaying_steps import DecayingSteps
from rhobust.box import Bounds, limits
from rhobust.costs import SquaredL2, per_sample
from rhobust.inputs import mask_of, part_of, underlying
from rhobust.losses import cross_entropy, margin, targeted_margin
from rhobust.support.counting import Passes, counted_passes
from rhobust.support.fitting import fitting, in_batches
from rhobust.support.probing import probing

CASCADES = {"cascade": math.inf, "cascade-l2": 2.0}
"""The norm of the balls by name."""

STAGES = ("clean", "untargeted", "targeted", "refined", "restarted")
"""What a sample can fall at, in their order."""
_CLEAN, _UNTARGETED, _TARGETED, _REFINED, _RESTARTED = range(len(STAGES))


@dataclass(frozen=True)
class _Round:
    """Ascents from random points toward the nearest classes of each sample, where little enough of the way is left."""

    stage: int
    targets: int
    steps: int
    within: float  # share of the way


# Chosen on the runs of benchmarks/evaluation.py: strength against samples forwarded.
_UNTARGETED_STEPS = 10
_ROUNDS = (_Round(_REFINED, 4, 12, 1.0), _Round(_RESTARTED, 3, 30, 0.12), _Round(_RESTARTED, 3, 60, 0.05))
_LAST = _Round(_RESTARTED, 3, 200, 0.02)
_MOST_REPEATS = 10  # of the last round at one epsilon
_WORTHWHILE = 3e-3  # a round that brings down less than this share of the samples has not helped
_PASSES_LEFT = 60  # samples forwarded for one that stands, about, once the first stage is over


class Cascade:
    """Attacks samples at every epsilon of a grid in one norm, and keeps which fell, where, and by which stage."""

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        epsilons: Sequence[float],
        norm: float = math.inf,
        *,
        bounds: Bounds = None,
        restarts: int = 1,
        batch_size: int = 256,
        told: Callable[[str], None] | None = None,
    ) -> None:
        self.model, self.x, self.y, self.norm, self.bounds = model, x, y, norm, bounds
        self.epsilons = sorted(epsilons)
        self.restarts, self.batch_size = restarts, batch_size
        self.told = told or (lambda message: None)
        self.discarded = [0] * len(self.epsilons)
        """Results outside ball or box at each epsilon, which do not count."""
        self.zeta = x.clone()
        """For a sample that fell: a point in the ball of the smallest epsilon at which it did."""
        self.stands = torch.full((len(x),), len(self.epsilons), device=x.device)
        """At how many epsilons a sample stands, the smallest ones."""
        self.stage = torch.full((len(self.epsilons), len(x)), len(STAGES), device=x.device)
        """By which stage a sample fell at each epsilon; `len(STAGES)` where it stands."""

    def run(self) -> None:
        """Draws random starts from torch's global generator, which is left as it was, as the model is."""
        _, self.batch_size = fitting(
            self.batch_size,
            lambda size: check_attackable(*self._some(slice(size)), cross_entropy, self.bounds),
        )
        parts, _ = in_batches(len(self.x), self.batch_size, lambda part: errs(*self._some(part)))
        wrong = torch.cat(parts)
        self.stands[wrong] = 0
        self.stage[:, wrong] = _CLEAN
        with probing(self.model), counted_passes(underlying(self.model)) as passes:
            self._clock = _Clock(passes)
            for e in reversed(range(len(self.epsilons))):
                self._untargeted(e)
            for e in reversed(range(len(self.epsilons))):
                self._targeted(e)

    def fell(self, e: int) -> Tensor:
        """Which samples fell at epsilon number e, or at a smaller one, (N,)."""
        return self.stands <= e

    def at(self, epsilon: float) -> Tensor:
        """The attacked inputs at this epsilon, (N, ...): x itself where none was found."""
        return torch.where(per_sample(self.fell(self.epsilons.index(epsilon)), self.x), self.zeta, self.x)

    def errors(self, e: int) -> dict[str, float]:
        """The error after each stage at epsilon number e."""
        return {name: float((self.stage[e] <= stage).double().mean()) for stage, name in enumerate(STAGES)}

    def _some(self, chosen: slice | Tensor) -> tuple[nn.Module, Tensor, Tensor]:
        """The model for some of the samples, their inputs and their labels."""
        return part_of(self.model, chosen), self.x[chosen], self.y[chosen]

    def _frontier(self, e: int) -> Tensor:
        """The samples whose largest epsilon at which they stand is number e."""
        return (self.stands == e + 1).nonzero()[:, 0]

    def _untargeted(self, e: int) -> None:
        chosen = self._frontier(e)
        if not len(chosen):
            return
        self._tell(_UNTARGETED, e, int((self.stands > 0).sum()))
        ball = DecayingSteps(self.epsilons[e], self.norm, steps=_UNTARGETED_STEPS, peak=1.0)

        def ascent(part: slice) -> Climbed:
            model, x, y = self._some(chosen[part])
            start = ball.nearest(x, self.zeta[chosen[part]])  # from where it fell at the next larger epsilon
            return climb(model, x, y, ball, lambda out, at: margin(out, y[at]), self.bounds, start)

        parts, self.batch_size = in_batches(len(chosen), self.batch_size, ascent)
        self._keep(parts, chosen, e, ball, _UNTARGETED)

    def _targeted(self, e: int) -> None:
        chosen = self._frontier(e)
        if not len(chosen):
            return
        parts, _ = in_batches(len(chosen), self.batch_size, lambda part: _rivals(*self._some(chosen[part])))
        rivals, behind = (torch.cat(column) for column in zip(*parts, strict=True))
        left = torch.full_like(behind, math.inf)  # of the way to each rival
        self._screen(chosen, e, rivals, behind, left)
        for round_ in _ROUNDS:
            self._take(round_, chosen, e, rivals, behind, left)
        idle = 0
        for _ in range(_MOST_REPEATS):
            found = self._take(_LAST, chosen, e, rivals, behind, left)
            idle = 0 if found >= max(1.0, _WORTHWHILE * len(self.x)) else idle + 1
            if idle == self.restarts:
                break

    def _screen(self, chosen: Tensor, e: int, rivals: Tensor, behind: Tensor, left: Tensor) -> None:
        """One step across the ball toward every rival: one forward pass serves all their slopes."""
        self._tell(_TARGETED, e, self._unsettled(e))
        ball = Ball(self.epsilons[e], self.norm, random_start=True)

        def ascents(part: slice) -> list[Climbed]:
            model, x, y = self._some(chosen[part])
            ends, mask = limits(self.bounds, x, mask_of(model))
            problem = Problem(x, lambda zeta: zeta, torch.zeros((), device=x.device), SquaredL2(), ends, mask)
            with torch.enable_grad():
                start = ball.start(problem).requires_grad_(True)
                output = model(start.clone())
                heights = [targeted_margin(output, y, rival) for rival in rivals[part].T]
                slopes = [torch.autograd.grad(one.sum(), start, retain_graph=True)[0] for one in heights]
            found = []
            for rival, slope in zip(rivals[part].T, slopes, strict=True):
                slope = slope if mask is None else slope.where(mask, 0)
                zeta = ball.stepped(problem, Point(start.detach(), slope, slope), 2 * ball.epsilon)
                with torch.no_grad():
                    output = model(zeta.clone())
                found.append(Climbed(zeta, mistaken(output, y), targeted_margin(output, y, rival)))
            return found

        parts, self.batch_size = in_batches(len(chosen), self.batch_size, ascents)
        for place, toward in enumerate(zip(*parts, strict=True)):
            left[:, place] = self._keep(toward, chosen, e, ball, _TARGETED) / behind[:, place]

    def _take(self, round_: _Round, chosen: Tensor, e: int, rivals: Tensor, behind: Tensor, left: Tensor) -> int:
        """One round; how many of the samples fell."""
        before = int((self.stands[chosen] <= e).sum())
        ball = DecayingSteps(self.epsilons[e], self.norm, steps=round_.steps, random_start=True)
        nearest = left.argsort(dim=1)
        for place in range(min(round_.targets, nearest.shape[1])):
            near = left.gather(1, nearest[:, place : place + 1])[:, 0] <= round_.within
            here = ((self.stands[chosen] > e) & near).nonzero()[:, 0]  # numbers among the chosen
            if not len(here):
                continue
            self._tell(round_.stage, e, self._unsettled(e))
            rival = nearest[here, place]
            target = rivals[here, rival]

            def ascent(part: slice, here: Tensor = here, target: Tensor = target) -> Climbed:
                model, x, y = self._some(chosen[here[part]])
                aim = target[part]
                return climb(model, x, y, ball, lambda out, at: targeted_margin(out, y[at], aim[at]), self.bounds)

            parts, self.batch_size = in_batches(len(here), self.batch_size, ascent)
            reached = self._keep(parts, chosen[here], e, ball, round_.stage) / behind[here, rival]
            left[here, rival] = torch.minimum(left[here, rival], reached)
        return int((self.stands[chosen] <= e).sum()) - before

    def _keep(self, parts: Sequence[Climbed], chosen: Tensor, e: int, ball: Ball, stage: int) -> Tensor:
        """Keep which of the chosen samples fell at epsilon number e; the height that each reached."""
        zeta, erred, best = (torch.cat([getattr(part, key) for part in parts]) for key in ("zeta", "erred", "best"))
        erred &= self.stands[chosen] > e
        fallen, zeta = chosen[erred], zeta[erred]
        if len(fallen):
            model, x, y = self._some(fallen)
            zeta, outside = verified(x, zeta, ball, self.bounds, mask_of(model))
            self.discarded[e] += outside
            sure = errs(model, zeta, y)
            fallen = fallen[sure]
            self.zeta[fallen] = zeta[sure]
            for larger in range(e, len(self.epsilons)):  # it fell at this epsilon and wherever it stood above it
                self.stage[larger, fallen[self.stands[fallen] > larger]] = stage
            self.stands[fallen] = e
        return best

    def _unsettled(self, e: int) -> int:
        """Samples that the stages after the first have not finished with, when they are at epsilon number e."""
        return int(((self.stands > 0) & (self.stands <= e + 1)).sum())

    def _tell(self, stage: int, e: int, unsettled: int) -> None:
        standing = int((self.stands > e).sum())
        where = f"{STAGES[stage]} at epsilon {self.epsilons[e]:g}"
        self.told(f"{where}, {standing} of {len(self.x)} samples stand{self._clock.left(unsettled)}")


def _rivals(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The other classes and how far each is behind at x, below 0, (B, targets) both."""
    with torch.no_grad():
        output = model(x.clone())
    rivals = rivals_of(model, x, y)
    behind = output.gather(1, rivals) - output.gather(1, y.long()[:, None])
    return rivals, behind.clamp_max(-torch.finfo(output.dtype).tiny)


class _Clock:
    """How long it may still take, from the speed so far."""

    def __init__(self, passes: Passes) -> None:
        self.passes, self.start = passes, time.monotonic()

    def left(self, unsettled: int) -> str:
        seconds = time.monotonic() - self.start
        if seconds < 1 or not self.passes.forwarded:
            return ""
        return f", about {unsettled * _PASSES_LEFT * seconds / self.passes.forwarded:.0f} s left"
