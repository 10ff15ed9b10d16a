"""Aggregators: exact small answers, names, refusals, and a slow literal reference of each rule."""

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from rhobust.errors import ConfigError, Refused
from rhobust.federation.aggregators import (
    AGGREGATORS,
    Aggregator,
    Clipped,
    GeometricMedian,
    Mean,
    Median,
    MultiKrum,
    TrimmedMean,
    find_aggregator,
)


def draw(workers: int, size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(workers, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


# Slow references, in plain Python, one definition a function.
def literal_median(vectors: Tensor, weights: Tensor) -> list[float]:
    def of(values: list[tuple[float, float]]) -> float:
        total = sum(weight for _, weight in values)
        fit = [
            value
            for value, _ in values
            if sum(w for v, w in values if v < value) <= total / 2
            and sum(w for v, w in values if v > value) <= total / 2
        ]
        return (min(fit) + max(fit)) / 2

    return [of(list(zip(values, weights.tolist(), strict=True))) for values in vectors.T.tolist()]


def literal_trimmed_mean(vectors: Tensor, weights: Tensor, byzantine: int) -> list[float]:
    found = []
    for values in vectors.T.tolist():
        rest = sorted(zip(values, weights.tolist(), strict=True))[byzantine : len(values) - byzantine]
        found.append(sum(v * w for v, w in rest) / sum(w for _, w in rest))
    return found


def literal_multi_krum(vectors: Tensor, weights: Tensor, byzantine: int, keep: int) -> Tensor:
    scores = []
    for k, v in enumerate(vectors):
        others = sorted(float((v - other).square().sum()) for j, other in enumerate(vectors) if j != k)
        scores.append(sum(others[: len(vectors) - byzantine - 2]))
    kept = sorted(range(len(vectors)), key=scores.__getitem__)[:keep]
    return (weights[kept, None] * vectors[kept]).sum(0) / weights[kept].sum()


@pytest.mark.parametrize("workers", [1, 2, 3, 6, 7, 12, 18])  # rounded, 6 of 12 are less than half, 9 of 18 more
@pytest.mark.parametrize("size", [1, 3, 20_000])  # beyond one block of coordinates
def test_the_median_of_equal_weights_is_that_of_statistics(workers: int, size: int) -> None:
    vectors = draw(workers, size, dtype=torch.float32)
    before = vectors.clone()
    found = Median()(vectors, torch.ones(workers))
    assert torch.equal(vectors, before)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[-3:], torch.tensor([median(values) for values in vectors.T[-3:].tolist()]))
    np.testing.assert_allclose(found, np.median(vectors.numpy(), axis=0), rtol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_every_rule_is_its_literal_definition(seed: int) -> None:
    vectors = draw(9, 4, seed).mul(2).round()  # with many ties
    weights = torch.randint(1, 5, (9,), generator=torch.Generator().manual_seed(seed)).double()
    assert Median()(vectors, weights).tolist() == literal_median(vectors, weights)
    for byzantine in range(5):
        found = TrimmedMean(byzantine)(vectors, weights).tolist()
        assert found == pytest.approx(literal_trimmed_mean(vectors, weights, byzantine))
    vectors = draw(9, 4, seed)  # without
    for byzantine, keep in ((0, None), (1, None), (3, None), (3, 1), (2, 5)):
        expected = literal_multi_krum(vectors, weights, byzantine, 9 - byzantine if keep is None else keep)
        torch.testing.assert_close(MultiKrum(byzantine, keep)(vectors, weights), expected)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [2, 5, 30])
def test_the_geometric_median_is_what_a_general_minimizer_finds(seed: int, size: int) -> None:
    vectors = draw(7, size, seed)
    weights = torch.rand(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    points, shares = vectors.numpy(), (weights / weights.sum()).numpy()

    def total(x: np.ndarray) -> float:
        return float(shares @ np.linalg.norm(points - x, axis=1))

    slow = minimize(total, points.mean(0), method="Powell", options={"xtol": 1e-10, "ftol": 1e-14, "maxiter": 20_000})
    found = GeometricMedian()(vectors, weights).numpy()
    assert total(found) <= slow.fun * (1 + 1e-12)
    np.testing.assert_allclose(found, slow.x, atol=2e-4)


def test_exact_geometric_medians() -> None:
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(GeometricMedian()(corners, torch.ones(4)), torch.full((2,), 0.5, dtype=torch.float64))
    # Fermat's point of an equilateral triangle is its center; with an angle of 120 degrees or more it is that corner.
    angles = torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64) * math.pi / 3
    triangle = torch.stack([angles.cos(), angles.sin()], 1)
    torch.testing.assert_close(GeometricMedian()(triangle + 5, torch.ones(3)), torch.full((2,), 5.0).double())
    flat = torch.tensor([[-3.0, 1.0], [0.0, 0.0], [2.0, 0.5]], dtype=torch.float64)
    assert torch.equal(GeometricMedian()(flat, torch.ones(3)), flat[1])
    # A worker with half of the weight, and workers that agree and have it together, are the answer themselves.
    assert torch.equal(GeometricMedian()(triangle, torch.tensor([1, 2, 1])), triangle[1])
    agreed = torch.cat([triangle, triangle[:1], triangle[:1]])
    torch.testing.assert_close(GeometricMedian()(agreed, torch.ones(5)), triangle[0], rtol=0, atol=1e-15)


def test_weiszfeld_leaves_a_point_that_is_no_minimizer() -> None:
    """The plain iteration divides by zero at the mean of these, which is one of them, or stays there for ever."""
    vectors = torch.tensor([[0.0, 0.0], [4.0, 0.0], [4.0, 3.0], [-8.0, -3.0]], dtype=torch.float64)
    assert torch.equal(vectors.mean(0), vectors[0])
    weights = torch.tensor([0.1, 5.0, 5.0, 5.0], dtype=torch.float64)
    found = GeometricMedian()(vectors, weights)
    ways = vectors - found
    pull = (weights[:, None] / weights.sum() * ways / ways.norm(dim=1, keepdim=True)).sum(0)
    assert pull.norm() <= 1e-8


@pytest.mark.parametrize("weight", [0.5, 0.7, 0.75])  # 0.758 would hold it
def test_a_step_from_a_point_goes_down_however_heavy_the_point(weight: float) -> None:
    """With all of the others' pull and none of its own weight, a heavy point would be left too far behind."""
    vectors = torch.tensor([[0.0, 0.0], [1.0, 9.0], [1.0, -9.0], [0.5, 1.0], [0.5, -1.0]], dtype=torch.float64)
    weights = torch.tensor([weight, 1.0, 1.0, 0.6, 0.6], dtype=torch.float64)
    totals = [float(weights @ (vectors - x).norm(dim=1)) for x in vectors]
    for steps in range(1, 20):
        found = GeometricMedian(1e-12, steps)(vectors, weights)
        totals.append(float(weights @ (vectors - found).norm(dim=1)))
        assert totals[-1] <= min(totals[:-1]) * (1 + 1e-14)


def test_on_a_line_every_geometric_median_is_the_median() -> None:
    for values in ((1.0,), (0.0, 4.0), (0.0, 1.0, 5.0), (5.0, 1.0, 0.0, 1e30), (2.0, 2.0, -1.0, 7.0, 9.0, 1e3)):
        found = GeometricMedian()(column(*values), torch.ones(len(values)))
        assert found.item() == pytest.approx(median(values), rel=1e-12)
    assert GeometricMedian()(column(0, 1, 5), torch.tensor([1, 2, 3])).item() == pytest.approx(3)


def test_more_steps_come_nearer_and_accuracy_ends_them() -> None:
    vectors, weights = draw(8, 6), torch.ones(8)
    best = GeometricMedian(1e-14, 10_000)(vectors, weights)
    away = [float((GeometricMedian(1e-14, steps)(vectors, weights) - best).norm()) for steps in (1, 3, 9, 27)]
    assert all(after < before for before, after in pairwise(away))
    loose = float((GeometricMedian(1e-3)(vectors, weights) - best).norm())
    assert 1e-7 < loose < 1e-1


def test_without_byzantine_workers_every_rule_is_the_mean() -> None:
    vectors, weights = draw(6, 50), torch.arange(1, 7)
    mean = (weights[:, None] / weights.sum() * vectors).sum(0)
    for rule in (Mean(), TrimmedMean(0), MultiKrum(0), Clipped(Mean(), norm=1e9)):
        torch.testing.assert_close(rule(vectors, weights), mean)


def test_workers_whose_scores_tie_share_the_last_places() -> None:
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [9.0, 9.0]])
    torch.testing.assert_close(MultiKrum(byzantine=1, keep=2)(square, torch.ones(5)), torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("workers", [7, 10])
def test_a_worker_that_multi_krum_leaves_out_does_not_matter(workers: int) -> None:
    vectors, weights = draw(workers, 5, seed=workers), torch.arange(1.0, workers + 1, dtype=torch.float64)
    found, left_out = MultiKrum(2).aggregate(vectors, weights)
    assert int(left_out.sum()) == 2
    torch.testing.assert_close(found, Mean()(vectors[~left_out], weights[~left_out]))
    assert torch.equal(found, MultiKrum(2)(vectors, weights))


def test_clipping_comes_before_the_choice_and_ties_leave_no_worker_out() -> None:
    points = torch.tensor([[1.0, 0.0], [9.0, 1.0], [1.0, 0.1], [0.0, 0.9], [1.0, 0.2]], dtype=torch.float64)
    assert MultiKrum(1).aggregate(points, torch.ones(5))[1].tolist() == [
        False,
        True,
        False,
        False,
        False,
    ]  # the longest
    clipped = Clipped(MultiKrum(1)).aggregate(points, torch.ones(5))[1]
    assert clipped.tolist() == [False, False, False, True, False]  # the one that points elsewhere
    assert not MultiKrum(1).aggregate(column(0, 1, 2, 3, 4), torch.ones(5))[1].any()  # the ends share a place
    for rule in (Mean(), Median(), TrimmedMean(1), GeometricMedian()):
        assert rule.aggregate(points, torch.ones(5))[1].tolist() == [False] * 5


def test_clipping_scales_what_is_too_long_and_nothing_else() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0], [-30.0, 40.0]], dtype=torch.float64)
    seen: list[Tensor] = []

    class Watch(Aggregator):
        def combined(self, vectors: Tensor, weights: Tensor) -> Tensor:
            seen.append(vectors)
            return vectors[0]

    Clipped(Watch(), norm=2.5)(vectors, torch.ones(4))
    Clipped(Watch())(vectors, torch.ones(4))  # the median of 0, 1, 5, 50 is 3
    Clipped(Watch())(vectors, torch.tensor([1, 1, 1, 5]))  # and here it is 50
    for found, limit in zip(seen, (2.5, 3, 50), strict=True):
        expected = [v * min(1.0, limit / (float(v.norm()) or 1.0)) for v in vectors]
        torch.testing.assert_close(found, torch.stack(expected))
    assert torch.equal(Clipped(Mean())(torch.zeros(3, 2), torch.ones(3)), torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 9000])
