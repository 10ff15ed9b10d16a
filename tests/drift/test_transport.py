"""Which radius: transport costs with known answers, and balls with known sizes."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog
from torch import Tensor

from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp
from rhobust.drift.transport import Estimate, covering_radius, transport_cost
from rhobust.errors import ConfigError, DataError

COSTS: list[Cost] = [SquaredL2(), SquaredLp(1.5), SquaredLinf()]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def all_costs(x: Tensor, y: Tensor, cost: Cost) -> np.ndarray:
    """c(x_i, y_j), one pair at a time."""
    return np.array([[float(cost(a[None], b[None])) for b in y] for a in x])


@pytest.mark.parametrize("cost", COSTS)
def test_equal_sizes_are_an_assignment(cost: Cost) -> None:
    x, y = normal(30, 1, 2, 3), normal(30, 1, 2, 3, seed=1) + 0.4
    matrix = all_costs(x, y, cost)
    best = matrix[linear_sum_assignment(matrix)].mean()
    found = transport_cost(x, y, cost, "exact")
    assert found.value == pytest.approx(best, rel=1e-10)
    assert (found.kind, found.error, found.samples) == ("exact", None, (30, 30))


@pytest.mark.parametrize("cost", COSTS)
def test_unequal_sizes_are_a_linear_program(cost: Cost) -> None:
    x, y = normal(5, 3), normal(8, 3, seed=1)
    rows, columns = np.kron(np.eye(5), np.ones(8)), np.kron(np.ones(5), np.eye(8))
    mass = np.concatenate([np.full(5, 1 / 5), np.full(8, 1 / 8)])
    best = linprog(all_costs(x, y, cost).ravel(), A_eq=np.vstack([rows, columns]), b_eq=mass).fun
    assert transport_cost(x, y, cost).value == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("method", ["exact", "sliced"])
def test_in_one_dimension_the_sorted_are_matched(method: str) -> None:
    x, y = normal(200, 1), 2 * normal(200, 1, seed=1) + 1
    best = (x.sort(0).values - y.sort(0).values).square().mean()
    assert transport_cost(x, y, method=method).value == pytest.approx(float(best), rel=1e-10)


def test_subsampling_finds_a_known_shift_over_what_no_drift_costs() -> None:
    """Gaussians, ||v||^2 = 1: the cost itself is biased upward, the excess is not."""
    x, y = normal(4000, 4), normal(4000, 4, seed=1) + 0.5
    found = transport_cost(x, y)
    assert found.kind == "subsampled"
    held = found.comparison
    assert held is not None
    assert (held.repeats, held.size) == (5, 400)
    assert (found.value, found.error) == (held.drifted.value, held.drifted.error)
    assert held.baseline.value > 10 * held.baseline.error  # two samples of one distribution are apart
    assert found.value - 2 * held.drifted.error > 1  # so the plain cost overshoots
    assert abs(held.excess.value - 1) < 3 * held.excess.error < 0.5
    assert held.excess.value == pytest.approx(held.drifted.value - held.baseline.value)


def test_no_drift_has_no_excess() -> None:
    held = transport_cost(normal(1000, 4), normal(500, 4, seed=1)).comparison
    assert held is not None
    assert held.size == 100
    assert abs(held.excess.value) < 3 * held.excess.error


def test_no_drift_is_called_one_five_times_in_a_hundred() -> None:
    # Two standard errors, which are right for a large sample, would do so eleven times.
    called = []
    for seed in range(200):
        draws = torch.Generator().manual_seed(seed)
        x, y = torch.randn(80, 2, generator=draws), torch.randn(40, 2, generator=draws)
        found = transport_cost(x, y, SquaredL2(), "exact", seed).comparison
        assert found is not None
        called.append(found.drift != 0)
    assert 0.02 < sum(called) / len(called) < 0.08


def test_a_fading_has_a_cost_but_no_excess_unless_sliced() -> None:
    """x -> 0.8 x costs 0.04 E ||x||^2 on the same samples; but fresh faded samples are *nearer* than fresh ones."""
    x = normal(1000, 20)
    exact, sliced = transport_cost(x, 0.8 * x), transport_cost(x, 0.8 * x, method="sliced")
    truth = 0.04 * float(x.square().sum(1).mean())
    assert exact.value == pytest.approx(truth)  # a gradient of a convex function is an optimal map
    assert sliced.value == pytest.approx(truth)
    assert exact.comparison is not None
    assert sliced.comparison is not None
    assert exact.comparison.excess.value < -3 * exact.comparison.excess.error
    assert 0 < sliced.comparison.excess.value < truth


def test_scattered_samples_have_more_excess_than_drift() -> None:
    """From N(0, I) to N(0, 1.25 I) the cost is d (sqrt(1.25) - 1)^2; fresh samples differ by more."""
    held = transport_cost(normal(1000, 20), math.sqrt(1.25) * normal(1000, 20, seed=1)).comparison
    assert held is not None
    assert held.excess.value - 3 * held.excess.error > 3 * 20 * (math.sqrt(1.25) - 1) ** 2


def test_the_seed_draws_the_subsamples_and_nothing_else() -> None:
    x, y = normal(100, 3), normal(100, 3, seed=1)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, again, other = (transport_cost(x, y, method="subsampled", seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)
    assert transport_cost(x, y, seed=0).value == transport_cost(x, y, seed=1).value  # exact: there is nothing to draw


def test_too_few_samples_have_no_comparison() -> None:
    x = normal(9, 2)
    assert transport_cost(x, x + 1).comparison is None
    with pytest.raises(DataError, match="too few"):
        transport_cost(x, x, method="subsampled")


def test_an_estimate_is_a_mean_with_its_standard_error() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    assert Estimate.of(values).value == 4.0
    assert Estimate.of(values).error == pytest.approx(np.std(values, ddof=1) / 2)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (torch.zeros(3, 2), torch.zeros(3, 3), r"\(3, 2\) and \(3, 3\)"),
        (torch.zeros(3), torch.zeros(3), "alike"),
        (torch.zeros(0, 2), torch.zeros(3, 2), "nothing to transport"),
        (torch.zeros(3, 2), torch.tensor([[math.nan, 0.0]]), "NaN"),
        (torch.full((3, 2), math.inf), torch.zeros(3, 2), "infinite"),
    ],
)
def test_samples_that_cannot_be_compared(x: Tensor, y: Tensor, said: str) -> None:
    with pytest.raises(DataError, match=said):
        transport_cost(x, y)


def test_settings_that_make_no_sense_are_told_all_at_once() -> None:
    x = torch.zeros(3, 2)
    with pytest.raises(ConfigError) as wrong:
        transport_cost(x, x, SquaredLinf(), "sliced", seed=-1)
    assert len(wrong.value.problems) == 2
    with pytest.raises(ConfigError, match=r"unknown method 'exakt' \(did you mean 'exact'\?\)"):
        transport_cost(x, x, method="exakt")
    with pytest.raises(ConfigError, match="at most 10000 samples a side, not 10001"):
        transport_cost(x, torch.zeros(10001, 2), method="exact")
    with pytest.raises(ConfigError) as wrong:
        covering_radius(-1.0, "1", None, x)
    assert len(wrong.value.problems) == 2
    with pytest.raises(ConfigError, match="at most"):
        covering_radius(math.inf, "2", None, x)
    with pytest.raises(DataError, match="outside the bounds"):
        covering_radius(0.1, "2", None, x, bounds=(1, 2))
    with pytest.raises(DataError, match="nothing"):
        covering_radius(0.1, "2", None, torch.zeros(0, 2))


@pytest.mark.parametrize(
    ("norm", "cost", "rho"),
    [
        ("inf", SquaredL2(), 784 * 0.01),
        ("2", SquaredL2(), 0.01),
        ("inf", SquaredLinf(), 0.01),
        ("2", SquaredLinf(), 0.01),
        ("inf", SquaredLp(1.5), 784 ** (4 / 3) * 0.01),
        ("2", SquaredLp(1.5), 784 ** (1 / 3) * 0.01),
    ],
)
def test_the_radius_of_a_ball_has_the_exact_constant_of_its_norms(norm: str, cost: Cost, rho: float) -> None:
    found = covering_radius(0.1, norm, cost, torch.zeros(4, 1, 28, 28), bounds=(-1, 1))
    assert found.free == pytest.approx(rho)
    assert found.boxed == pytest.approx(rho)  # there is room for 1 on either side
    assert found.features == 784


def test_the_box_takes_away_what_there_is_no_room_for() -> None:
    x = torch.tensor([[1.0, 0.0], [-0.5, 0.5]])  # the farther bound is at 2 and 1, at 1.5 and 1.5
    assert covering_radius(1.8, "inf", None, x, (-1, 1)).boxed == pytest.approx((1.8**2 + 1 + 1.5**2 * 2) / 2)
    assert covering_radius(9.0, "2", None, x, (-1, 1)).boxed == pytest.approx((4 + 1 + 1.5**2 * 2) / 2)
    assert covering_radius(1.8, "2", SquaredLinf(), x, (-1, 1)).boxed == pytest.approx((1.8**2 + 1.5**2) / 2)
    # l_2 of size 1.8 in the first sample, p < 2: the second coordinate stops at 1, the first takes the rest.
    spread = (1 + (1.8**2 - 1) ** 0.75) ** (4 / 3)
    free = 2 ** (1 / 3) * 1.8**2
    assert covering_radius(1.8, "2", SquaredLp(1.5), x, (-1, 1)).boxed == pytest.approx((spread + free) / 2)
    assert covering_radius(1.8, "2", None, x).boxed is None
