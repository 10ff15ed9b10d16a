"""The fast code against the literal reference: step by step, buffer by buffer, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.ascent import Maximizer, Oracle, PenalizedAscent
from rhobust.gamma_rules import GammaRule
from rhobust.regularizers import NoRegularizer, Regularizer, SquaredL1
from tests.equivalence import reference
from tests.equivalence.reference import Reference

STEPS, BATCH, FEATURES = 20, 5, 4
TOLERANCE = 1e-10
BOX = (-1.0, 1.0)
Bounds = tuple[float, float] | None


@dataclass(frozen=True)
class Task:
    """A model, its loss, and batches to learn from."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    batches: list[tuple[Tensor, Tensor]]


def classification() -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    _prepare(model)
    return Task(model, nn.CrossEntropyLoss(reduction="none"), _batches(lambda x: (x[:, :3] + x[:, 1:]).argmax(1)))


def regression() -> Task:
    torch.manual_seed(1)
    model = nn.Linear(FEATURES, 1).double()
    _prepare(model)
    batches = _batches(lambda x: x @ torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=x.dtype) + 0.3)
    return Task(model, lambda output, y: (output[:, 0] - y).square(), batches)


@torch.no_grad()
def _prepare(model: nn.Module) -> None:
    first, *_ = model.parameters()
    for weight in model.parameters():
        weight.mul_(2)  # steep enough that samples pay for moving
    first[:, -1] *= 0.01  # the last feature hardly matters (see below), so that a regularizer can remove it


def _batches(label: Callable[[Tensor], Tensor]) -> list[tuple[Tensor, Tensor]]:
    # Uniform in the box [-1, 1], so that with bounds some coordinates have little room and others much.
    scale = torch.tensor([1.0, 1.0, 1.0, 0.01], dtype=torch.float64)
    inputs = [scale * (2 * torch.rand(BATCH, FEATURES, dtype=torch.float64) - 1) for _ in range(STEPS)]
    return [(x, label(x)) for x in inputs]


TASKS = [classification, regression]

ASCENTS: dict[str, tuple[Maximizer, reference.Ascent]] = {
    "Alg. 2 as printed": (PenalizedAscent(eta=0.3), reference.constant_steps(1, eta=0.3)),
    "Alg. 2 curvature-aware": (PenalizedAscent(), reference.curvature_aware_steps(1)),
    "Alg. 1 constant eta": (PenalizedAscent(steps=4, eta=0.1), reference.constant_steps(4, eta=0.1)),
    "Alg. 1 curvature-aware": (PenalizedAscent(steps=4), reference.curvature_aware_steps(4)),
    "Alg. 1 oracle": (Oracle(accuracy=1e-3, max_steps=8), reference.damped_oracle(1e-3, 8)),
}
REGULARIZERS: dict[str, tuple[Regularizer, reference.Prox]] = {
    "r = 0": (NoRegularizer(), reference.no_prox),
    "l1": (rhobust.L1(0.03), reference.l1_prox(0.03)),
    "squared l1": (SquaredL1(0.01), reference.squared_l1_prox(0.01)),
}
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[[], reference.Sgd | reference.Adam]]] = {
    "SGD": (lambda weights: torch.optim.SGD(weights, lr=0.05), lambda: reference.Sgd(lr=0.05)),
    "SGD with momentum": (
        lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.8, dampening=0.3),
        lambda: reference.Sgd(lr=0.02, momentum=0.8, dampening=0.3),
    ),
    "Adam": (lambda weights: torch.optim.Adam(weights, lr=0.02), lambda: reference.Adam(lr=0.02)),
}
GAMMA_RULES: dict[str, tuple[GammaRule, Callable[[], reference.GammaRule]]] = {
    "projected gradient": (rhobust.ProjectedGradient(lr=0.5), lambda: reference.ProjectedGamma(lr=0.5)),
    "Adam": (rhobust.AdamGamma(lr=0.05), lambda: reference.AdamGamma(lr=0.05)),
    "multiplicative": (rhobust.Multiplicative(lr=0.1), lambda: reference.MultiplicativeGamma(lr=0.1)),
}


