"""How long it takes to read a csv file and to make features of it, beside pandas with scikit-learn.

python -m benchmarks.tables [--rows 1000000] [--repeats 3] [--markdown]

Both sides read the same file, standardize 30 columns of numbers, encode 20 columns of text as one-hot features, and
number the classes of the target. They take turns, each in a process of its own; imports are not counted.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command
from rhobust.reproduction.tables import markdown
from rhobust.support.environment import environment
from rhobust.support.files import write_json

RESULTS = Path(__file__).parents[1] / "results" / "tables.json"
ROWS, REPEATS = 1_000_000, 3
NUMBERS, TEXTS, CATEGORIES = 30, 20, 8
GOAL = 2.0  # times the other side's time, at most
SIDES = ("rhobust", "pandas and scikit-learn")


def write_table(path: Path, rows: int) -> None:
    """Numbers of six digits, text of eight categories, and a target of two classes."""
    import pyarrow as pa
    import pyarrow.csv

    draw = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for number in range(NUMBERS):
        columns[f"number {number}"] = np.round(draw.normal(100, 15, rows), 3)
    words = pa.array([f"category {number}" for number in range(CATEGORIES)])
    for number in range(TEXTS):
        columns[f"text {number}"] = words.take(pa.array(draw.integers(0, CATEGORIES, rows)))
    columns["target"] = pa.array(["no", "yes"]).take(pa.array(draw.integers(0, 2, rows)))
    pyarrow.csv.write_csv(pa.table(columns), path)


def with_rhobust(path: Path) -> tuple[float, int, float]:
    import pyarrow.compute
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401 (imported by the first table, and not counted)

    from rhobust.data.frame import Frame
    from rhobust.data.table import Table

    start = time.perf_counter()
    raw = Frame.read(path)
    x, y = Table.fit(raw, "target").encode(raw)
    return time.perf_counter() - start, x.shape[1], float(y.double().mean())


def with_scikit_learn(path: Path) -> tuple[float, int, float]:
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import LabelEncoder, OneHotEncoder, StandardScaler

    start = time.perf_counter()
    frame = pd.read_csv(path)
    numbers = [name for name in frame if name.startswith("number")]
    texts = [name for name in frame if name.startswith("text")]
    ways = [("numbers", StandardScaler(), numbers), ("texts", OneHotEncoder(sparse_output=False), texts)]
    x = ColumnTransformer(ways).fit_transform(frame)
    y = LabelEncoder().fit_transform(frame["target"])
    return time.perf_counter() - start, x.shape[1], float(y.mean())


def one_side(side: str, path: str) -> None:
    """Measured in a process of its own: prints seconds, the peak memory, and what came out."""
    seconds, width, mean = (with_rhobust if side == SIDES[0] else with_scikit_learn)(Path(path))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    print(json.dumps({"seconds": seconds, "peak": peak, "features": width, "mean": mean}))


def measure(output: Path, rows: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write_table(path, rows)
        size, runs = path.stat().st_size, {side: list[dict[str, Any]]() for side in SIDES}
        for _ in range(repeats):
            for side in SIDES:
                program = f"from benchmarks.tables import one_side; one_side({side!r}, {str(path)!r})"
                done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
                runs[side].append(json.loads(done.stdout))
                print(f"{side}: {runs[side][-1]['seconds']:.2f} s", flush=True)
    if len({(run["features"], run["mean"]) for side in SIDES for run in runs[side]}) > 1:
        raise RuntimeError("the two sides did not make the same features and labels")
    settings = {"rows": rows, "columns": NUMBERS + TEXTS, "bytes": size, "repeats": repeats, "goal": GOAL}
    write_json(output, {"environment": environment("cpu"), "cores": os.cpu_count(), "settings": settings, "runs": runs})


def ratio(results: dict[str, Any]) -> float:
    """Our median time over that of the other side."""
    ours, theirs = (statistics.median(run["seconds"] for run in results["runs"][side]) for side in SIDES)
    return ours / theirs


def table(results: dict[str, Any]) -> str:
    lines = []
    for side in SIDES:
        runs = results["runs"][side]
        seconds = [run["seconds"] for run in runs]
        peak = max(run["peak"] for run in runs) / 2**30
        lines.append([side, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f}", f"{peak:.1f}"])
    text = markdown(["", "median, s", "fastest, s", "peak memory, GiB"], lines)
    settings = results["settings"]
    shape = f"{settings['rows']:,} rows, {settings['columns']} columns, {settings['bytes'] / 2**20:,.0f} MiB"
    return f"{text}\n\n{shape}; ratio {ratio(results):.2f}, goal at most {settings['goal']:g}."


TABLES = {"tables": table}

if __name__ == "__main__":
    options = {"rows": (ROWS, "rows of the table"), "repeats": (REPEATS, "runs of each side")}
    command(__doc__, RESULTS, measure, TABLES, options=options)
