"""A run directory: settings, environment, metrics, checkpoints and the trained model.

    config.toml                 every setting, resolved; `rhobust train --config` takes it back
    environment.json            versions, device, threads, git revision
    data.json                   digests of the training and test samples, and the price of their deviations
    metrics.jsonl               one line per logged step (`training.record.Record`)
    checkpoints/step-N          the last few complete states of the training
    model.safetensors           the trained weights, with gamma, once the run is finished

Everything is written atomically and read back without unpickling anything.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rhobust.errors import ConfigError, RunError
from rhobust.runs.config import Config
from rhobust.support.environment import environment
from rhobust.support.files import LOCK, exclusive, write_atomically, write_json
from rhobust.support.state_files import read_state, write_state
from rhobust.support.toml import read_toml
from rhobust.training.record import Record, RoundRecord
from rhobust.training.spread import per_feature

# One that is being replaced, one that may turn out damaged, one to fall back on.
_KEPT_CHECKPOINTS = 3

FILES = ("config.toml", "environment.json", "data.json", "metrics.jsonl", "model.safetensors")
"""What a training writes into its run, checkpoints apart."""

# What a checkpoint holds besides its digest.
_CHECKPOINT = {"step": int, "metrics_size": int, "config": str, "state": dict}


class Run:
    """A run directory, new or found."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def vacant(cls, path: Path) -> Run:
        """A directory that holds nothing yet, or does not exist."""
        run = cls(path)
        if run.config_path.exists():
            raise RunError(
                f"{path} already holds a run; nothing was changed. Choose another --out, or go on with: {run.going_on}"
            )
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file, and a run is a folder; nothing was changed. Choose another --out")
        if path.exists() and any(entry.name != LOCK for entry in path.iterdir()):
            raise RunError(f"{path} exists and is not empty; nothing was changed. Choose another --out")
        return run

    def begin(self, config: Config, price: float | None = None, **data: str) -> None:
        """Start a run here, if the directory is still vacant; `data` are digests of its samples (`Samples.digest`).

        `price` is the cost of moving every feature of a sample by its standard deviation.
        """
        Run.vacant(self.path)
        write_json(self.path / "data.json", data if price is None else {**data, "price_of_deviations": price})
        write_json(self.path / "environment.json", environment(config.device))
        write_atomically(self.config_path, config.to_toml().encode())  # last: with it, the directory is a run

    def check_data(self, **data: str) -> None:
        """Refuse samples that are not those the run began with, though they bear the same name."""
        try:
            begun = json.loads((self.path / "data.json").read_text())
            changed = [part for part, digest in data.items() if begun[part] != digest]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise RunError(f"{self.path / 'data.json'} is damaged or missing; without it a run has no data") from None
        if changed:
            raise RunError(
                f"{self.config().data} has changed since {self.path} began: its {' and '.join(changed)} samples are "
                "others. Put the data back, or train again"
            )

    def radius_per_feature(self, radius: float | None) -> float | None:
        """The radius in standard deviations of every feature (`training.spread`); none of a run that does not say."""
        try:
            price = float(json.loads((self.path / "data.json").read_text())["price_of_deviations"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return None if radius is None else per_feature(radius, price)

    @classmethod
    def find(cls, path: Path) -> Run:
        """An existing run."""
        run = cls(path)
        if not path.exists():
            raise RunError(f"there is no {path}; a run is the folder that `rhobust train --out` made")
        if path.is_file():
            raise RunError(f"{path} is a file; a run is the folder that `rhobust train --out` made")
        if not run.config_path.exists():
            inside = sorted(str(child.parent) for child in path.glob("*/config.toml"))
            hint = f"; in it are the runs {', '.join(inside[:5])}{' ...' if inside[5:] else ''}" if inside else ""
            raise RunError(f"{path} is not a run directory: it has no config.toml{hint}")
        return run

    @property
    def config_path(self) -> Path:
        return self.path / "config.toml"

    @property
    def going_on(self) -> str:
        """The command that continues the run."""
        try:
            deployed = read_toml(self.config_path).get("partition") == "sites"
        except ConfigError:
            deployed = False
        return f"rhobust {'federation submit FED' if deployed else 'train'} --resume {self.path}"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def model_path(self) -> Path:
        return self.path / "model.safetensors"

    def locked(self) -> AbstractContextManager[None]:
        """Alone in this directory."""
        return exclusive(self.path)

    def config(self) -> Config:
        """The resolved settings."""
        return Config.from_toml(self.config_path)

    @property
    def finished(self) -> bool:
        """Whether the trained model is there."""
        return self.model_path.exists()

    def log(self, record: Record) -> None:
        """Append one line to the metrics."""
        line = (json.dumps(asdict(record), allow_nan=False) + "\n").encode()
        with self.metrics_path.open("ab") as file:
            file.write(line)

    def metrics(self) -> list[dict[str, Any]]:
        """Every logged step, as `Record` has it."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_bytes().split(b"\n")
        records = [_record(line) for line in lines[:-1]]  # a line without its newline was cut off by a crash
        sound = [record for record in records if record is not None]
        if len(sound) < len(records):
            raise RunError(
                f"{self.metrics_path} is damaged in line {records.index(None) + 1}; put back the file as it was, or "
                f"train again: rhobust train --config {self.config_path} --out DIRECTORY"
            )
        return sound

    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        """Keep a complete state, with the length of the metrics that belong to it; drop the oldest."""
        size = 0
        if self.metrics_path.exists():
            with self.metrics_path.open("rb") as file:  # the lines must be on disk before what refers to them
                os.fsync(file.fileno())
            size = self.metrics_path.stat().st_size
        config = self.config_path.read_text(encoding="utf-8")
        write_state(self._checkpoint_path(step), {"step": step, "metrics_size": size, "config": config, "state": state})
        for old in self._checkpoint_paths()[:-_KEPT_CHECKPOINTS]:
            old.unlink()

    def restore(self, warn: Callable[[str], None]) -> tuple[int, dict[str, Any] | None]:
        """The newest sound checkpoint as (step, state), metrics cut back to it; (0, None) where there is none.

        A damaged checkpoint is named through `warn` and the one before it is used.
        """
        for path in reversed(self._checkpoint_paths()):
            try:
                saved = read_state(path)
                if {key: type(value) for key, value in saved.items()} != _CHECKPOINT:
                    raise RunError(f"{path} is not a checkpoint")
            except RunError as problem:
                warn(f"{problem}; looking for one before it")
                path.rename(path.with_suffix(".damaged"))  # it must not outlive sound ones of fewer steps
                continue
            if saved["config"] != self.config_path.read_text(encoding="utf-8", errors="replace"):
                raise RunError(
                    f"{self.config_path} was changed since the run started; put it back, or start a new run with it: "
                    f"rhobust train --config {self.config_path} --out DIRECTORY"
                )
            self._cut_metrics(saved["metrics_size"])
            return saved["step"], saved["state"]
        if self.metrics_path.exists() and self.metrics_path.stat().st_size:
            warn(f"{self.path} has no usable checkpoint; starting again from step 0")
        self._cut_metrics(0)
        return 0, None

    def _cut_metrics(self, size: int) -> None:
        if not self.metrics_path.exists():
            if size:
                raise RunError(f"{self.metrics_path} is missing; without it the run cannot go on")
            return
        if self.metrics_path.stat().st_size < size:
            raise RunError(f"{self.metrics_path} is shorter than its checkpoint says; it was changed after the run")
        os.truncate(self.metrics_path, size)

    def finish(self, state: dict[str, Any]) -> None:
        """Write the trained model; from here on the run can be loaded."""
        write_state(self.model_path, state)

    def trained(self) -> dict[str, Any]:
        """What `finish` wrote."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished; continue it with: {self.going_on}")
        try:
            return read_state(self.model_path)
        except RunError as problem:
            raise RunError(f"{problem}; delete it and make it again: {self.going_on}") from None

    def _checkpoint_path(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:09d}.safetensors"

    def _checkpoint_paths(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("step-*.safetensors"))


def _record(line: bytes) -> dict[str, Any] | None:
    """A line of the metrics; none where it is not the JSON of a `Record`, or of a round's."""
    try:
        record = json.loads(line)
        made = RoundRecord(**record) if "workers" in record else Record(**record)
        values = {key.name: getattr(made, key.name) for key in fields(Record)}
        if values["accuracy"] is None:
            del values["accuracy"]
        numbers = [*values.pop("errors").values(), *values.values()]
        sound = all(math.isfinite(number) for number in numbers)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return record if sound else None
