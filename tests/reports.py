"""Tiny runs to report on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rhobust.runs.config import Config
from rhobust.runs.start import train_run

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "erm": {"method": "erm"},
    "spgd": {"method": "spgd", "radius": 1.0},
    "spgda-0": {"method": "spgda", "radius": 1.0},
    "spgda-1": {"method": "spgda", "radius": 1.0, "seed": 1},
}
NAMES = ["erm", "spgd", "spgda"]
"""The rows they make."""


def tiny_runs(directory: Path) -> list[Path]:
    """Linear models, trained for two epochs on the digits, two seeds of one method among them."""
    shared = {"model": "linear", "epochs": 2, "threads": 1, "device": "cpu"}
    for name, settings in SETTINGS.items():
        train_run(directory / name, Config.resolve(shared, settings))
    return [directory / name for name in SETTINGS]
