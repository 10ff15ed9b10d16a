"""Partitions: disjoint and complete, with the classes and sizes that their names promise, by the seed alone."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rhobust.data.partitions import PARTITIONS, find_partition, partition
from rhobust.errors import ConfigError, DataError

SPECS = ["iid", "one-class", "dirichlet:0.001", "dirichlet:0.5", "dirichlet:1e300", "sizes:zipf"]


def balanced(count: int, classes: int = 10) -> Tensor:
    return torch.arange(count) % classes


def proportions(shares: list[Tensor], labels: Tensor, classes: int = 10) -> np.ndarray:
    """The share of each class in each worker's samples: (workers, classes)."""
    counts = np.stack([np.bincount(labels[share].numpy(), minlength=classes) for share in shares])
    return counts / counts.sum(1, keepdims=True)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    spec=st.sampled_from(SPECS),
    names=st.lists(st.integers(-3, 40), min_size=1, max_size=12, unique=True),
    count=st.integers(1, 200),
    workers=st.integers(1, 60),
    seed=st.integers(0, 10**6),
)
def test_every_sample_has_one_worker_and_every_worker_a_sample(
    spec: str, names: list[int], count: int, workers: int, seed: int
) -> None:
    labels = torch.from_numpy(np.random.default_rng(seed).choice(names, count))
    if workers > count:
        with pytest.raises(ConfigError, match=rf"{workers} workers cannot share {count} samples"):
            partition(spec, labels, workers, seed)
        return
    present, sizes = labels.unique(return_counts=True)
    holders = torch.arange(workers).remainder(len(present)).bincount(minlength=len(present))
    if spec == "one-class" and workers > len(present) and (sizes < holders).any():
        with pytest.raises(ConfigError, match="too few"):
            partition(spec, labels, workers, seed)
        return
    shares = partition(spec, labels, workers, seed)
    assert len(shares) == workers
    assert all(len(share) for share in shares)
    assert all((share.diff() > 0).all() for share in shares)
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(count))
    again = partition(spec, labels, workers, seed)
    assert all(torch.equal(share, same) for share, same in zip(shares, again, strict=True))


@pytest.mark.parametrize("spec", SPECS)
def test_another_seed_is_another_partition(spec: str) -> None:
    labels = balanced(2000)
    first, second = (torch.cat(partition(spec, labels, 20, seed)) for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("count", "workers"), [(100, 10), (103, 10), (7, 7), (60_000, 7)])
def test_iid_shares_are_equal_up_to_one_and_look_like_the_whole(count: int, workers: int) -> None:
    labels = balanced(count)
    shares = partition("iid", labels, workers, 0)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    if count == 60_000:
        assert np.abs(proportions(shares, labels) - 0.1).max() < 5 * np.sqrt(0.09 / min(sizes))


def test_one_class_is_one_class() -> None:
    labels = torch.tensor([5, 5, 5, 5, 7, 7, 7, 9, 9]).repeat(10)
    shares = partition("one-class", labels, 8, 0)
    for worker, share in enumerate(shares):
        assert labels[share].unique().tolist() == [[5, 7, 9][worker % 3]]
    assert [len(share) for share in shares] == [14, 10, 10, 13, 10, 10, 13, 10]


def test_with_fewer_workers_than_classes_each_has_whole_classes() -> None:
    labels = balanced(100)
    shares = partition("one-class", labels, 4, 0)
    assert [labels[share].unique().tolist() for share in shares] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert [len(share) for share in shares] == [30, 30, 20, 20]


def test_a_class_that_is_too_small_for_its_workers_is_named() -> None:
    labels = torch.tensor([0] * 10 + [4])
    with pytest.raises(ConfigError, match="class 4 has 1 samples, too few for 2 workers"):
        partition("one-class", labels, 4, 0)


