"""Raw tables: read from csv and parquet files, or taken from DataFrames, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhobust.data.csv_dialect import dialect, is_number
from rhobust.errors import ConfigError, DataError

SUFFIXES = (".csv", ".tsv", ".parquet")
"""Files that hold a table."""

MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
"""What a field without a value may hold."""

_MOST_CATEGORIES = 1000  # of a column that is kept as a dictionary while it is read
_UNPACKS_TO, _UNPACKS_BY = 2**28, 200  # bytes, and times the size of a file
_SHOWN = 20  # names of columns, in a message


@dataclass(frozen=True)
class Numbers:
    """A column of numbers; NaN is a missing one."""

    values: NDArray[np.float64]


@dataclass(frozen=True)
class Words:
    """A column of text: the number of each value's word, -1 for a missing one, and the words in alphabetical order."""

    codes: NDArray[np.int64]
    words: tuple[str, ...]


def arrow() -> Any:
    """pyarrow, which is imported only for a table."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(["tables need pyarrow: pip install 'rhobust[tables]'"]) from None
    return pyarrow


class Frame:
    """Columns of equal length by name; `source` names them in messages."""

    def __init__(self, content: Any, source: str) -> None:
        self._content = content.rename_columns([str(name).strip() for name in content.column_names])
        self.source = source
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise DataError(f"{source} has more than one column named {listed(twice)}; give each its own name")
        if not len(self):
            raise DataError(f"{source} has {'a header but ' if self.names else ''}no rows")

    @classmethod
    def read(cls, path: Path, text: Iterable[str] = ()) -> Frame:
        """A csv file (UTF-8, with a header, separated by comma, semicolon, tab or bar) or a parquet file.

        The columns in `text` are read as text, whatever they hold.
        """
        pa = arrow()
        try:
            if path.suffix == ".parquet":
                _check_size(pa.parquet.ParquetFile(path).metadata, path)
                content = pa.parquet.read_table(path)
            else:
                separator, unnamed = dialect(path)
                content = pa.csv.read_csv(
                    path,
                    parse_options=pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
                    convert_options=pa.csv.ConvertOptions(
                        null_values=list(MISSING),
                        strings_can_be_null=True,
                        true_values=[],  # a word is a word, in this file and in the next, which may hold others, too
                        false_values=[],
                        auto_dict_encode=True,
                        auto_dict_max_cardinality=_MOST_CATEGORIES,
                        column_types={name: pa.dictionary(pa.int32(), pa.string()) for name in text},
                    ),
                )
                content = content.remove_column(0) if unnamed else content
            return cls(content, str(path))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
            reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            kind = "parquet" if path.suffix == ".parquet" else "csv"
            raise DataError(f"{path} cannot be read as a {kind} file: {reason}") from None

    @classmethod
    def of(cls, data: object) -> Frame:
        """A pandas or polars DataFrame, a pyarrow table, or a dict of arrays by column. An index is no column."""
        if isinstance(data, Frame):
            return data
        pa = arrow()
        columns: Any = data
        if hasattr(columns, "reset_index"):
            columns = columns.reset_index(drop=True)
        if not isinstance(columns, Mapping) and not hasattr(columns, "__arrow_c_stream__"):
            raise DataError(f"a table is a DataFrame or a dict of arrays by column, not a {type(data).__name__}")
        try:
            return cls(pa.table(dict(columns) if isinstance(columns, Mapping) else columns), "the table")
        except (pa.ArrowException, ValueError, TypeError) as problem:
            if isinstance(problem, DataError):
                raise
            raise DataError(f"the table cannot be taken: {', '.join(map(str, problem.args))}") from None

    @property
    def names(self) -> list[str]:
        """The columns, in their order."""
        return list(self._content.column_names)

    def __len__(self) -> int:
        return int(self._content.num_rows)

    def rows(self, chosen: NDArray[np.int64]) -> Frame:
        """These rows, in this order."""
        return Frame(self._content.take(arrow().array(chosen)), self.source)

    def check_columns(self, names: Sequence[str], what: str) -> None:
        """Refuse columns that are not here; `what` is what they are for."""
        absent = [name for name in names if name not in self.names]
        if absent:
            raise DataError(f"{self.source} has no column {listed(absent)}, {what}; it has {listed(self.names)}")

    def column(self, name: str) -> Numbers | Words | None:
        """A column of numbers or of text; none where it holds no value. Text that is all numbers is numbers."""
        pa, column = arrow(), self._content.column(self.names.index(name))
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if column.null_count == len(column):
            return None
        if not pa.types.is_dictionary(column.type) and (pa.types.is_integer(kind) or _is_real(pa, kind)):
            values = column.cast(pa.float64(), safe=False).to_numpy()
            return None if np.isnan(values).all() else Numbers(self._finite(name, values))
        words = self.words(name)
        if pa.types.is_dictionary(column.type) and not _is_text(pa, kind):
            return words  # a DataFrame says so
        if words.words and "," in "".join(words.words) and numeric_share(words) == 1:
            raise DataError(
                f"{self.source}: column '{name}' holds numbers with a comma, such as '{words.words[0]}'; write a point"
            )
        try:
            values = pa.array(words.words).cast(pa.float64()).to_numpy() if words.words else None
        except pa.ArrowInvalid:
            return words
        return None if values is None else Numbers(self._finite(name, np.append(values, np.nan)[words.codes]))

    def numbers(self, name: str) -> Numbers:
        """A column that must hold numbers."""
        column = self.column(name)
        if isinstance(column, Words):
            row, word = self._first_word(column)
            raise DataError(f"{self.source}: column '{name}' must hold numbers; row {row + 1} holds '{word}'")
        return column or Numbers(np.full(len(self), np.nan))

    def words(self, name: str) -> Words:
        """A column as text, whatever it holds; blanks around a word do not count."""
        pa, column = arrow(), self._content.column(self.names.index(name))
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_temporal(kind):
            raise Unusable(name, f"holds dates or times ({_first(column)})")
        if pa.types.is_nested(kind):
            raise Unusable(name, f"holds values of the type {kind}")
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise DataError(
                f"{self.source}: column '{name}' is not UTF-8 text ({_first(column)!r}). Save the file as UTF-8, for "
                "example with: iconv -f latin1 -t utf-8"
            )
        if column.null_count == len(column):
            return Words(np.full(len(column), -1), ())
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        encoded = encoded.unify_dictionaries()
        named = [_word(value) for value in encoded.chunk(0).dictionary.to_pylist()]
        codes = np.concatenate([_codes(chunk) for chunk in encoded.chunks])
        words = sorted({word for word in named if word not in MISSING})
        numbers = {word: number for number, word in enumerate(words)}
        new = np.array([*(numbers.get(word, -1) for word in named), -1])  # the last is that of a missing value
        return Words(new[codes], tuple(words))

    def _finite(self, name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        if np.isinf(values).any():
            row = int(np.isinf(values).argmax())
            raise DataError(
                f"{self.source}: column '{name}' holds an infinite number in row {row + 1}; correct it, or leave the "
                "field empty if the value is missing"
            )
        return values

    @staticmethod
    def _first_word(column: Words) -> tuple[int, str]:
        """The first value that is no number, and its row."""
        wrong = np.array([not is_number(word) for word in column.words] + [False])
        row = int(wrong[column.codes].argmax())
        return row, column.words[column.codes[row]]


class Unusable(DataError):
    """A column that holds what no model takes; several are told in one error."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column '{column}' {why}; leave it out: --drop {column} (in Python drop=['{column}'])")
        self.column, self.why = column, why


def listed(names: Iterable[str]) -> str:
    """Names of columns in a line.

    >>> listed(["age", "sex"])
    "'age', 'sex'"
    """
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more


def numeric_share(column: Words) -> float:
    """The share of the words that are numbers, be it with a decimal comma."""
    return sum(is_number(word.replace(",", ".")) for word in column.words) / len(column.words)


def _is_real(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _first(column: Any) -> object:
    """The first value that is there."""
    return column.drop_null()[0].as_py()


def _codes(chunk: Any) -> NDArray[np.int64]:
    """Indices into the dictionary of a chunk, -1 for a missing value."""
    return np.asarray(chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _word(value: object) -> str:
    """A value as text: whole numbers without a point, as another file may write them."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _check_size(metadata: Any, path: Path) -> None:
    """A small file that unpacks into a large table is a bomb, as an .npz may be one."""
    unpacked, size = 8 * metadata.num_rows * metadata.num_columns, path.stat().st_size
    if unpacked > max(_UNPACKS_TO, _UNPACKS_BY * size):
        raise DataError(f"{path} has {size} bytes and would unpack to {unpacked}; it is damaged")
