"""Settings as fields of a dataclass: each declares its help and its check."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rhobust.errors import ConfigError, Refused, unknown
from rhobust.support.toml import typed

Check = Callable[[str, Any], Iterable[str]]
"""(key, value) -> what is wrong with the value of a setting."""

_MOST_THREADS = 4096  # far beyond any machine; torch refuses much larger numbers in words of its own
_COUNT = re.compile(r"-?[0-9]{1,18}")
_KINDS: dict[type, str] = {
    **{str: "text", int: "a whole number", float: "a number", bool: "true or false"},
    dict: "a table, such as {width = 64}",
    list: 'names, such as a,b or ["a", "b"]',
}
_DEEPEST = 8  # tables and lists within each other


class CountOrAuto:
    """The kind of a setting that is a whole number, or the word auto."""


@dataclass(frozen=True)
class Setting:
    """What is known of a setting."""

    key: str
    kind: type
    default: str
    """As one types it, or in words; empty where there is none."""
    help: str
    check: Check | None


def setting(default: Any, help: str, check: Check | None = None, *, usual: str = "") -> Any:
    """A field that is a setting. `usual` is the default in words, where it depends on something else."""
    return dataclasses.field(default=default, metadata={"help": help, "check": check, "usual": usual})


@cache
def settings_of(owner: type) -> Mapping[str, Setting]:
    """The settings that a dataclass declares, by key, in their order; their kinds are their annotations'."""
    annotations = get_type_hints(owner)
    found = {}
    for field in dataclasses.fields(owner):
        if about := field.metadata:
            default = about["usual"] or ("" if field.default is None else typed(field.default))
            found[field.name] = Setting(
                field.name, kind_of(annotations[field.name]), default, about["help"], about["check"]
            )
    return MappingProxyType(found)


def kind_of(annotation: Any) -> type:
    """What a value must be, unless it is unset; `tuple` stands for a whole number, or several that take turns.

    >>> kind_of(float | None), kind_of(int | tuple[int, ...]), kind_of(dict[str, int] | None)
    (<class 'float'>, <class 'tuple'>, <class 'dict'>)
    >>> kind_of(int | Literal["auto"])
    <class 'rhobust.support.setting.CountOrAuto'>
    """
    first: type
    first, *others = [part for part in get_args(annotation) or [annotation] if part is not NoneType]
    if not others:
        return get_origin(first) or first
    return CountOrAuto if any(get_origin(other) is Literal for other in others) else tuple


def converted(key: str, value: object, kind: type) -> Any:
    """The value as `kind`; nothing is rounded, cut or guessed.

    >>> converted("radius", 2, float), converted("steps", "1,1,3", tuple), converted("epochs", "20", CountOrAuto)
    (2.0, (1, 1, 3), 20)
    >>> converted("drop", "id, name", list)
    ['id', 'name']
    """
    if kind is list:
        return _names(key, value)
    if kind is tuple:
        return _turns(key, value)
    if kind is CountOrAuto:
        return _count_or_auto(key, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**63 else math.copysign(math.inf, value)
    if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise ConfigError([f"{key} must be {_KINDS[kind]}, not {value!r}"])


def _turns(key: str, value: object) -> int | tuple[int, ...]:
    """One whole number, or several that take turns, as a list or, in a shell, with commas."""
    several: Any = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    counts = [int(count) if isinstance(count, str) and count.strip().isdecimal() else count for count in several]
    if not counts or any(type(count) is not int for count in counts):
        raise ConfigError([f"{key} must be a whole number, or several that take turns, like 1,1,1,1,3, not {value!r}"])
    return tuple(counts) if len(counts) > 1 else counts[0]


def _names(key: str, value: object) -> list[str]:
    """Names, as a list or, in a shell, with commas."""
    names: Any = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not (isinstance(names, list) and names and all(isinstance(name, str) and name for name in names)):
        raise ConfigError([f"{key} must be {_KINDS[list]}, not {value!r}"])
    return list(dict.fromkeys(names))


def _count_or_auto(key: str, value: object) -> int | str:
    """A whole number, which may be text as an option is, or the word auto."""
    count = int(value) if isinstance(value, str) and _COUNT.fullmatch(value) else value
    if count == "auto" or type(count) is int:
        return count
    raise ConfigError([f"{key} must be a whole number, or auto, not {value!r}"])


def problems_by_key(settings: Any) -> dict[str, list[str]]:
    """What is wrong with each setting by itself; those that are sound or unset are left out."""
    found = {
        one.key: list(_problems(one, getattr(settings, one.key))) for one in settings_of(settings.__class__).values()
    }
    return {key: problems for key, problems in found.items() if problems}


def _problems(known: Setting, value: Any) -> Iterator[str]:
    if isinstance(value, str) and not _is_writable(value):
        yield f"{known.key} is not text that could be written down: {value!r}"
    elif known.check and value is not None:
        yield from known.check(known.key, value)


def _is_writable(text: str) -> bool:
    return text == text.encode(errors="ignore").decode()


def refusals(build: Callable[..., object], *given: object) -> Iterator[str]:
    """Why something cannot be built, if it cannot."""
    try:
        build(*given)
    except ConfigError as error:
        yield from error.problems
    except Refused as error:
        yield str(error)


# Checks of one value.


def accepted_by(build: Callable[[Any], object]) -> Check:
    """Something can be built of it."""
    return lambda key, value: refusals(build, value)


def one_of(names: Iterable[str]) -> Check:
    """It is one of the names."""
    known = list(names)
    return lambda key, value: [] if value in known else [unknown(key, value, known)]


def positive(key: str, value: float) -> Iterator[str]:
    """It is finite and above 0."""
    if not 0 < value < math.inf:
        yield f"{key} must be > 0{', and finite' if value == math.inf else ''}, not {value}"


def auto_or(check: Check) -> Check:
    """It is the word auto, or sound."""
    return lambda key, value: [] if value == "auto" else check(key, value)


def not_negative(key: str, value: float) -> Iterator[str]:
    """It is at least 0."""
    if not value >= 0:
        yield f"{key} must be at least 0, not {value}"


def below_one(key: str, value: float) -> Iterator[str]:
    """It lies in [0, 1)."""
    if not 0 <= value < 1:
        yield f"{key} must be at least 0 and below 1, not {value}"


def thread_count(key: str, value: int) -> Iterator[str]:
    """It is a number of threads that a machine may have."""
    yield from positive(key, value)
    if value > _MOST_THREADS:
        yield f"{key} must be at most {_MOST_THREADS}, not {value}"


def keyword_arguments(key: str, value: Mapping[Any, Any]) -> Iterator[str]:
    """Its keys are names, and its values can be written as TOML and read back as they were."""
    for name, one in value.items():
        if not (isinstance(name, str) and name.isidentifier() and _is_writable(name)):
            yield f"{key} has the key {name!r}, which is no name of an argument"
        elif not _is_plain(one, _DEEPEST):
            yield (
                f"{key}.{name} must be text, true or false, a whole number of 64 bits, a number, or a list or table of "
                f"such values, {_DEEPEST} deep at most; it is a {type(one).__name__}"
            )


def _is_plain(value: object, depth: int) -> bool:
    if isinstance(value, dict):
        keys = all(isinstance(key, str) and _is_writable(key) for key in value)
        return depth > 0 and keys and all(_is_plain(one, depth - 1) for one in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(one, depth - 1) for one in value)
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if type(value) is float:
        return not math.isnan(value)  # it does not equal itself
    return type(value) is bool or (type(value) is str and _is_writable(value))
