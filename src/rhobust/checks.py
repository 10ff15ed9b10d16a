"""Checks of single numbers: each returns what is wrong, or raises `Refused`."""

from __future__ import annotations

import math
from numbers import Integral, Real

from rhobust.errors import Refused


def is_number(value: object) -> bool:
    """Whether it is a real number, of Python's or of NumPy's; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def count_problem(name: str, count: object) -> str | None:
    """What is wrong with a count, if anything."""
    sound = isinstance(count, Integral) and not isinstance(count, bool) and int(count) >= 1
    return None if sound else f"{name} must be a whole number, at least 1, not {count!r}"


def check_count(name: str, count: int) -> None:
    """Refuse what is no count, and one below one."""
    if problem := count_problem(name, count):
        raise Refused(problem)


def check_size(name: str, value: float, *, zero: bool = False, infinite: bool = False) -> None:
    """Refuse a size that is not positive and finite, unless zero or infinity is one."""
    low = is_number(value) and (value >= 0 if zero else value > 0)
    if not low or (value == math.inf and not infinite):
        finite = "" if infinite else "finite and "
        raise Refused(f"{name} must be {finite}{'>= 0' if zero else '> 0'}, not {value!r}")


def seed_problems(seed: int) -> list[str]:
    """What is wrong with a seed: torch takes no others."""
    whole = isinstance(seed, Integral) and not isinstance(seed, bool)
    return [] if whole and 0 <= seed < 2**63 else [f"seed must be a whole number >= 0 and below 2^63, not {seed}"]


def decay_problem(decay: float) -> str | None:
    """What is wrong with it, if anything.

    >>> decay_problem(0.0)
    'memory, the decay of remembered ascents, must be above 0 and at most 1, not 0.0'
    """
    sound = is_number(decay) and 0 < decay <= 1
    return None if sound else f"memory, the decay of remembered ascents, must be above 0 and at most 1, not {decay!r}"
