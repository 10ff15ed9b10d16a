"""Groups of samples, such as sites, classes or blocks of time, and folds that leave one out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from rhobust.errors import DataError


@dataclass(frozen=True)
class Groups:
    """The groups in the order of their names, numbers by size, and which samples each has."""

    names: list[str]
    members: list[Tensor]
    """The numbers of the samples of each, increasing."""


class Fold(NamedTuple):
    """A group that is left out."""

    name: str
    train: Tensor
    """The numbers of all other samples, increasing."""
    test: Tensor
    """Those of the samples of the group."""


def groups_of(groups: object, count: int | None = None) -> Groups:
    """Groups from one whole number or string for each sample.

    >>> groups_of(["west", "east", "west"], 3)
    Groups(names=['east', 'west'], members=[tensor([1]), tensor([0, 2])])
    """
    values = groups.tolist() if hasattr(groups, "tolist") else groups
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise DataError(f"groups are a list, an array or a tensor, one name for each sample, not {groups!r}")
    values = list(values)
    if count is not None and len(values) != count:
        raise DataError(f"there are {count} samples and {len(values)} groups; give the group of each sample")
    for number, value in enumerate(values):
        if not isinstance(value, str | Integral):
            raise DataError(f"a group is a whole number or a string, and that of sample {number} is {value!r}")
    if len({isinstance(value, str) for value in values}) > 1:
        raise DataError("groups are all whole numbers or all strings, not some of each")
    members: dict[str | Integral, list[int]] = {}
    for number, value in enumerate(values):
        members.setdefault(value, []).append(number)
    known = sorted(members)
    return Groups([str(name) for name in known], [torch.tensor(members[name]) for name in known])


def leave_one_group_out(groups: object) -> list[Fold]:
    """A fold for each group: train on the samples of all other groups, test on its own.

    `groups` has one whole number or string for each sample.

    >>> [(fold.name, fold.train.tolist(), fold.test.tolist()) for fold in leave_one_group_out([7, 3, 7])]
    [('3', [0, 2], [1]), ('7', [1], [0, 2])]
    """
    found = groups_of(groups)
    if len(found.names) < 2:
        known = f"all samples belong to group {found.names[0]}" if found.names else "there are no samples"
        raise DataError(f"to leave a group out takes two groups at least, and {known}")
    every = torch.arange(sum(map(len, found.members)))
    return [
        Fold(name, every[~torch.isin(every, test)], test) for name, test in zip(found.names, found.members, strict=True)
    ]
