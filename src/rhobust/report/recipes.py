"""The commands that make the numbers of a report again."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rhobust.data.table_settings import TableSettings
from rhobust.federation.settings import Federation
from rhobust.report.gather import Report
from rhobust.report.rows import Entry
from rhobust.runs.config import Config
from rhobust.runs.measurements import KINDS, SHIFTS, Kind
from rhobust.support.toml import parse_overrides, typed

# What a reader looks for first is said even where it is the default.
_ALWAYS = ("data", "model", "method", "rounds")  # rounds make it a federation


def commands(entry: Entry) -> list[str]:
    """Train the run again and measure what was measured, in a shell."""
    return [training(entry), *(_measuring(entry, kind) for kind in KINDS if kind in entry.measured)]


def training(entry: Entry) -> str:
    """`rhobust train` with every setting that is not the default."""
    config = entry.config
    radius = {} if config.radius is None else {"radius": config.radius}
    plain = Config.resolve({"method": config.method, "threads": 1}, radius)
    usual = plain.settings() | (dataclasses.asdict(Federation()) if config.federation else {})
    usual |= dataclasses.asdict(TableSettings()) if config.table else {}
    # Sums depend on the device and the threads, and their defaults on the machine.
    usual |= {"radius": None, "device": None, "threads": None}
    own = {key: value for key, value in entry.settings.items() if key in _ALWAYS or value != usual[key]}
    command = ["train"]
    if own.get("partition") == "sites":  # who takes part is the federation's business
        command = ["federation", "submit", "FED"]
        own = {key: value for key, value in own.items() if key not in ("partition", "workers")}
    return shlex.join(["rhobust", *command, "--out", str(entry.run.path), *(_word(key, own[key]) for key in own)])


def reporting(report: Report, out: Path, form: str) -> str:
    """`rhobust report` on the same runs."""
    words = [str(entry.run.path) for entry in report.entries] + ["--out", str(out)]
    words += [] if out.suffix == f".{form}" else ["--format", form]
    return shlex.join(["rhobust", "report", *words])


def _measuring(entry: Entry, kind: Kind[Any]) -> str:
    asked = {**entry.asked(kind), "samples": entry.measured[kind].result.samples}
    if kind is SHIFTS:
        asked = {"attacks": []} | asked  # none but the shifts
    words = [(f"--{key}", _value(value)) for key, value in asked.items() if (key, value) != ("budgets", [])]
    return shlex.join(["rhobust", kind.command, str(entry.run.path), *(part for word in words for part in word)])


def _value(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_value(item) for item in value)
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _word(key: str, value: Any) -> str:
    """key=value as `rhobust train` reads it back.

    >>> _word("radius", 2.0), _word("cost", "lp:1.5"), _word("random_start", True), _word("data", "7")
    ('radius=2.0', 'cost=lp:1.5', 'random_start=true', 'data="7"')
    """
    word = f"{key}={typed(value)}"
    if isinstance(value, str) and parse_overrides([word]) != {key: value}:
        return f"{key}={json.dumps(value)}"
    return word
