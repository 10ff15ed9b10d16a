"""Settings of a table: what is predicted, from which columns, and which rows are the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rhobust.data.frame import SUFFIXES, arrow, listed
from rhobust.support.setting import problems_by_key, refusals, setting


@dataclass(frozen=True)
class TableSettings:
    """What a run on a table has besides the settings of every run."""

    target: str | None = setting(None, "Column of the table to predict.")
    test: str | None = setting(
        None, "Test rows of the table: a file, or a column whose values are train and test.", usual="a fifth"
    )
    drop: list[str] | None = setting(None, "Columns of the table to leave out, separated by commas.")  # noqa: RUF009
    fixed: list[str] | None = setting(None, "Columns of the table that no worst case may change.")  # noqa: RUF009
    clip_to_training: bool = setting(False, "Whether numbers in a table are clipped to the range of the training rows.")

    @property
    def test_file(self) -> Path | None:
        """The file of the test rows, if they have one."""
        return Path(self.test) if self.test is not None and Path(self.test).suffix in SUFFIXES else None

    def problems(self) -> Iterator[str]:
        """What is wrong with the settings, each by itself and together."""
        yield from chain(*problems_by_key(self).values())
        if twice := [name for name in self.fixed or () if name in (self.target, self.test, *(self.drop or ()))]:
            yield f"fixed names the column {listed(twice)}, which is no input of the model: drop it there"
        if self.target is not None and self.target in (self.test, *(self.drop or ())):
            yield f"target '{self.target}' is left out by drop or test, too: name one use of it"


def is_table(data: str) -> bool:
    """Whether this names a file with a table."""
    return Path(data).suffix in SUFFIXES


def table_problems(data: str, settings: TableSettings | None) -> Iterator[str]:
    """What is wrong with the settings of a table for these data, or not there."""
    if not is_table(data):
        if settings is not None:
            yield (
                f"data '{data}' is no table ({', '.join(SUFFIXES)}), and target, test, drop, fixed and "
                "clip_to_training are for tables: leave them out"
            )
        return
    if settings is None or settings.target is None:
        yield f"data '{data}' is a table: say which column to predict, target=COLUMN (--target COLUMN)"
    if settings is not None:
        yield from settings.problems()
        if settings.test_file is not None and not settings.test_file.is_file():
            yield f"test '{settings.test}': there is no such file"
    yield from refusals(arrow)
