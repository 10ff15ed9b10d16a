"""Laws of the maximizers of zeta: where they may go, what they may not lose, what they count."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rhobust import RobustObjective
from rhobust.ascent import Ball, ErrorAscent, Identity, MarginAscent, Maximizer, Oracle, PenalizedAscent, maximize
from rhobust.ascent.inner_problem import Problem
from rhobust.costs import SquaredL2
from rhobust.errors import Refused
from tests.problems import (
    NORMS,
    Norm,
    cross_entropy,
    generator,
    known,
    length,
    linear_loss,
    penalized,
    relu_network,
    scalar,
    uniform,
)

BOX = (-1.0, 1.0)
MAXIMIZERS = [
    Identity(),
    Ball(epsilon=0.4, steps=3),
    Ball(epsilon=0.4, norm=2, steps=3, random_start=True),
    PenalizedAscent(steps=4),
    PenalizedAscent(steps=2, eta=0.1),
    Oracle(accuracy=1e-3, max_steps=7),
    MarginAscent(steps=2),
    ErrorAscent(steps=2),
]
SEEDS = st.integers(0, 10**6)
PRICES = st.floats(-2, 2).map(lambda power: 10**power)
each_norm = pytest.mark.parametrize("norm", NORMS, ids=str)
each_maximizer = pytest.mark.parametrize("maximizer", MAXIMIZERS, ids=repr)
law = settings(deadline=None, derandomize=True, max_examples=20)


def network_problem(
    seed: int, norm: Norm = NORMS[0], gamma: float = 1.0, bounds: tuple[float, float] | None = BOX
) -> Problem:
    """A ReLU network: neither concave nor smooth, so only laws that need neither may hold."""
    draws = generator(seed)
    model, z = relu_network(draws, 6).requires_grad_(False), uniform(draws, *BOX, 5, 2, 3)
    y = torch.randint(0, 3, (5,), generator=draws)
    return Problem(z, lambda zeta: cross_entropy(model(zeta.flatten(1)), y), scalar(gamma), norm.cost, bounds)


def displacement(problem: Problem, zeta: Tensor) -> Tensor:
    return (zeta - problem.z).flatten(1)


@pytest.mark.parametrize("norm", [2, math.inf])
@pytest.mark.parametrize("random_start", [False, True])
@law
@given(
    seed=SEEDS,
    epsilon=st.one_of(st.just(0.0), st.floats(1e-3, 3)),
    steps=st.integers(1, 4),
    step_size=st.one_of(st.none(), st.floats(1e-3, 3)),
)
def test_ball_never_leaves_ball_or_box(
    norm: float, random_start: bool, seed: int, epsilon: float, steps: int, step_size: float | None
) -> None:
    problem = network_problem(seed)
    torch.manual_seed(seed)
    maximizer = Ball(epsilon, norm, step_size, random_start, steps=steps)
    for zeta in (maximizer.start(problem), maximize(problem, maximizer).zeta):
        assert (length(displacement(problem, zeta), norm) <= epsilon * (1 + 1e-12) + 1e-15).all()
        assert zeta.abs().max() <= 1


@pytest.mark.parametrize("norm", [2, math.inf])
def test_random_start_is_uniform_in_the_ball(norm: float) -> None:
    # In d dimensions (||zeta - z|| / eps)^d is uniform on [0, 1]: mean 1/2, variance 1/12; and no side is preferred.
    z = torch.zeros(20000, 3, dtype=torch.float64)
    problem = Problem(z, lambda zeta: zeta.sum(1), scalar(1.0), SquaredL2())
    torch.manual_seed(0)
    start = Ball(0.5, norm, random_start=True).start(problem)
    share = (length(start, norm) / 0.5).pow(3)
    assert float(share.mean()) == pytest.approx(1 / 2, abs=0.01)
    assert float(share.var()) == pytest.approx(1 / 12, abs=0.003)
    assert float(start.mean(0).abs().max()) < 0.01


@law
@given(seed=SEEDS)
def test_first_signed_step_raises_a_linear_loss_the_most(seed: int) -> None:
    problem = network_problem(seed, bounds=None)
    slope = problem.at(problem.z).slope
    zeta = maximize(problem, Ball(epsilon=0.3)).zeta
    torch.testing.assert_close(zeta - problem.z, 0.3 * slope.sign(), rtol=1e-12, atol=1e-12)


@each_norm
@law
@given(seed=SEEDS, gamma=PRICES, steps=st.integers(1, 12))
def test_oracle_never_ends_below_its_start(norm: Norm, seed: int, gamma: float, steps: int) -> None:
    problem = network_problem(seed, norm, gamma)
    found = maximize(problem, Oracle(accuracy=1e-9, max_steps=steps))
    assert (penalized(problem, found.zeta) >= penalized(problem, problem.z) - 1e-12).all()
    assert found.zeta.abs().max() <= 1 + 1e-15


@law
@given(seed=SEEDS, gamma=PRICES)
def test_oracle_never_loses_with_more_steps(seed: int, gamma: float) -> None:
    problem = network_problem(seed, gamma=gamma)
    reached = [penalized(problem, maximize(problem, Oracle(0.0, steps)).zeta) for steps in range(1, 9)]
    for fewer, more in itertools.pairwise(reached):
        assert (more >= fewer - 1e-12).all()


@pytest.mark.parametrize(
    "maximizer", [Oracle(), PenalizedAscent(steps=5), MarginAscent(steps=3), ErrorAscent(cap=3.0)], ids=repr
)
@each_norm
@pytest.mark.parametrize("bounds", [BOX, (-0.1, 2.8), (0.1, 0.9)], ids=str)
def test_result_lies_in_the_box_to_the_last_bit(bounds: tuple[float, float], norm: Norm, maximizer: Maximizer) -> None:
    # In float32, where z + (upper - z) is not always upper; an attack one bit outside the box is not an attack.
    draws = generator(0)
    lower, upper = torch.tensor(bounds, dtype=torch.float32)
    z = torch.randn(4000, 3, generator=draws).mul(0.3).clamp(lower, upper)
    slopes = torch.randn(4000, 3, generator=draws)
    loss = lambda zeta: nn.functional.softplus(20 * (slopes * zeta).sum(1))  # noqa: E731
    zeta = maximize(Problem(z, loss, torch.tensor(0.05), norm.cost, bounds), maximizer).zeta
    assert ((zeta == lower) | (zeta == upper)).any()
    assert ((zeta >= lower) & (zeta <= upper)).all()


@law
@given(seed=SEEDS, one=PRICES, two=PRICES, eta=st.floats(1e-3, 1))
def test_one_constant_step_does_not_see_gamma(seed: int, one: float, two: float, eta: float) -> None:
    # grad c vanishes at zeta = z, so SPGDA with the printed constant eta takes the same step for every gamma.
    moved = [maximize(network_problem(seed, gamma=gamma), PenalizedAscent(eta=eta)).zeta for gamma in (one, two)]
    assert torch.equal(*moved)


@each_norm
@law
@given(seed=SEEDS, one=PRICES, two=PRICES)
def test_one_curvature_aware_step_is_inversely_proportional_to_gamma(
    norm: Norm, seed: int, one: float, two: float
) -> None:
    priced = []
    for gamma in (one, two):
        problem = network_problem(seed, norm, gamma, bounds=None)
        priced.append(gamma * displacement(problem, maximize(problem, PenalizedAscent()).zeta))
    torch.testing.assert_close(*priced, rtol=1e-9, atol=1e-12)


@law
@given(seed=SEEDS, gamma=PRICES, steps=st.integers(1, 8))
def test_curvature_aware_steps_in_l2_are_gradient_steps(seed: int, gamma: float, steps: int) -> None:
    # eta_t = 1 / (2 gamma sqrt(t + 1)), on psi, literally.
    problem = network_problem(seed, gamma=gamma, bounds=None)
    zeta = problem.z
    for t in range(steps):
        slope = problem.at(zeta).slope - 2 * gamma * (zeta - problem.z)
        zeta = zeta + slope / (2 * gamma * math.sqrt(t + 1))
    found = maximize(problem, PenalizedAscent(steps=steps)).zeta
    torch.testing.assert_close(found, zeta, rtol=1e-9, atol=1e-9)


@law
@given(seed=SEEDS, gamma=PRICES, eta=st.floats(1e-3, 0.5), steps=st.integers(1, 5))
def test_constant_steps_are_projected_gradient_steps(seed: int, gamma: float, eta: float, steps: int) -> None:
    problem = network_problem(seed, gamma=gamma)
    zeta = problem.z
    for _ in range(steps):
        zeta = (zeta + eta * (problem.at(zeta).slope - 2 * gamma * (zeta - problem.z))).clamp(*BOX)
    found = maximize(problem, PenalizedAscent(steps=steps, eta=eta)).zeta
    torch.testing.assert_close(found, zeta, rtol=1e-9, atol=1e-9)


@law
@given(seed=SEEDS, cap=st.floats(0.01, 1), gamma=PRICES)
def test_margin_ascent_respects_its_cap(seed: int, cap: float, gamma: float) -> None:
    for norm in NORMS:
        problem = network_problem(seed, norm, gamma, bounds=None)
        zeta = maximize(problem, MarginAscent(steps=3, cap=cap)).zeta
        assert (length(displacement(problem, zeta), norm.p) <= cap * (1 + 1e-9)).all()


@law
@given(seed=SEEDS)
def test_identity_returns_the_sample_without_a_gradient(seed: int) -> None:
    problem = network_problem(seed)
    found = maximize(problem, Identity())
    assert found.zeta is problem.z
    assert found.gradients == 0


@each_maximizer
@law
@given(seed=SEEDS)
def test_samples_of_a_batch_do_not_see_each_other(maximizer: Maximizer, seed: int) -> None:
    # Gradients are summed over the batch, never averaged: alone or in company, a sample moves the same way.
    draws = generator(seed)
    model, z = relu_network(draws, 4).requires_grad_(False), uniform(draws, *BOX, 4, 4)
    y = torch.randint(0, 3, (4,), generator=draws)
    start = maximizer.start(Problem(z, lambda zeta: zeta.sum(1), scalar(1.0), SquaredL2(), BOX))

    def moved(some: slice) -> Tensor:
        problem = Problem(z[some], lambda zeta: cross_entropy(model(zeta), y[some]), scalar(1.0), SquaredL2(), BOX)
        patient = Oracle(0.0, maximizer.max_steps) if isinstance(maximizer, Oracle) else maximizer  # no early stop
        return maximize(problem, patient, start[some]).zeta

    alone = torch.cat([moved(slice(i, i + 1)) for i in range(4)])
    torch.testing.assert_close(moved(slice(None)), alone, rtol=1e-9, atol=1e-9)


class Counted(nn.Module):
    """A model that counts the samples that pass through it, with and without weight gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.ascending = 0
        self.training_pass = 0

    def forward(self, x: Tensor) -> Tensor:
        if next(self.parameters()).requires_grad:
            self.training_pass += len(x)
        elif torch.is_grad_enabled():
            self.ascending += len(x)
        return self.model(x)


