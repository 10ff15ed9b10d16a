"""What a radius costs and what it buys on the embedded digits, seeds 0 to 2: the curve of docs/choosing-the-radius.md.

python -m benchmarks.radius [--markdown] [--figure docs/images/radius.png]
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.command import command
from rhobust.data.catalog import load_data
from rhobust.evaluation.evaluate import evaluate
from rhobust.losses import cross_entropy
from rhobust.reproduction.tables import markdown, percent
from rhobust.runs.config import Config
from rhobust.runs.load import load
from rhobust.runs.start import train_run
from rhobust.support.environment import environment
from rhobust.support.files import write_json
from rhobust.training.record import rho_eff

RESULTS = Path(__file__).parents[1] / "results" / "radius.json"
DATA, MODEL, EPOCHS, SEEDS = "digits", "mlp", 30, (0, 1, 2)
RADII = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # a ball of radius 0 is the data alone: plain ERM
ATTACKS, EPSILONS, RESTARTS = ("pgd", "pgd-margin"), (0.1, 0.2, 0.3), 2
_COLORS = ("#222222", "#56B4E9", "#0072B2", "#D55E00")  # clean, then the attacks from the smallest


def measure(radius: float, seed: int) -> dict[str, Any]:
    """Train at one radius from one seed and attack the model on the test set."""
    method = {"method": "spgd", "radius": radius} if radius else {"method": "erm"}
    config = Config.resolve({"data": DATA, "model": MODEL, "epochs": EPOCHS, "seed": seed}, method)
    data = load_data(DATA)
    with tempfile.TemporaryDirectory() as directory:
        run = train_run(Path(directory) / "run", config)
        model, metrics = load(run.path), run.metrics()
    result = evaluate(
        model,
        data.test,
        loss=cross_entropy,
        bounds=data.bounds,
        attacks=ATTACKS,
        epsilons=EPSILONS,
        restarts=RESTARTS,
        seed=seed,
    )
    return {
        "radius": radius,
        "seed": seed,
        "gamma": model.gamma,
        "rho_eff": rho_eff(metrics),
        "clean": result.clean,
        "attacked": [result.error("worst", epsilon) for epsilon in EPSILONS],
    }


def errors(results: dict[str, Any], radius: float) -> list[tuple[float, ...]]:
    """At one radius: clean, then under each attack; a number for each seed."""
    rows = [row for row in results["rows"] if row["radius"] == radius]
    return list(zip(*([row["clean"], *row["attacked"]] for row in rows), strict=True))


def errors_table(results: dict[str, Any]) -> str:
    head = ["rho", "E[c]", "clean", *(f"attacked {epsilon:g}" for epsilon in results["settings"]["epsilons"])]
    rows = []
    for radius in results["settings"]["radii"]:
        spent = statistics.fmean(row["rho_eff"] for row in results["rows"] if row["radius"] == radius)
        name = f"{radius:g}" if radius else "0 (ERM)"
        rows.append([name, f"{spent:.3g}", *(percent(over) for over in errors(results, radius))])
    return markdown(head, rows)


def figure(results: dict[str, Any]) -> Figure:
    """Clean and attacked error against rho; lines are means over the seeds, bands reach from the best to the worst."""
    radii, epsilons = results["settings"]["radii"], results["settings"]["epsilons"]
    drawn = Figure(figsize=(7.2, 4.4), layout="constrained")
    axis = drawn.subplots()
    names = ["clean", *(f"attacked, epsilon {epsilon:g}" for epsilon in epsilons)]
    curves = zip(*(errors(results, radius) for radius in radii), strict=True)
    for name, color, points in zip(names, _COLORS, curves, strict=True):
        means = [statistics.fmean(over) for over in points]
        axis.plot(radii, means, color=color, marker="o", markersize=4, linewidth=2, label=name)
        low, high = [min(over) for over in points], [max(over) for over in points]
        axis.fill_between(radii, low, high, color=color, alpha=0.18, linewidth=0)
    axis.set_xscale("symlog", linthresh=radii[1], linscale=0.4)  # linear down to 0, where the plain model is
    axis.set_xticks(radii, ["0\n(ERM)", *(f"{radius:g}" for radius in radii[1:])])
    axis.minorticks_off()
    axis.set_xlabel("radius rho in training (squared pixels, pixels in [-1, 1])")
    axis.set_ylabel("test error")
    axis.set_ylim(0, 1)
    axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axis.grid(alpha=0.25)
    axis.set_title("Up to a point, a larger radius trades clean error for error under attack")
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], frameon=False)
    return drawn


def measure_all(output: Path) -> None:
    torch.set_num_threads(1)
    rows = []
    for radius in RADII:
        for seed in SEEDS:
            rows.append(measure(radius, seed))
            print(f"rho {radius:g}, seed {seed}: clean {100 * rows[-1]['clean']:.1f} %", flush=True)
    settings = {
        "data": DATA,
        "model": MODEL,
        "method": "spgd",
        "epochs": EPOCHS,
        "seeds": SEEDS,
        "radii": RADII,
        "attacks": ATTACKS,
        "epsilons": EPSILONS,
        "restarts": RESTARTS,
    }
    write_json(output, {"settings": settings, "environment": environment("cpu"), "rows": rows})


TABLES = {"errors": errors_table}

if __name__ == "__main__":
    command(__doc__, RESULTS, measure_all, TABLES, figure=figure)
