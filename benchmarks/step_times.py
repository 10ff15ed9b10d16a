"""Milliseconds a step of training, for every method that docs/one-gradient.md compares, on the device that is there.

RHOBUST_DATA=... python -m benchmarks.step_times [--markdown]    adds a run to the results

The methods are timed window by window in turn, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import command, read_csv, write_csv
from benchmarks.one_gradient_variants import RARE, TURNS, settings
from rhobust.data.catalog import load_data
from rhobust.reproduction.tables import markdown
from rhobust.runs.build import build_engine
from rhobust.runs.config import Config
from rhobust.support.environment import environment
from rhobust.training.cuda_graph import CudaGraphEngine
from rhobust.training.eager import EagerEngine

RESULTS = Path(__file__).parents[1] / "results" / "bench" / "step-times.csv"
WINDOWS, STEPS = 7, {"cuda": 300, "cpu": 6}  # least steps in a window, in whole cycles of the step schedule
COLUMNS = ("kind", "run", "variant", "ms", "device", "torch", "git")
_OWN, _WEAK = "spgda, radius 0.0585, cap 0.3, noise 0.3", "regularizer squared-l2:1e-4"
VARIANTS = (  # a step takes as long with any radius
    *("erm", "fgsm, epsilon 0.2", "nfgsm, epsilon 0.2, noise 0.4", "ifgsm, epsilon 0.2"),
    f"{_OWN}, steps 1, ema 0.999",
    f"{_OWN}, ema 0.999",
    f"erm, {_WEAK}",
    f"{_OWN}, ema 0.999, {_WEAK}",
    f"{_OWN}, {RARE}, ema 0.999, {_WEAK}",
    f"spgda-margin, radius 0.0585, cap 0.3, noise 0.3, {TURNS}, ema 0.999, {_WEAK}",
    *(
        f"{_OWN}, {steps}, ema 0.999, {_WEAK}, memory 1, temper 0.3"
        for steps in ("steps 1", RARE, "steps 1 1 1 1 1 1 3", TURNS)
    ),
)


class Clock:
    """The steps of a variant, taken a window at a time."""

    def __init__(self, variant: str) -> None:
        config = Config.resolve(settings(variant) | {"data": "mnist", "batch_size": 128, "seed": 0})
        self.device = torch.device(config.device)
        torch.manual_seed(0)
        engine = build_engine(config, load_data(config.data), self.device)
        assert isinstance(engine, EagerEngine | CudaGraphEngine)
        self.engine = engine
        source = engine if isinstance(engine, EagerEngine) else engine.eager
        self.batches, self.steps = list(source.batches.epoch(0))[:-1], 0
        turns = engine.objective.maximizer.turns
        self.window = turns * math.ceil(STEPS[self.device.type] / turns)

    def milliseconds(self) -> float:
        """Of a step, over one window."""
        self._wait()
        start = time.perf_counter()
        for _ in range(self.window):
            self.engine.take(self.batches[self.steps % len(self.batches)], self.steps, 0)
            self.steps += 1
        self._wait()
        return 1e3 * (time.perf_counter() - start) / self.window

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(output: Path) -> None:
    """One more run."""
    clocks = {variant: Clock(variant) for variant in VARIANTS}
    windows = [{variant: clock.milliseconds() for variant, clock in clocks.items()} for _ in range(WINDOWS + 1)]
    rows, kind = read(output) if output.exists() else [], clocks["erm"].device.type
    number = 1 + max((row["run"] for row in rows if row["kind"] == kind), default=0)
    for variant in VARIANTS:
        middle = statistics.median(window[variant] for window in windows[1:])  # the first compiles
        rows.append({"kind": kind, "run": number, "variant": variant, "ms": middle, **environment(kind)})
    write_csv(output, COLUMNS, rows)


def read(path: Path) -> list[dict[str, Any]]:
    return [row | {"run": int(row["run"])} for row in read_csv(path, ["ms"])]


def times_table(rows: list[dict[str, Any]]) -> str:
    """The last run, and the ratio to ERM in the runs before, the latest first."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        runs: dict[int, dict[str, float]] = {}
        for row in rows:
            if row["kind"] == kind:
                runs.setdefault(row["run"], {})[row["variant"]] = row["ms"]
        last, *before = (runs[number] for number in sorted(runs, reverse=True))
        for variant in last:
            ratio, *earlier = (f"{run[variant] / run['erm']:.2f}" for run in (last, *before) if variant in run)
            lines.append([kind, variant, f"{last[variant]:.4g}", ratio, ", ".join(earlier)])
    return markdown(["device", "variant", "ms a step", "over ERM", "in earlier runs"], lines)


TABLES = {"times": times_table}

if __name__ == "__main__":
    command(__doc__, RESULTS, measure, TABLES, read=read)
