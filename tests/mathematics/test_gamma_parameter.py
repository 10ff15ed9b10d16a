"""Gamma keeps its precision and its place when the objective is converted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import rhobust
from rhobust.ascent import PenalizedAscent

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (16,), generator=torch.Generator().manual_seed(1))


def build() -> rhobust.RobustObjective:
    torch.manual_seed(0)
    return rhobust.RobustObjective(nn.Linear(4, 3), CROSS_ENTROPY, radius=0.5, gamma=1 / 3, maximizer=PenalizedAscent())


LOWER: dict[str, Callable[[nn.Module], nn.Module]] = {
    "bfloat16()": lambda module: module.bfloat16(),
    "half()": lambda module: module.half(),
    "to(bfloat16)": lambda module: module.to(torch.bfloat16),
    "type(half)": lambda module: module.type(torch.float16),
    "inside another module": lambda module: nn.ModuleList([module]).bfloat16()[0],
}


@pytest.mark.parametrize("way", LOWER)
def test_a_lower_precision_is_not_gamma_s(way: str) -> None:
    objective = build()
    objective(X, Y).value.backward()
    gamma, before = objective.gamma, objective.gamma.grad
    assert before is not None
    gradient = before.clone()
    LOWER[way](objective)
    assert objective.gamma is gamma
    assert gamma.grad is not None
    assert gamma.dtype == gamma.grad.dtype == torch.float32
    assert gamma == torch.tensor(1 / 3)
    assert torch.equal(gamma.grad, gradient)
    assert objective.model.weight.dtype in (torch.bfloat16, torch.float16)


def test_double_is_gamma_s_too_and_half_after_it_is_float32() -> None:
    objective = build()
    gamma = objective.gamma
    assert objective.double().gamma is gamma
    assert gamma.dtype == torch.float64
    assert objective.half().gamma.dtype == torch.float32
    assert gamma == torch.tensor(1 / 3)


def test_gamma_goes_where_the_model_goes() -> None:
    objective = build().to("meta", torch.bfloat16)
    assert objective.gamma.device == objective.model.weight.device == torch.device("meta")
    assert objective.gamma.dtype == torch.float32
    assert objective.to_empty(device="cpu").gamma.device == torch.device("cpu")


def test_a_model_of_lower_precision_has_a_gamma_of_float32() -> None:
    objective = rhobust.RobustObjective(nn.Linear(4, 3).bfloat16(), CROSS_ENTROPY, radius=0.5)
    assert objective.gamma.dtype == torch.float32


@pytest.mark.parametrize("convert", [LOWER["bfloat16()"], lambda module: module.double()], ids=["bfloat16", "double"])
def test_an_optimizer_made_before_the_conversion_steps_the_same_gamma(
    convert: Callable[[nn.Module], nn.Module],
) -> None:
    objective = build()
    optimizer = rhobust.ProximalOptimizer(torch.optim.SGD(objective.model.parameters(), lr=0.01), objective)
    convert(objective)
    x, before = X.to(next(objective.model.parameters()).dtype), float(objective.gamma.detach())
    objective(x, Y).value.backward()
    optimizer.step()
    assert objective.gamma.grad is not None
    pull = (objective.gamma.grad / 0.5).clamp(-1, 1)
    expected = before * torch.exp(-optimizer.gamma_rule.lr * pull)
    torch.testing.assert_close(objective.gamma.detach(), expected)  # not rounded to three digits
    assert optimizer.param_groups[-1]["params"][0] is objective.gamma
