"""Residuals of a regression, clean and attacked, with checks of whether they can be trusted.

    learned       the mean loss is clearly below that of the best constant answer
    grows         the loss under an attack by name does not fall as epsilon grows
    inside        every result lies in its ball and in the box; one that does not is not counted
    many-steps    forty steps raise the loss at least as far as one
    one-step      one step does not miss most of what forty find (training that overfits to its own attack)
    gradients     the loss has a slope to climb

A regression has no errors to count. An attack raises the loss of every sample to its last step, and the best point
seen counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from rhobust.ascent.steps import Identity
from rhobust.attacks.attack import ATTACKS, Attack, norm_of
from rhobust.attacks.raise_loss import Raised, raise_loss
from rhobust.attacks.wasserstein import Transported, wasserstein
from rhobust.box import Bounds
from rhobust.costs import per_sample, rows
from rhobust.data.groups import Groups
from rhobust.data.samples import Samples
from rhobust.evaluation.evaluation import WASSERSTEIN, WORST
from rhobust.evaluation.group_errors import GroupedCell, GroupError, GroupErrors, of_squares
from rhobust.evaluation.regression_evaluation import AttackedResiduals, RegressionEvaluation, Residuals
from rhobust.evaluation.trust import CHECKS, Flag, outside, spread_out
from rhobust.inputs import part_of
from rhobust.losses import PerSampleLoss, losses_of, matched, residuals
from rhobust.objective import RobustObjective
from rhobust.support.fitting import fitting, in_batches
from rhobust.support.probing import probing

_PROBES = 256  # samples that the probes look at
_JUDGED = 1000  # samples that a model is judged on when its training ends
_FEWEST = 8  # samples from which on the constant answer is compared with the model
_DEVIATIONS = 2.0  # standard errors of a difference that chance does not explain
_NOTABLE = 0.02  # a difference below this share of the loss is too small to matter
_MISSED = 0.25  # one step that gains less than this share of what forty gain
_LEAST, _MOST = 0.1, 10.0  # deviations and means of y that are learned as they are
_FLAT = 0.05  # share of samples without any slope that is too much
_CONSTANTS = 21  # quantiles of y that are tried as constant answers, beside its mean
_CAUSES = (
    "Likely causes: y or the inputs are far from a scale of about 1, the moves of the training hide what tells samples "
    "apart, a learning rate that does not fit, or too few epochs"
)


@dataclass(frozen=True)
class RegressionAttacks:
    """A model and how its loss is raised, in batches that fit into memory."""

    model: nn.Module
    loss: PerSampleLoss
    bounds: Bounds
    restarts: int
    seed: int
    batch_size: int

    def run(self, samples: Samples, ways: Sequence[Attack | None]) -> list[Raised]:
        """What each way does to the samples; None is no attack."""

        def raised(part: slice) -> list[Raised]:
            return [self._raised(part_of(self.model, part), samples[part], way) for way in ways]

        parts, _ = in_batches(len(samples), self.batch_size, raised)
        return [_joined(of_way) for of_way in zip(*parts, strict=True)]

    def outputs(self, zeta: Tensor) -> Tensor:
        """What the model says, in evaluation mode and without a trace."""

        def said(part: slice) -> Tensor:
            with torch.no_grad(), probing(self.model):
                output: Tensor = part_of(self.model, part)(zeta[part])
                return output

        return torch.cat(in_batches(len(zeta), self.batch_size, said)[0])

    def measured(self, samples: Samples, zeta: Tensor) -> Residuals:
        """The residuals at zeta."""
        output = self.outputs(zeta)
        y = matched(output, samples.y)
        return Residuals.of(residuals(output, samples.y), y, losses_of(self.loss, output, samples.y))

    def by_group(self, samples: Samples, zeta: Tensor, groups: Groups | None) -> list[GroupError]:
        """The RMSE of each group at zeta, where there are groups."""
        if groups is None:
            return []
        return of_squares(groups, residuals(self.outputs(zeta), samples.y).double().square().mean(1))

    def transported(self, samples: Samples, budget: float) -> Transported:
        """The Wasserstein attack, whose budget is for all samples together."""
        attacked = partial(wasserstein, self.model, samples.x, samples.y, loss=self.loss, bounds=self.bounds)
        return fitting(self.batch_size, lambda size: attacked(budget=budget, batch_size=size))[0]

    def _raised(self, model: nn.Module, part: Samples, way: Attack | None) -> Raised:
        if way is None:
            with torch.no_grad(), probing(model):
                return Raised(part.x, losses_of(self.loss, model(part.x), part.y), 0)
        torch.manual_seed(self.seed)  # each cell on its own, whatever was asked beside it
        return raise_loss(model, part.x, part.y, way, loss=self.loss, bounds=self.bounds, restarts=self.restarts)


def _joined(parts: Sequence[Raised]) -> Raised:
    zeta, loss = torch.cat([part.zeta for part in parts]), torch.cat([part.loss for part in parts])
    return Raised(zeta, loss, sum(part.discarded for part in parts))


def evaluate_regression(
    attacker: RegressionAttacks,
    samples: Samples,
    *,
    attacks: Sequence[str],
    epsilons: Sequence[float],
    budgets: Sequence[float],
    checks: bool,
    keep: bool,
    groups: Groups | None,
    tell: Callable[[str], None],
) -> RegressionEvaluation:
    """The residuals of every cell that was asked for (`evaluate.evaluate`)."""
    clean = attacker.measured(samples, samples.x)
    found: dict[str, list[Raised]] = {}
    for name in attacks if epsilons else ():
        found[name] = attacker.run(samples, [ATTACKS[name](epsilon) if epsilon else None for epsilon in epsilons])
        tell(f"{name} done")
    flags = [flag for name in found if (flag := _falling(name, epsilons, [one.loss for one in found[name]]))]
    for norm, called in WORST.items():
        alike = [found[name] for name in attacks if epsilons and norm_of(name) == norm]
        if len(alike) > 1:
            found[called] = _worst(epsilons, alike)
    cells: list[AttackedResiduals] = []
    grouped: list[GroupedCell] = []
    examples: dict[str, dict[float, Tensor]] = {}
    for name, made in found.items():
        for epsilon, one in zip(epsilons, made, strict=True):
            at = attacker.measured(samples, one.zeta) if epsilon else clean
            cells.append(AttackedResiduals(name, epsilon, at, one.discarded))
            grouped.append(GroupedCell(name, epsilon, attacker.by_group(samples, one.zeta, groups)))
        examples[name] = {epsilon: one.zeta for epsilon, one in zip(epsilons, made, strict=True) if keep and epsilon}
    for budget in budgets:
        moved = attacker.transported(samples, budget)
        at = attacker.measured(samples, moved.zeta)
        cells.append(AttackedResiduals(WASSERSTEIN, budget, at, moved.discarded, moved.mean_cost))
        grouped.append(GroupedCell(WASSERSTEIN, budget, attacker.by_group(samples, moved.zeta, groups)))
        examples.setdefault(WASSERSTEIN, {}).update({budget: moved.zeta} if keep else {})
        tell(f"{WASSERSTEIN} {budget:g} done")
    more, judged = learned(attacker, samples)
    flags = more + flags
    flags += [flag for cell in cells if (flag := outside(cell.attack, cell.epsilon, cell.discarded))]
    judged |= {"inside"} | ({"grows"} if found and len(epsilons) > 1 else set())
    if checks:
        tell("checking")
        in_linf = any(norm_of(name) == math.inf for name in attacks)
        sizes = sorted(epsilon for epsilon in epsilons if epsilon and in_linf)
        more, probed = _examine(attacker, samples, sizes[len(sizes) // 2] if sizes else None)
        flags += more
        judged |= probed
    checked = [check for check in CHECKS if check in judged]
    by_group = None if groups is None else GroupErrors(attacker.by_group(samples, samples.x, groups), grouped)
    return RegressionEvaluation(len(samples), clean, cells, flags, checked, examples=examples, groups=by_group)


def _worst(grid: Sequence[float], found: Sequence[Sequence[Raised]]) -> list[Raised]:
    """The largest loss of each sample at each epsilon or a smaller one: a smaller ball lies in the larger."""
    worst = []
    for epsilon in grid:
        inside = [one for made in found for other, one in zip(grid, made, strict=True) if other <= epsilon]
        best = torch.stack([one.loss for one in inside]).argmax(0)  # (N,)
        zeta = inside[0].zeta
        for number, one in enumerate(inside):
            zeta = torch.where(per_sample(best == number, zeta), one.zeta, zeta)
        worst.append(Raised(zeta, torch.stack([one.loss for one in inside]).amax(0), 0))
    return worst


def learned(attacker: RegressionAttacks, samples: Samples, cause: str = _CAUSES) -> tuple[list[Flag], set[str]]:
    """The check that the mean loss is below that of the best constant answer, and its name where it could be made."""
    output = attacker.outputs(samples.x)
    y = matched(output, samples.y).double()
    if len(y) < _FEWEST or bool((y == y[:1]).all()):
        return [], set()
    shares = torch.linspace(0, 1, _CONSTANTS, dtype=y.dtype, device=y.device)
    answers = torch.cat([y.mean(0, keepdim=True), y.quantile(shares, dim=0)])  # (answers, k)
    losses = [
        losses_of(attacker.loss, answer.expand_as(y).reshape(output.shape).to(output.dtype), samples.y)
        for answer in answers.unbind()
    ]
    constant = min(losses, key=lambda of_answer: float(of_answer.mean()))
    own = losses_of(attacker.loss, output, samples.y)
    if _above(constant, own):
        return [], {"learned"}
    numbers = f"the mean loss, {float(own.mean()):.4g}, is not clearly below {float(constant.mean()):.4g}"
    message = f"{numbers}, that of the best constant answer: the model has learned nothing. {cause}"
    return [Flag("learned", message)], {"learned"}


def learned_nothing(model: nn.Module, loss: PerSampleLoss, samples: Samples, batch_size: int, cause: str) -> str | None:
    """Why a regression that was trained is of no use, if so, judged on some of the samples."""
    some = samples[spread_out(samples, _JUDGED)]
    mean, deviation = (float(value) for value in (samples.y.double().mean(), samples.y.double().std()))
    if not _LEAST < deviation < _MOST or abs(mean) > _MOST:
        cause += f". y has mean {mean:.3g} and deviation {deviation:.3g}: standardized, (y - mean) / deviation, it is "
        cause += "learned faster"
    flags, _ = learned(RegressionAttacks(model, loss, None, 1, 0, batch_size), some, cause)
    return flags[0].message if flags else None


def _falling(name: str, grid: Sequence[float], losses: Sequence[Tensor]) -> Flag | None:
    """The check on a curve of losses (N,) of one attack; a larger ball holds the smaller one."""
    order = sorted(range(len(grid)), key=lambda i: grid[i])
    for small, large in pairwise(order):
        if _above(losses[small], losses[large], _NOTABLE):
            fell = f"falls from {float(losses[small].mean()):.4g} at epsilon {grid[small]:g} to "
            fell += f"{float(losses[large].mean()):.4g} at {grid[large]:g}"
            return Flag("grows", f"the mean loss under {name} {fell}: the attack is too weak there")
    return None


def _examine(attacker: RegressionAttacks, samples: Samples, epsilon: float | None) -> tuple[list[Flag], set[str]]:
    """The probes on some samples at an l_inf epsilon; without one only the slope is looked at."""
    chosen = spread_out(samples, _PROBES)
    model, some = part_of(attacker.model, chosen), samples[chosen]
    flags, made = [_slope(model, some, attacker.loss)], {"gradients"}
    if epsilon is not None:
        made |= {"many-steps", "one-step"}
        probe = RegressionAttacks(model, attacker.loss, attacker.bounds, 1, attacker.seed, attacker.batch_size)
        clean, one, many = (
            made.loss for made in probe.run(some, [None, ATTACKS["fgsm"](epsilon), ATTACKS["pgd"](epsilon)])
        )
        where = f"at epsilon {epsilon:g} a mean loss of"
        once, often = float(one.mean()), float(many.mean())
        if _above(one, many, _NOTABLE):
            numbers = f"FGSM, one step, finds {where} {once:.4g}, PGD, forty steps, only {often:.4g}"
            flags.append(Flag("many-steps", f"{numbers}: the gradients mislead"))
        missed = float((one - clean).mean()) < _MISSED * float((many - clean).mean())
        if missed and _above(many, one, _NOTABLE):
            numbers = f"one step finds {where} {once:.4g}, forty find {often:.4g}"
            message = f"{numbers}: as of a model that has learned to meet one-step attacks; trust the others"
            flags.append(Flag("one-step", message))
    return [flag for flag in flags if flag], made


def _slope(model: nn.Module, some: Samples, loss: PerSampleLoss) -> Flag | None:
    objective = RobustObjective(model, loss, radius=0.0, maximizer=Identity())
    with probing(model):
        point = objective.problem(some.x, some.y).at(some.x)
    sloping = ((rows(point.slope) != 0) & rows(point.slope).isfinite()).any(1)
    flat = float((~sloping & (point.loss > 0)).double().mean())
    if flat <= _FLAT:
        return None
    return Flag("gradients", f"{100 * flat:.1f} % of the samples have a loss without any slope: no step can raise it")


def _above(one: Tensor, other: Tensor, least: float = 0.0) -> bool:
    """Whether losses (N,) are above others of the same samples, by more than two standard errors of the difference and
    more than this share of them."""
    away = (one - other).double()
    chance = _DEVIATIONS * float(away.std()) / math.sqrt(len(away)) if len(away) > 1 else math.inf
    return float(away.mean()) > max(chance, least * float(one.double().abs().mean()))
