"""Groups of samples, and folds that leave one out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rhobust.data import leave_one_group_out
from rhobust.data.groups import groups_of
from rhobust.errors import DataError


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=30).filter(lambda values: len(set(values)) > 1))
def test_every_sample_is_tested_once_and_its_group_is_not_trained_on(values: list[int]) -> None:
    folds, every = leave_one_group_out(values), list(range(len(values)))
    assert [fold.name for fold in folds] == [str(value) for value in sorted(set(values))]
    assert sorted(torch.cat([fold.test for fold in folds]).tolist()) == every
    for name, train, test in folds:
        assert {values[i] for i in test} == {int(name)}
        assert train.tolist() == [i for i in every if values[i] != int(name)]


@pytest.mark.parametrize(
    "same", [[10, 9, 10], np.array([10, 9, 10]), torch.tensor([10, 9, 10]), np.array([10, 9, 10], dtype=object)]
)
def test_groups_come_in_any_form_and_in_the_order_of_their_numbers(same: object) -> None:
    found = groups_of(same, 3)
    assert found.names == ["9", "10"]
    assert [members.tolist() for members in found.members] == [[1], [0, 2]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("site", "groups are a list, an array or a tensor, one name for each sample, not 'site'"),
        (3, "one name for each sample, not 3"),
        (["a", "b"], "there are 3 samples and 2 groups"),
        (["a", None, "b"], "a whole number or a string, and that of sample 1 is None"),
        (["a", "b", float("nan")], "that of sample 2 is nan"),
        (torch.tensor([0.0, 1.0, 2.0]), "that of sample 0 is 0.0"),
        (np.zeros((3, 2), dtype=int), r"that of sample 0 is \[0, 0\]"),
        ([1, "1", 2], "all whole numbers or all strings"),
    ],
)
def test_what_is_no_group_is_named(groups: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        groups_of(groups, 3)


@pytest.mark.parametrize(
    ("groups", "message"), [(["a", "a"], "all samples belong to group a"), ([], "there are no samples")]
)
def test_one_group_cannot_be_left_out(groups: list[str], message: str) -> None:
    with pytest.raises(DataError, match=f"takes two groups at least, and {message}"):
        leave_one_group_out(groups)