@pytest.mark.parametrize("spec", [f"{name}:2" if count else name for name, (count, _) in AGGREGATORS.items()])
def test_names_find_rules_that_keep_type_and_shape(spec: str, size: int, dtype: torch.dtype) -> None:
    rule = find_aggregator(spec)
    found = rule(draw(8, size, dtype=dtype), torch.ones(8))
    assert (found.shape, found.dtype) == ((size,), dtype)
    expected = find_aggregator(spec)(draw(8, size), torch.ones(8))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_names() -> None:
    assert find_aggregator("mean") == Mean()
    assert find_aggregator("trimmed-mean:3") == TrimmedMean(3)
    assert find_aggregator("multi-krum:2") == MultiKrum(2)
    assert find_aggregator("clipped-geometric-median") == Clipped(GeometricMedian())
    with pytest.raises(
        ConfigError, match=r"unknown aggregator 'meen' \(did you mean 'mean'\?\); known: mean.*clipped-m"
    ):
        find_aggregator("meen")
    for spec, message in {
        "trimmed-mean": "should read trimmed-mean:NUMBER",
        "median:3": "should read median",
        "trimmed-mean:x": "not a list of numbers",
        "trimmed-mean:1.5": "whole number, not 1.5",
        "multi-krum:nan": "whole number, not nan",
        "multi-krum:inf": "whole number, not inf",
        "clipped-multi-krum:-1": ">= 0, not -1",
    }.items():
        with pytest.raises(ConfigError, match=message):
            find_aggregator(spec)


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        (TrimmedMean(3), 7),
        (MultiKrum(3), 9),
        (MultiKrum(1, keep=6), 7),
        (MultiKrum(0), 3),
        (Clipped(TrimmedMean(2)), 5),
        (GeometricMedian(), 1),
    ],
)
def test_too_few_workers_are_refused_with_the_number_needed(rule: Aggregator, needed: int) -> None:
    rule(draw(needed, 2), torch.ones(needed))
    if needed > 1:
        with pytest.raises(Refused, match=rf"needs at least {needed} workers, and got the uploads of {needed - 1}"):
            rule(draw(needed - 1, 2), torch.ones(needed - 1))