def test_dirichlet_is_skewed_for_a_small_alpha_and_even_for_a_large_one() -> None:
    labels = balanced(20_000)
    owners = torch.empty_like(labels)
    largest = []  # part of a class that a single worker has, on average over the classes
    for alpha in (0.01, 0.3, 3, 1e6):
        for worker, share in enumerate(partition(f"dirichlet:{alpha}", labels, 10, 0)):
            owners[share] = worker
        largest.append(np.mean([owners[labels == name].bincount().max() / 2000 for name in range(10)]))
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 0.9
    assert largest[-1] == pytest.approx(0.1, abs=2e-3)
    sizes = [len(share) for share in partition("dirichlet:1e6", labels, 10, 0)]
    assert max(sizes) - min(sizes) < 20_000 * 0.01


def test_dirichlet_shares_have_the_stated_moments() -> None:
    """A worker's part of a class has mean 1 / W and variance (W - 1) / (W^2 (W alpha + 1))."""
    labels, workers, alpha = balanced(200_000, 100), 5, 0.7
    shares = partition(f"dirichlet:{alpha}", labels, workers, 3)
    parts = np.stack([np.bincount(labels[share].numpy(), minlength=100) for share in shares]) / 2000  # (W, classes)
    assert parts.var() == pytest.approx((workers - 1) / workers**2 / (workers * alpha + 1), rel=0.15)


def test_a_worker_left_with_nothing_gets_a_sample_from_the_largest() -> None:
    labels = torch.zeros(100, dtype=torch.long)  # for so small an alpha, one worker gets the class
    sizes = sorted(len(share) for share in partition("dirichlet:1e-9", labels, 40, 0))
    assert sizes == [1] * 39 + [61]
    assert [len(share) for share in partition("dirichlet:1e-9", labels, 100, 0)] == [1] * 100


def test_zipf_sizes_are_inverse_to_the_rank() -> None:
    labels = balanced(60_000)
    shares = partition("sizes:zipf", labels, 100, 0)
    ideal = 60_000 / np.arange(1, 101) / (1 / np.arange(1, 101)).sum()
    assert np.abs(np.array([len(share) for share in shares]) - ideal).max() <= 1
    assert np.abs(proportions(shares[:3], labels) - 0.1).max() < 5 * np.sqrt(0.09 / len(shares[2]))
    assert [len(share) for share in partition("sizes:zipf", balanced(11), 3, 0)] == [6, 3, 2]
    assert sorted(len(share) for share in partition("sizes:zipf", balanced(12), 10, 0)) == [1] * 8 + [2, 2]


@pytest.mark.parametrize("spec", SPECS)
def test_a_thousand_workers_are_served_at_once(spec: str) -> None:
    begin = time.perf_counter()
    partition(spec, balanced(60_000), 1000, 0)
    assert time.perf_counter() - begin < 5  # 0.2 s on an idle core


def test_names_and_numbers_nobody_knows() -> None:
    assert PARTITIONS == ("iid", "one-class", "dirichlet:ALPHA", "sizes:zipf")
    for spec in ("idd", "dirichlet", "sizes", "sizes:equal", "iid:3", "", "dirichlet:1:2"):
        with pytest.raises(ConfigError, match=rf"unknown partition '{spec}'.*known: iid, one-class, dirichlet:ALPHA"):
            find_partition(spec)
    for alpha in ("0", "-1", "nan", "inf", "x", ""):
        with pytest.raises(ConfigError, match=f"'dirichlet:{alpha}': ALPHA must be a finite number > 0"):
            find_partition(f"dirichlet:{alpha}")
    with pytest.raises(ConfigError) as caught:
        partition("iid", balanced(3), 0, -1)
    assert caught.value.problems == [
        "0 workers cannot share 3 samples: each needs one at least",
        "seed must be >= 0, not -1",
    ]


def test_labels_that_are_no_classes() -> None:
    targets = torch.linspace(0, 1, 10)
    for spec in ("one-class", "dirichlet:1"):
        with pytest.raises(DataError, match="needs classes, but the labels are of type float32"):
            partition(spec, targets, 2, 0)
    for spec in ("iid", "sizes:zipf"):
        assert torch.cat(partition(spec, targets, 2, 0)).sort().values.tolist() == list(range(10))
