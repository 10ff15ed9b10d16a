"""Batches from whatever holds the data; the same steps from each."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import rhobust
from rhobust.data.batches import batches_of
from rhobust.errors import DataError

CPU = torch.device("cpu")
X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Counting(Dataset[tuple[Tensor, Tensor]]):
    """Counts how many items were fetched at most between two batches."""

    def __init__(self) -> None:
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fetched.append(index)
        return X[index], Y[index]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Has no length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(list(zip(X, Y, strict=True)))


def test_an_epoch_is_a_permutation_decided_by_seed_and_number() -> None:
    batches = batches_of((X, Y), 16, seed=3, device=CPU)
    first = torch.cat([batch.x for batch in batches.epoch(0)])
    assert torch.equal(first.sort(0).values, X.sort(0).values)
    assert torch.equal(first, torch.cat([batch.x for batch in batches_of((X, Y), 16, 3, CPU).epoch(0)]))
    assert not torch.equal(first, torch.cat([batch.x for batch in batches.epoch(1)]))
    assert not torch.equal(first, torch.cat([batch.x for batch in batches_of((X, Y), 16, 4, CPU).epoch(0)]))


@pytest.mark.parametrize("data", [(X, Y), TensorDataset(X, Y)])
def test_a_full_batch_is_what_all_but_the_last_are(data: object) -> None:
    for size in (16, 1000):
        batches = batches_of(data, size, seed=0, device=CPU)
        assert batches.full == len(next(batches.epoch(0)).x)
    assert batches_of(DataLoader(TensorDataset(X, Y), 16), None, 0, CPU).full is None


@pytest.mark.parametrize("data", [(X, Y), TensorDataset(X, Y)])
def test_skipping_gives_the_rest_of_the_same_epoch(data: object) -> None:
    batches = batches_of(data, 16, seed=0, device=CPU)
    whole, rest = list(batches.epoch(2)), list(batches.epoch(2, skip=2))
    assert len(whole) == batches.steps() == 4
    for one, other in zip(whole[2:], rest, strict=True):
        assert torch.equal(one.x, other.x)


@pytest.mark.parametrize(
    "data", [(X.numpy(), Y.numpy()), [X, Y], TensorDataset(X, Y), (X.double().numpy(), Y.numpy().astype(np.int32))]
)
def test_tensors_arrays_and_datasets_give_the_same_batches(data: object) -> None:
    for (a, b, *_), (x, y, at, _) in zip(
        batches_of(data, 16, 7, CPU).epoch(1), batches_of((X, Y), 16, 7, CPU).epoch(1), strict=True
    ):
        assert torch.equal(a, x)
        assert torch.equal(b, y)
        assert at is not None
        assert torch.equal(x, X[at])


def test_a_dataset_is_streamed_batch_by_batch() -> None:
    data = Counting()
    epoch = batches_of(data, 10, 0, CPU).epoch(0)
    for number in (1, 2, 3):
        next(epoch)
        assert len(data.fetched) == 10 * number


def test_a_list_of_pairs_is_a_data_set_for_a_loader() -> None:
    pairs: Any = list(zip(X, Y, strict=True))
    x, y, *_ = next(batches_of(DataLoader(pairs, 50), None, 0, CPU).epoch(0))
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


@pytest.mark.parametrize("data", [Stream(), TensorDataset(X, Y)])
def test_fit_takes_a_loader_as_it_comes_with_or_without_a_length(data: Dataset[tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    trained = rhobust.fit(model, DataLoader(data, batch_size=20), method="spgda", radius=0.1, epochs=2)
    assert [(record.step, record.epoch) for record in trained.history] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 1),
        (4, 1),
        (5, 1),
    ]


def test_unusable_data_are_named() -> None:
    with pytest.raises(DataError, match="x has 50 samples and y has 49"):
        batches_of((X, Y[:-1]), 16, 0, CPU)
    with pytest.raises(DataError, match="empty"):
        batches_of((X[:0], Y[:0]), 16, 0, CPU)
    with pytest.raises(DataError, match="empty"):
        batches_of(TensorDataset(X[:0], Y[:0]), 16, 0, CPU)
    with pytest.raises(DataError, match="not dict"):
        batches_of({"x": X}, 16, 0, CPU)
    with pytest.raises(DataError, match=r"a DataLoader \(which takes a list of pairs, too\), not a list of 50"):
        batches_of(list(zip(X, Y, strict=True)), 16, 0, CPU)
    with pytest.raises(
        DataError, match=r"the Dataset must give pairs \(x, y\), or triples \(x, y, weight\), not a list of 4"
    ):
        next(batches_of(TensorDataset(X, Y, Y, Y), 16, 0, CPU).epoch(0))
    with pytest.raises(
        DataError, match=r"the DataLoader must give pairs \(x, y\), or triples \(x, y, weight\), not a list of 4"
    ):
        next(batches_of(DataLoader(TensorDataset(X, Y, Y, Y)), None, 0, CPU).epoch(0))
    with pytest.raises(DataError, match="NaN or infinite values"):
        batches_of((torch.full((3, 2), torch.nan), torch.zeros(3)), 16, 0, CPU)
    with pytest.raises(DataError, match="wrap an iterable dataset in a DataLoader"):
        batches_of(Stream(), 16, 0, CPU)
    with pytest.raises(DataError, match="batch_size must be a whole number, at least 1, not 0"):
        batches_of((X, Y), 0, 0, CPU)
    with pytest.raises(DataError, match="give numbers"):
        batches_of((np.array(["a"]), np.array([1])), 16, 0, CPU)


def test_data_with_a_gradient_are_refused_before_the_first_step() -> None:
    x = nn.Linear(3, 3)(torch.ones(8, 3))
    with pytest.raises(DataError, match=r"has a gradient \(requires_grad\).* pass x\.detach\(\)"):
        batches_of((x, torch.zeros(8).long()), 4, 0, CPU)
    with pytest.raises(DataError, match=r"pass x\.detach\(\)"):
        next(batches_of(DataLoader(cast(Any, [(x[0], 0), (x[1], 1)])), None, 0, CPU).epoch(0))
