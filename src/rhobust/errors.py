"""The errors of the library. Every message says what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class RhobustError(Exception):
    """Base of every error raised on purpose; the command prints it as one line, without a traceback."""


class Refused(RhobustError, ValueError):
    """The request breaks an assumption that the theory needs; the message gives the reason and the fix."""


class ConfigError(RhobustError, ValueError):
    """A setting or a name is wrong. Carries every problem found, not only the first."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class Unmovable(Refused):
    """A loss without a gradient in the inputs, where an ascent wants one."""


class DataError(RhobustError, ValueError):
    """Data that cannot be used, with the place where they were found wanting."""


class TruncatedFile(DataError):
    """A data file whose compression breaks off."""


class WrongHash(DataError):
    """A file whose content is not the published one."""


class LengthMismatch(DataError):
    """Inputs and labels that do not belong together."""


class RunError(RhobustError):
    """A run directory or a checkpoint that cannot be read or written."""


class Diverged(RhobustError, ArithmeticError):
    """A loss or gradient is not finite; raised before the update, so the parameters are still good.

    `records` are those of the sound steps before it that were not handed out yet.
    """

    def __init__(self, message: str, records: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.records = records


class Halted(RhobustError):
    """A training cannot go on, or was told not to; what was done until now stands."""


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """The one sentence for a name that nobody knows.

    >>> unknown("method", "spgad", ["erm", "spgda"])
    "unknown method 'spgad' (did you mean 'spgda'?); known: erm, spgda"
    """
    names = list(known)
    close = difflib.get_close_matches(str(name).lower(), names, n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"unknown {kind} '{name}'{hint}; known: {', '.join(names)}"
