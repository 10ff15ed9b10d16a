"""What a schedule of the learning rate does to the results on the embedded digits, seeds 0 to 2.

python -m benchmarks.schedules [--markdown]
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import command
from rhobust.data.catalog import load_data
from rhobust.evaluation.evaluate import evaluate
from rhobust.reproduction.tables import markdown, percent
from rhobust.runs.config import Config
from rhobust.runs.load import load
from rhobust.runs.start import train_run
from rhobust.support.environment import environment
from rhobust.support.files import write_json
from rhobust.training.record import rho_eff
from rhobust.training.schedule import SCHEDULES

RESULTS = Path(__file__).parents[1] / "results" / "schedules.json"
METHODS: dict[str, dict[str, Any]] = {"erm": {}, "ifgsm": {}, "spgd": {"radius": 2.0}, "spgda": {"radius": 2.0}}
RATES, EPOCHS, SEEDS, EPSILONS = (1e-3, 4e-3), 30, (0, 1, 2), (0.1, 0.2, 0.3)


def measure(method: str, schedule: str, rate: float, seed: int) -> dict[str, Any]:
    shared = {"data": "digits", "model": "mlp", "epochs": EPOCHS, "seed": seed, "threads": 1}
    asked = {"method": method, "schedule": schedule, "learning_rate": rate}
    with tempfile.TemporaryDirectory() as directory:
        run = train_run(Path(directory) / "run", Config.resolve(shared, asked, METHODS[method]))
        model, metrics = load(run.path), run.metrics()
    data = load_data("digits")
    found = evaluate(model, data.test, bounds=data.bounds, epsilons=EPSILONS, checks=False)
    last = [record["value"] for record in metrics if record["epoch"] == EPOCHS - 1]
    return {
        **asked,
        "seed": seed,
        "clean": found.clean,
        "attacked": [found.error("cascade", epsilon) for epsilon in EPSILONS],
        "rho_eff": rho_eff(metrics),
        "value": statistics.fmean(last),
    }


def measure_all(output: Path) -> None:
    torch.set_num_threads(1)
    rows = []
    for method in METHODS:
        for schedule in SCHEDULES:
            for rate in RATES:
                rows += [measure(method, schedule, rate, seed) for seed in SEEDS]
                print(method, schedule, rate, f"{100 * rows[-1]['attacked'][1]:.1f} %", flush=True)
    write_json(output, {"environment": environment("cpu"), "epochs": EPOCHS, "epsilons": EPSILONS, "rows": rows})


def table(results: dict[str, Any]) -> str:
    head = ["trained by", "schedule", "rate", "psi", "E[c]", "clean"]
    head += [f"cascade {epsilon:g}" for epsilon in results["epsilons"]]
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for row in results["rows"]:
        groups.setdefault((row["method"], row["schedule"], row["learning_rate"]), []).append(row)
    lines = []
    for (method, schedule, rate), rows in groups.items():
        means = [f"{statistics.fmean(row[key] for row in rows):.3g}" for key in ("value", "rho_eff")]
        errors = zip(*([row["clean"], *row["attacked"]] for row in rows), strict=True)
        lines.append([method, schedule, f"{rate:g}", *means, *(percent(over) for over in errors)])
    return markdown(head, lines)


if __name__ == "__main__":
    command(__doc__, RESULTS, measure_all, {"schedules": table})
