"""Laws of aggregation: symmetry, equivariance, weights as repetitions, optimality, limits of Byzantine workers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rhobust.federation.aggregators import Aggregator, Clipped, GeometricMedian, Mean, Median, MultiKrum, TrimmedMean

law = settings(deadline=None, derandomize=True, max_examples=60)
SEEDS = st.integers(0, 10**6)
SIZES = st.integers(1, 8)
RULES: list[Aggregator] = [Mean(), Median(), TrimmedMean(2), GeometricMedian(1e-11, 20_000), MultiKrum(2)]
EVERY = st.sampled_from([*RULES, *(Clipped(rule) for rule in RULES)])
FACTORS = st.floats(1e-3, 1e3).flatmap(lambda size: st.sampled_from([size, -size]))
SCALES = st.sampled_from([1.0, 1e3, 1e30])


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uploads(workers: int, size: int, seed: int, coarse: bool = False) -> tuple[Tensor, Tensor]:
    """Vectors and weights; coarse ones have many ties and equal weights."""
    random = draws(seed)
    vectors = torch.randn(workers, size, generator=random, dtype=torch.float64)
    weights = torch.rand(workers, generator=random, dtype=torch.float64) + 0.1
    return ((2 * vectors).round(), torch.ones(workers)) if coarse else (vectors, weights)


def rotation(size: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=draws(seed), dtype=torch.float64)).Q


def close(found: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * scale)


@law
@given(rule=EVERY, workers=st.integers(7, 12), size=SIZES, seed=SEEDS, coarse=st.booleans())
def test_the_order_of_the_workers_does_not_matter(
    rule: Aggregator, workers: int, size: int, seed: int, coarse: bool
) -> None:
    vectors, weights = uploads(workers, size, seed, coarse)
    order = torch.randperm(workers, generator=draws(seed + 1))
    close(rule(vectors[order], weights[order]), rule(vectors, weights))
    assert torch.equal(rule(vectors, weights), rule(vectors, weights))


@law
@given(workers=st.integers(5, 9), size=SIZES, seed=SEEDS)
def test_ties_between_different_weights_do_not_bring_the_order_back(workers: int, size: int, seed: int) -> None:
    vectors, _ = uploads(workers, size, seed, coarse=True)
    weights = torch.randint(1, 4, (workers,), generator=draws(seed)).double()
    order = torch.randperm(workers, generator=draws(seed + 1))
    for rule in (Median(), TrimmedMean(1), TrimmedMean(2)):
        close(rule(vectors[order], weights[order]), rule(vectors, weights))


@law
@given(
    rule=st.sampled_from(RULES),
    size=SIZES,
    seed=SEEDS,
    factor=FACTORS,
    shift=st.floats(-100, 100),
)
def test_what_is_moved_and_scaled_before_is_moved_and_scaled_after(
    rule: Aggregator, size: int, seed: int, factor: float, shift: float
) -> None:
    vectors, weights = uploads(9, size, seed)
    close(rule(factor * vectors + shift, weights), factor * rule(vectors, weights) + shift, abs(factor) + abs(shift))


@law
@given(rule=EVERY, size=SIZES, seed=SEEDS, factor=FACTORS, unit=st.floats(1e-3, 1e3))
def test_clipped_or_not_the_units_of_uploads_and_weights_do_not_matter(
    rule: Aggregator, size: int, seed: int, factor: float, unit: float
) -> None:
    vectors, _ = uploads(9, size, seed)
    weights = torch.ones(9)  # unequal ones would tell apart the numbers that clipping makes equal, and trimming drops
    close(rule(factor * vectors, unit * weights), factor * rule(vectors, weights), abs(factor))


@law
@given(
    rule=st.sampled_from([Mean(), GeometricMedian(1e-11, 20_000), MultiKrum(2), Clipped(MultiKrum(3))]),
    size=SIZES,
    seed=SEEDS,
)
def test_what_is_turned_before_is_turned_after(rule: Aggregator, size: int, seed: int) -> None:
    vectors, weights = uploads(9, size, seed)
    turn = rotation(size, seed + 1)
    close(rule(vectors @ turn, weights), rule(vectors, weights) @ turn)


@law
@given(rule=EVERY, workers=st.integers(7, 12), size=SIZES, seed=SEEDS, scale=st.sampled_from([1e-20, 1.0, 1e20]))
def test_where_all_agree_that_is_the_answer(rule: Aggregator, workers: int, size: int, seed: int, scale: float) -> None:
    vectors, weights = uploads(workers, size, seed)
    same = scale * vectors[:1].expand(workers, size)
    torch.testing.assert_close(rule(same, weights), same[0], rtol=1e-12, atol=0)


@law
@given(
    rule=st.sampled_from([Mean(), Median(), GeometricMedian(1e-11, 20_000), Clipped(Mean()), Clipped(Median())]),
    size=SIZES,
    seed=SEEDS,
    coarse=st.booleans(),
    data=st.data(),
)
def test_a_weight_is_a_number_of_workers(
    rule: Aggregator, size: int, seed: int, coarse: bool, data: st.DataObject
) -> None:
    vectors, _ = uploads(5, size, seed, coarse)
    times = torch.tensor(data.draw(st.lists(st.integers(1, 4), min_size=5, max_size=5)))
    close(rule(vectors, times), rule(vectors.repeat_interleave(times, 0), torch.ones(int(times.sum()))))


@law
@given(workers=st.integers(1, 12), size=SIZES, seed=SEEDS, coarse=st.booleans(), scale=SCALES)
def test_nothing_pulls_at_a_geometric_median_harder_than_what_lies_there_holds(
    workers: int, size: int, seed: int, coarse: bool, scale: float
) -> None:
    vectors, weights = uploads(workers, size, seed, coarse)
    vectors[: (workers - 1) // 2] *= scale
    found, shares = GeometricMedian(1e-8, 20_000)(vectors, weights), weights / weights.sum()
    ways = vectors - found
    here = ways.norm(dim=1) <= 1e-12 * vectors.norm(dim=1)
    pull = (shares[~here, None] * ways[~here] / ways[~here].norm(dim=1, keepdim=True)).sum(0)
    assert pull.norm() <= shares[here].sum() + 1e-6


def attacked(
    workers: int, byzantine: int, size: int, seed: int, scale: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The honest uploads, and all uploads in some order; the Byzantine ones agree or not, and go far or not."""
    honest = torch.randn(workers - byzantine, size, generator=draws(seed), dtype=torch.float64) + 3
    bad = scale * torch.randn(byzantine, size, generator=draws(seed + 1), dtype=torch.float64)
    if seed % 2:
        bad[:] = bad[:1]
    order = torch.randperm(workers, generator=draws(seed + 2))
    return honest.to(dtype), torch.cat([honest, bad])[order].to(dtype)


