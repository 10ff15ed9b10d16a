"""The whole way on real MNIST with the paper's network, as a user goes it: train, evaluate, certify, report.

RHOBUST_DATA=... python -m benchmarks.mnist [--markdown]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command import command
from rhobust.reproduction.tables import markdown
from rhobust.support.environment import environment
from rhobust.support.files import write_json

RESULTS = Path(__file__).parents[1] / "results" / "bench" / "mnist.json"
COMMANDS = (
    "train --data mnist --method spgd --radius 6 --epochs 1 --train-samples 6000 --out run",
    "evaluate run --samples 500",
    "evaluate run --attacks '' --shifts all --samples 500",
    "certify run --samples 100",
    "report run --out report.html",
)


def timed(command: str, place: Path) -> float:
    """Seconds that the command took."""
    start = time.perf_counter()
    words = [word.strip("'") for word in command.split()]
    subprocess.run([sys.executable, "-m", "rhobust", *words, *(["--quiet"])], cwd=place, check=True)
    return time.perf_counter() - start


def measure(output: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        rows = []
        for command in COMMANDS:
            rows.append({"command": f"rhobust {command}", "seconds": timed(command, place)})
            print(f"{rows[-1]['seconds']:.0f} s: {command}", flush=True)
        kinds = ("evaluation", "shifts", "certificates")
        found = {kind: json.loads((place / "run" / f"{kind}.json").read_text()) for kind in kinds}
        size = (place / "report.html").stat().st_size
        settings = (place / "run" / "config.toml").read_text()
    told = {"environment": environment("cpu"), "config": settings, "rows": rows, "report_bytes": size, "found": found}
    write_json(output, told)


def seconds_table(results: dict[str, Any]) -> str:
    seconds = {f"`{row['command']}`": row["seconds"] for row in results["rows"]}
    seconds["together"] = sum(seconds.values())
    return markdown(["command", "seconds"], [[name, f"{spent:.0f}"] for name, spent in seconds.items()])


TABLES = {"seconds": seconds_table}

if __name__ == "__main__":
    command(__doc__, RESULTS, measure, TABLES)
