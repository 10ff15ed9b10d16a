"""Laws of transport costs and of covering radii."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp
from rhobust.drift.transport import covering_radius, transport_cost

LAWS = settings(deadline=None, derandomize=True, max_examples=40)
COSTS = st.sampled_from([SquaredL2(), SquaredLp(1.3), SquaredLinf()])
SEEDS = st.integers(0, 10_000)
SIZES = st.integers(1, 25)
NORMS = st.sampled_from(["inf", "2"])
SIZES_OF_BALLS = st.floats(0.01, 4.0)


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(size: int, features: int, seed: int) -> Tensor:
    """Points with ties among them, at a scale of their own."""
    generator = draws(seed)
    x = torch.randn(size, features, generator=generator, dtype=torch.double)
    scale = 10 ** (4 * torch.rand((), generator=generator, dtype=torch.double) - 2)
    return scale * x[torch.randint(size, (size,), generator=generator)]


@LAWS
@given(size=SIZES, features=st.integers(1, 6), seed=SEEDS, method=st.sampled_from(["exact", "sliced"]))
def test_a_translation_costs_its_length_squared(size: int, features: int, seed: int, method: str) -> None:
    x, v = sample(size, features, seed), sample(1, features, seed + 1)
    moved = (x + v)[torch.randperm(size, generator=draws(seed))]
    found = transport_cost(x, moved, method=method, seed=seed).value
    assert found == pytest.approx(float(v.square().sum()), rel=1e-6, abs=1e-9)


@LAWS
@given(size=SIZES, seed=SEEDS, cost=COSTS)
def test_a_permutation_costs_nothing(size: int, seed: int, cost: Cost) -> None:
    x = sample(size, 4, seed)
    assert transport_cost(x, x[torch.randperm(size, generator=draws(seed))], cost).value == pytest.approx(0, abs=1e-12)


@LAWS
@given(size=SIZES, other=SIZES, seed=SEEDS, cost=COSTS)
def test_transport_is_symmetric_and_at_most_any_plan(size: int, other: int, seed: int, cost: Cost) -> None:
    x, y = sample(size, 4, seed), sample(other, 4, seed + 1)
    found = transport_cost(x, y, cost).value
    assert found == pytest.approx(transport_cost(y, x, cost).value, rel=1e-9)
    independent = torch.stack([cost(point[None], y).mean() for point in x]).mean()
    assert 0 <= found <= float(independent) * (1 + 1e-9)
    # The root of the cost is a metric: it is no shorter by way of a third sample.
    z = sample(7, 4, seed + 2)
    detour = math.sqrt(transport_cost(x, z, cost).value) + math.sqrt(transport_cost(z, y, cost).value)
    assert math.sqrt(found) <= detour * (1 + 1e-9)


@LAWS
@given(size=SIZES, other=SIZES, features=st.integers(1, 70), seed=SEEDS)
def test_sliced_is_never_above_exact(size: int, other: int, features: int, seed: int) -> None:
    x, y = sample(size, features, seed), sample(other, features, seed + 1)
    sliced = transport_cost(x, y, method="sliced", seed=seed).value
    assert 0 <= sliced <= transport_cost(x, y).value * (1 + 1e-9)


@LAWS
@given(seed=SEEDS, cost=COSTS, norm=NORMS, epsilon=SIZES_OF_BALLS, features=st.integers(1, 8))
def test_no_move_within_the_ball_costs_more(seed: int, cost: Cost, norm: str, epsilon: float, features: int) -> None:
    generator = draws(seed)
    x = 2 * torch.rand(1, features, generator=generator, dtype=torch.double) - 1
    found = covering_radius(epsilon, norm, cost, x, bounds=(-1, 1))
    # Moves on the ball's surface toward the farther bounds, of few coordinates and of many.
    moves = torch.rand(4000, features, generator=generator, dtype=torch.double)
    moves *= torch.rand(moves.shape, generator=generator) < torch.linspace(0.1, 1, len(moves))[:, None]
    moves *= epsilon / torch.linalg.vector_norm(moves, float(norm), dim=1, keepdim=True).clamp_min(1e-12)
    inside = (x + torch.where(x < 0, moves, -moves)).clamp(-1, 1)
    assert found.boxed is not None
    assert float(cost(x, inside).max()) <= found.boxed * (1 + 1e-9)
    assert float(cost(torch.zeros_like(moves), moves).max()) <= found.free * (1 + 1e-9)


@LAWS
@given(seed=SEEDS, cost=COSTS, norm=NORMS, epsilon=SIZES_OF_BALLS, features=st.integers(1, 8))
def test_some_move_within_the_ball_costs_as_much(
    seed: int, cost: Cost, norm: str, epsilon: float, features: int
) -> None:
    """Spread over the room up to some level, or along one coordinate: one of these attains it."""
    x = 2 * torch.rand(1, features, generator=draws(seed), dtype=torch.double) - 1
    found = covering_radius(epsilon, norm, cost, x, bounds=(-1, 1))
    for rho, room in ((found.boxed, torch.maximum(x + 1, 1 - x)), (found.free, torch.full_like(x, epsilon))):
        levels = torch.linspace(0, 1, 20001, dtype=torch.double)[:, None] * min(epsilon, float(room.max()))
        single = torch.zeros_like(room).index_fill(1, room.argmax(), 1.0)
        moves = torch.cat([torch.minimum(room, levels), single * levels])
        moves = moves[torch.linalg.vector_norm(moves, float(norm), dim=1) <= epsilon * (1 + 1e-12)]
        assert float(cost(torch.zeros_like(moves), moves).max()) == pytest.approx(rho, rel=1e-3)


@LAWS
@given(seed=SEEDS, norm=NORMS, cost=COSTS, epsilon=SIZES_OF_BALLS)
def test_a_sample_moved_within_the_ball_stays_within_the_covering_radius(
    seed: int, norm: str, cost: Cost, epsilon: float
) -> None:
    """What the radius is for: transport of a whole sample, measured, is covered."""
    generator = draws(seed)
    x = 2 * torch.rand(12, 5, generator=generator, dtype=torch.double) - 1
    d = torch.randn(12, 5, generator=generator, dtype=torch.double)
    d *= epsilon / torch.linalg.vector_norm(d, float(norm), dim=1, keepdim=True)
    covered = covering_radius(epsilon, norm, cost, x, bounds=(-1, 1))
    assert covered.boxed is not None
    assert transport_cost(x, x + d, cost).value <= covered.free * (1 + 1e-9)
    assert transport_cost(x, (x + d).clamp(-1, 1), cost).value <= covered.boxed * (1 + 1e-9)
