"""What a box or a cost does not let move, nothing moves: attacks, ascents, noise, certificates and shifts."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rhobust import Box, RobustObjective, certify, evaluate
from rhobust.ascent import Ball, ErrorAscent, MarginAscent, Maximizer, Oracle, PenalizedAscent
from rhobust.attacks.attack import ATTACKS, attack
from rhobust.attacks.cascade import CASCADES
from rhobust.box import limits
from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp, Weighted
from rhobust.data.samples import DataSet, Samples
from rhobust.errors import DataError, Refused
from rhobust.evaluation.corruptions import CORRUPTIONS
from rhobust.evaluation.shifts import _corruption
from rhobust.losses import cross_entropy

MAXIMIZERS: list[Maximizer] = [
    Ball(0.4, steps=2, random_start=True),
    Ball(0.4, 2, steps=2, random_start=True),
    PenalizedAscent(steps=2),
    PenalizedAscent(steps=2, eta=0.5),
    MarginAscent(steps=2),
    ErrorAscent(steps=2),
    Oracle(max_steps=4),
]
COSTS: list[Cost] = [SquaredL2(), SquaredLp(1.5), SquaredLinf()]


def model(features: int, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@st.composite
def problems(draw: st.DrawFn) -> tuple[nn.Module, Tensor, Tensor, Box]:
    """A model, samples in a box whose features have bounds of their own, some of them fixed."""
    features, seed = draw(st.integers(2, 6)), draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, features, dtype=torch.float64, generator=generator)
    fixed = torch.rand(features, generator=generator) < 0.4
    fixed[draw(st.integers(0, features - 1))] = False
    room = torch.rand(2, features, dtype=torch.float64, generator=generator)
    room[:, torch.rand(features, generator=generator) < 0.2] = 0  # bounds that leave no room at all
    box = Box(x.amin(0) - room[0], x.amax(0) + room[1], fixed)
    return model(features, seed), x, torch.randint(3, (6,), generator=generator), box


def valid(z: Tensor, zeta: Tensor, box: Box) -> bool:
    assert isinstance(box.lower, Tensor)
    assert isinstance(box.upper, Tensor)
    assert box.fixed is not None
    lower, upper = box.lower.to(zeta), box.upper.to(zeta)
    return bool(((zeta >= lower) & (zeta <= upper)).all() and (zeta == z)[:, box.fixed].all())


@settings(max_examples=25, deadline=None)
@given(problems(), st.sampled_from([*ATTACKS, *CASCADES]))
def test_every_attack_returns_valid_rows(problem: tuple[nn.Module, Tensor, Tensor, Box], name: str) -> None:
    network, x, y, box = problem
    found = evaluate(
        network, (x, y), bounds=box, attacks=[name], epsilons=[0.5], budgets=[0.3], keep=True, checks=False
    )
    for by_epsilon in found.examples.values():
        for zeta in by_epsilon.values():
            assert valid(x, zeta, box)
    assert all(cell.discarded == 0 for cell in found.attacked)


@settings(max_examples=60, deadline=None)
@given(
    problems(),
    st.sampled_from(MAXIMIZERS),
    st.sampled_from(COSTS),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
    st.booleans(),
)
def test_every_ascent_keeps_to_the_box(
    problem: tuple[nn.Module, Tensor, Tensor, Box],
    maximizer: Maximizer,
    cost: Cost,
    by_price: bool,
    noise: float,
    started: bool,
) -> None:
    network, x, y, box = problem
    assert box.fixed is not None
    bounds = box
    if by_price:  # the same features stay because their price is infinite
        weights = torch.rand(x.shape[1], dtype=torch.float64) + 0.5
        cost, bounds = Weighted(cost, weights.masked_fill(box.fixed, math.inf)), Box(box.lower, box.upper)
    objective = RobustObjective(
        network, cross_entropy, radius=1.0, gamma=0.1, cost=cost, maximizer=maximizer, bounds=bounds, noise=noise
    )
    start = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) if started else None
    found = objective(x, y, start)
    assert valid(x, found.zeta, box)
    assert valid(x, found.center, box)
    assert found.cost.isfinite().all()


@settings(max_examples=25, deadline=None)
@given(problems(), st.sampled_from(["gaussian-noise", "impulse-noise"]), st.integers(1, 5))
def test_every_shift_keeps_to_the_box(
    problem: tuple[nn.Module, Tensor, Tensor, Box], shift: str, severity: int
) -> None:
    _, x, y, box = problem
    data = DataSet("rows", Samples(x, y), Samples(x, y), box, 3)
    zeta = _corruption(shift, severity, data.bounds, 0)(x)
    assert valid(x, zeta, box)
    assert not CORRUPTIONS[shift].images_only


@settings(max_examples=8, deadline=None)
@given(problems())
def test_a_certificate_in_a_box_is_at_most_one_without_and_spends_where_it_may(
    problem: tuple[nn.Module, Tensor, Tensor, Box],
) -> None:
    network, x, y, box = problem
    assert box.fixed is not None
    (inside,) = certify(network, (x, y), radii=[0.2], bounds=box)
    # Literally: a model of the features that may move, at the values that the others have.
    moving = ~box.fixed

    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, part: Tensor) -> Tensor:
            found: Tensor = self.network(x.index_copy(1, moving.nonzero()[:, 0], part))
            return found

    assert isinstance(box.lower, Tensor)
    assert isinstance(box.upper, Tensor)
    alone = Box(box.lower[moving], box.upper[moving])
    (other,) = certify(Moving(), (x[:, moving], y), radii=[0.2], bounds=alone)
    assert inside.attained == pytest.approx(other.attained, rel=1e-3)
    assert inside.bound == pytest.approx(other.bound, rel=1e-3)


@pytest.mark.parametrize("cost", COSTS, ids=["l2", "lp", "linf"])
def test_a_regression_with_fixed_features_has_its_exact_worst_case(cost: Cost) -> None:
    # (sqrt(M) + sqrt(rho) ||theta||_*)^2 with the slopes of the features that move, in the units of their prices
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn(50, 4, dtype=torch.float64, generator=generator),
        torch.randn(50, 1, generator=generator).double(),
    )
    linear = nn.Linear(4, 1).double()
    squared = nn.MSELoss(reduction="none")
    flat, y = nn.Sequential(linear, nn.Flatten(0)), y[:, 0]
    fixed, weights = torch.tensor([False, True, False, False]), torch.tensor([4.0, 1.0, 0.25, 1.0]).double()
    mean = squared(flat(x), y).mean().sqrt().detach()
    slope = linear.weight.detach()
    for priced, box, pull in (
        (cost, Box(fixed=fixed), slope * ~fixed),
        (Weighted(cost, weights), Box(fixed=fixed), slope / weights.sqrt() * ~fixed),
        (Weighted(cost, weights.masked_fill(fixed, math.inf)), None, slope / weights.sqrt() * ~fixed),
    ):
        (found,) = certify(flat, (x, y), loss=squared, radii=[0.3], cost=priced, bounds=box)
        exact = (mean + math.sqrt(0.3) * cost.dual_norm(pull)) ** 2
        assert found.status == "proved"
        assert found.bound == pytest.approx(float(exact), rel=1e-7)
        assert found.attained == pytest.approx(float(exact), rel=1e-7)


@given(st.integers(0, 1000), st.sampled_from(COSTS))
@settings(max_examples=40, deadline=None)
def test_a_weighted_cost_is_the_other_cost_of_scaled_features(seed: int, cost: Cost) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(5, generator=generator).double() + 0.1
    root, weighted = weights.sqrt(), Weighted(cost, weights)
    z, zeta, slope = torch.randn(3, 4, 5, generator=generator).double()
    gamma, lower, upper = torch.tensor(0.3).double(), -torch.rand(4, 5).double(), torch.rand(4, 5).double()
    close = torch.testing.assert_close
    close(weighted(z, zeta), cost(z * root, zeta * root))
    close((slope * weighted.direction(slope)).sum(1), weighted.dual_norm(slope))
    close(weighted.norm(weighted.direction(slope)), torch.ones(4).double())
    close(weighted.response(slope, gamma, None, None), cost.response(slope / root, gamma, None, None) / root)
    boxed = cost.response(slope / root, gamma, lower * root, upper * root) / root
    close(weighted.response(slope, gamma, lower, upper), boxed)
    close(weighted.gradient(slope), root * cost.gradient(root * slope))
    assert weighted.kappa == cost.kappa == math.inf


def test_a_curvature_bound_holds_in_the_units_of_a_weighted_cost() -> None:
    # A feature that is cheap to move goes far: in units of its price the loss bends more.
    x = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    linear = nn.Linear(3, 3).double()
    cost = Weighted(SquaredL2(), torch.tensor([0.01, 1.0, 4.0]).double())
    for radius in (0.01, 0.1):
        (found,) = certify(linear, (x, y), radii=[radius], cost=cost)
        objective = RobustObjective(
            linear, cross_entropy, radius=radius, cost=cost, maximizer=Oracle(max_steps=300), gamma=found.gamma
        )
        zeta = objective.maximum(x, y).zeta
        value = (cross_entropy(linear(zeta), y) + found.gamma * (radius - cost(x, zeta))).mean()
        assert found.status == "proved"
        assert float(value.detach()) <= found.bound + 1e-9


def test_an_image_has_fixed_pixels_and_the_square_attack_leaves_them() -> None:
    x = torch.zeros(4, 1, 6, 6)
    fixed = torch.zeros(1, 6, 6, dtype=torch.bool)
    fixed[:, :3] = True
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    for name in ("square", "pgd"):
        found = attack(
            network, x, torch.tensor([0, 1, 0, 1]), ATTACKS[name](0.3), loss=cross_entropy, bounds=Box(-1, 1, fixed)
        )
        assert (found.zeta[:, :, :3] == 0).all()
        assert found.zeta.abs().max() > 0


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "shapes": (
        lambda: Box(torch.zeros(2), torch.ones(3)),
        Refused,
        r"must have the shape of one sample, not \[\(2,\), \(3,\)\]",
    ),
    "order": (
        lambda: Box(torch.tensor([0.0, 2.0]), 1.0),
        Refused,
        "lower must be at most upper, and is not at feature 1",
    ),
    "nan": (lambda: Box(torch.tensor([0.0, math.nan])), Refused, "feature 1"),
    "kind": (lambda: Box(cast(Any, "a")), Refused, "bounds are numbers or tensors"),
    "fixed": (lambda: Box(fixed=torch.tensor([0, 1])), Refused, "a tensor of True and False"),
    "other shape": (
        lambda: limits(Box(torch.zeros(2)), torch.zeros(4, 3)),
        Refused,
        r"shape \(2,\), and a sample .*\(3,\)",
    ),
    "outside": (
        lambda: evaluate(
            model(2, 0), (torch.ones(3, 2).double(), torch.zeros(3).long()), bounds=Box(torch.tensor([0.0, 2.0]))
        ),
        DataError,
        "feature 1 of x runs from 1 to 1, outside its bounds 2 to inf",
    ),
    "weights of a kind": (lambda: Weighted(SquaredL2(), cast(Any, [1.0])), Refused, "made of a cost and a tensor"),
    "weights below 0": (lambda: Weighted(SquaredL2(), torch.tensor([-1.0])), Refused, "numbers above 0"),
    "weights nan": (lambda: Weighted(SquaredL2(), torch.tensor([math.nan])), Refused, "numbers above 0"),
    "nothing moves": (lambda: Weighted(SquaredL2(), torch.tensor([math.inf])), Refused, "nothing can move"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_box_is_refused(case: str) -> None:
    work, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        work()


def test_tensors_as_bounds_are_told_of_the_box_without_being_printed() -> None:
    with pytest.raises(Refused, match=r"or a rhobust\.Box with bounds of each feature, not Tensor and Tensor") as told:
        RobustObjective(nn.Linear(2, 2), cross_entropy, radius=1.0, bounds=(torch.zeros(2), torch.ones(2)))  # type: ignore[arg-type]
    assert len(str(told.value)) < 200


def test_a_box_of_equal_numbers_is_the_pair_of_them() -> None:
    network, x, y = model(4, 3), torch.rand(20, 4, dtype=torch.float64), torch.arange(20) % 3
    for maximizer in (Oracle(), ErrorAscent(steps=3), Ball(0.3)):
        pair, box = (
            RobustObjective(network, cross_entropy, radius=1.0, gamma=0.05, maximizer=maximizer, bounds=bounds)(x, y)
            for bounds in ((0.0, 1.0), Box(torch.zeros(4), torch.ones(4)))
        )
        np.testing.assert_array_equal(pair.zeta.numpy(), box.zeta.numpy())
