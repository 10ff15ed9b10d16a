"""Arrays and DataFrames that hold whole numbers or text: as features, and as class numbers with their names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rhobust.errors import DataError

_EXACT = 2**24  # up to here float32 tells whole numbers apart


def as_numbers(data: object, model: nn.Module) -> tuple[object, tuple[str, ...]]:
    """A pair (x, y) with x as `features_of` and y as `class_numbers`, and the names of the classes; else the data."""
    if not (isinstance(data, tuple | list) and len(data) == 2):
        return data, ()
    y, names = class_numbers(data[1]) or (data[1], ())
    return (features_of(data[0], model), y), names


def features_of(x: Any, model: nn.Module) -> Any:
    """Whole numbers of an array as floating point numbers, and a DataFrame of numbers as an array.

    Left as they are: tensors, whose type was chosen; bytes, which may be pixels; and what a model with embeddings
    takes, which may be token numbers.

    >>> features_of(np.array([[1, 2]]), nn.Linear(2, 2)).dtype
    dtype('float64')
    """
    if isinstance(x, Tensor):
        return x
    if hasattr(x, "columns") and hasattr(x, "to_numpy"):
        x = _stacked(x)
    whole = isinstance(x, np.ndarray | list) and np.asarray(x).dtype.kind in "iub" and np.asarray(x).dtype != np.uint8
    if not whole or any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in model.modules()):
        return x
    values = np.asarray(x)
    if values.size and max(abs(int(values.min())), abs(int(values.max()))) > _EXACT:
        raise DataError(
            f"x holds whole numbers from {values.min()} to {values.max()}, which 32 bits do not tell apart. If they "
            "are measurements, scale them; if they name things, leave them out"
        )
    return values.astype(np.float64)


def _stacked(frame: Any) -> NDArray[np.float64]:
    """The columns of a DataFrame, all of which must be numbers."""
    columns = {str(name): np.asarray(frame[name]) for name in frame.columns}
    text = [name for name, values in columns.items() if values.dtype.kind not in "fiub"]
    if text:
        raise DataError(
            f"x has columns that do not hold numbers: {', '.join(text)}. rhobust.data.Table.fit(frame, target=...) "
            "makes features of a table, and so does: rhobust train --data FILE.csv --target COLUMN"
        )
    return np.column_stack([values.astype(np.float64) for values in columns.values()])


def class_numbers(y: Any) -> tuple[NDArray[np.int64], tuple[str, ...]] | None:
    """Labels of text by number, in alphabetical order, with their names; none where they are not text.

    >>> class_numbers(["yes", "no", "yes"])
    (array([1, 0, 1]), ('no', 'yes'))
    """
    if isinstance(y, Tensor) or not hasattr(y, "__len__"):
        return None
    labels = np.asarray(y)
    if labels.dtype.kind == "O" and any(isinstance(label, str) for label in labels.ravel()):
        if missing := [row for row, label in enumerate(labels.ravel()) if not isinstance(label, str)]:
            raise DataError(f"y holds {labels.ravel()[missing[0]]!r} among text, in row {missing[0] + 1}")
        labels = labels.astype(str)
    if labels.dtype.kind != "U" or labels.ndim != 1:
        return None
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), tuple(names.tolist())