@pytest.mark.parametrize(
    ("maximizer", "flips"),  # a flip has a price only where gamma prices transport
    [(maximizer, flips) for maximizer in MAXIMIZERS for flips in (False, True) if maximizer.penalized or not flips],
)
def test_gradients_reported_are_passes_through_the_model(maximizer: Maximizer, flips: bool) -> None:
    draws = generator(5)
    model, x = Counted(relu_network(draws, 4)), uniform(draws, *BOX, 6, 4)
    cost = SquaredL2(kappa=0.5) if flips else SquaredL2()
    objective = RobustObjective(model, cross_entropy, radius=0.1, cost=cost, maximizer=maximizer, gamma=2.0, bounds=BOX)
    surrogate = objective(x, torch.tensor([0, 1, 2, 0, 1, 2]))
    # Where labels may flip, every label of every sample is an ascent of its own.
    assert model.ascending == surrogate.gradients * len(x)
    assert model.training_pass == len(x)
    assert surrogate.gradients <= maximizer.gradients * (3 if flips else 1)


def test_oracle_stops_as_soon_as_its_target_is_reached() -> None:
    # A linear loss: one gradient to move, one to see that nothing is left to gain.
    z = torch.zeros(2, 3, dtype=torch.float64)
    problem = Problem(z, lambda zeta: linear_loss(zeta, zeta.new_zeros(2)), scalar(1.0), SquaredL2())
    found = maximize(problem, Oracle(accuracy=1e-12, max_steps=50))
    assert found.gradients == 2
    assert known(found.accuracy).reached


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ball(epsilon=-0.1),
        lambda: Ball(epsilon=math.nan),
        lambda: Ball(epsilon=0.1, norm=1),
        lambda: Ball(epsilon=0.1, steps=0),
        lambda: Ball(epsilon=0.1, step_size=0.0),
        lambda: PenalizedAscent(steps=0),
        lambda: PenalizedAscent(eta=-1.0),
        lambda: Oracle(accuracy=-1.0),
        lambda: Oracle(max_steps=0),
        lambda: Oracle(curvature=-1.0),
        lambda: MarginAscent(steps=0),
        lambda: MarginAscent(cap=0.0),
    ],
)
def test_impossible_settings_are_refused(make: type[Maximizer]) -> None:
    with pytest.raises(Refused):
        make()
