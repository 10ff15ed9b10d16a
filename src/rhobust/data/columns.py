"""Columns of a table as learned from its training rows: how raw values become numbers that a model takes, and back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhobust.data.frame import Frame, Unusable, Words, numeric_share
from rhobust.errors import DataError

ABSENT = "(missing)"
"""The category of a missing value, where the training rows have any."""

_MOST_CATEGORIES = 1000  # more would make a feature each
_FEW_CATEGORIES, _FEW_ROWS = 20, 0.5  # a column with more categories, and more for each row, is text
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}.*|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}.*")


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, as one feature of mean 0 and standard deviation 1; a missing one is the median."""

    name: str
    mean: float
    deviation: float
    median: float
    low: float
    high: float

    @classmethod
    def learned(cls, name: str, values: NDArray[np.float64], source: str) -> NumberColumn | None:
        """From training values; none where all are equal."""
        present = values[~np.isnan(values)]
        low, high = float(present.min()), float(present.max())
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(present.mean()), float(present.std())
        if low == high or deviation == 0:
            return None
        if not np.isfinite([mean, deviation]).all():
            raise DataError(f"{source}: the numbers of column '{name}' are too large ({low:g} to {high:g}); scale them")
        return cls(name, mean, deviation, float(np.median(present)), low, high)

    @property
    def features(self) -> tuple[str, ...]:
        """Its features by name."""
        return (self.name,)

    def write(self, frame: Frame, out: NDArray[np.float32], clip: bool) -> dict[str, int]:
        """Write the column into its feature, (N, 1). No value is unknown."""
        values = frame.numbers(self.name).values
        values = np.where(np.isnan(values), self.median, values)
        if clip:
            values = values.clip(self.low, self.high)
        with np.errstate(over="ignore"):
            out[:, 0] = self.scaled(values)
        if not np.isfinite(out[:, 0]).all():
            raise DataError(f"{frame.source}: column '{self.name}' holds numbers that are too large for 32 bits")
        return {}

    def scaled(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers in the column's unit, in standard deviations from its mean."""
        return (values - self.mean) / self.deviation


@dataclass(frozen=True)
class CategoryColumn:
    """Words, as one feature of 0 or 1 for each known category; an unknown one is 0 in all of them."""

    name: str
    categories: tuple[str, ...]

    @classmethod
    def learned(cls, name: str, column: Words) -> CategoryColumn | None:
        """From training values; none where all are equal. Refuses dates and free text."""
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.words))
        words = [word for word, count in zip(column.words, counts, strict=True) if count]
        if words and all(_DATE.fullmatch(word) for word in words):
            raise Unusable(name, f"holds dates ({words[0]})")
        rows = len(column.codes)
        if len(words) > _MOST_CATEGORIES or len(words) > max(_FEW_CATEGORIES, _FEW_ROWS * rows):
            why = f"holds free text: {len(words)} different values in {rows} rows, such as '{words[0][:30]}'"
            if (share := numeric_share(column)) > 0.5:
                stray = next((word for word in words if not numeric_share(Words(column.codes, (word,)))), words[0])
                why += f". {share:.0%} of them are numbers; correct the others, such as '{stray[:30]}'"
            raise Unusable(name, why)
        categories = (*words, *([ABSENT] if (column.codes < 0).any() else []))
        return cls(name, categories) if len(categories) > 1 else None

    @property
    def features(self) -> tuple[str, ...]:
        """Its features by name."""
        return tuple(f"{self.name}={category}" for category in self.categories)

    def write(self, frame: Frame, out: NDArray[np.float32], clip: bool) -> dict[str, int]:
        """Write the column into its features, (N, categories), which are 0; how often each unknown value occurs."""
        column = frame.words(self.name)
        numbers = {category: number for number, category in enumerate(self.categories)}
        to = np.array([numbers.get(word, -1) for word in (*column.words, ABSENT)])
        found = to[column.codes]
        known = np.flatnonzero(found >= 0)
        out[known, found[known]] = 1
        words, strange = (*column.words, ABSENT), column.codes[found < 0] % len(to)  # -1, a missing value, is the last
        return {words[number]: int(count) for number, count in enumerate(np.bincount(strange)) if count}


