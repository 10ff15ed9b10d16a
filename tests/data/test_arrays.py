"""Whole numbers, DataFrames and text labels in `fit`: the same training as with tensors."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import rhobust
from rhobust.data.arrays import class_numbers, features_of
from rhobust.errors import DataError
from rhobust.training.fit import Fit

X = np.random.default_rng(0).integers(-3, 4, (64, 3))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
WORDS = np.array(["no", "yes"])[Y]


def trained(x: object, y: object) -> Fit:
    torch.manual_seed(0)
    return rhobust.fit(nn.Linear(3, 2), (x, y), method="spgda", radius=0.1, epochs=2)


@pytest.mark.filterwarnings("ignore:the objective still falls", "ignore:the clean error")
@pytest.mark.parametrize(
    "x",
    [
        X,
        X.astype(np.int16),
        X.tolist(),
        pd.DataFrame(X, columns=["a", "b", "c"]),
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1].astype(float), "c": pd.array(X[:, 2], dtype="Int64")}),
    ],
)
@pytest.mark.parametrize("y", [Y, WORDS, WORDS.tolist(), pd.Series(WORDS), pd.Series(WORDS, dtype="category")])
def test_frames_whole_numbers_and_text_train_as_tensors_do(x: Any, y: Any) -> None:
    expected = trained(torch.from_numpy(X).float(), torch.from_numpy(Y))
    found = trained(x, y)
    assert found.history == expected.history
    assert torch.equal(*(dict(one.model.named_parameters())["weight"] for one in (found, expected)))
    assert found.classes == (() if y is Y else ("no", "yes"))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            pd.DataFrame({"a": [1, 2], "job": ["x", "y"]}),
            [0, 1],
            r"do not hold numbers: job\. .*Table\.fit",
        ),
        (np.array([[2**24 + 1, 0]]), [0], "16777217, which 32 bits do not tell apart"),
        (X.astype(np.uint8), Y, "must be of floating point, not uint8"),
        (torch.from_numpy(X), Y, "must be of floating point, not torch.int64"),
        (pd.DataFrame({"a": [1.0, None], "b": [1, 2]}), [0, 1], "NaN"),
        (X[:2], ["no", None], "y holds None among text, in row 2"),
    ],
)
def test_what_cannot_be_taken_is_one_clear_error(x: Any, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rhobust.fit(nn.Linear(2, 2), (x, y), method="erm", epochs=1)


def test_token_numbers_are_not_made_features() -> None:
    model = nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(6, 2))
    assert features_of(np.abs(X), model).dtype == X.dtype
    with pytest.raises(DataError, match="perturb='NAME OF THE LAYER'"):
        rhobust.fit(model, (np.abs(X), Y), method="erm", epochs=1)


def test_an_evaluation_takes_whole_numbers_and_frames() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    found = [
        rhobust.evaluate(model, (x, Y), attacks=["pgd"], epsilons=[0.3], checks=False).to_json()
        for x in (X, pd.DataFrame(X), torch.from_numpy(X).float())
    ]
    assert found[0] == found[1] == found[2]
    with pytest.raises(DataError, match=r"Of labels that are text, rhobust\.data\.Table\.encode makes class numbers"):
        rhobust.evaluate(model, (X, WORDS))


def test_labels_are_numbered_in_alphabetical_order() -> None:
    numbers, names = class_numbers(WORDS) or (None, None)
    assert names == ("no", "yes")
    np.testing.assert_array_equal(numbers, Y)
    assert class_numbers(Y) is None
    assert class_numbers(torch.from_numpy(Y)) is None
