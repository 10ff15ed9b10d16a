"""Evaluation: the error of a model, clean and under attack."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from rhobust.attacks import attack, errs, find_attack, wasserstein
from rhobust.data import Samples
from rhobust.errors import ConfigError
from rhobust.objective import PerSampleLoss


@dataclass(frozen=True)
class AttackedError:
    """Share of samples that the model gets wrong under one attack."""

    attack: str
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

    def error(self, name: str, epsilon: float) -> float:
        """One cell of the grid."""
        for cell in self.attacked:
            if cell.attack == name and cell.epsilon == epsilon:
                return cell.error
        raise KeyError(f"no result for {name} at {epsilon}")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def evaluate(
    model: nn.Module,
    samples: Samples,
    *,
    loss: PerSampleLoss,
    bounds: tuple[float, float] | None = None,
    attacks: Sequence[str] = ("fgsm", "ifgsm", "pgd"),
    epsilons: Sequence[float] = (0.0, 0.1, 0.2),
    budgets: Sequence[float] = (),
    restarts: int = 1,
    batch_size: int = 1024,
    seed: int = 0,
    done: Callable[[str], None] | None = None,
) -> Evaluation:
    """Clean error, the error under each attack at each epsilon, and under a Wasserstein attack of each budget.

    At epsilon = 0 every ball is the sample itself, so the error is the clean one. Random starts come from `seed`.
    """
    builders = [(name, find_attack(name)) for name in dict.fromkeys(attacks)]
    wrong = [f"epsilon must be >= 0, not {epsilon}" for epsilon in epsilons if not epsilon >= 0]
    wrong += [f"a budget must be finite and > 0, not {budget}" for budget in budgets if not 0 < budget < math.inf]
    if not (builders and epsilons) and not budgets:
        wrong.append("nothing to evaluate: give attacks with epsilons, or budgets for the Wasserstein attack")
    if wrong:
        raise ConfigError(wrong)
    parts = list(zip(torch.split(samples.x, batch_size), torch.split(samples.y, batch_size), strict=True))
    total = len(samples)
    clean = sum(int(errs(model, x, y).sum()) for x, y in parts) / total
    cells: list[AttackedError] = []
    devices = [samples.x.device] if samples.x.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        for name, build in builders:
            for epsilon in dict.fromkeys(epsilons):
                if epsilon == 0:
                    cells.append(AttackedError(name, 0.0, clean))
                    continue
                torch.manual_seed(seed)  # each cell on its own, whatever was asked beside it
                results = [
                    attack(model, x, y, build(epsilon), loss=loss, bounds=bounds, restarts=restarts) for x, y in parts
                ]
                fooled = sum(int(result.fooled.sum()) for result in results)
                discarded = sum(result.discarded for result in results)
                cells.append(AttackedError(name, epsilon, fooled / total, discarded))
                if done:
                    done(f"{name} {epsilon:g}")
        for budget in dict.fromkeys(budgets):
            moved = wasserstein(model, samples.x, samples.y, loss=loss, budget=budget, bounds=bounds)
            error = float(moved.fooled.double().mean())
            cells.append(AttackedError("wasserstein", budget, error, mean_cost=moved.mean_cost))
            if done:
                done(f"wasserstein {budget:g}")
    return Evaluation(total, clean, cells)
