"""A data set from a csv or parquet file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rhobust.data.columns import Classes
from rhobust.data.frame import Frame
from rhobust.data.samples import DataSet, Samples, split_rows
from rhobust.data.table import Table
from rhobust.data.table_settings import TableSettings
from rhobust.errors import DataError

_PARTS = ({"train": False, "test": True}, {"false": False, "true": True}, {"0": False, "1": True})
"""What a column that splits the rows may hold, and which of it are the test."""


def from_table(path: Path, settings: TableSettings, task: str, learned: Table | None = None) -> DataSet:
    """The rows of a file, by the settings; `learned` is the preprocessing of a trained run, in place of a new one.

    The preprocessing is learned from the training rows. Only the classes are those of the test rows, too.
    """
    target, found = str(settings.target), list[str]()
    raw = Frame.read(path, learned.text if learned else ())
    raw.check_columns([target], "the target")
    train, test, divides = _parts(raw, settings, learned)
    table = learned or Table.fit(
        train,
        target,
        task=task,
        drop=[*(settings.drop or ()), *divides],
        fixed=settings.fixed or (),
        clip_to_training=settings.clip_to_training,
    )
    if test is None:  # a file of its own, which is read as the table wants it
        test = Frame.read(Path(str(settings.test)), table.text)
    elif learned is None and isinstance(table.target, Classes):
        table = replace(table, target=Classes.learned(raw, target))  # of a rare class all rows may be test rows
    learning, testing = (Samples(*table.encode(part, found.append), table.classes) for part in (train, test))
    return DataSet(
        str(path),
        learning,
        testing,
        table.box(learning.x, testing.x),
        len(table.classes),
        preprocessing=table.to_json(),
        remarks=(*table.remarks, *found),
    )


def _parts(raw: Frame, settings: TableSettings, learned: Table | None) -> tuple[Frame, Frame | None, list[str]]:
    """Training rows, test rows unless another file has them, and the columns that say which are which."""
    if settings.test_file is not None:
        return raw, None, []
    if settings.test is None:
        if len(raw) < 2:
            raise DataError(f"{raw.source} has 1 row; at least 2 are needed, one of them to test on")
        train, test = (rows.numpy() for rows in split_rows(len(raw)))
        return raw.rows(train), raw.rows(test), []
    held_out = _held_out(raw, settings.test)
    return raw.rows(np.flatnonzero(~held_out)), raw.rows(np.flatnonzero(held_out)), [settings.test]


def _held_out(raw: Frame, name: str) -> NDArray[np.bool_]:
    """Which rows a column sets aside as the test."""
    raw.check_columns([name], "which is to say which rows are the test (and there is no such file)")
    column = raw.words(name)
    words = [word.lower() for word in column.words]
    meaning = next((part for part in _PARTS if set(words) == set(part)), None)
    if meaning is None or (column.codes < 0).any():
        shown = ", ".join(f"'{word}'" for word in column.words[:5])
        raise DataError(
            f"{raw.source}: column '{name}' is to say which rows are the test. It must hold train and test (or false "
            f"and true, or 0 and 1) in every row, not {shown or 'nothing'}"
        )
    return np.array([meaning[word] for word in words])[column.codes]
