"""Sanity checks of an error: nothing learned, masked gradients, attacks that are too weak.

    learned          the clean error is clearly below that of the best constant answer
    grows            the error under an attack by name does not fall as epsilon grows
    unbounded        an attack that may move anywhere succeeds
    many-steps       forty steps do at least as well as one
    one-step         one step does not miss most of what forty find (training that overfits to its own attack)
    inside           every result lies in its ball and in the box; one that does not is not counted
    gradients        the loss has a slope to climb (no saturated logits, no masked gradients)
    white-box        a search without gradients does not beat the gradients

A failed check is a flag in the output. Checks compare attacks on the same samples, and speak up only for what chance
does not explain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from rhobust.ascent.steps import Identity
from rhobust.attacks.attack import ATTACKS, attack, errs
from rhobust.box import Bounds, limits, widest
from rhobust.costs import rows
from rhobust.data.samples import Samples
from rhobust.errors import Unmovable
from rhobust.inputs import mask_of, part_of
from rhobust.losses import PerSampleLoss
from rhobust.objective import RobustObjective
from rhobust.support.probing import probing

CHECKS = ("learned", "grows", "unbounded", "inside", "many-steps", "one-step", "gradients", "white-box")

_PROBES = 256  # samples that the probes look at
_QUERIES = 64  # of the search without gradients: enough to find what masked gradients hide
_JUDGED = 1000  # samples that a model is judged on when its training ends
_DEVIATIONS = 2.0  # standard errors of a difference that chance does not explain
_CAUSES = (
    "Likely causes: a training against moves so large that they hide the classes (epsilon, noise or radius), "
    "a learning rate that does not fit, or too few epochs"
)
_NOTABLE = 0.02  # a difference of error below this is too small to matter
_FLAT = 0.05  # share of samples without any slope that is too much
_MISSED = 0.25  # one step that finds less than this share of what forty find


@dataclass(frozen=True)
class Flag:
    """A check that failed, and why."""

    check: str
    message: str

    def __str__(self) -> str:
        return f"failed check ({self.check}): {self.message}"


def learned(wrong: Tensor, samples: Samples, cause: str = _CAUSES) -> tuple[list[Flag], set[str]]:
    """The check on the clean errors, (N,), of a model: its flag, and its name where there are samples enough for it."""
    answer = samples.y.mode().values
    constant = samples.y != answer
    only_constant, only_model = int((constant & ~wrong).sum()), int((wrong & ~constant).sum())
    ahead, chance = only_constant - only_model, _DEVIATIONS * math.sqrt(only_constant + only_model)
    if ahead > chance:
        return [], {"learned"}
    # Where the constant answer errs on so few samples, even a model without errors would not be clearly ahead.
    if int(constant.sum()) <= _DEVIATIONS**2 and -ahead <= chance:
        return [], set()
    errors = f"the clean error, {_percent(wrong)}, is not clearly below {_percent(constant)}"
    message = (
        f"{errors}, that of the constant answer {samples.called(int(answer))}: the model has learned nothing. {cause}"
    )
    return [Flag("learned", message)], {"learned"}


def learned_nothing(model: nn.Module, samples: Samples, batch_size: int, cause: str) -> str | None:
    """Why a model that was trained is of no use, if so, judged on some of the samples."""
    some = samples[spread_out(samples, _JUDGED)]
    parts = zip(torch.split(some.x, batch_size), torch.split(some.y, batch_size), strict=True)
    flags, _ = learned(torch.cat([errs(model, x, y) for x, y in parts]), some, cause)
    return flags[0].message if flags else None


def spread_out(samples: Samples, most: int) -> Tensor:
    """The numbers of some of the samples, from all over the data, which may be sorted by class."""
    return torch.linspace(0, len(samples) - 1, min(most, len(samples))).long().to(samples.x.device)


def falling(name: str, grid: Sequence[float], fooled: Tensor) -> Flag | None:
    """The check on a curve: fooled (len(grid), N) of one attack; a larger ball holds the smaller one."""
    order = sorted(range(len(grid)), key=lambda i: grid[i])
    for small, large in pairwise(order):
        if _beats(fooled[small], fooled[large]):
            before, after = _percent(fooled[small]), _percent(fooled[large])
            fell = f"falls from {before} at epsilon {grid[small]:g} to {after} at {grid[large]:g}"
            return Flag("grows", f"the error under {name} {fell}: the attack is too weak there")
    return None


def outside(name: str, epsilon: float, discarded: int) -> Flag | None:
    """The check on results that did not pass verification."""
    if not discarded:
        return None
    where = f"{discarded} results of {name} at epsilon {epsilon:g} lie outside its ball or the box, or are not numbers"
    return Flag("inside", f"{where}; they were not counted, so the error may be higher")


def examine(
    model: nn.Module,
    samples: Samples,
    *,
    loss: PerSampleLoss,
    bounds: Bounds = None,
    epsilon: float | None = None,
) -> tuple[list[Flag], set[str]]:
    """The other checks, on some samples, at an l_inf radius: their flags, and which of them could be made.

    Without a radius only the slope is looked at, and that where the model is right. Draws from torch's global
    generator.
    """
    chosen = spread_out(samples, _PROBES)
    model, some = part_of(model, chosen), samples[chosen]
    right = ~errs(model, some.x, some.y)
    flags, made = [], set()
    if right.any():
        made.add("gradients")
        try:
            flags.append(_slope(part_of(model, right), some[right], loss))
        except Unmovable:
            return [Flag("gradients", "the loss has no gradient in the inputs: only 'square' can attack it")], made
    if epsilon is not None:
        free = limits(bounds, some.x, mask_of(model))[1] is None  # what stays may tell the classes apart
        made |= {"many-steps", "one-step", "white-box"} | ({"unbounded"} if free else set())

        def attacked(name: str, those: slice | Tensor = slice(None), reach: float = epsilon) -> Tensor:
            way = ATTACKS[name](reach)
            way, of = replace(way, queries=min(way.queries, _QUERIES)), some[those]
            return attack(part_of(model, those), of.x, of.y, way, loss=loss, bounds=bounds).fooled

        one, many = attacked("fgsm"), attacked("pgd")
        anywhere = attacked("pgd", reach=max(widest(bounds, some.x), epsilon)) if free else many
        where = f"at epsilon {epsilon:g}"
        # What PGD fools without a mistake of its own needs no search: the search can only be ahead on the others.
        standing = (~many).nonzero()[:, 0]
        blind, seeing = many.clone(), many.clone()
        if len(standing):
            blind[standing] = attacked("square", standing)
            if _beats(blind, seeing):
                # Up the margin too: cross-entropy can rise elsewhere than where the model errs, which masks nothing.
                seeing[standing] = attacked("pgd-margin", standing)
        flags += [
            _unbounded(anywhere, ~right, some) if free else None,
            _many_steps(one, many, where),
            _one_step(one, many, ~right, where),
            _white_box(blind, seeing, where),
        ]
    return [flag for flag in flags if flag], made


def _unbounded(anywhere: Tensor, wrong: Tensor, some: Samples) -> Flag | None:
    """Free to move anywhere, an attack can turn every sample into one of another class."""
    classes = max(2, len(set(some.y.tolist())))
    if float(anywhere.double().mean()) >= 1 - 1 / classes:
        return None
    return Flag(
        "unbounded",
        f"even free to move anywhere, PGD brings the error from {_percent(wrong)} to {_percent(anywhere)} only, "
        "less than guessing would: the gradients lead nowhere",
    )


def _many_steps(one: Tensor, many: Tensor, where: str) -> Flag | None:
    if not _beats(one, many):
        return None
    numbers = f"FGSM, one step, finds {_percent(one)} {where}, PGD, forty steps, only {_percent(many)}"
    return Flag("many-steps", f"{numbers}: the gradients mislead")


def _one_step(one: Tensor, many: Tensor, wrong: Tensor, where: str) -> Flag | None:
    gained, possible = int((one & ~wrong).sum()), int((many & ~wrong).sum())
    if gained >= _MISSED * possible or not _beats(many, one):
        return None
    numbers = f"one step finds {_percent(one)} {where}, forty find {_percent(many)}"
    return Flag(
        "one-step",
        f"{numbers}: as of a model that has learned to fool one-step attacks; trust the others",
    )


def _slope(model: nn.Module, right: Samples, loss: PerSampleLoss) -> Flag | None:
    objective = RobustObjective(model, loss, radius=0.0, maximizer=Identity())
    with probing(model):
        slope = objective.problem(right.x, right.y).at(right.x).slope
        with torch.no_grad():
            logits = model(right.x)
    flat = ~((rows(slope) != 0) & rows(slope).isfinite()).any(1)
    if float(flat.double().mean()) <= _FLAT:
        return None
    sure = float(logits.softmax(1).amax(1)[flat].min()) == 1
    reason = "the logits are saturated" if sure else "the gradients vanish"
    return Flag(
        "gradients", f"{_percent(flat)} of the samples have no slope at all: {reason}; try pgd-margin and square"
    )


def _white_box(blind: Tensor, seeing: Tensor, where: str) -> Flag | None:
    if not _beats(blind, seeing):
        return None
    numbers = f"random search finds {_percent(blind)} {where}, gradients only {_percent(seeing)}"
    return Flag("white-box", f"{numbers}: the gradients are masked")


def _beats(one: Tensor, other: Tensor) -> bool:
    """Whether one attack fools notably more of the same samples, by more than two standard errors of the difference."""
    only_one, only_other = int((one & ~other).sum()), int((other & ~one).sum())
    return only_one - only_other > max(_NOTABLE * len(one), _DEVIATIONS * math.sqrt(only_one + only_other))


def _percent(chosen: Tensor) -> str:
    return f"{100 * float(chosen.double().mean()):.1f} %"
