"""The two consoles of the command, and how lines and tables are printed."""

from __future__ import annotations

from contextlib import nullcontext, suppress

from rich.console import Console
from rich.table import Table

_WIDEST = 10_000

OUT = Console()
ERR = Console(stderr=True)


def say(console: Console, message: str) -> None:
    """A plain line: brackets and paths stay as they are, whatever the width; what is no text in a path is escaped.

    A closed terminal stops no training: only what goes to standard output, the results, has to arrive.
    """
    printable = message.encode(errors="backslashreplace").decode()
    with suppress(OSError) if console.stderr else nullcontext():
        console.print(printable, markup=False, highlight=False, soft_wrap=True)


def show(table: Table) -> None:
    """A table with all its digits, also where the screen, or what a pipe takes for one, is narrower."""
    wide = OUT.measure(table, options=OUT.options.update(max_width=_WIDEST)).maximum
    Console(width=max(wide, OUT.width)).print(table)
