"""Batches of an epoch, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from rhobust.checks import count_problem
from rhobust.data.samples import Samples, inputs_of, tensor_of
from rhobust.data.weights import relative_weights, third_part
from rhobust.errors import DataError
from rhobust.inputs import Inputs, each, leaves, refilled
from rhobust.validator import check_batch, check_movable

_BATCH_SIZE = 128  # the paper's


class Batch(NamedTuple):
    """Some samples, which of all they are where all are in memory, and how much each counts where that differs."""

    x: Any  # a tensor, or inputs of which a part moves
    y: Tensor
    at: Tensor | None = None
    weight: Tensor | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        """All that there are, in their order."""
        return (*leaves(self.x), self.y, *(part for part in (self.at, self.weight) if part is not None))

    def refilled(self, tensors: Iterator[Tensor]) -> Batch:
        """The same batch with other tensors, in their order."""
        x, y = refilled(self.x, tensors), next(tensors)
        return Batch(x, y, *(None if part is None else next(tensors) for part in (self.at, self.weight)))


class Batches(ABC):
    """A source of epochs."""

    full: int | None = None
    """Samples in a batch, the last of an epoch apart; none where only the stream tells."""

    @abstractmethod
    def steps(self) -> int | None:
        """Batches in an epoch; none where only the end of the stream tells."""

    def smallest(self) -> int | None:
        """Samples in the smallest batch of an epoch; none where only the stream tells."""
        return None

    def whole(self) -> Samples | None:
        """All the data, where they are in memory and x is one tensor that moves."""
        return None

    @abstractmethod
    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `skip` on, the same at every call."""


