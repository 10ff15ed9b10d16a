"""Intervals of errors and of paired differences against closed forms and simulated samples."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rhobust.evaluation.intervals import difference, interval, packed, unpacked

Z = 1.959963984540054


@pytest.mark.parametrize(("wrong", "samples"), [(0, 10), (1, 10), (5, 10), (10, 10), (37, 500), (9999, 10000)])
def test_the_ends_are_where_the_error_lies_two_deviations_away(wrong: int, samples: int) -> None:
    """Wilson's ends p solve |error - p| = z sqrt(p (1 - p) / n)."""
    error = wrong / samples
    low, high = interval(error, samples)
    for end in (low, high):
        if 0 < end < 1:
            assert abs(error - end) == pytest.approx(Z * math.sqrt(end * (1 - end) / samples), rel=1e-9)
    assert (low == 0) == (wrong == 0)
    assert (high == 1) == (wrong == samples)
    assert low <= error <= high


@pytest.mark.parametrize("p", [0.02, 0.3, 0.8])
def test_it_covers_the_truth_as_often_as_it_says(p: float) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.rand(4000, 200, generator=generator) < p).double().mean(1)
    covered = [low <= p <= high for low, high in (interval(float(error), 200) for error in drawn)]
    assert 0.93 < sum(covered) / len(covered) < 0.985


def test_a_paired_difference_is_that_of_agresti_and_min() -> None:
    only_first, only_second, same = 30, 12, 158
    first = torch.tensor([True] * only_first + [False] * only_second + [True] * same)
    second = torch.tensor([False] * only_first + [True] * only_second + [True] * same)
    count = only_first + only_second + same
    middle, low, high = difference(first, second)
    center = (only_first - only_second) / (count + 2)
    half = Z * math.sqrt((only_first + only_second + 1) - (only_first - only_second) ** 2 / (count + 2)) / (count + 2)
    assert middle == pytest.approx((only_first - only_second) / count)
    assert low == pytest.approx(center - half)
    assert high == pytest.approx(center + half)


def test_pairing_tells_apart_what_two_intervals_do_not() -> None:
    first = torch.arange(500) < 150
    second = torch.arange(500) < 130  # wrong on a part of the same samples
    assert interval(0.3, 500)[0] < interval(0.26, 500)[1]  # they overlap
    assert difference(first, second)[1] > 0


def test_seeds_are_averaged_for_each_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.rand(2, 3, 100, generator=generator) < 0.4).unbind()
    middle, low, high = difference(first, second)
    assert middle == pytest.approx(float(first.double().mean() - second.double().mean()))
    assert low < middle < high


@settings(deadline=None, derandomize=True)
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_what_is_packed_comes_back(wrong: list[bool]) -> None:
    assert unpacked(packed(torch.tensor(wrong)), len(wrong)).tolist() == wrong
