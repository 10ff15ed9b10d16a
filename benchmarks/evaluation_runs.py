"""The trained runs that benchmarks/evaluation.py attacks: two networks, six methods, two data sets."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.start import train_run

DATA = ("mnist", "fashion-mnist")
MODELS = ("mlp", "cnn")
METHODS: dict[str, dict[str, Any]] = {
    "erm": {},
    "fgsm": {},
    "ifgsm": {},
    "wrm": {},
    "spgd": {"radius": 6.0},
    "spgda": {"radius": 0.04, "cost": "linf", "cap": 0.3, "noise": 0.3},
}
SHARED = {"epochs": 10, "batch_size": 128, "seed": 0, "log_every": 25, "checkpoint_every": 10**9}


def names() -> list[str]:
    """Every run, such as mnist/mlp/erm."""
    return ["/".join(parts) for parts in itertools.product(DATA, MODELS, METHODS)]


def train(name: str, root: Path) -> Path:
    """The run of this name below `root`; it is trained unless it is there."""
    data, model, method = name.split("/")
    path = root / name
    if not (path / "config.toml").exists():
        train_run(path, Config.resolve(SHARED, {"data": data, "model": model, "method": method}, METHODS[method]))
    elif not Run.find(path).finished:
        train_run(path)
    return path
