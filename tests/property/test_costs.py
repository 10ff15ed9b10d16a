"""Laws of the transport costs: a squared norm, its dual, its gradient, its best response."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp
from rhobust.errors import Refused
from tests.problems import NORMS, Norm, generator, length, scalar, uniform

EDGE = Norm(SquaredLp(1.05), 1.05, 21.0)  # close to 1, where exponents are large
SMOOTH = [norm for norm in [*NORMS, EDGE] if norm.cost.strong_convexity > 0]
each_norm = pytest.mark.parametrize("norm", [*NORMS, EDGE], ids=str)
each_smooth_norm = pytest.mark.parametrize("norm", SMOOTH, ids=str)
law = settings(deadline=None, derandomize=True, max_examples=40)

SAMPLES, SHAPE = 2, (2, 2)  # two samples, each with two dimensions of features
# Zeros and ties are where norms have their kinks.
COORDINATES = st.one_of(st.sampled_from([0.0, 2.0, -2.0]), st.floats(-5, 5).filter(lambda x: abs(x) > 1e-6))
VECTORS = st.lists(COORDINATES, min_size=8, max_size=8).map(
    lambda values: torch.tensor(values, dtype=torch.float64).reshape(SAMPLES, *SHAPE)
)
PRICES = st.floats(0.05, 20)


def flat(v: Tensor) -> Tensor:
    return v.reshape(SAMPLES, -1)


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (flat(a) * flat(b)).sum(1)


@each_norm
@law
@given(z=VECTORS, zeta=VECTORS)
def test_cost_is_the_squared_norm_of_the_displacement(norm: Norm, z: Tensor, zeta: Tensor) -> None:
    # Summed over all features of a sample, never averaged.
    expected = length(flat(zeta - z), norm.p).square()
    torch.testing.assert_close(norm.cost(z, zeta), expected, rtol=1e-12, atol=1e-12)


@each_norm
@law
@given(z=VECTORS, zeta=VECTORS)
def test_cost_is_symmetric_and_zero_only_at_rest(norm: Norm, z: Tensor, zeta: Tensor) -> None:
    assert torch.equal(norm.cost(z, zeta), norm.cost(zeta, z))
    assert torch.equal(norm.cost(z, z), torch.zeros(SAMPLES, dtype=torch.float64))
    assert ((norm.cost(z, zeta) > 0) == (flat(z) != flat(zeta)).any(1)).all()


@each_norm
@law
@given(slope=VECTORS, d=VECTORS)
def test_norm_and_dual_norm_are_dual(norm: Norm, slope: Tensor, d: Tensor) -> None:
    cost = norm.cost
    torch.testing.assert_close(cost.dual_norm(slope), length(flat(slope), norm.q), rtol=1e-12, atol=1e-12)
    assert (dot(slope, d) <= cost.norm(d) * cost.dual_norm(slope) + 1e-9).all()  # Hoelder


@each_norm
@law
@given(slope=VECTORS)
def test_direction_has_norm_one_and_attains_the_dual_norm(norm: Norm, slope: Tensor) -> None:
    cost, direction = norm.cost, norm.cost.direction(slope)
    moves = (flat(slope) != 0).any(1).to(torch.float64)  # where the slope is 0 there is no direction
    torch.testing.assert_close(cost.norm(direction), moves, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dot(slope, direction), cost.dual_norm(slope), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1.0, 30.0])
@pytest.mark.parametrize("p", [2.0, 1.5, 1.1, 1.01])
def test_dual_norm_neither_underflows_nor_overflows(p: float, scale: float, dtype: torch.dtype) -> None:
    # |g|^q leaves the floating-point range long before ||g||_q does: q = 101 for p = 1.01.
    slope = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    expected = scale * float(length(slope, p / (p - 1))[0])
    found = SquaredLp(p).dual_norm((scale * slope).to(dtype))
    assert float(found) == pytest.approx(expected, rel=1e-5, abs=0)


@each_smooth_norm
@law
@given(d=VECTORS)
def test_gradient_equals_autograd(norm: Norm, d: Tensor) -> None:
    point = d.clone().requires_grad_()
    # Written out: autograd through |d|^p is exact where d_i != 0, and the gradient is 0 where d_i = 0.
    powers = (flat(point).abs() + (flat(point) == 0)).pow(norm.p) - (flat(point) == 0).to(torch.float64)
    total = powers.sum(1).clamp_min(1e-300).pow(2 / norm.p).sum()
    (expected,) = torch.autograd.grad(total, point)
    torch.testing.assert_close(norm.cost.gradient(d), torch.where(d == 0, 0.0, expected), rtol=1e-9, atol=1e-9)


@each_norm
@law
@given(d=VECTORS)
def test_gradient_is_aligned_with_the_displacement(norm: Norm, d: Tensor) -> None:
    # The subgradients of ||d||^2 are exactly the s with s.d = 2 ||d||^2 and ||s||_* = 2 ||d||, ties included.
    slope, lengths = norm.cost.gradient(d), length(flat(d), norm.p)
    torch.testing.assert_close(dot(slope, d), 2 * lengths.square(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(length(flat(slope), norm.q), 2 * lengths, rtol=1e-9, atol=1e-9)


@each_norm
@law
@given(d=VECTORS, u=VECTORS)
def test_gradient_supports_the_cost_from_below(norm: Norm, d: Tensor, u: Tensor) -> None:
    # ||u||^2 >= ||d||^2 + s.(u - d) + mu/2 ||u - d||^2: a subgradient where mu = 0, strong convexity elsewhere.
    cost, zero = norm.cost, torch.zeros_like(d)
    bound = cost(zero, d) + dot(cost.gradient(d), u - d) + cost.strong_convexity / 2 * cost(d, u)
    assert (cost(zero, u) >= bound - 1e-9).all()


@pytest.mark.parametrize(("p", "mu"), [(2.0, 2.0), (1.5, 1.0), (1.25, 0.5)])
def test_modulus_of_strong_convexity_is_the_best_possible(p: float, mu: float) -> None:
    # Along d = (1, 1), u - d = t (1, -1): ||u||_p^2 = ||d||_p^2 + (p - 1) ||u - d||_p^2 + O(t^4).
    cost, t = SquaredLp(p), 1e-3
    d, u = torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1 + t, 1 - t]], dtype=torch.float64)
    rise = cost(torch.zeros_like(d), u) - cost(torch.zeros_like(d), d)  # the linear term cancels by symmetry
    assert cost.strong_convexity == mu
    assert float(rise / cost(d, u)) == pytest.approx(mu / 2, rel=1e-3)


def test_l_inf_claims_no_strong_convexity() -> None:
    assert SquaredLinf().strong_convexity == 0


@each_norm
@law
@given(slope=VECTORS, gamma=PRICES)
def test_free_response_gains_the_squared_dual_norm_over_four_gamma(norm: Norm, slope: Tensor, gamma: float) -> None:
    found = norm.cost.response(slope, scalar(gamma), None, None)
    expected = length(flat(slope), norm.q).square() / (4 * gamma)
    torch.testing.assert_close(_gain(norm.cost, slope, found, gamma), expected, rtol=1e-9, atol=1e-9)


@each_norm
@law
@given(slope=VECTORS, gamma=PRICES, seed=st.integers(0, 10**6))
def test_boxed_response_beats_every_feasible_point(norm: Norm, slope: Tensor, gamma: float, seed: int) -> None:
    lower, upper, draws = _box(seed)
    found = norm.cost.response(slope, scalar(gamma), lower, upper)
    assert ((lower <= found) & (found <= upper)).all()
    best = _gain(norm.cost, slope, found, gamma)
    free = norm.cost.response(slope, scalar(gamma), None, None).clamp(lower, upper)
    rivals = [lower + (upper - lower) * uniform(draws, 0.0, 1.0, SAMPLES, *SHAPE) for _ in range(10)]
    near = [(found + 1e-3 * (rival - found)).clamp(lower, upper) for rival in rivals]
    for rival in [torch.zeros_like(found), free, *rivals, *near]:
        assert (best >= _gain(norm.cost, slope, rival, gamma) - 1e-9).all()


@each_smooth_norm
@law
@given(slope=VECTORS, gamma=PRICES, seed=st.integers(0, 10**6))
def test_boxed_response_leaves_no_direction_of_ascent(norm: Norm, slope: Tensor, gamma: float, seed: int) -> None:
    # First order, for a concave function: no point of the box is uphill, so none is higher.
    lower, upper, _ = _box(seed)
    found = norm.cost.response(slope, scalar(gamma), lower, upper)
    uphill = slope - gamma * norm.cost.gradient(found)
    still = torch.maximum(uphill * (upper - found), uphill * (lower - found))
    assert (flat(still).sum(1) <= 1e-8 * (1 + length(flat(slope), norm.q))).all()


def _gain(cost: Cost, slope: Tensor, d: Tensor, gamma: float) -> Tensor:
    return dot(slope, d) - gamma * cost.norm(d).square()


def _box(seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """A box around 0, as lower - z <= d <= upper - z is; now and then 0 is on its boundary."""
    draws = generator(seed)
    lower, upper = (uniform(draws, -0.2, 2.0, SAMPLES, *SHAPE).clamp_min(0) for _ in range(2))
    return -lower, upper, draws


@pytest.mark.parametrize("p", [1.0, 0.5, 2.0001, 3.0, math.inf, math.nan, -2.0])
def test_powers_without_strong_convexity_are_refused(p: float) -> None:
    with pytest.raises(Refused, match=r"1 < p <= 2"):
        SquaredLp(p)


@pytest.mark.parametrize("make", [SquaredL2, SquaredLinf, lambda kappa: SquaredLp(1.5, kappa)])
@pytest.mark.parametrize("kappa", [-1.0, math.nan])
def test_negative_label_costs_are_refused(make: Callable[[float], Cost], kappa: float) -> None:
    with pytest.raises(Refused, match="kappa"):
        make(kappa)


@law
@given(d=VECTORS)
def test_lp_at_two_is_l2(d: Tensor) -> None:
    one, two = SquaredLp(2.0), SquaredL2()
    box = (torch.full_like(d, -0.3), torch.full_like(d, 0.4))
    pairs = [
        (one.norm(d), two.norm(d)),
        (one.gradient(d), two.gradient(d)),
        (one.direction(d), two.direction(d)),
        (one.response(d, scalar(0.7), None, None), two.response(d, scalar(0.7), None, None)),
        (one.response(d, scalar(0.7), *box), two.response(d, scalar(0.7), *box)),
    ]
    for found, expected in pairs:
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12, atol=1e-12)


def test_a_small_slope_moves_far_where_the_large_ones_are_at_the_box() -> None:
    """Unconstrained, the second coordinate would move 1e-46 of the first, which float32 does not have."""
    slope, room = torch.tensor([[1.0, 0.005]]), torch.tensor([[0.0, 1.0]])
    found = SquaredLp(1.05).response(slope, torch.tensor(0.1), -room, room)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.025]]))  # 0.005 d - 0.1 d^2
