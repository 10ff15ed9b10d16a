"""Results that show themselves: as text in a terminal, and as HTML in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby


@dataclass(frozen=True)
class Table:
    """A small table: names in the first column, aligned left, and numbers in the others, aligned right.

    >>> print(Table("Error in percent", ["attack", "error"], [["fgsm", "9.5"], ["pgd", "12.0"]]))
    Error in percent
    attack  error
    ------  -----
    fgsm      9.5
    pgd      12.0
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        lines = [[_on_one_line(cell) for cell in line] for line in (self.columns, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * width for width in widths])
        sides = ["<", *">" * (len(widths) - 1)]
        aligned = (
            "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True))
            for line in lines
        )
        return "\n".join([_on_one_line(self.caption), *(line.rstrip() for line in aligned)])

    @property
    def html(self) -> str:
        """The table without script or colors of its own, so that it fits a light page and a dark one."""
        caption = f'<caption style="caption-side:top;text-align:left">{escape(self.caption)}</caption>'
        body = "".join(_row("td", row) for row in self.rows)
        return f"<table>{caption}<thead>{_row('th', self.columns)}</thead><tbody>{body}</tbody></table>"


class Displayed(ABC):
    """A result that is printed in a terminal, and shown in a notebook, as tables and lines of text."""

    @abstractmethod
    def _shown(self) -> Sequence[Table | str]:
        """The tables and the lines, in their order."""

    def __str__(self) -> str:
        blocks = groupby(self._shown(), lambda part: isinstance(part, Table))
        return "\n\n".join(("\n\n" if tables else "\n").join(map(str, parts)) for tables, parts in blocks)

    def _repr_html_(self) -> str:
        parts = (part.html if isinstance(part, Table) else f"<p>{escape(part)}</p>" for part in self._shown())
        return f"<div>{''.join(parts)}</div>"


def _row(kind: str, line: Sequence[str]) -> str:
    """A row of HTML, whose cells are of this kind."""
    sides = ["left", *["right"] * (len(line) - 1)]
    cells = (
        f'<{kind} style="text-align:{side};white-space:nowrap">{escape(cell)}</{kind}>'
        for cell, side in zip(line, sides, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
