"""Settings that had another name: their old names and their new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED = {
    "liars": "byzantine",
    "lie": "byzantine_attack",
    "average": "ema",
    "kappa": "label_cost",
    "server": "server_update",
    "local_rate": "local_learning_rate",
    "limit": "train_samples",
}
_RENAMED_VALUES = {"server": ("step", "gradient")}


def with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings by their new names. If a setting has both names, the value of the new one counts.

    >>> with_new_names({"server": "step", "limit": 100, "seed": 1})
    {'server_update': 'gradient', 'train_samples': 100, 'seed': 1}
    """
    renamed = {RENAMED.get(key, key): _new_value(key, value) for key, value in settings.items()}
    return renamed | {key: value for key, value in settings.items() if key not in RENAMED}


def renamed_problem(key: str, value: object = None) -> str:
    """What to write instead of an old name.

    >>> renamed_problem("liars"), renamed_problem("server", "step")
    ("'liars' is called 'byzantine' now", "'server' is called 'server_update' now: write server_update=gradient")
    """
    now = f"'{key}' is called '{RENAMED[key]}' now"
    new = _new_value(key, value)
    return now if new is value else f"{now}: write {RENAMED[key]}={new}"


def _new_value(key: str, value: Any) -> Any:
    old, new = _RENAMED_VALUES.get(key, (None, None))
    return new if isinstance(value, str) and value == old else value