@law
@given(byzantine=st.integers(1, 4), more=st.integers(1, 4), size=SIZES, seed=SEEDS, scale=SCALES, single=st.booleans())
def test_coordinates_stay_between_honest_ones(
    byzantine: int, more: int, size: int, seed: int, scale: float, single: bool
) -> None:
    honest, every = attacked(
        2 * byzantine + more, byzantine, size, seed, scale, torch.float32 if single else torch.float64
    )
    low, high = honest.amin(0), honest.amax(0)
    slack = 4 * torch.finfo(honest.dtype).eps * honest.abs().amax(0)
    for rule in (Median(), TrimmedMean(byzantine)):
        found = rule(every, torch.ones(len(every)))
        assert (found >= low - slack).all()
        assert (found <= high + slack).all()


@law
@given(byzantine=st.integers(1, 4), more=st.integers(1, 4), size=SIZES, seed=SEEDS, scale=SCALES, single=st.booleans())
def test_the_geometric_median_stays_near_the_honest(
    byzantine: int, more: int, size: int, seed: int, scale: float, single: bool
) -> None:
    workers = 2 * byzantine + more
    honest, every = attacked(workers, byzantine, size, seed, scale, torch.float32 if single else torch.float64)
    center = honest.mean(0)
    reach = 2 * (workers - byzantine) / (workers - 2 * byzantine) * (honest - center).norm(dim=1).max()
    assert (GeometricMedian()(every, torch.ones(workers)) - center).norm() <= reach


@law
@given(byzantine=st.integers(1, 4), more=st.integers(3, 5), size=SIZES, seed=SEEDS, scale=SCALES, single=st.booleans())
def test_what_is_clipped_is_no_longer_than_the_longest_honest_upload(
    byzantine: int, more: int, size: int, seed: int, scale: float, single: bool
) -> None:
    honest, every = attacked(
        2 * byzantine + more, byzantine, size, seed, scale, torch.float32 if single else torch.float64
    )
    for rule in (Mean(), GeometricMedian(), MultiKrum(byzantine)):  # convex combinations of what they are given
        found = Clipped(rule)(every, torch.ones(len(every)))
        assert found.norm() <= honest.norm(dim=1).max() * (1 + 1e-6)


@law
@given(byzantine=st.integers(1, 4), more=st.integers(3, 6), size=SIZES, seed=SEEDS, scale=st.sampled_from([1e3, 1e30]))
def test_krum_keeps_the_honest_when_they_are_of_one_mind(
    byzantine: int, more: int, size: int, seed: int, scale: float
) -> None:
    honest, every = attacked(2 * byzantine + more, byzantine, size, seed, 1.0, torch.float64)
    bad = ~(every[:, None] == honest).all(2).any(1)
    every[bad] = scale * (1 + every[bad].abs())  # all in one corner, or not
    found = MultiKrum(byzantine)(every, torch.ones(len(every)))
    torch.testing.assert_close(found, honest.mean(0))


@pytest.mark.parametrize("scale", [1e3, 1e30, 3e38])
def test_one_byzantine_worker_moves_the_mean_anywhere_and_no_robust_rule(scale: float) -> None:
    vectors = torch.randn(10, 5, generator=draws(0))
    expected = vectors[1:].mean(0)
    vectors[0] = scale
    weights = torch.ones(10)
    assert (Mean()(vectors, weights) > scale / 20).all()
    for rule in (Median(), TrimmedMean(1), GeometricMedian(), MultiKrum(1), Clipped(Mean()), Clipped(MultiKrum(1))):
        found = rule(vectors, weights)
        assert math.isfinite(found.sum())
        assert (found.double() - expected).norm() < 1.5, rule
