"""The whole way on real MNIST with the paper's network, as a user goes it: train, evaluate, certify, report.

RHOBUST_DATA=... python benchmarks/mnist.py [--output results/bench/mnist.json]    runs the commands, writes their times
python benchmarks/mnist.py --markdown                                              prints the table
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rhobust.environment import environment
from rhobust.files import write_json

RESULTS = Path(__file__).parents[1] / "results" / "bench" / "mnist.json"
COMMANDS = (
    "train --data mnist --method spgd --radius 6 --epochs 1 --limit 6000 --out run",
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


def measure() -> dict[str, Any]:
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
    return {"environment": environment("cpu"), "config": settings, "rows": rows, "report_bytes": size, "found": found}


def markdown(results: dict[str, Any]) -> str:
    lines = ["| command | seconds |", "|---|---|"]
    lines += [f"| `{row['command']}` | {row['seconds']:.0f} |" for row in results["rows"]]
    lines.append(f"| together | {sum(row['seconds'] for row in results['rows']):.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if not options.markdown:
        write_json(options.output, measure())
    print(markdown(json.loads(options.output.read_text())))


if __name__ == "__main__":
    main()
