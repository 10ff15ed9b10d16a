"""Defaults that depend on other settings, on the machine, or on the working directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rhobust.data.catalog import DATA
from rhobust.data.frame import SUFFIXES
from rhobust.data.samples import REGRESSION
from rhobust.errors import ConfigError
from rhobust.gamma_rules import GAMMA_RULES, GammaRule
from rhobust.method import Method
from rhobust.models.source import Source, is_own

_PAPER_DATA = ("mnist", "fashion-mnist")


def filled_in(given: Mapping[str, Any], method: Method | None, federated: bool, here: bool) -> dict[str, Any]:
    """The settings given, and those that follow from them; `here`: paths are the caller's.

    >>> filled_in({"data": "mnist", "device": "cpu", "threads": 1}, None, federated=False, here=True)
    {'data': 'mnist', 'device': 'cpu', 'threads': 1, 'model': 'cnn', 'precision': 'float32'}
    """
    found = dict(given)
    if here and "data" in found and found["data"] not in DATA:
        found["data"] = _from_the_root(found["data"])
    if here and found.get("data_dir"):
        found["data_dir"] = _from_the_root(found["data_dir"])
    if here and found.get("test"):  # a column's name stays as it is
        found["test"] = _from_the_root(found["test"]) if Path(found["test"]).suffix in SUFFIXES else found["test"]
    if found.get("data") in _PAPER_DATA:
        found.setdefault("model", "cnn")  # the paper's, on the paper's data
    if found.get("task") == REGRESSION:
        found.setdefault("loss", "squared")
    if here and is_own(found.get("model", "")):
        found["model"], digest = _own_model(found["model"])
        found.setdefault("model_digest", digest)
    if found.get("device", "auto") == "auto":
        found["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    if found.get("precision", "auto") == "auto":
        found["precision"] = "bfloat16" if found["device"] == "cuda" and not federated else "float32"
    found.setdefault("threads", torch.get_num_threads())  # sums depend on it, so a resumed run must keep it
    if method and method.robust:
        found.setdefault("gamma_rule", _spec_of(method.gamma_rule))
    return found


def _from_the_root(place: str) -> str:
    """The same path, absolute where it exists: a run may be looked at from anywhere."""
    try:
        return str(Path(place).absolute()) if Path(place).exists() else place
    except OSError:  # a folder on the way that may not be entered, a name too long
        return place


def _own_model(model: str) -> tuple[str, str | None]:
    """A factory, its file absolute, and the digest of its source as it is now; none where a check says why not."""
    try:
        source = Source.parse(model).inside(Path.cwd())
        return str(source), source.digest()
    except ConfigError:
        return model, None


def _spec_of(rule: GammaRule) -> str:
    """The text that names a rule, as GAMMA_RULES reads it."""
    (name,) = [name for name, (_, kind) in GAMMA_RULES.items() if kind is type(rule)]
    return f"{name}:{rule.lr:g}"
