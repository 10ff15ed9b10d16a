"""Weighted samples: the objective of a weighted empirical distribution, by hand and by its laws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rhobust
from rhobust.ascent import Ball, Identity, Maximizer, Oracle, PenalizedAscent
from rhobust.costs import SquaredL2
from rhobust.errors import DataError
from rhobust.losses import cross_entropy, squared_error
from rhobust.objective import RobustObjective
from rhobust.sample_weights import weighted_mean
from rhobust.surrogate import Surrogate
from tests.problems import known

MAXIMIZERS: list[Maximizer] = [PenalizedAscent(steps=2), Oracle(accuracy=1e-5), Ball(0.3), Identity()]


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def samples(count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(count)
    return torch.randn(count, 3, generator=draws, dtype=dtype), torch.randint(3, (count,), generator=draws)


def taken(
    x: Tensor, y: Tensor, weight: Tensor | None, maximizer: Maximizer, **options: Any
) -> tuple[Surrogate, list[Tensor]]:
    """The surrogate and the gradients in theta and gamma."""
    objective = RobustObjective(network(x.dtype), cross_entropy, radius=0.3, gamma=2.5, maximizer=maximizer, **options)
    surrogate = objective(x, y, weight=weight)
    surrogate.value.backward()
    return surrogate, [known(p.grad) for p in objective.parameters() if p.grad is not None]


def test_one_step_is_the_one_by_hand() -> None:
    """(y - theta x)^2 at one step of length 1 / (2 gamma) up the loss, weights 3 and 1; every number written out."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.5)
    x, y = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[0.0], [3.0]]).double()
    objective = RobustObjective(
        model, squared_error, radius=0.5, gamma=2.0, maximizer=PenalizedAscent(), cost=SquaredL2()
    )
    surrogate = objective(x, y, weight=torch.tensor([3.0, 1.0]))
    surrogate.value.backward()

    theta, gamma, rho = 0.5, 2.0, 0.5
    zeta, cost, loss, slope = [], [], [], []
    for z, label in ((1.0, 0.0), (2.0, 3.0)):
        moved = z + 2 * (theta * z - label) * theta / (2 * gamma)
        zeta.append(moved)
        cost.append((moved - z) ** 2)
        loss.append((theta * moved - label) ** 2)
        slope.append(2 * (theta * moved - label) * moved)
    spent = (3 * cost[0] + cost[1]) / 4
    assert surrogate.zeta.flatten().tolist() == pytest.approx(zeta)
    assert surrogate.cost.tolist() == pytest.approx(cost)  # of each sample, as it is
    assert surrogate.rho_eff == pytest.approx(spent)
    assert float(surrogate.value.detach()) == pytest.approx((3 * loss[0] + loss[1]) / 4 + gamma * (rho - spent))
    assert float(known(objective.gamma.grad)) == pytest.approx(rho - spent)
    assert float(known(model.weight.grad)) == pytest.approx((3 * slope[0] + slope[1]) / 4)


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 4), min_size=2, max_size=6).filter(any),
    which=st.integers(0, len(MAXIMIZERS) - 1),
    temper=st.sampled_from([0.0, 0.5]),
)
def test_whole_weights_are_repeated_samples(counts: list[int], which: int, temper: float) -> None:
    x, y = samples(len(counts))
    times = torch.tensor(counts)
    one, gradients = taken(x, y, times, MAXIMIZERS[which], temper=temper)
    other, expected = taken(
        x.repeat_interleave(times, 0), y.repeat_interleave(times), None, MAXIMIZERS[which], temper=temper
    )
    torch.testing.assert_close(one.value, other.value, rtol=1e-12, atol=1e-12)
    assert one.rho_eff == pytest.approx(other.rho_eff, rel=1e-12)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 130),
    weight=st.floats(1e-30, 1e30) | st.integers(1, 2**40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equal_weights_are_none_to_the_bit(count: int, weight: float, dtype: torch.dtype) -> None:
    x, y = samples(count, dtype)
    one, gradients = taken(x, y, torch.full((count,), weight), PenalizedAscent())
    other, expected = taken(x, y, None, PenalizedAscent())
    assert torch.equal(one.value, other.value)
    assert one.rho_eff == other.rho_eff
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def test_only_ratios_of_weights_count_and_their_precision_is_their_own() -> None:
    values = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    weight = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    expected = float((weight.double() * values).sum() / weight.double().sum())
    for same in (weight, weight.double() * 1e200, weight * 1e-30, weight.double() * 1e-300):
        found = weighted_mean(values, same)
        assert found.dtype == values.dtype
        assert float(found) == pytest.approx(expected, rel=1e-6)
    half = weighted_mean(values, (60000 * weight).half())  # their sum is beyond float16
    assert float(half) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(3), r"weights must be .* tensor \(4,\), one for each sample, not torch.float32 of shape \(3,\)"),
        ([1.0, 1.0, 1.0, 1.0], "not list"),
        (torch.ones(4, dtype=torch.complex64), "not torch.complex64"),
        (torch.tensor([1.0, -0.5, 1.0, 1.0]), "that of sample 1 is -0.5"),
        (torch.tensor([1.0, 1.0, 1.0, torch.nan]), "that of sample 3 is nan"),
        (torch.tensor([1.0, 1.0, torch.inf, 1.0]), "that of sample 2 is inf"),
        (torch.zeros(4), "all 4 weights of samples are 0"),
    ],
)
def test_what_is_no_weight_is_refused(weight: Any, message: str) -> None:
    objective = rhobust.RobustObjective(network(), cross_entropy, radius=0.3)
    x, y = samples(4)
    with pytest.raises(DataError, match=message):
        objective(x, y, weight=weight)
    with pytest.raises(DataError, match=message):
        objective.check(x, y, weight)
