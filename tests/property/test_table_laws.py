"""Laws of tables: what was encoded is within the box, and an attacked row is a row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rhobust
from rhobust.attacks.attack import ATTACKS
from rhobust.data import Table
from rhobust.data.columns import CategoryColumn

SOME = settings(derandomize=True, deadline=None, max_examples=25)
NUMBER = st.one_of(st.none(), st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda value: round(value, 3)))
WORD = st.one_of(st.none(), st.sampled_from(["a", "b", "c d", "ü"]))


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, list[Any]], Table]:
    """Rows of two columns of numbers and two of text, some of them fixed, and what is learned of them."""
    count = draw(st.integers(4, 12))
    columns: dict[str, list[Any]] = {
        name: draw(st.lists(kind, min_size=count, max_size=count))
        for name, kind in (("n0", NUMBER), ("n1", NUMBER), ("w0", WORD), ("w1", WORD))
    }
    columns["n2"] = list(map(float, range(count)))  # one column at least can be learned from
    columns["y"] = ["no", "yes"] * (count // 2) + ["no"] * (count % 2)
    fixed = draw(st.lists(st.sampled_from(["n0", "w0"]), unique=True))
    return columns, Table.fit(columns, "y", fixed=fixed, clip_to_training=draw(st.booleans()))


def assert_rows(table: Table, x: Tensor, zeta: Tensor, box: rhobust.Box) -> None:
    """Fixed columns and text as they were, one category at most, and numbers within their bounds."""
    assert torch.equal(zeta[:, table.held], x[:, table.held])
    lower, upper = (torch.as_tensor(end) for end in box)
    assert bool(((lower <= zeta) & (zeta <= upper)).all())
    for column, group in zip(table.columns, table.groups, strict=True):
        if isinstance(column, CategoryColumn):
            assert set(zeta[:, group].unique().tolist()) <= {0.0, 1.0}
            assert bool((zeta[:, group].sum(1) <= 1).all())


@SOME
@given(tables(), st.permutations(range(4)))
def test_what_is_encoded_does_not_depend_on_the_other_rows_or_the_order_of_columns(
    made: tuple[dict[str, list[Any]], Table], order: Sequence[int]
) -> None:
    columns, table = made
    x, y = table.encode(columns)
    assert_rows(table, x, x, table.box())
    moved = {name: [columns[name][row] for row in order] for name in reversed(columns)}
    again, labels = table.encode(moved)
    assert torch.equal(again, x[list(order)])
    assert torch.equal(labels, y[list(order)])
    assert Table.from_json(table.to_json()) == table


@SOME
@given(tables(), st.sampled_from([*ATTACKS]), st.integers(0, 9))
def test_an_attacked_row_is_a_row(made: tuple[dict[str, list[Any]], Table], attack: str, seed: int) -> None:
    columns, table = made
    x, y = table.encode(columns)
    torch.manual_seed(seed)
    model, box = torch.nn.Linear(table.width, 2), table.box()
    asked: dict[str, Any] = {"epsilons": [0.7], "budgets": [0.5], "bounds": box, "checks": False, "keep": True}
    found = rhobust.evaluate(model, (x, y), attacks=[attack, "cascade"], seed=seed, **asked)
    moved = [zeta for by_epsilon in found.examples.values() for zeta in by_epsilon.values()]
    assert len(moved) == 3
    for zeta in moved:
        assert_rows(table, x, zeta, box)


@pytest.mark.filterwarnings("ignore")
def test_a_training_moves_no_text() -> None:
    """Where only text tells the classes apart, no radius is spent, and the model stays as good as plain training."""
    words = np.array(["a", "b"] * 32)
    frame = {"word": words, "noise": np.linspace(-1, 1, 64), "y": words}
    table = Table.fit(frame, "y", fixed=["noise"])
    torch.manual_seed(0)
    model = torch.nn.Linear(table.width, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x, y = table.encode(frame)
    trained = rhobust.fit(model, (x, y), method="spgda", radius=5.0, epochs=30, optimizer=optimizer, bounds=table.box())
    assert trained.rho_eff == 0
    assert bool((model(x).argmax(1) == y).all())
