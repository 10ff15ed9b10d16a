"""A table as a model takes it: what was learned from its training rows, and what it makes of other rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rhobust.box import Box
from rhobust.data.columns import CategoryColumn, Classes, NumberColumn, Quantity
from rhobust.data.frame import Frame, Numbers, Unusable, Words, listed
from rhobust.data.predictions import outputs_of, predictions
from rhobust.data.samples import TASKS
from rhobust.errors import DataError, unknown
from rhobust.support.user_warnings import warn_user

_KINDS: dict[str, type[Any]] = {
    "number": NumberColumn,
    "category": CategoryColumn,
    "classes": Classes,
    "quantity": Quantity,
}
_STRANGE = 3  # unknown categories of a column, in a message
Warn = Callable[[str], None]


@dataclass(frozen=True)
class Table:
    """The preprocessing of a table, learned from its training rows (`Table.fit`).

    Numbers are standardized, and a missing one is the median. Text is one-hot: a feature for each category, where
    missing values are a category of their own if the training rows have any, and an unknown category is 0 in all of
    them. Constant columns are left out.

    >>> rows = {"age": [20, 40, 60, 40], "home": ["rent", "own", "own", "rent"], "paid": ["yes", "no", "no", "yes"]}
    >>> table = Table.fit(rows, target="paid")
    >>> table.features, table.classes
    (('age', 'home=own', 'home=rent'), ('no', 'yes'))
    >>> x, y = table.encode(rows)
    >>> x.shape, y.tolist()
    (torch.Size([4, 3]), [1, 0, 0, 1])
    """

    columns: tuple[NumberColumn | CategoryColumn, ...]
    target: Classes | Quantity
    fixed: tuple[str, ...] = ()
    """Columns that no worst case may change."""
    clip_to_training: bool = False
    """Whether numbers beyond those of the training rows are moved to the nearest of them."""
    left_out: tuple[str, ...] = ()
    """Columns of the training rows that the model does not see: those to drop, and constant ones."""
    remarks: tuple[str, ...] = field(default=(), compare=False)
    """What was found in the training rows."""

    @classmethod
    def fit(
        cls,
        frame: object,
        target: str,
        *,
        task: str = TASKS[0],
        drop: Sequence[str] = (),
        fixed: Sequence[str] = (),
        clip_to_training: bool = False,
    ) -> Table:
        """Learn the preprocessing from training rows: a DataFrame (pandas or polars), or a dict of arrays by column.

        `drop` are columns to leave out, `fixed` those that no worst case may change.
        """
        for name, value in (("drop", drop), ("fixed", fixed)):
            if isinstance(value, str):
                raise DataError(f"{name} is a list of columns, such as ['{value}']")
        if task not in TASKS:
            raise DataError(unknown("task", task, TASKS))
        raw = Frame.of(frame)
        raw.check_columns([target], "the target")
        raw.check_columns(drop, "which is to be left out")
        raw.check_columns(fixed, "which is to stay as it is")
        if both := [name for name in (target, *drop) if name in fixed]:
            raise DataError(f"column {listed(both)} is no input of the model, so it cannot be fixed")
        of_target: Classes | Quantity = (Classes if task == TASKS[0] else Quantity).learned(raw, target)
        columns, constant = _learned(raw, [name for name in raw.names if name not in (target, *drop)])
        if not columns:
            raise DataError(f"{raw.source} has no column to predict '{target}' from: {listed(constant) or 'no other'}")
        remarks = [f"constant columns are left out: {listed(constant)}"] if constant else []
        if all(isinstance(column, CategoryColumn) or column.name in fixed for column in columns):
            remarks.append("every column is text or fixed, so no row can move, and a radius has no effect")
        present = {column.name for column in columns}
        held = tuple(name for name in fixed if name in present)
        return cls(columns, of_target, held, clip_to_training, (*drop, *constant), tuple(remarks))

    @property
    def features(self) -> tuple[str, ...]:
        """The features by name: a column of numbers has one, a column of text one for each category."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def width(self) -> int:
        """How many features a model takes."""
        return len(self.features)

    @property
    def outputs(self) -> int:
        """How many outputs a model must have."""
        return self.target.outputs

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number; none for a regression."""
        return self.target.names

    @property
    def unit(self) -> str:
        """The unit of y, as the end of a heading; nothing for classes."""
        if isinstance(self.target, Classes):
            return ""
        return f"; y is '{self.target.name}' in standard deviations, {self.target.deviation:.5g} each"

    @property
    def text(self) -> list[str]:
        """The columns to read as text, which a file of other rows may not show."""
        return [
            column.name for column in (*self.columns, self.target) if not isinstance(column, NumberColumn | Quantity)
        ]

    @property
    def groups(self) -> list[slice]:
        """The features of each column."""
        ends = list(accumulate(len(column.features) for column in self.columns))
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def held(self) -> Tensor:
        """Which features no worst case may move, (features,): those of text, and of fixed columns."""
        held = [isinstance(column, CategoryColumn) or column.name in self.fixed for column in self.columns]
        return torch.tensor([one for one, column in zip(held, self.columns, strict=True) for _ in column.features])

    @property
    def range(self) -> tuple[Tensor, Tensor]:
        """The least and the largest value of each feature in the training rows, (features,) each."""
        ends = [
            column.scaled(np.array([[column.low], [column.high]]))
            if isinstance(column, NumberColumn)
            else np.array([[0.0], [1.0]]).repeat(len(column.features), axis=1)
            for column in self.columns
        ]
        lower, upper = torch.from_numpy(np.concatenate(ends, axis=1).astype(np.float32))
        return lower, upper

    def box(self, *inputs: Tensor) -> Box:
        """Where rows may be: text and fixed columns stay, numbers keep to the training range, or to these rows."""
        lower, upper = self.range
        for x in inputs:
            lower, upper = torch.minimum(lower, x.amin(0)), torch.maximum(upper, x.amax(0))
        return Box(lower, upper, self.held)

    def inputs(self, frame: object, warn: Warn = warn_user) -> Tensor:
        """Rows as features, (N, width). Columns are found by name; others are ignored."""
        return self._features(Frame.of(frame), warn)

    def encode(self, frame: object, warn: Warn = warn_user) -> tuple[Tensor, Tensor]:
        """Rows as features, (N, width), and targets, (N,): class numbers, or the target in standard deviations."""
        raw = Frame.of(frame)
        raw.check_columns([self.target.name], "the target")
        return self._features(raw, warn), torch.from_numpy(self.target.encoded(raw))

    def predict(self, model: nn.Module, frame: object, warn: Warn = warn_user) -> Any:
        """What the model predicts for the rows, by column: a DataFrame for a pandas DataFrame, else a dict of arrays.

        Classification: `prediction`, the name of the class, and `probability of NAME` for each class. Regression:
        `prediction`, in the target's own unit.
        """
        outputs = outputs_of(model, self._features(Frame.of(frame), warn))
        if isinstance(self.target, Quantity):
            found: dict[str, NDArray[Any]] = {"prediction": self.target.restored(outputs.flatten().numpy())}
        else:
            found = predictions(outputs, self.classes)
        pandas = type(frame).__module__.partition(".")[0] == "pandas"
        return type(frame)(found, index=frame.index) if pandas else found  # type: ignore[call-arg, attr-defined]

    def _features(self, raw: Frame, warn: Warn) -> Tensor:
        names = [column.name for column in self.columns]
        raw.check_columns(names, "on which the model was trained")
        known = {*names, self.target.name, *self.left_out}
        if strangers := [name for name in raw.names if name not in known]:
            warn(f"{raw.source}: the training rows have no column {listed(strangers)}; ignored")
        x = np.zeros((len(raw), self.width), dtype=np.float32)
        for column, group in zip(self.columns, self.groups, strict=True):
            if strange := column.write(raw, x[:, group], self.clip_to_training):
                words = ", ".join(f"'{word}' ({count})" for word, count in list(strange.items())[:_STRANGE])
                more = f" and {len(strange) - _STRANGE} more" if len(strange) > _STRANGE else ""
                warn(
                    f"{raw.source}: column '{column.name}' holds categories that the training rows do not have: {words}"
                    f"{more}. They are 0 in every category, in {sum(strange.values())} of {len(raw)} rows"
                )
        return torch.from_numpy(x)

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes it again."""
        return {
            "columns": [_plain(column) for column in self.columns],
            "target": _plain(self.target),
            "fixed": list(self.fixed),
            "clip_to_training": self.clip_to_training,
            "left_out": list(self.left_out),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Table:
        """The table that these plain values stand for."""
        try:
            columns, target = tuple(map(_made, content["columns"])), _made(content["target"])
            sound = all(isinstance(column, NumberColumn | CategoryColumn) for column in columns)
            if not (columns and sound and isinstance(target, Classes | Quantity)):
                raise ValueError("a column or the target is of another kind")
            fixed, left_out = (tuple(map(str, content[key])) for key in ("fixed", "left_out"))
            return cls(columns, target, fixed, bool(content["clip_to_training"]), left_out)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise DataError(f"these values are no preprocessing of a table: {problem}") from None


def _learned(raw: Frame, names: Sequence[str]) -> tuple[tuple[NumberColumn | CategoryColumn, ...], list[str]]:
    """The columns, and those that are left out since they are constant; one error names all that no model takes."""
    found: list[NumberColumn | CategoryColumn] = []
    constant, unusable = [], []
    for name in names:
        try:
            column = raw.column(name)
            learned: NumberColumn | CategoryColumn | None = None
            if isinstance(column, Numbers):
                learned = NumberColumn.learned(name, column.values, raw.source)
            elif isinstance(column, Words):
                learned = CategoryColumn.learned(name, column)
        except Unusable as problem:
            unusable.append(problem)
            continue
        found += [learned] if learned else []
        constant += [] if learned else [name]
    if unusable:
        dropped = [problem.column for problem in unusable]
        whys = "; ".join(f"'{problem.column}' {problem.why}" for problem in unusable)
        raise DataError(
            f"{raw.source} has columns that no model takes: {whys}. Leave them out: --drop {','.join(dropped)} "
            f"(in Python drop={dropped})"
        )
    return tuple(found), constant


def _plain(part: object) -> dict[str, Any]:
    (kind,) = [name for name, of in _KINDS.items() if type(part) is of]
    return {"kind": kind} | {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(part).items()  # type: ignore[call-overload]
    }


def _made(content: Mapping[str, Any]) -> Any:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    return _KINDS[str(values.pop("kind"))](**values)
