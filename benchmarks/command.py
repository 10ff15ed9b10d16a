"""The command line that every benchmark has, and the files that it reads and writes.

python -m benchmarks.NAME                  measures, writes results/..., prints the tables
python -m benchmarks.NAME --markdown       prints the tables of the committed results
python -m benchmarks.NAME --figure FILE    draws them, where there is a picture

`--output FILE` is another file to write, or to read.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rhobust.charts import svg
from rhobust.support.files import write_atomically


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def read_csv(path: Path, numbers: Sequence[str]) -> list[dict[str, Any]]:
    """Rows by column; where one of `numbers` is not empty, as a number."""
    with path.open(newline="") as file:
        return [row | {key: float(row[key]) for key in numbers if row[key]} for row in csv.DictReader(file)]


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def command(
    description: str | None,
    results: Path,
    measure: Callable[..., None],
    tables: Mapping[str, Callable[[Any], str]],
    *,
    figure: Callable[[Any], Figure] | None = None,
    read: Callable[[Path], Any] = read_json,
    options: Mapping[str, tuple[Any, str]] | None = None,
) -> None:
    """Do what the command line asks.

    `measure` gets the output and the options, each of which has a default and a help text. Tables and figure are made
    from what `read` finds.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=results, help="the results")
    parser.add_argument("--markdown", action="store_true", help="measure nothing: print the tables")
    if figure is not None:
        parser.add_argument("--figure", type=Path, metavar="FILE", help="measure nothing: draw the results")
    for name, (default, words) in (options or {}).items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=words)
    asked = vars(parser.parse_args())
    output, drawn = asked.pop("output"), asked.pop("figure", None)
    if figure is not None and drawn:
        svg.save(figure(read(output)), drawn)
        return
    if not asked.pop("markdown"):
        measure(output, **asked)
        if asked.get("only"):  # a part fills no table
            return
    print("\n\n".join(table(read(output)) for table in tables.values()))