class SampleBatches(Batches):
    """Tensors in memory, shuffled anew each epoch by (seed, epoch)."""

    def __init__(
        self, samples: Samples, batch_size: int, seed: int, device: torch.device, weight: Tensor | None = None
    ) -> None:
        check_batch(samples.x, samples.y)  # once for all, not batch by batch
        self.samples = samples.to(device)
        self.weight = None if weight is None else weight.to(device)
        self.batch_size, self.seed = batch_size, seed
        self.full = min(batch_size, len(samples))

    def steps(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def smallest(self) -> int:
        return len(self.samples) % self.batch_size or self.batch_size

    def whole(self) -> Samples:
        return self.samples

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        order = _order(len(self.samples), self.seed, number).to(self.samples.x.device)  # one copy for the epoch
        for chosen in torch.split(order, self.batch_size)[skip:]:
            yield Batch(self.samples.x[chosen], self.samples.y[chosen], chosen, _chosen(self.weight, chosen))


class InputBatches(Batches):
    """Inputs in memory of which only a part moves, shuffled in the same way."""

    def __init__(
        self,
        x: Inputs,
        y: Tensor,
        batch_size: int,
        seed: int,
        device: torch.device,
        weight: Tensor | None = None,
    ) -> None:
        self.x, self.y = each(x, lambda part: part.to(device)), y.to(device)
        self.weight = None if weight is None else weight.to(device)
        self.batch_size, self.seed = batch_size, seed
        self.full = min(batch_size, len(y))

    def steps(self) -> int:
        return -(-len(self.y) // self.batch_size)

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        order = _order(len(self.y), self.seed, number).to(self.y.device)
        for chosen in torch.split(order, self.batch_size)[skip:]:
            x = each(self.x, lambda part, chosen=chosen: part[chosen])  # type: ignore[misc]
            yield Batch(x, self.y[chosen], weight=_chosen(self.weight, chosen))


class DatasetBatches(Batches):
    """A map-style `Dataset`, fetched item by item; only one batch is ever in memory."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        seed: int,
        device: torch.device,
        precision: torch.dtype = torch.float32,
        partial: bool = False,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise DataError(
                f"{type(dataset).__name__} has no length and no items; wrap an iterable dataset in a DataLoader"
            )
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.device, self.precision, self.partial = device, precision, partial
        if len(self.dataset) == 0:
            raise DataError("the data set is empty: nothing to learn from")
        self.full = min(batch_size, len(self.dataset))

    def steps(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def smallest(self) -> int:
        return len(self.dataset) % self.batch_size or self.batch_size

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        order = _order(len(self.dataset), self.seed, number)
        for chosen in torch.split(order, self.batch_size)[skip:]:
            items = default_collate([self.dataset[i] for i in chosen.tolist()])
            yield _batch(items, "Dataset", self.device, self.precision, self.partial)


class LoaderBatches(Batches):
    """The user's own `DataLoader`, streamed as it comes; its order, and so its repeatability, are the user's."""

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device,
        precision: torch.dtype = torch.float32,
        partial: bool = False,
    ) -> None:
        self.loader, self.device, self.precision, self.partial = loader, device, precision, partial

    def steps(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:  # an iterable data set that does not know its length
            return None

    def smallest(self) -> int | None:
        size, sampler = self.loader.batch_size, self.loader.sampler
        if size is None or isinstance(self.loader.dataset, IterableDataset) or not isinstance(sampler, Sized):
            return None
        return size if self.loader.drop_last else len(sampler) % size or size

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        index = -1
        for index, batch in enumerate(self.loader):
            if index >= skip:
                yield _batch(batch, "DataLoader", self.device, self.precision, self.partial)
        if index < 0:
            raise DataError(
                f"the DataLoader gives no batch in epoch {number}: nothing to learn from. With drop_last=True it drops "
                "a batch that is not full"
            )


def _batch(parts: object, source: str, device: torch.device, precision: torch.dtype, partial: bool) -> Batch:
    """What a source of the user's gave, where the model is and in its precision."""
    if not (isinstance(parts, tuple | list) and len(parts) in (2, 3)):
        raise DataError(f"the {source} must give pairs (x, y), or triples (x, y, weight), not {_kind(parts)}")
    x = inputs_of(parts[0], precision) if partial else tensor_of(parts[0], precision)
    x, y = each(x, lambda part: part.to(device)), tensor_of(parts[1], precision).to(device)
    if len(parts) == 2:
        return Batch(x, y)
    return Batch(x, y, weight=third_part(parts[2], source, precision).to(device))


def _chosen(weight: Tensor | None, chosen: Tensor) -> Tensor | None:
    return None if weight is None else weight[chosen]


def _order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(count))


def batches_of(
    data: object,
    batch_size: int | None,
    seed: int,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    partial: bool = False,
    weights: object = None,
) -> Batches:
    """Batches from (x, y) tensors or arrays, `Samples`, a `Dataset` or a `DataLoader`, in this precision.

    Where x moves only in part (`partial`) it may be a dict or a tuple of tensors, and need not be of floating point.
    `weights` say how much each sample in memory counts; those of weight 0 are left out.
    """
    if weights is not None and isinstance(data, DataLoader | Dataset):
        raise DataError("weights= is for data in memory; a Dataset or a DataLoader gives triples (x, y, weight)")
    if isinstance(data, DataLoader):
        if batch_size is not None:
            raise DataError("a DataLoader brings its own batches; set the batch size there and drop batch_size=")
        return LoaderBatches(data, device, precision, partial)
    batch_size = _BATCH_SIZE if batch_size is None else batch_size
    if problem := count_problem("batch_size", batch_size):
        raise DataError(problem)
    batch_size = int(batch_size)  # of NumPy's, too
    if isinstance(data, Dataset):
        return DatasetBatches(data, batch_size, seed, device, precision, partial)
    if isinstance(data, Samples):
        data = data.x, data.y
    if isinstance(data, tuple | list) and len(data) == 2:
        if partial:
            return _of_inputs(data[0], data[1], weights, batch_size, seed, device, precision)
        x, y = (tensor_of(part, precision) for part in data)
        if len(x) != len(y):
            raise DataError(f"x has {len(x)} samples and y has {len(y)}; they must match")
        check_movable(x, getattr(data[0], "dtype", x.dtype))  # the array's own: the tensor is int64 whatever it was
        samples = Samples(x, y)
        if weights is None:
            return SampleBatches(samples, batch_size, seed, device)
        weight = relative_weights(weights, len(x), precision)
        counts = weight > 0
        return SampleBatches(samples[counts], batch_size, seed, device, weight[counts])
    raise DataError(
        f"data must be (x, y), a Dataset or a DataLoader (which takes a list of pairs, too), not {_kind(data)}"
    )


def _of_inputs(
    x: object, y: object, weights: object, batch_size: int, seed: int, device: torch.device, precision: torch.dtype
) -> Batches:
    inputs, labels = inputs_of(x, precision), tensor_of(y, precision)
    sizes = {len(part) if part.ndim else 0 for part in (*leaves(inputs), labels)}
    if len(sizes) > 1 or sizes == {0}:
        raise DataError(f"x and y must have the same number of samples, and one at least, not {sorted(sizes)}")
    if weights is None:
        return InputBatches(inputs, labels, batch_size, seed, device)
    weight = relative_weights(weights, len(labels), precision)
    counts = weight > 0
    inputs = each(inputs, lambda part: part[counts])
    return InputBatches(inputs, labels[counts], batch_size, seed, device, weight[counts])


def _kind(data: object) -> str:
    name = type(data).__name__
    return f"a {name} of {len(data)}" if isinstance(data, tuple | list) else name
