"""The core against answers known exactly: worst cases, inner sups, proved gaps, Danskin gradients, trained solutions.

Everything is in float64; `tests/problems.py` draws each problem together with its answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog, minimize
from torch import Tensor
from torch.nn.functional import softplus

from rhobust import L1, FixedGamma, Multiplicative, ProjectedGradient, ProximalOptimizer, RobustObjective
from rhobust.ascent import Ball, ErrorAscent, MarginAscent, Oracle, error_length, margin_length, maximize
from rhobust.ascent.inner_problem import Problem
from rhobust.costs import SquaredL2, SquaredLp
from rhobust.gamma_rules import GammaRule
from tests.problems import (
    NORMS,
    Norm,
    Solved,
    central_difference,
    check_sup,
    cross_entropy,
    dual_minimum,
    dual_value,
    error_gain,
    generator,
    hinge_problem,
    known,
    length,
    linear_loss,
    linear_model,
    linear_problem,
    logistic_loss,
    logistic_problem,
    logistic_sup,
    margin_gain,
    margin_sup,
    normal,
    penalized,
    quadratic_problem,
    regression_problem,
    scalar,
    softmax_problem,
    squared_error,
    uniform,
)

TIGHT = Oracle(accuracy=1e-14, max_steps=300)
ALPHA = 0.5  # below 1 / L_f for the problem of TestStationarity

each_norm = pytest.mark.parametrize("norm", NORMS, ids=str)
each_seed = pytest.mark.parametrize("seed", range(3))


class TestWorstCase:
    """min over gamma of the dual, gamma rho + E sup, where the worst expected loss in the ball is known."""

    @each_norm
    @each_seed
    def test_linear_regression(self, norm: Norm, seed: int) -> None:
        draws = generator(seed)
        theta, x = normal(draws, 4), normal(draws, 30, 4)
        y = x @ theta + normal(draws, 30)
        mse, s = float((y - x @ theta).square().mean()), float(length(theta, norm.q).square())
        rho = float(uniform(draws, 0.2, 1.0, 1)) * mse / s
        best = s + math.sqrt(mse * s / rho)
        objective = RobustObjective(linear_model(theta), squared_error, radius=rho, cost=norm.cost, maximizer=TIGHT)

        gamma, value = dual_minimum(objective, x, y, (s + 0.3 * (best - s), s + 4 * (best - s)))

        assert value == pytest.approx((math.sqrt(mse) + math.sqrt(rho * s)) ** 2, rel=1e-9)
        assert gamma == pytest.approx(best, rel=1e-6)

    @each_norm
    @each_seed
    def test_linear_loss(self, norm: Norm, seed: int) -> None:
        draws = generator(seed)
        theta, x, y = normal(draws, 4), normal(draws, 30, 4), normal(draws, 30)
        rho, dual = 0.3, float(length(theta, norm.q))
        best = dual / (2 * math.sqrt(rho))
        objective = RobustObjective(linear_model(theta), linear_loss, radius=rho, cost=norm.cost, maximizer=TIGHT)

        gamma, value = dual_minimum(objective, x, y, (best / 5, best * 5))

        assert value == pytest.approx(float((x @ theta + y).mean()) + math.sqrt(rho) * dual, rel=1e-9)
        assert gamma == pytest.approx(best, rel=1e-6)


class TestInnerSup:
    """sup over zeta of loss - gamma c for one batch."""

    @each_norm
    @each_seed
    def test_linear_loss_in_one_step(self, norm: Norm, seed: int) -> None:
        solved = linear_problem(norm, seed)
        found = maximize(solved.problem, Oracle(accuracy=1e-10, max_steps=2))  # the second gradient only measures
        check_sup(solved, found.zeta)
        assert known(found.accuracy).reached

    @each_seed
    def test_linear_loss_moves_by_the_slope_over_two_gamma(self, seed: int) -> None:
        problem = linear_problem(NORMS[0], seed).problem
        slope = problem.at(problem.z).slope
        torch.testing.assert_close(maximize(problem, TIGHT).zeta, problem.z + slope / (2 * problem.gamma))

    @each_seed
    def test_quadratic(self, seed: int) -> None:
        solved = quadratic_problem(seed)
        check_sup(solved, maximize(solved.problem, TIGHT).zeta)

    @pytest.mark.parametrize("bend", [2.0, 5.0, 14.0, 15.0, 100.0])
    def test_overshooting_steps_are_shortened_until_they_converge(self, bend: float) -> None:
        # psi = 10 d - (bend + 1) d^2, so a step of fraction tau multiplies the error by 1 - tau (bend + 1). Where that
        # is -1 (bend 15, tau 1/8) psi returns to the same value again and again: a tie is no progress.
        problem = Problem(
            torch.zeros(1, 1, dtype=torch.float64),
            lambda zeta: (10 * zeta - bend * zeta.square()).sum(1),
            scalar(1.0),
            SquaredL2(),
        )
        solved = Solved(problem, torch.tensor([100 / (4 * (bend + 1))], dtype=torch.float64))
        check_sup(solved, maximize(problem, TIGHT).zeta)

    @each_norm
    @each_seed
    def test_squared_error(self, norm: Norm, seed: int) -> None:
        solved = regression_problem(norm, seed)
        check_sup(solved, maximize(solved.problem, TIGHT).zeta)

    @each_norm
    @each_seed
    def test_logistic(self, norm: Norm, seed: int) -> None:
        solved = logistic_problem(norm, seed)
        check_sup(solved, maximize(solved.problem, TIGHT).zeta)

    @each_seed
    @pytest.mark.parametrize("bounds", [None, (-1.0, 1.0)])
    def test_softmax(self, bounds: tuple[float, float] | None, seed: int) -> None:
        solved = softmax_problem(seed, bounds)
        check_sup(solved, maximize(solved.problem, TIGHT).zeta)

    @each_norm
    def test_hinge_from_the_active_region(self, norm: Norm) -> None:
        solved = hinge_problem(norm, margins=torch.tensor([-2.0, 0.0, 0.5, 0.99], dtype=torch.float64), gamma=0.2)
        check_sup(solved, maximize(solved.problem, TIGHT).zeta)

    @each_norm
    def test_hinge_beyond_its_kink_is_found_only_from_the_active_region(self, norm: Norm) -> None:
        # With m > 1 the slope at z is 0 and ascent from z cannot know better; the formula is still the sup.
        margins = torch.tensor([1.1, 1.4, 300.0], dtype=torch.float64)
        solved = hinge_problem(norm, margins, gamma=0.1)
        problem = solved.problem
        assert (solved.sup > 0).tolist() == [True, True, False]
        assert torch.equal(maximize(problem, TIGHT).zeta, problem.z)

        inside = hinge_problem(norm, torch.zeros(3, dtype=torch.float64), gamma=0.1).problem  # the same draws, m = 0
        started = maximize(problem, TIGHT, start=inside.z)
        check_sup(solved, _better(problem, started.zeta))


def _better(problem: Problem, zeta: Tensor) -> Tensor:
    """Where moving does not pay, z itself."""
    pays = penalized(problem, zeta) > penalized(problem, problem.z)
    return torch.where(pays[:, None], zeta, problem.z)


class TestBoxedResponse:
    """argmax of g.d - gamma ||d||^2 in a box, where the coordinates of a norm other than l2 interact."""

    @each_norm
    @pytest.mark.parametrize("seed", range(8))
    def test_response_equals_a_general_solver(self, norm: Norm, seed: int) -> None:
        draws = generator(seed)
        slope, gamma = 3 * normal(draws, 4), float(uniform(draws, 0.2, 2.0, 1))
        lower, upper = -uniform(draws, 0.0, 1.0, 4), uniform(draws, 0.0, 1.0, 4)
        expected = _boxed_response(slope.numpy(), gamma, norm.p, lower.numpy(), upper.numpy())

        found = norm.cost.response(slope[None], scalar(gamma), lower[None], upper[None])[0]

        assert ((lower <= found) & (found <= upper)).all()
        gain = float(slope @ found - gamma * length(found, norm.p).square())
        assert gain == pytest.approx(expected, rel=1e-7, abs=1e-7)


def _boxed_response(slope: np.ndarray, gamma: float, p: float, lower: np.ndarray, upper: np.ndarray) -> float:
    """max g.d - gamma N^2 with |d_i| <= N for l_inf, with N = ||d||_p else: SLSQP over (d, N) or d."""
    box = list(zip(lower, upper, strict=True))
    settings = {"method": "SLSQP", "options": {"ftol": 1e-15, "maxiter": 1000}}
    start = (lower + upper) / 2 + 1e-3
    if p < math.inf:

        def negative(d: np.ndarray) -> float:
            return gamma * np.linalg.norm(d, p) ** 2 - slope @ d

        return -minimize(negative, np.clip(start, lower, upper), bounds=box, **settings).fun

    below = {"type": "ineq", "fun": lambda v: v[-1] - v[:-1]}
    above = {"type": "ineq", "fun": lambda v: v[-1] + v[:-1]}
    lifted = minimize(
        lambda v: gamma * v[-1] ** 2 - slope @ v[:-1],
        np.append(start, 2.0),
        bounds=[*box, (0, None)],
        constraints=[below, above],
        **settings,
    )
    return -lifted.fun


class TestFiniteSupport:
    """Strong duality (paper, Prop. 1) where both sides can be computed: transport to finitely many points."""

    @each_norm
    @each_seed
    def test_transport_program_equals_its_dual(self, norm: Norm, seed: int) -> None:
        draws = generator(seed)
        data, support = normal(draws, 6, 2), normal(draws, 10, 2)
        losses, rho = uniform(draws, 0.0, 3.0, 16), 0.4
        points = torch.cat([data, support])  # staying is always possible

        worst, gamma = _transport_program(norm, data, points, losses, rho)

        assert _finite_dual(norm, data, points, losses, rho, gamma) == pytest.approx(worst, rel=1e-9)
        for other in uniform(draws, 0.0, 4.0, 20).tolist():  # weak duality at every other price
            assert _finite_dual(norm, data, points, losses, rho, other) >= worst - 1e-9

    @each_norm
    @each_seed
    def test_dual_value_bounds_every_finite_support_in_the_box(self, norm: Norm, seed: int) -> None:
        draws = generator(seed)
        theta, x, y, rho = normal(draws, 2), uniform(draws, -1.0, 1.0, 6, 2), normal(draws, 6), 0.05
        objective = _regression(theta, rho, norm)
        support = torch.cat([x, uniform(draws, -1.0, 1.0, 40, 2)])
        # A support point carries no label: each sample has its own losses, (6, 46).
        losses = (y[:, None] - support @ theta).square()

        worst, _ = _transport_program(norm, x, support, losses, rho)

        s = float(length(theta, norm.q).square())
        for dearness in (1.2, 2.0, 5.0):
            assert dual_value(objective, x, y, dearness * s) >= worst - 1e-9

    @each_seed
    def test_fine_grid_on_a_line_closes_the_gap(self, seed: int) -> None:
        draws = generator(seed)
        theta, x, y, rho = scalar(1.5)[None], uniform(draws, -0.9, 0.9, 6, 1), normal(draws, 6), 0.01
        spacing = 0.01
        grid = torch.linspace(-1, 1, 201, dtype=torch.float64)[:, None]

        worst, price = _transport_program(NORMS[0], x, grid, (y[:, None] - grid @ theta).square(), rho)
        gamma, value = dual_minimum(_regression(theta, rho, NORMS[0]), x, y, (2.3, 200.0))

        assert gamma > 2.4  # above theta^2 = 2.25, where psi is concave and the oracle's sup is the sup
        # The best grid point is within half a spacing of zeta*, and psi bends by at most 2 gamma.
        assert -1e-9 <= value - worst <= price * spacing**2 / 4


def _regression(theta: Tensor, rho: float, norm: Norm) -> RobustObjective:
    return RobustObjective(
        linear_model(theta), squared_error, radius=rho, cost=norm.cost, maximizer=TIGHT, bounds=(-1.0, 1.0)
    )


def _transport_costs(norm: Norm, data: Tensor, points: Tensor) -> Tensor:
    return torch.stack([norm.cost(z.expand_as(points), points) for z in data])  # c_ij, (data, points)


def _transport_program(norm: Norm, data: Tensor, points: Tensor, losses: Tensor, rho: float) -> tuple[float, float]:
    """max of sum pi_ij loss_ij with sum_j pi_ij = 1/n and sum pi_ij c_ij <= rho; and the price of that constraint."""
    costs = _transport_costs(norm, data, points)
    n, m = costs.shape
    rows = np.kron(np.eye(n), np.ones(m))
    found = linprog(
        -losses.expand(n, m).flatten().numpy(),
        A_ub=costs.flatten().numpy()[None],
        b_ub=[rho],
        A_eq=rows,
        b_eq=np.full(n, 1 / n),
        method="highs",
    )
    return -found.fun, -float(found.ineqlin.marginals[0])


def _finite_dual(norm: Norm, data: Tensor, points: Tensor, losses: Tensor, rho: float, gamma: float) -> float:
    return gamma * rho + float((losses - gamma * _transport_costs(norm, data, points)).amax(1).mean())


class TestLinearModelInABall:
    """A signed step is the exact attack on a linear model: the margin falls by eps ||theta||_1."""

    @each_seed
    @pytest.mark.parametrize(("norm", "q"), [(math.inf, 1.0), (2, 2.0)])
    def test_margin_falls_by_epsilon_times_the_dual_norm(self, norm: float, q: float, seed: int) -> None:
        problem, theta = _margin_problem(seed)
        found = maximize(problem, Ball(epsilon=0.3, norm=norm))
        torch.testing.assert_close(problem.loss(found.zeta), problem.loss(problem.z) + 0.3 * length(theta, q))

    @each_seed
    def test_clipped_to_the_box_it_is_still_exact(self, seed: int) -> None:
        problem, _ = _margin_problem(seed, bounds=(-1.0, 1.0))
        found = maximize(problem, Ball(epsilon=0.5))
        low, high = (problem.z - 0.5).clamp_min(-1), (problem.z + 0.5).clamp_max(1)
        corners = [torch.where(torch.tensor(up), high, low) for up in itertools.product([False, True], repeat=4)]
        worst = torch.stack([problem.loss(corner) for corner in corners]).amax(0)  # a linear loss peaks at a corner
        torch.testing.assert_close(problem.loss(found.zeta), worst)


def _margin_problem(seed: int, bounds: tuple[float, float] | None = None) -> tuple[Problem, Tensor]:
    draws = generator(seed)
    theta, z, y = normal(draws, 4), uniform(draws, -1.0, 1.0, 6, 4), normal(draws, 6).sign()
    return Problem(z, lambda zeta: -y * (zeta @ theta), scalar(1.0), SquaredL2(), bounds), theta


def _with_bound(kind: str, seed: int) -> tuple[Solved, float]:
    """A problem with its known curvature bound: ||theta||^2 / 4 for logistic, ||W||^2 / 2 for linear softmax."""
    if kind == "logistic":
        solved = logistic_problem(NORMS[0], seed)
        return solved, 8 * float(solved.problem.gamma) / 1.5 / 4
    if kind == "logistic lp":  # a bound in l2 holds in l_p too, since ||.||_2 <= ||.||_p; mu is 1 instead of 2
        solved = logistic_problem(Norm(SquaredLp(1.5), 1.5, 3.0), seed, dearness=5.0)
        slopes = solved.problem.at(solved.problem.z)
        theta = slopes.slope[0] / (1 - torch.exp(-slopes.loss[0]))
        return solved, float(theta.square().sum()) / 4
    solved = softmax_problem(seed, (-1.0, 1.0) if kind == "softmax in a box" else None)
    return solved, 2 * float(solved.problem.gamma) / 1.5


class TestProvedAccuracy:
    """With a known curvature bound the reported gap bounds sup psi - psi(zeta), however early the oracle stops."""

    @pytest.mark.parametrize("kind", ["logistic", "logistic lp", "softmax", "softmax in a box"])
    @each_seed
    def test_gap_bounds_the_distance_to_the_sup_at_every_step(self, kind: str, seed: int) -> None:
        solved, curvature = _with_bound(kind, seed)
        target = 1e-7
        for steps in range(1, 16):
            found = maximize(solved.problem, Oracle(target, steps, curvature))
            missing = solved.sup - penalized(solved.problem, found.zeta)
            accuracy = known(found.accuracy)
            assert accuracy.kind == "proved"
            assert (accuracy.gap >= missing - 1e-12).all()
            assert accuracy.reached == bool((accuracy.gap <= target).all())
            assert accuracy.reached or found.gradients == steps

    @pytest.mark.parametrize("kind", ["logistic", "logistic lp", "softmax", "softmax in a box"])
    @each_seed
    def test_target_is_missed_early_and_reached_in_the_end(self, kind: str, seed: int) -> None:
        solved, curvature = _with_bound(kind, seed)
        early = maximize(solved.problem, Oracle(1e-7, 2, curvature))
        late = maximize(solved.problem, Oracle(1e-7, 400, curvature))
        assert not known(early.accuracy).reached
        assert known(late.accuracy).reached
        assert (solved.sup - penalized(solved.problem, late.zeta)).max() <= 1e-7

    def test_gap_vanishes_at_a_corner_whatever_the_rounding(self) -> None:
        # z + (1 - z) is not always 1. A gap that counts the slope of such a coordinate, as if there were room to
        # move, never falls although the answer is exact.
        z = torch.tensor([[-0.001, 0.3]], dtype=torch.float64)
        assert z[0, 0] + (1 - z[0, 0]) < 1
        problem = Problem(z, lambda zeta: 50 * zeta.sum(1), scalar(1.0), SquaredL2(), (-1.0, 1.0))
        found = maximize(problem, Oracle(accuracy=1e-9, max_steps=50, curvature=0.0))
        torch.testing.assert_close(found.zeta, torch.ones(1, 2, dtype=torch.float64))
        assert known(found.accuracy).reached

    def test_gap_vanishes_where_short_steps_approach_the_boundary(self) -> None:
        # A strong bend in the second coordinate shortens the steps of both, so the first comes ever closer to the
        # boundary without touching it; the room that is left is what it can still gain.
        z = torch.zeros(1, 2, dtype=torch.float64)

        def loss(zeta: Tensor) -> Tensor:
            return 2.5 * zeta[:, 0] + 10 * zeta[:, 1] - 12 * zeta[:, 1].square()

        problem = Problem(z, loss, scalar(1.0), SquaredL2(), (-1.0, 1.0))
        found = maximize(problem, Oracle(accuracy=1e-9, max_steps=600, curvature=0.0))
        sup = (2.5 - 1) + 10**2 / (4 * (12 + 1))
        assert float(penalized(problem, found.zeta)) == pytest.approx(sup, abs=1e-9)
        assert known(found.accuracy).reached


class TestEstimatedAccuracy:
    """Without a curvature bound the gap is an estimate; for a concave loss it is a bound all the same."""

    @each_seed
    def test_gap_bounds_the_distance_to_the_sup_of_a_concave_loss(self, seed: int) -> None:
        solved = quadratic_problem(seed, bends=(0.0, -0.3, -2.0, -9.0), gamma=0.5)
        for steps in range(1, 16):
            found = maximize(solved.problem, Oracle(accuracy=1e-7, max_steps=steps))
            accuracy = known(found.accuracy)
            assert accuracy.kind == "estimated"
            assert (accuracy.gap >= solved.sup - penalized(solved.problem, found.zeta) - 1e-12).all()

    @each_norm
    @each_seed
    def test_gap_of_a_linear_loss_is_exact_once_its_curvature_was_seen(self, norm: Norm, seed: int) -> None:
        solved = linear_problem(norm, seed)
        first = maximize(solved.problem, Oracle(accuracy=0.0, max_steps=1))
        if norm.cost.strong_convexity > 0:  # without a move the loss might bend in any way
            assert (known(first.accuracy).gap == math.inf).all()
        else:
            torch.testing.assert_close(known(first.accuracy).gap, solved.sup - penalized(solved.problem, first.zeta))
        found = maximize(solved.problem, Oracle(accuracy=1e-9, max_steps=2))
        assert known(found.accuracy).reached
        torch.testing.assert_close(penalized(solved.problem, found.zeta), solved.sup)

    def test_gap_is_infinite_where_the_curvature_exceeds_the_price(self) -> None:
        # (y - theta.x)^2 with gamma < ||theta||^2: the sup is infinite, and two gradients show it.
        solved = regression_problem(NORMS[0], seed=0, dearness=0.9)
        found = maximize(solved.problem, Oracle(accuracy=1e-2, max_steps=2))
        assert (known(found.accuracy).gap == math.inf).all()
        assert not known(found.accuracy).reached


class TestDanskin:
    """Gradients of the surrogate are those of the true sup, although zeta is held fixed."""

    @each_norm
    @each_seed
    def test_gradient_equals_that_of_the_closed_form(self, norm: Norm, seed: int) -> None:
        draws = generator(seed)
        theta, x, y = normal(draws, 4).requires_grad_(), normal(draws, 10, 4), normal(draws, 10)
        price = 2 * float(length(theta.detach(), norm.q).square())
        gamma = scalar(price).requires_grad_()
        s = torch.linalg.vector_norm(theta, norm.q).square()
        (0.3 * gamma + (y - x @ theta).square().mean() * gamma / (gamma - s)).backward()

        model = linear_model(theta.detach())
        objective = RobustObjective(model, squared_error, radius=0.3, cost=norm.cost, maximizer=TIGHT, gamma=price)
        surrogate = objective(x, y)
        surrogate.value.backward()

        torch.testing.assert_close(known(model.weight.grad)[0], theta.grad, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(objective.gamma.grad, gamma.grad, rtol=1e-6, atol=1e-6)
        assert float(known(objective.gamma.grad)) == pytest.approx(0.3 - float(surrogate.cost.mean()), abs=1e-15)

    @each_seed
    def test_gradient_equals_differences_of_the_logistic_sup(self, seed: int) -> None:
        draws = generator(seed)
        theta, x, y = normal(draws, 4), normal(draws, 10, 4), normal(draws, 10).sign()
        gamma = 0.3 * float(theta.square().sum())

        def value(theta: Tensor) -> float:
            margins, s = (y * (x @ theta)).tolist(), float(theta.norm())
            return float(np.mean([logistic_sup(margin, s, gamma) for margin in margins]))

        model = linear_model(theta)
        objective = RobustObjective(model, logistic_loss, radius=0.3, maximizer=TIGHT, gamma=gamma)
        objective(x, y).value.backward()

        torch.testing.assert_close(known(model.weight.grad)[0], central_difference(value, theta), rtol=1e-6, atol=1e-8)


SCALARS = {
    "bias": st.floats(-60, 20),
    "rate": st.floats(1e-3, 60),
    "gamma": st.floats(1e-3, 20),
    "cap": st.one_of(st.just(math.inf), st.floats(1e-3, 20)),
}


def linear_logistic(norm: Norm, dearness: float) -> tuple[Problem, list[float], float, float]:
    """softplus(-theta.zeta) with margins from wrong to sure; also minus the margins, their rate, and gamma.

    With a dearness below 1 psi is not concave.
    """
    theta = normal(generator(7), 4)
    rate = float(length(theta, norm.q))
    margins = torch.tensor([-3.0, 0.0, 2.0, 8.0, 20.0, 30.0], dtype=torch.float64)
    z, gamma = margins[:, None] * theta / theta.square().sum(), dearness * rate**2 / 8
    return (
        Problem(z, lambda zeta: softplus(-(zeta @ theta)), scalar(gamma), norm.cost),
        (-margins).tolist(),
        rate,
        gamma,
    )


def each_linear(test: Callable[..., None]) -> Callable[..., None]:
    """For every norm, cheap and dear."""
    return each_norm(pytest.mark.parametrize("dearness", [0.02, 0.3, 3.0])(test))


class TestMargin:
    """max over 0 <= t <= cap of softplus(bias + rate t) - gamma t^2, also where it has two local maxima."""

    @given(**SCALARS)
    @example(bias=-2.0, rate=4.0, gamma=2.0, cap=math.inf)  # gamma = rate^2 / 8, where the three roots meet
    @example(bias=-20.0, rate=10.0, gamma=1.0, cap=2.2)  # the cap between the maxima
    @example(bias=-30.0, rate=10.0, gamma=0.5, cap=math.inf)  # confident, and worth moving
    @settings(deadline=None, derandomize=True, max_examples=150)
    def test_length_attains_the_maximum(self, bias: float, rate: float, gamma: float, cap: float) -> None:
        found = float(margin_length(scalar(bias)[None], scalar(rate)[None], scalar(gamma), cap))
        best = margin_sup(bias, rate, gamma, cap)
        assert 0 <= found <= cap
        assert margin_gain(found, bias, rate, gamma) == pytest.approx(best, rel=1e-8, abs=1e-8)
        if found < cap:  # inside, the derivative vanishes
            force = rate / (1 + math.exp(-bias - rate * found)) - 2 * gamma * found
            assert abs(force) <= 1e-6 * rate

    @pytest.mark.parametrize(("bias", "moves"), [(-24.9, True), (-25.1, False)])
    def test_confident_sample_moves_exactly_when_that_pays(self, bias: float, moves: bool) -> None:
        # Moving all the way, t = rate / (2 gamma) = 5, gains bias + 25; staying gains 0.
        found = float(margin_length(scalar(bias)[None], scalar(10.0)[None], scalar(1.0)))
        assert found == pytest.approx(5.0 if moves else 0.0, abs=1e-6)

    @each_linear
    def test_one_gradient_is_exact_for_a_linear_logistic_model(self, norm: Norm, dearness: float) -> None:
        problem, biases, rate, gamma = linear_logistic(norm, dearness)
        sup = [margin_sup(bias, rate, gamma) for bias in biases]

        found = maximize(problem, MarginAscent(steps=1))

        check_sup(Solved(problem, torch.tensor(sup, dtype=torch.float64)), found.zeta, tolerance=1e-8)
        assert found.gradients == 1


class TestError:
    """max over 0 <= t <= cap of sigmoid(bias + rate t) - gamma t^2: the chance of an error in place of the loss."""

    @given(**SCALARS)
    @example(bias=-3.5, rate=4.35, gamma=0.69, cap=math.inf)  # both maxima below the border
    @example(bias=-20.0, rate=10.0, gamma=0.1, cap=2.1)  # the cap between the border and the upper maximum
    @example(bias=-20.0, rate=10.0, gamma=0.1, cap=1.9)  # and before the border
    @settings(deadline=None, derandomize=True, max_examples=300)
    def test_length_attains_the_maximum(self, bias: float, rate: float, gamma: float, cap: float) -> None:
        found = float(error_length(scalar(bias)[None], scalar(rate)[None], scalar(gamma), cap))
        assert 0 <= found <= cap
        best = margin_sup(bias, rate, gamma, cap, error_gain)
        assert error_gain(found, bias, rate, gamma) == pytest.approx(best, abs=1e-9)

    def test_who_is_wrong_already_stays_and_who_can_be_made_wrong_just_crosses(self) -> None:
        bias = torch.tensor([30.0, -4.0, -8.0], dtype=torch.float64)
        wrong, near, far = error_length(bias, torch.full_like(bias, 20.0), scalar(8.0)).tolist()
        assert wrong < 1e-9  # its loss could still be raised, its error could not
        assert 0.2 < near < 0.3  # the border is at 0.2; a softplus would go on to the cap of its price, 1.25
        assert far < 1e-2  # at 0.4, where the price is above what an error is worth: 8 * 0.4^2 > 1
        assert margin_length(bias, torch.full_like(bias, 20.0), scalar(8.0)).tolist() == pytest.approx([1.25] * 3)

    def test_no_slope_is_no_move(self) -> None:
        found = error_length(torch.tensor([-2.0, 0.0, 3.0]), torch.zeros(3), torch.tensor(1.0))
        assert torch.equal(found, torch.zeros(3))

    @each_linear
    def test_one_gradient_is_exact_for_a_linear_logistic_model(self, norm: Norm, dearness: float) -> None:
        problem, biases, rate, gamma = linear_logistic(norm, dearness)
        sup = [margin_sup(bias, rate, gamma, gain=error_gain) for bias in biases]

        zeta = maximize(problem, ErrorAscent(steps=1)).zeta

        found = -torch.expm1(-problem.loss(zeta)) - gamma * norm.cost(problem.z, zeta)
        torch.testing.assert_close(found, torch.tensor(sup, dtype=torch.float64), rtol=0, atol=1e-9)


class TestLabelCost:
    """c = ||x - x'||^2 + kappa [y != y']: the sup over labels too is max(psi(y), psi(other) - gamma kappa)."""

    @pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0, 3.0, 1e6])
    @each_seed
    def test_sup_over_labels(self, kappa: float, seed: int) -> None:
        draws = generator(seed)
        weight, x, y = normal(draws, 2, 4), normal(draws, 12, 4), torch.tensor([0, 1] * 6)
        # Two-class cross-entropy is logistic in the difference of the logits.
        theta = weight[0] - weight[1]
        s = float(theta.norm())
        gamma, rho = 0.2 * s * s, 0.5
        own = (1 - 2 * y) * (x @ theta)
        stay = np.array([logistic_sup(margin, s, gamma) for margin in own.tolist()])
        flip = np.array([logistic_sup(-margin, s, gamma) for margin in own.tolist()]) - gamma * kappa
        objective = RobustObjective(
            linear_model(weight), cross_entropy, radius=rho, cost=SquaredL2(kappa), maximizer=TIGHT, gamma=gamma
        )

        surrogate = objective(x, y)
        surrogate.value.backward()

        assert float(surrogate.value.detach()) == pytest.approx(gamma * rho + np.maximum(stay, flip).mean(), rel=1e-9)
        assert (surrogate.labels != y).tolist() == (flip > stay).tolist()
        psi = surrogate.loss - gamma * surrogate.cost
        np.testing.assert_allclose(psi.numpy(), np.maximum(stay, flip), rtol=1e-9, atol=1e-9)
        assert float(known(objective.gamma.grad)) == pytest.approx(rho - float(surrogate.cost.mean()), rel=1e-12)

    def test_prohibitive_price_is_the_problem_without_labels(self) -> None:
        draws = generator(3)
        weight, x, y = normal(draws, 2, 4), normal(draws, 12, 4), torch.tensor([0, 1] * 6)
        values = [
            RobustObjective(
                linear_model(weight), cross_entropy, radius=0.5, cost=SquaredL2(kappa), maximizer=TIGHT, gamma=4.0
            )(x, y).value
            for kappa in (1e9, math.inf)
        ]
        torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)


class TestTraining:
    """SPGD on linear regression ends where theory says, with full batches and an exact oracle."""

    @pytest.mark.parametrize(
        "rule", [Multiplicative(lr=0.05), ProjectedGradient(lr=0.3)], ids=["multiplicative", "projected"]
    )
    def test_reaches_the_robust_regression_and_its_gamma(self, rule: GammaRule) -> None:
        draws = generator(0)
        x = normal(draws, 40, 3)
        y = x @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64) + 0.5 * normal(draws, 40)
        rho = 0.2

        def worst(theta: np.ndarray) -> float:
            mse = float(np.mean((y.numpy() - x.numpy() @ theta) ** 2))
            return (math.sqrt(mse) + math.sqrt(rho) * float(np.linalg.norm(theta))) ** 2

        reference = minimize(worst, np.ones(3), method="BFGS", options={"gtol": 1e-7})
        s = float(reference.x @ reference.x)
        best = s + math.sqrt(float(np.mean((y.numpy() - x.numpy() @ reference.x) ** 2)) * s / rho)
        objective = RobustObjective(
            linear_model(torch.zeros(1, 3, dtype=torch.float64)),
            squared_error,
            radius=rho,
            maximizer=Oracle(accuracy=1e-10, max_steps=200),
            gamma=4.0,
        )
        optimizer = ProximalOptimizer(
            torch.optim.SGD(objective.model.parameters(), lr=0.05), objective, gamma_rule=rule
        )

        for _ in range(400):
            optimizer.zero_grad()
            surrogate = objective(x, y)
            surrogate.value.backward()
            optimizer.step()

        theta = objective.model.get_parameter("weight").detach().numpy()[0]
        assert worst(theta) == pytest.approx(reference.fun, rel=1e-4)
        assert float(surrogate.value.detach()) == pytest.approx(reference.fun, rel=1e-4)
        np.testing.assert_allclose(theta, reference.x, rtol=1e-3, atol=1e-4)
        assert float(objective.gamma.detach()) == pytest.approx(best, rel=1e-3)


class TestStationarity:
    """||(theta - prox(theta - alpha g)) / alpha||, the distance that Theorem 1 drives to zero."""

    def _setup(self) -> tuple[RobustObjective, ProximalOptimizer, Tensor, Tensor]:
        draws = generator(1)
        x = normal(draws, 30, 4)
        y = (x[:, 0] - x[:, 1] + 0.5 * normal(draws, 30)).sign()
        objective = RobustObjective(
            linear_model(normal(draws, 4)),
            logistic_loss,
            radius=0.1,
            maximizer=Oracle(accuracy=1e-12, max_steps=200),
            gamma=2.0,
        )
        base = torch.optim.SGD(objective.model.parameters(), lr=ALPHA)
        # Alg. 1 literally: one step size for theta and gamma together.
        rule = ProjectedGradient(lr=ALPHA)
        return objective, ProximalOptimizer(base, objective, regularizer=L1(0.1), gamma_rule=rule), x, y

    def test_equals_the_proximal_gradient_residual(self) -> None:
        objective, optimizer, x, y = self._setup()
        objective(x, y).value.backward()
        weight = objective.model.get_parameter("weight")
        theta = weight.detach()
        forward = theta - ALPHA * known(weight.grad)
        shrunk = forward - forward.clamp(-0.1 * ALPHA, 0.1 * ALPHA)  # soft threshold at alpha times the weight
        expected = ((theta - shrunk) / ALPHA).norm()
        torch.testing.assert_close(optimizer.stationarity(), expected)

    def test_falls_as_theorem_1_says(self) -> None:
        # Full batches, an exact oracle and alpha <= 1/L_f: each step lowers F by alpha/2 times the squared residual
        # of (theta, gamma), so its mean over T steps is at most 2 Delta_F / (alpha T): Theorem 1 without noise.
        objective, optimizer, x, y = self._setup()
        weight = objective.model.get_parameter("weight")
        values, residuals = [], []
        for _ in range(300):
            optimizer.zero_grad()
            surrogate = objective(x, y)
            surrogate.value.backward()
            values.append(float(surrogate.value.detach() + optimizer.regularizer.value([weight.detach()])))
            residuals.append(float(optimizer.stationarity().square() + known(objective.gamma.grad).square()))
            optimizer.step()

        assert float(objective.gamma.detach()) > 2 * objective.gamma_min  # the projection never acted
        for last in range(1, 300):
            allowed = 2 * (values[0] - values[last]) / ALPHA
            assert sum(residuals[:last]) <= allowed + 1e-9
        assert math.sqrt(min(residuals)) < 1e-3 * math.sqrt(residuals[0])
        assert (weight == 0).any()  # and the prox has made it sparse

    def test_vanishes_at_the_fixed_point_only(self) -> None:
        # In one dimension with gamma fixed, F is smooth but for |theta|; its minimizer is a root found independently.
        x, y = torch.tensor([[1.0], [0.5], [-0.2]], dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        gamma, weight = 1.0, 0.05

        def slope(theta: float) -> float:
            def sup(a: float, t: Tensor) -> float:
                return logistic_sup(float(a * t), abs(float(t)), gamma)

            sups = [central_difference(partial(sup, a), scalar(theta)[None], 1e-6) for a in x[:, 0].tolist()]
            return float(torch.stack(sups).mean()) + weight

        root = brentq(slope, 0.05, 2.5)
        for theta, stationary in ((root, True), (root + 0.1, False)):
            objective = RobustObjective(
                linear_model(scalar(theta)[None]), logistic_loss, radius=0.2, maximizer=TIGHT, gamma=gamma
            )
            optimizer = ProximalOptimizer(
                torch.optim.SGD(objective.model.parameters(), lr=0.1),
                objective,
                regularizer=L1(weight),
                gamma_rule=FixedGamma(),
            )
            objective(x, y).value.backward()
            assert (float(optimizer.stationarity()) < 1e-6) == stationary
