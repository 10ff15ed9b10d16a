"""Clean and attacked errors of a model, with checks of whether they can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rhobust.attacks.attack import Attack, Attacked, attack, errs, find_attack, norm_of
from rhobust.attacks.wasserstein import Transported, wasserstein
from rhobust.checks import count_problem
from rhobust.data.samples import Samples, samples_of
from rhobust.errors import ConfigError, DataError
from rhobust.evaluation.trust import CHECKS, Flag, examine, falling, learned, outside
from rhobust.losses import PerSampleLoss, cross_entropy

USUAL_ATTACKS = ("fgsm", "ifgsm", "pgd", "pgd-margin")
USUAL_EPSILONS = (0.0, 0.1, 0.2, 0.3, 0.4)

WORST = {math.inf: "worst", 2.0: "worst-l2"}
"""The name, for each norm, under which the worst of its attacks is reported."""
WASSERSTEIN = "wasserstein"
"""The name of the attack whose budget is for all samples together."""

_CPU_BATCH, _GPU_BATCH = 1024, 10_000
_T = TypeVar("_T")


@dataclass(frozen=True)
class AttackedError:
    """Share of samples that the model gets wrong under one attack."""

    attack: str
    """A name of `attacks.ATTACKS`; `worst` or `worst-l2`: any of those in that norm, at this epsilon or below it;
    or `wasserstein`."""
    epsilon: float
    """Radius of the ball; for `wasserstein`, the budget on E ||zeta - x||^2."""
    error: float
    discarded: int = 0
    """Results that did not pass verification and were not counted."""
    mean_cost: float | None = None
    """For `wasserstein`: what was spent."""


@dataclass(frozen=True)
class Evaluation:
    """Clean error and a grid of attacked errors, as fractions."""

    samples: int
    clean: float
    attacked: list[AttackedError]
    flags: list[Flag] = field(default_factory=list)
    """Reasons not to trust the numbers; see `trust`."""
    checked: list[str] = field(default_factory=list)
    """Which of `trust.CHECKS` were made."""

    @property
    def grid(self) -> dict[str, dict[float, AttackedError]]:
        """The results by attack, then by epsilon."""
        found: dict[str, dict[float, AttackedError]] = {}
        for cell in self.attacked:
            found.setdefault(cell.attack, {})[cell.epsilon] = cell
        return found

    @property
    def in_balls(self) -> dict[str, dict[float, AttackedError]]:
        """Of the grid, the attacks in a ball."""
        return {attack: cells for attack, cells in self.grid.items() if attack != WASSERSTEIN}

    def error(self, name: str, epsilon: float) -> float:
        """One cell of the grid."""
        return self.grid[name][epsilon].error

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def evaluate(
    model: nn.Module,
    data: Samples | tuple[Any, Any],
    *,
    loss: PerSampleLoss = cross_entropy,
    bounds: tuple[float, float] | None = None,
    attacks: Sequence[str] = USUAL_ATTACKS,
    epsilons: Sequence[float] = USUAL_EPSILONS,
    budgets: Sequence[float] = (),
    restarts: int = 1,
    batch_size: int | None = None,
    seed: int = 0,
    checks: bool = True,
    done: Callable[[str], None] | None = None,
) -> Evaluation:
    """Clean error, the error under each attack at each epsilon, and under a Wasserstein attack of each budget.

    `data` are `Samples`, or a pair (x, y) of tensors or arrays, where the model is.

    At epsilon = 0 every ball is the sample itself, so the error is the clean one. Besides each attack, the worst of
    all that share a norm is reported: a sample counts if any of them fools the model at this epsilon or a smaller one,
    so that curve never falls. Random starts come from `seed`. `checks` adds those of
    `trust`. Batches are as large as the device likes; one that does not fit into memory is halved.
    """
    samples = samples_of(data, model)
    if isinstance(attacks, str):
        raise ConfigError([f"attacks are a list of names, such as ['{attacks}']"])
    for name, numbers in (("epsilons", epsilons), ("budgets", budgets)):
        if not isinstance(numbers, Iterable):
            raise ConfigError([f"{name} are a list of numbers, such as [{numbers}]"])
    builders = {name: find_attack(name) for name in attacks}
    grid, spend = list(dict.fromkeys(epsilons)), list(dict.fromkeys(budgets))
    wrong = [f"epsilon must be finite and >= 0, not {epsilon}" for epsilon in grid if not 0 <= epsilon < math.inf]
    wrong += [f"a budget must be finite and > 0, not {budget}" for budget in spend if not 0 < budget < math.inf]
    if not (builders and grid) and not spend:
        wrong.append("nothing to evaluate: give attacks with epsilons, or budgets for the Wasserstein attack")
    counts = {"restarts": restarts, "batch_size": 1 if batch_size is None else batch_size}
    wrong += [problem for count in counts.items() if (problem := count_problem(*count))]
    if wrong:
        raise ConfigError(wrong)
    if not len(samples):
        raise DataError("there are no samples to evaluate on")

    devices = [samples.x.device] if samples.x.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        size = batch_size or (_GPU_BATCH if samples.x.is_cuda else _CPU_BATCH)
        attacker = BatchedAttacks(model, loss, bounds, restarts, seed, size)
        clean = attacker.run(samples, [None])[0][0]  # (N,)
        cells: list[AttackedError] = []
        fooled: dict[str, Tensor] = {}  # (len(grid), N) for every attack
        for name, build in builders.items() if grid else ():
            ways = [build(epsilon) if epsilon else None for epsilon in grid]
            fooled[name], lost = attacker.run(samples, ways)
            cells += _cells(name, grid, fooled[name], lost)
            if done:
                done(name)
        for norm, called in WORST.items():
            alike = [fooled[name] for name in fooled if norm_of(name) == norm]
            if alike:
                cells += _cells(called, grid, _worst(grid, alike))
        for budget in spend:
            moved = attacker.transported(samples, budget)
            error = float(moved.fooled.double().mean())
            cells.append(AttackedError(WASSERSTEIN, budget, error, moved.discarded, moved.mean_cost))
            if done:
                done(f"wasserstein {budget:g}")
        torch.manual_seed(seed)
        flags, made = learned(clean, samples.y)
        flags += [flag for name in fooled if (flag := falling(name, grid, fooled[name]))]
        flags += [flag for cell in cells if (flag := outside(cell.attack, cell.epsilon, cell.discarded))]
        made |= {"inside"} | ({"grows"} if fooled and len(grid) > 1 else set())
        if checks:
            more, probed = examine(model, samples, loss=loss, bounds=bounds, epsilon=_telling(cells))
            flags += more
            made |= probed
    checked = [check for check in CHECKS if check in made]
    return Evaluation(len(samples), float(clean.double().mean()), cells, flags, checked)


@dataclass(frozen=True)
class BatchedAttacks:
    """A model and how it is attacked, in batches that fit into memory."""

    model: nn.Module
    loss: PerSampleLoss
    bounds: tuple[float, float] | None
    restarts: int
    seed: int
    batch_size: int

    def run(self, samples: Samples, ways: Sequence[Attack | None]) -> tuple[Tensor, list[int]]:
        """Which samples each way fools, (len(ways), N), None being no attack; and how many results it discarded."""
        parts, start, size = [], 0, self.batch_size
        while start < len(samples):
            part, size = _fitting(size, partial(self._first, samples[start:], ways))
            parts.append(part)
            start += size
        results = list(zip(*parts, strict=True))  # by way, then by part
        fooled = torch.stack([torch.cat([part.fooled for part in way]) for way in results])
        return fooled, [sum(part.discarded for part in way) for way in results]

    def transported(self, samples: Samples, budget: float) -> Transported:
        """The Wasserstein attack, whose budget is for all samples together."""
        attacked = partial(wasserstein, self.model, samples.x, samples.y, loss=self.loss, bounds=self.bounds)
        return _fitting(self.batch_size, lambda size: attacked(budget=budget, batch_size=size))[0]

    def _first(self, samples: Samples, ways: Sequence[Attack | None], size: int) -> list[Attacked]:
        """What each way does to the first of the samples."""
        return [self._attacked(samples[:size], way) for way in ways]

    def _attacked(self, part: Samples, way: Attack | None) -> Attacked:
        if way is None:
            return Attacked(part.x, errs(self.model, part.x, part.y), 0)
        torch.manual_seed(self.seed)  # each cell on its own, whatever was asked beside it
        return attack(self.model, part.x, part.y, way, loss=self.loss, bounds=self.bounds, restarts=self.restarts)


def _fitting(size: int, work: Callable[[int], _T]) -> tuple[_T, int]:
    """What work in batches of this size gives, or of half of it, a quarter, ...; and the size that fits."""
    while True:
        try:
            return work(size), size
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size //= 2


def _cells(
    name: str, grid: Sequence[float], fooled: Tensor, discarded: Sequence[int] | None = None
) -> list[AttackedError]:
    errors = fooled.double().mean(1).tolist()
    lost = discarded or [0] * len(grid)
    return [AttackedError(name, *cell) for cell in zip(grid, errors, lost, strict=True)]


def _worst(grid: Sequence[float], fooled: Sequence[Tensor]) -> Tensor:
    """Whom any attack fools at each epsilon or a smaller one, (len(grid), N): a smaller ball lies in the larger."""
    any_attack = torch.stack(list(fooled)).any(0)
    return torch.stack([any_attack[[other <= epsilon for other in grid]].any(0) for epsilon in grid])


def _telling(cells: Sequence[AttackedError]) -> float | None:
    """The l_inf epsilon at which about half of what can be fooled is: there weak and strong attacks differ most."""
    known = [(abs(cell.error - 0.5), cell.epsilon) for cell in cells if cell.attack == WORST[math.inf] and cell.epsilon]
    return min(known)[1] if known else None
