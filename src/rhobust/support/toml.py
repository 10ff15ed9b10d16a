"""Settings as text: flat TOML files and key=value words."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from rhobust.errors import ConfigError

_BARE = re.compile(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", re.IGNORECASE)  # numbers that TOML wants a 0 in


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
    except RecursionError:
        raise ValueError("brackets are nested too deep") from None
    if large := [key for key, value in settings.items() if isinstance(value, int) and not -(2**63) <= value < 2**63]:
        raise ValueError(f"{', '.join(large)}: a whole number must fit 64 bits")
    return settings


def parse_overrides(overrides: list[str]) -> dict[str, Any]:
    """key=value words as settings; values as TOML writes them, numbers also without a 0, anything else is text.

    >>> parse_overrides(["radius=2", "cost=lp:1.5", "random_start=true", "temper=.4"])
    {'radius': 2, 'cost': 'lp:1.5', 'random_start': True, 'temper': 0.4}
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
        parsed[key] = value
    return parsed


def typed(value: object) -> str:
    """A value as one types it after a key and =.

    >>> typed(True), typed((1, 1, 3)), typed(0.5)
    ('true', '1,1,3', '0.5')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(typed, value)) if isinstance(value, tuple) else str(value)


def to_toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # as JSON writes it, but for surrogates, which TOML has not, and DEL, which it escapes
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    return repr(value)  # of inf and of floats: TOML's own
