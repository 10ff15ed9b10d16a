"""How a csv file is written: its separator and its header, seen in its first lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from rhobust.errors import DataError

_SEPARATORS = (",", ";", "\t", "|")
_OTHER_ENCODINGS = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PK\x03\x04": "a zip or Excel file",
    b"PAR1": "a parquet file",
}
_HEAD = 2**16  # bytes in which the header is looked for
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def is_number(word: str) -> bool:
    """Whether a word is written as a number.

    >>> is_number("-1.5e3"), is_number("1,5"), is_number("nan")
    (True, False, False)
    """
    return _NUMBER.fullmatch(word) is not None


def dialect(path: Path) -> tuple[str, bool]:
    """The separator of a csv file, and whether its first column is an unnamed index; refuses what has no header."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head.strip():
        raise DataError(f"{path} is empty")
    for mark, kind in _OTHER_ENCODINGS.items():
        if head.startswith(mark):
            raise DataError(f"{path} is {kind}, not a csv file in UTF-8; save it as one")
    if b"\x00" in head:
        raise DataError(f"{path} holds bytes that are no text; save it as a csv file in UTF-8")
    line = next(line for line in head.splitlines() if line.strip()).decode(errors="replace").removeprefix("\ufeff")
    outside = re.sub(r'"[^"]*"', '""', line)
    separator = max(_SEPARATORS, key=outside.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator))]
    numbers = [name for name in names if is_number(name)]
    if numbers and not _counts(numbers):
        raise DataError(
            f"{path} has no header: its first line holds the numbers {', '.join(numbers[:5])}. Write the names of the "
            "columns into the first line"
        )
    return separator, not names[0]


def _counts(numbers: Sequence[str]) -> bool:
    """Whether these names of columns count up by one, as those of a DataFrame without names do.

    >>> _counts(["0", "1", "2"]), _counts(["39", "77516"])
    (True, False)
    """
    first = int(numbers[0]) if numbers[0].isdecimal() else 0
    return list(numbers) == [str(first + number) for number in range(len(numbers))] and len(numbers) > 1
