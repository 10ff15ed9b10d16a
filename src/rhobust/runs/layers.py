"""Layers of settings: joined to one, each value as its setting wants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rhobust.data.table_settings import TableSettings
from rhobust.errors import ConfigError
from rhobust.federation.settings import Federation, as_federated
from rhobust.method import Method, methods
from rhobust.support.renamed import RENAMED, renamed_problem, with_new_names
from rhobust.support.setting import Setting, converted, settings_of
from rhobust.support.toml import joined


def read(
    layers: tuple[Mapping[str, Any], ...], own: Mapping[str, Setting]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """What was given, by key, later layers over earlier ones; and by key what is wrong with how it was given.

    `own` are the settings of a run, beside those of a federation and of a table.
    """
    merged = _merged(layers)
    problems = {key: [renamed_problem(key, value)] for key, value in merged.items() if key in RENAMED}
    merged = as_federated(with_new_names(merged))
    method = method_called(merged.get("method", own["method"].default))
    known = {**own, **settings_of(Federation), **settings_of(TableSettings)}
    kinds = {key: one.kind for key, one in known.items()} | (method.knob_kinds if method else {})
    given: dict[str, Any] = {}
    for key, value in merged.items():
        try:
            if key in kinds:
                given[key] = converted(key, value, kinds[key])
            elif method:  # without one, what is a knob cannot be told
                problems[key] = [method.not_a_knob("key", key, known)]
        except ConfigError as problem:
            problems[key] = problem.problems
    if is_federated(given) and given.pop("epochs", None) is not None:
        problems["epochs"] = ["a federation trains in rounds, not in epochs: drop epochs, set rounds"]
    return given, problems


def _merged(layers: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    """All keys; tables are joined. A layer that names a model anew drops the digest of the one before."""
    merged: dict[str, Any] = {}
    for layer in layers:
        named = {key.replace("-", "_"): value for key, value in layer.items()}
        if "model" in named:
            merged.pop("model_digest", None)
        merged |= {key: joined(merged.get(key), value) for key, value in named.items()}
    return merged


def method_called(name: object) -> Method | None:
    """The method of this name, if there is one."""
    return methods().get(name) if isinstance(name, str) else None


def is_federated(given: Mapping[str, Any]) -> bool:
    """Whether these settings are those of a federation."""
    return not given.keys().isdisjoint(settings_of(Federation))