@dataclass(frozen=True)
class Pair:
    """The fast code and the reference, both at the same start."""

    objective: rhobust.RobustObjective
    optimizer: rhobust.ProximalOptimizer
    literal: Reference

    def step(self, x: Tensor, y: Tensor) -> rhobust.Surrogate:
        """One iteration of both; everything they hold must agree afterwards."""
        self.optimizer.zero_grad()
        surrogate = self.objective(x, y)
        surrogate.value.backward()
        self.optimizer.step()
        zetas, costs = self.literal.iterate(x, y)
        close(surrogate.zeta, zetas)
        close(surrogate.cost, costs)
        self.compare_states()
        return surrogate

    def compare_states(self) -> None:
        weights = list(self.objective.model.parameters())
        close(flat(weights), self.literal.theta)
        close(self.objective.gamma, self.literal.gamma)
        held = [self.optimizer.base.state[weight] for weight in weights]
        if isinstance(self.literal.optimizer, reference.Adam):
            close(flat([state["exp_avg"] for state in held]), self.literal.optimizer.mean)
            close(flat([state["exp_avg_sq"] for state in held]), self.literal.optimizer.square)
            assert {int(state["step"]) for state in held} == {self.literal.optimizer.count}
        elif self.literal.optimizer.momentum:
            close(flat([state["momentum_buffer"] for state in held]), self.literal.optimizer.buffer)
        if isinstance(self.literal.gamma_rule, reference.AdamGamma):
            buffers = self.optimizer.state[self.objective.gamma]
            close(buffers["mean"], self.literal.gamma_rule.mean)
            close(buffers["square"], self.literal.gamma_rule.square)
            assert int(buffers["step"]) == self.literal.gamma_rule.count


def close(fast: Tensor, literal: object) -> None:
    expected = torch.tensor(literal, dtype=torch.float64)
    torch.testing.assert_close(fast.detach(), expected, rtol=TOLERANCE, atol=TOLERANCE)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def pair(task: Task, ascent: str, regularizer: str, optimizer: str, rule: str, bounds: Bounds) -> Pair:
    settings: dict[str, Any] = {"gamma": 1.2, "gamma_min": 0.9, "bounds": bounds}
    maximizer, literal_ascent = ASCENTS[ascent]
    r, prox = REGULARIZERS[regularizer]
    build, literal_optimizer = OPTIMIZERS[optimizer]
    gamma_rule, literal_rule = GAMMA_RULES[rule]
    twin = copy.deepcopy(task.model)
    objective = rhobust.RobustObjective(task.model, task.loss, radius=0.2, maximizer=maximizer, **settings)
    fast = rhobust.ProximalOptimizer(build(task.model.parameters()), objective, regularizer=r, gamma_rule=gamma_rule)
    literal = Reference(twin, task.loss, literal_ascent, literal_optimizer(), prox, literal_rule(), rho=0.2, **settings)
    return Pair(objective, fast, literal)


@pytest.mark.parametrize("bounds", [None, BOX], ids=["free", "box"])
@pytest.mark.parametrize("ascent", ASCENTS)
@pytest.mark.parametrize("task", TASKS)
def test_every_ascent_takes_the_reference_path(task: Callable[[], Task], ascent: str, bounds: Bounds) -> None:
    problem = task()
    both = pair(problem, ascent, "l1", "Adam", "multiplicative", bounds)
    surrogates = [both.step(x, y) for x, y in problem.batches]
    assert max(surrogate.cost.mean() for surrogate in surrogates) > 0.01, "nothing moved, so nothing was compared"
    on_the_wall = any((surrogate.zeta.abs() == 1).any() for surrogate in surrogates)
    assert on_the_wall == (bounds is not None), "the box must matter exactly where there is one"


@pytest.mark.parametrize("rule", GAMMA_RULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("task", TASKS)
def test_every_step_takes_the_reference_path(
    task: Callable[[], Task], regularizer: str, optimizer: str, rule: str
) -> None:
    problem = task()
    both = pair(problem, "Alg. 2 curvature-aware", regularizer, optimizer, rule, BOX)
    gammas, zeros = [both.literal.gamma], 0
    for x, y in problem.batches:
        both.step(x, y)
        gammas.append(both.literal.gamma)
        zeros += both.literal.theta.count(0.0)
    assert len(set(gammas)) > 2, "gamma must move"
    assert (zeros > 0) == (regularizer != "r = 0"), "a regularizer must remove weights, and nothing else may"


def test_the_oracle_stops_as_soon_as_every_sample_is_accurate() -> None:
    problem = regression()
    both = pair(problem, "Alg. 1 oracle", "r = 0", "SGD", "multiplicative", None)
    counts = {both.step(x, y).gradients for x, y in problem.batches}
    assert len(counts) > 1, "early stopping must be part of what was compared"


def test_the_oracle_takes_back_a_step_that_lowers_psi_as_the_reference_does() -> None:
    # cos(3 zeta) bends away faster than gamma can hold: the full best response jumps over the peak at 0.
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    peak = Task(model, lambda output, y: torch.cos(3 * output[:, 0]), [])
    both = pair(peak, "Alg. 1 oracle", "r = 0", "SGD", "multiplicative", None)
    sample = reference.Sample(both.literal.model, peak.loss, [0.6], torch.zeros(()), both.literal.gamma, None)
    loss, slope = sample.loss_and_slope([0.6])
    response = sample.best_response(slope)
    assert sample.loss_and_slope(response)[0] - sample.gamma * sample.cost(response) < loss, "the step must fail"

    x = torch.tensor([[0.6], [0.1]], dtype=torch.float64)
    surrogate = both.step(x, torch.zeros(2, dtype=torch.float64))
    assert (surrogate.cost > 0).all()
