"""Settings as text: flat TOML files and key=value words."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from rhobust.errors import ConfigError

_BARE = re.compile(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", re.IGNORECASE)  # numbers that TOML wants a 0 in
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_toml(path: Path) -> dict[str, Any]:
    """A flat TOML file of settings."""
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError([f"{path} does not exist"]) from None
    except (OSError, ValueError) as problem:
        raise ConfigError([f"{path} cannot be read: {problem}"]) from None


def _parsed(text: str) -> dict[str, Any]:
    """TOML; a ValueError says what is not. Its whole numbers have 64 bits, which Python does not insist on."""
    try:
        settings = tomllib.loads(text)
        repr(settings)  # as a message may have to show it
    except RecursionError:
        raise ValueError("brackets or dotted keys are nested too deep") from None
    if large := [key for key, value in settings.items() if isinstance(value, int) and not -(2**63) <= value < 2**63]:
        raise ValueError(f"{', '.join(large)}: a whole number must fit 64 bits")
    return settings


def parse_overrides(overrides: list[str]) -> dict[str, Any]:
    """key=value words as settings; values as TOML writes them, numbers also without a 0, anything else is text.

    >>> parse_overrides(["radius=2", "cost=lp:1.5", "random_start=true", "temper=.4"])
    {'radius': 2, 'cost': 'lp:1.5', 'random_start': True, 'temper': 0.4}

    A word table.key=value sets one key of a table.

    >>> parse_overrides(["model_args.width=64", "model_args.bias=false"])
    {'model_args': {'width': 64, 'bias': False}}
    """
    wrong = [f"'{word}' is not key=value" for word in overrides if "=" not in word]
    if wrong:
        raise ConfigError(wrong)
    parsed: dict[str, Any] = {}
    for word in overrides:
        key, text = word.split("=", 1)
        try:
            ((_, value),) = _parsed(f"value = {text}").items()  # more than one: there was a line break in the text
        except ValueError:
            value = float(text) if _BARE.fullmatch(text) else text
        table, dot, key_in_it = key.partition(".")
        value = {key_in_it: value} if dot else value
        parsed[table] = joined(parsed.get(table), value)
    return parsed


def joined(before: object, after: object) -> Any:
    """The value that wins, which is the later one; two tables are joined key by key.

    >>> joined(1, 2), joined({"width": 32, "depth": 3}, {"width": 64})
    (2, {'width': 64, 'depth': 3})
    """
    return {**before, **after} if isinstance(before, dict) and isinstance(after, dict) else after


def typed(value: object) -> str:
    """A value as one types it after a key and =.

    >>> typed(True), typed((1, 1, 3)), typed(0.5), typed({"width": 64})
    ('true', '1,1,3', '0.5', '{width = 64}')
    """
    if isinstance(value, bool | dict | list):
        return to_toml(value)
    return ",".join(map(typed, value)) if isinstance(value, tuple) else str(value)


def to_toml(value: object) -> str:
    """A value as TOML writes it.

    >>> to_toml({"width": 64, "kernel sizes": [3, 5]})
    '{width = 64, "kernel sizes" = [3, 5]}'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # as JSON writes it, but for surrogates, which TOML has not, and DEL, which it escapes
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, dict):
        keys = {key: key if _BARE_KEY.fullmatch(key) else to_toml(key) for key in value}
        return f"{{{', '.join(f'{keys[key]} = {to_toml(one)}' for key, one in value.items())}}}"
    return repr(value)  # of inf and of floats: TOML's own