@pytest.mark.parametrize(
    ("vectors", "weights", "message"),
    [
        (torch.ones(3), torch.ones(3), r"not \(3,\) and \(3,\)"),
        (torch.ones(3, 2), torch.ones(2), r"not \(3, 2\) and \(2,\)"),
        (torch.ones(0, 2), torch.ones(0), r"empty, not \(0, 2\)"),
        (torch.tensor([[1.0], [math.nan]]), torch.ones(2), "not finite"),
        (torch.tensor([[1.0], [-math.inf]]), torch.ones(2), "not finite"),
        (torch.ones(2, 2), torch.tensor([1.0, 0.0]), r"> 0, not \[1.0, 0.0\]"),
        (torch.ones(2, 2), torch.tensor([1.0, math.nan]), "> 0"),
    ],
)
def test_what_no_rule_can_use_is_refused(vectors: Tensor, weights: Tensor, message: str) -> None:
    with pytest.raises(Refused, match=message):
        Median()(vectors, weights)


@pytest.mark.parametrize(
    "build",
    [
        lambda: TrimmedMean(-1),
        lambda: MultiKrum(-1),
        lambda: MultiKrum(1, keep=0),
        lambda: GeometricMedian(accuracy=0),
        lambda: GeometricMedian(max_steps=0),
        lambda: Clipped(Mean(), norm=0),
        lambda: Clipped(Mean(), norm=math.inf),
    ],
)
def test_settings_without_a_meaning_are_refused(build: Callable[[], Aggregator]) -> None:
    with pytest.raises(Refused):
        build()


@pytest.mark.parametrize("spec", ["trimmed-mean:3", "multi-krum:3", "clipped-multi-krum:3"])
def test_a_rule_relaxed_by_the_dropped_workers_tolerates_that_many_fewer(spec: str) -> None:
    """Three of ten were dropped. Seven are left, too few to tolerate three more: the rule is the mean of all."""
    rule = find_aggregator(spec)
    assert rule.relaxed(2).min_workers < rule.min_workers
    vectors = torch.eye(7)
    assert torch.allclose(rule.relaxed(3)(vectors, torch.ones(7)), torch.full((7,), 1 / 7))
    assert rule.relaxed(5) == rule.relaxed(3)
    assert find_aggregator("median").relaxed(3) == find_aggregator("median")
