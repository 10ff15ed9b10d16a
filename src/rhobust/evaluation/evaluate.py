"""Clean and attacked errors of a model, with checks of whether they can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.attacks.attack import ATTACKS, Attack, Attacked, attack, errs, find_attack, norm_of
from rhobust.attacks.cascade import CASCADES, Cascade
from rhobust.attacks.raise_loss import check_raises_loss
from rhobust.attacks.wasserstein import Transported, wasserstein
from rhobust.box import Bounds
from rhobust.checks import count_problem
from rhobust.data.groups import Groups, groups_of
from rhobust.data.samples import REGRESSION, TASKS, Samples, moving_samples
from rhobust.errors import ConfigError, DataError, unknown
from rhobust.evaluation.evaluation import WASSERSTEIN, WORST, AttackedError, Evaluation
from rhobust.evaluation.group_errors import GroupedCell, GroupErrors, of_shares
from rhobust.evaluation.intervals import packed, unpacked
from rhobust.evaluation.regression import RegressionAttacks, evaluate_regression
from rhobust.evaluation.regression_evaluation import RegressionEvaluation
from rhobust.evaluation.trust import CHECKS, examine, falling, learned, outside
from rhobust.inputs import Perturb, part_of
from rhobust.losses import PerSampleLoss, cross_entropy, is_regression
from rhobust.support.counting import counted_passes
from rhobust.support.fitting import fitting, in_batches

USUAL_ATTACKS = {TASKS[0]: ("cascade",), REGRESSION: ("apgd",)}
"""The attacks that a model of each task meets where none are named."""
USUAL_RESTARTS = {TASKS[0]: 1, REGRESSION: 3}
"""The runs of each."""
USUAL_EPSILONS = (0.0, 0.1, 0.2, 0.3, 0.4)

_CPU_BATCH, _GPU_BATCH = 256, 10_000


def evaluate(
    model: nn.Module,
    data: Samples | tuple[Any, Any],
    *,
    loss: PerSampleLoss = cross_entropy,
    bounds: Bounds = None,
    attacks: Sequence[str] | None = None,
    epsilons: Sequence[float] = USUAL_EPSILONS,
    budgets: Sequence[float] = (),
    restarts: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    checks: bool = True,
    keep: bool = False,
    perturb: Perturb | str | int | None = None,
    task: str | None = None,
    groups: object = None,
    done: Callable[[str], None] | None = None,
) -> Evaluation | RegressionEvaluation:
    """Clean error, the error under each attack at each epsilon, and under a Wasserstein attack of each budget.

    `data` are `Samples`, or a pair (x, y) of tensors or arrays, where the model is. Of an x that is a dict or a tuple,
    or holds token numbers, `perturb` names what moves (`Perturb`); epsilons are then in the units of that. `attacks`
    are `cascade` or `cascade-l2`, a series of attacks (`Cascade`), and names of `ATTACKS`, each of which attacks all
    samples alone.

    At epsilon = 0 every ball is the sample itself, so the error is the clean one. Besides each attack by name, the
    worst of all that share a norm is reported: a sample counts if any of them fools the model at this epsilon or a
    smaller one, so that curve never falls. Random starts come from `seed`. `restarts` are the runs of each attack by
    name; a cascade goes on until that many rounds of random starts in a row have found nothing. `checks` adds those of
    `trust`. With `keep` the result holds the attacked inputs. Batches are as large as the device likes; one that does
    not fit into memory is halved.

    With `groups`, a whole number or a string for each sample, such as its site or class, the result has the error of
    each group with its 95 % interval, and the worst group (`GroupErrors`).

    A regression has RMSE, MAE and R^2 in place of errors (`RegressionEvaluation`). Its loss tells
    (`losses.is_regression`); with a loss of your own say `task="regression"`. Its attacks, by default `apgd` in three
    runs, raise the loss to their last step, and the best point seen counts.
    """
    if task not in (None, *TASKS):
        raise ConfigError([unknown("task", str(task), TASKS)])
    if isinstance(attacks, str):
        raise ConfigError([f"attacks are a list of names, such as ['{attacks}']"])
    for name, numbers in (("epsilons", epsilons), ("budgets", budgets)):
        if not isinstance(numbers, Iterable):
            raise ConfigError([f"{name} are a list of numbers, such as [{numbers}]"])
    grid, spend = list(dict.fromkeys(epsilons)), list(dict.fromkeys(budgets))
    wrong = [f"epsilon must be finite and >= 0, not {epsilon}" for epsilon in grid if not 0 <= epsilon < math.inf]
    wrong += [f"a budget must be finite and > 0, not {budget}" for budget in spend if not 0 < budget < math.inf]
    if not ((attacks is None or attacks) and grid) and not spend:
        wrong.append("nothing to evaluate: give attacks with epsilons, or budgets for the Wasserstein attack")
    counts = {"restarts": 1 if restarts is None else restarts, "batch_size": 1 if batch_size is None else batch_size}
    wrong += [problem for count in counts.items() if (problem := count_problem(*count))]
    if wrong:
        raise ConfigError(wrong)
    whole = model
    model, samples = moving_samples(data, whole, perturb)
    if not len(samples):
        raise DataError("there are no samples to evaluate on")
    grouped = None if groups is None else groups_of(groups, len(samples))

    task = task or (REGRESSION if is_regression(loss) else TASKS[0])
    attacks, runs = USUAL_ATTACKS[task] if attacks is None else attacks, restarts or USUAL_RESTARTS[task]
    devices = [samples.x.device] if samples.x.is_cuda else []
    size = batch_size or (_GPU_BATCH if samples.x.is_cuda else _CPU_BATCH)
    tell = done or (lambda message: None)
    with torch.random.fork_rng(devices=devices), counted_passes(whole) as passes:
        found: Evaluation | RegressionEvaluation
        if task == REGRESSION:
            check_raises_loss(attacks)
            of_numbers = RegressionAttacks(model, loss, bounds, runs, seed, size)
            found = evaluate_regression(
                of_numbers,
                samples,
                attacks=attacks,
                epsilons=grid,
                budgets=spend,
                checks=checks,
                keep=keep,
                groups=grouped,
                tell=tell,
            )
        else:
            for name in attacks:
                if name not in CASCADES:
                    find_attack(name, CASCADES)
            attacker = BatchedAttacks(model, loss, bounds, runs, seed, size)
            found = _evaluate_classifier(attacker, samples, attacks, grid, spend, checks, keep, grouped, tell)
    return replace(found, forwarded=passes.forwarded)


def _evaluate_classifier(
    attacker: BatchedAttacks,
    samples: Samples,
    attacks: Sequence[str],
    grid: Sequence[float],
    spend: Sequence[float],
    checks: bool,
    keep: bool,
    groups: Groups | None,
    tell: Callable[[str], None],
) -> Evaluation:
    clean = attacker.run(samples, [None])[0].fooled  # (N,)
    cells: list[AttackedError] = []
    fooled: dict[str, Tensor] = {}  # (len(grid), N) for every attack by name
    examples: dict[str, dict[float, Tensor]] = {}
    for name in [name for name in attacks if name in CASCADES] if grid else ():
        found = attacker.cascade(samples, [epsilon for epsilon in grid if epsilon], name, tell)
        cells += [_cascaded(name, epsilon, found, clean) for epsilon in grid]
        examples[name] = {epsilon: found.at(epsilon) for epsilon in grid if keep and epsilon}
    for name in [name for name in attacks if name not in CASCADES] if grid else ():
        made = attacker.run(samples, [ATTACKS[name](epsilon) if epsilon else None for epsilon in grid])
        fooled[name] = torch.stack([one.fooled for one in made])
        cells += [_cell(name, *cell) for cell in zip(grid, fooled[name], made, strict=True)]
        examples[name] = {epsilon: one.zeta for epsilon, one in zip(grid, made, strict=True) if keep and epsilon}
        tell(f"{name} done")
    for norm, called in WORST.items():
        alike = [fooled[name] for name in fooled if norm_of(name) == norm]
        if alike:
            cells += [_cell(called, *cell) for cell in zip(grid, _worst(grid, alike), strict=True)]
    for budget in spend:
        moved = attacker.transported(samples, budget)
        error = float(moved.fooled.double().mean())
        cells.append(
            AttackedError(WASSERSTEIN, budget, error, moved.discarded, moved.mean_cost, wrong=packed(moved.fooled))
        )
        examples.setdefault(WASSERSTEIN, {}).update({budget: moved.zeta} if keep else {})
        tell(f"{WASSERSTEIN} {budget:g} done")
    torch.manual_seed(attacker.seed)
    flags, judged = learned(clean, samples)
    flags += [flag for name in fooled if (flag := falling(name, grid, fooled[name]))]
    flags += [flag for cell in cells if (flag := outside(cell.attack, cell.epsilon, cell.discarded))]
    judged |= {"inside"} | ({"grows"} if fooled and len(grid) > 1 else set())
    if checks:
        tell("checking")
        more, probed = examine(
            attacker.model, samples, loss=attacker.loss, bounds=attacker.bounds, epsilon=_telling(cells)
        )
        flags += more
        judged |= probed
    checked = [check for check in CHECKS if check in judged]
    error, by_group = float(clean.double().mean()), _by_group(groups, clean, cells)
    return Evaluation(len(samples), error, cells, flags, checked, examples=examples, groups=by_group)


@dataclass(frozen=True)
class BatchedAttacks:
    """A model and how it is attacked, in batches that fit into memory."""

    model: nn.Module
    loss: PerSampleLoss
    bounds: Bounds
    restarts: int
    seed: int
    batch_size: int

    def run(self, samples: Samples, ways: Sequence[Attack | None]) -> list[Attacked]:
        """What each way does to the samples; None is no attack."""

        def attacked(part: slice) -> list[Attacked]:
            return [self._attacked(part_of(self.model, part), samples[part], way) for way in ways]

        parts, _ = in_batches(len(samples), self.batch_size, attacked)
        return [_joined(of_way) for of_way in zip(*parts, strict=True)]

    def cascade(self, samples: Samples, epsilons: Sequence[float], name: str, told: Callable[[str], None]) -> Cascade:
        """A cascade that has run."""
        torch.manual_seed(self.seed)
        found = Cascade(
            self.model,
            samples.x,
            samples.y,
            epsilons,
            CASCADES[name],
            bounds=self.bounds,
            restarts=self.restarts,
            batch_size=self.batch_size,
            told=lambda message: told(f"{name}: {message}"),
        )
        found.run()
        return found

    def transported(self, samples: Samples, budget: float) -> Transported:
        """The Wasserstein attack, whose budget is for all samples together."""
        attacked = partial(wasserstein, self.model, samples.x, samples.y, loss=self.loss, bounds=self.bounds)
        return fitting(self.batch_size, lambda size: attacked(budget=budget, batch_size=size))[0]

    def _attacked(self, model: nn.Module, part: Samples, way: Attack | None) -> Attacked:
        if way is None:
            return Attacked(part.x, errs(model, part.x, part.y), 0)
        torch.manual_seed(self.seed)  # each cell on its own, whatever was asked beside it
        return attack(model, part.x, part.y, way, loss=self.loss, bounds=self.bounds, restarts=self.restarts)


def _joined(parts: Sequence[Attacked]) -> Attacked:
    zeta, fooled = torch.cat([part.zeta for part in parts]), torch.cat([part.fooled for part in parts])
    return Attacked(zeta, fooled, sum(part.discarded for part in parts))


def _cell(name: str, epsilon: float, wrong: Tensor, made: Attacked | None = None) -> AttackedError:
    discarded = 0 if made is None else made.discarded
    return AttackedError(name, epsilon, float(wrong.double().mean()), discarded, wrong=packed(wrong))


def _cascaded(name: str, epsilon: float, found: Cascade, clean: Tensor) -> AttackedError:
    if not epsilon:
        return _cell(name, epsilon, clean)
    e = found.epsilons.index(epsilon)
    wrong = found.fell(e)
    error = float(wrong.double().mean())
    return AttackedError(name, epsilon, error, found.discarded[e], stages=found.errors(e), wrong=packed(wrong))


def _by_group(groups: Groups | None, clean: Tensor, cells: Sequence[AttackedError]) -> GroupErrors | None:
    if groups is None:
        return None
    attacked = [
        GroupedCell(cell.attack, cell.epsilon, of_shares(groups, unpacked(cell.wrong, len(clean)))) for cell in cells
    ]
    return GroupErrors(of_shares(groups, clean), attacked)


def _worst(grid: Sequence[float], fooled: Sequence[Tensor]) -> Tensor:
    """Whom any attack fools at each epsilon or a smaller one, (len(grid), N): a smaller ball lies in the larger."""
    any_attack = torch.stack(list(fooled)).any(0)
    return torch.stack([any_attack[[other <= epsilon for other in grid]].any(0) for epsilon in grid])


def _telling(cells: Sequence[AttackedError]) -> float | None:
    """The l_inf epsilon at which about half of what can be fooled is: there weak and strong attacks differ most."""
    in_linf = (WORST[math.inf], *(name for name, norm in CASCADES.items() if norm == math.inf))
    known = [(abs(cell.error - 0.5), cell.epsilon) for cell in cells if cell.attack in in_linf and cell.epsilon]
    return min(known)[1] if known else None
