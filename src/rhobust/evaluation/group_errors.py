"""Errors of groups of samples, and the worst group: shares of samples, or RMSEs of a regression."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from rhobust.data.groups import Groups
from rhobust.evaluation.intervals import interval, mean_interval
from rhobust.support.display import Table

_MOST_ROWS = 20  # of a table


@dataclass(frozen=True)
class GroupError:
    """The error of one group."""

    group: str
    samples: int
    error: float
    """Share of samples that the model gets wrong; of a regression, RMSE."""
    interval: list[float]
    """Its 95 % interval. From a single sample it says next to nothing."""


@dataclass(frozen=True)
class GroupedCell:
    """The errors of all groups under one attack."""

    attack: str
    epsilon: float
    errors: list[GroupError]


@dataclass(frozen=True)
class GroupErrors:
    """The errors of all groups, clean and in each cell of an evaluation."""

    clean: list[GroupError]
    attacked: list[GroupedCell] = field(default_factory=list)

    def at(self, attack: str | None = None, epsilon: float = 0.0) -> dict[str, GroupError]:
        """The errors in one cell by group; without an attack the clean ones."""
        cells = {(cell.attack, cell.epsilon): cell.errors for cell in self.attacked}
        return {one.group: one for one in (self.clean if attack is None else cells[attack, epsilon])}

    def worst(self, attack: str | None = None, epsilon: float = 0.0) -> GroupError:
        """The group with the largest error in one cell, of several the first; without an attack the clean one."""
        return _worst(list(self.at(attack, epsilon).values()))

    def tables(self, what: str, shown: Callable[[GroupError], tuple[str, str]]) -> list[Table]:
        """A table for each attack: groups in rows, and the clean errors and those at each epsilon in columns.

        `shown` gives an error and its interval as text. Of many groups those with the largest errors are listed.
        """
        by_attack: dict[str, dict[str, list[GroupError]]] = {}
        for cell in self.attacked:
            columns = by_attack.setdefault(cell.attack, {"clean": self.clean})
            if cell.epsilon:
                columns[f"{cell.epsilon:g}"] = cell.errors
        return [self._table(f"{attack} by group: {what}", columns, shown) for attack, columns in by_attack.items()]

    def _table(
        self,
        caption: str,
        columns: dict[str, list[GroupError]],
        shown: Callable[[GroupError], tuple[str, str]],
    ) -> Table:
        last, chosen = [*columns.values()][-1], [*range(len(self.clean))]
        if len(chosen) > _MOST_ROWS:
            caption += f"; of {len(chosen)} groups the {_MOST_ROWS} worst in the last column"
            chosen = sorted(sorted(chosen, key=lambda number: -last[number].error)[:_MOST_ROWS])
        rows = []
        for number in chosen:
            cells = [shown(errors[number]) for errors in columns.values()]
            rows.append([self.clean[number].group, str(self.clean[number].samples), *(error for error, _ in cells)])
            rows.append(["", "", *(between for _, between in cells)])
        rows.append(["worst group", "", *(_worst(errors).group for errors in columns.values())])
        return Table(caption, ["group", "samples", *columns], rows)


def of_shares(groups: Groups, wrong: Tensor) -> list[GroupError]:
    """The share of each group among whose samples these are wrong, (N,)."""
    found = []
    for name, members in zip(groups.names, groups.members, strict=True):
        error = float(wrong.cpu()[members].double().mean())
        found.append(GroupError(name, len(members), error, [*interval(error, len(members))]))
    return found


def of_squares(groups: Groups, squares: Tensor) -> list[GroupError]:
    """The RMSE of each group, from the squared residual of every sample, (N,)."""
    found = []
    for name, members in zip(groups.names, groups.members, strict=True):
        own = squares.cpu()[members].double()
        ends = [math.sqrt(end) for end in mean_interval(own)]
        found.append(GroupError(name, len(members), math.sqrt(float(own.mean())), ends))
    return found


def _worst(errors: list[GroupError]) -> GroupError:
    return max(errors, key=lambda one: one.error)