@dataclass(frozen=True)
class Classes:
    """The target of a classification: a class for each of its words, by number."""

    name: str
    names: tuple[str, ...]

    @classmethod
    def learned(cls, frame: Frame, name: str) -> Classes:
        """From training labels, which must be of two classes or more."""
        column = _present(frame, name)
        if not isinstance(column, Words):
            numbers = np.unique(column)
            if not np.array_equal(numbers, numbers.round()) or len(numbers) > max(_FEW_CATEGORIES, len(frame) // 10):
                raise DataError(
                    f"{frame.source}: target '{name}' holds {len(numbers)} different numbers, {numbers[0]:g} to "
                    f"{numbers[-1]:g}, which are no classes; set task to regression"
                )
            names = tuple(f"{number:.0f}" for number in numbers)
        else:
            if len(column.words) > max(_FEW_CATEGORIES, _FEW_ROWS * len(frame)):
                raise DataError(
                    f"{frame.source}: target '{name}' has {len(column.words)} classes in {len(frame)} rows; name the "
                    "column that holds the classes"
                )
            names = column.words
        if len(names) < 2:
            raise DataError(
                f"{frame.source}: target '{name}' is '{names[0]}' in every row; there is nothing to tell apart"
            )
        return cls(name, names)

    @property
    def outputs(self) -> int:
        """How many outputs a model needs."""
        return len(self.names)

    def encoded(self, frame: Frame) -> NDArray[Any]:
        """Class numbers."""
        column = frame.words(self.name)
        if (column.codes < 0).any():
            raise _without_target(frame, self.name, int((column.codes < 0).argmax()))
        if unknown := [word for word in column.words if word not in self.names]:
            raise DataError(
                f"{frame.source}: target '{self.name}' holds the class '{unknown[0]}', which is not among those of the "
                f"training rows: {', '.join(self.names)}"
            )
        numbers = {word: number for number, word in enumerate(self.names)}
        return np.array([numbers[word] for word in column.words], dtype=np.int64)[column.codes]


@dataclass(frozen=True)
class Quantity:
    """The target of a regression, in standard deviations from its mean."""

    name: str
    mean: float
    deviation: float
    outputs: int = 1
    names: tuple[str, ...] = ()

    @classmethod
    def learned(cls, frame: Frame, name: str) -> Quantity:
        """From training values."""
        column = _present(frame, name)
        if isinstance(column, Words):
            raise DataError(
                f"{frame.source}: target '{name}' holds text, such as '{column.words[0]}'; a regression needs numbers, "
                "a classification has task=classification"
            )
        found = NumberColumn.learned(name, column, frame.source)
        if found is None:
            raise DataError(f"{frame.source}: target '{name}' is {column[0]:g} in every row; there is nothing to learn")
        return cls(name, found.mean, found.deviation)

    def encoded(self, frame: Frame) -> NDArray[Any]:
        """Standardized values."""
        values = frame.numbers(self.name).values
        if np.isnan(values).any():
            raise _without_target(frame, self.name, int(np.isnan(values).argmax()))
        return ((values - self.mean) / self.deviation).astype(np.float32)

    def restored(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Standardized values in the target's own unit."""
        return self.mean + self.deviation * values.astype(np.float64)


def _present(frame: Frame, name: str) -> Words | NDArray[np.float64]:
    """The target's values, none of which is missing."""
    try:
        column = frame.column(name)
    except Unusable as problem:
        raise DataError(f"{frame.source}: target '{name}' {problem.why}; name the column to predict") from None
    if column is None:
        raise DataError(f"{frame.source}: target '{name}' has no values")
    absent = column.codes < 0 if isinstance(column, Words) else np.isnan(column.values)
    if absent.any():
        raise _without_target(frame, name, int(absent.argmax()))
    return column if isinstance(column, Words) else column.values


def _without_target(frame: Frame, name: str, row: int) -> DataError:
    return DataError(f"{frame.source}: target '{name}' is missing in row {row + 1}; leave out rows without it")
