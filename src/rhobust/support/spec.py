"""Component strings such as `l2`, `lp:1.5` and `elastic-net:0.1,0.2`, parsed into objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from rhobust.errors import ConfigError, unknown

T = TypeVar("T")


def parse_spec(kind: str, spec: str, table: Mapping[str, tuple[int, Callable[..., T]]]) -> T:
    """name or name:number,number -> the object it names."""
    name, _, arguments = spec.partition(":")
    if name not in table:
        raise ConfigError([unknown(kind, name, table)])
    count, build = table[name]
    try:
        numbers = [float(word) for word in arguments.split(",")] if arguments else []
    except ValueError:
        raise ConfigError([f"{kind} '{spec}': '{arguments}' is not a list of numbers"]) from None
    if len(numbers) != count:
        form = name if count == 0 else f"{name}:{','.join(['NUMBER'] * count)}"
        raise ConfigError([f"{kind} '{spec}' should read {form}"])
    return build(*numbers)
