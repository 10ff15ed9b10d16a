"""What a radius costs and what it buys on the embedded digits, seeds 0 to 2: the curve of docs/choosing-the-radius.md.

python benchmarks/radius.py [--output results/radius.json]     trains, attacks, writes the numbers
python benchmarks/radius.py --markdown                         prints the table from the committed numbers
python benchmarks/radius.py --figure docs/images/radius.png    draws the picture from them
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from rhobust import figures
from rhobust.config import Config
from rhobust.data import load_data
from rhobust.environment import environment
from rhobust.evaluate import evaluate
from rhobust.files import write_json
from rhobust.losses import cross_entropy
from rhobust.start import train_run
from rhobust.runs import rho_eff
from rhobust.trained import load

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


def errors(results: dict[str, Any], radius: float) -> list[list[float]]:
    """Percent at one radius: clean, then under each attack; a list over the seeds for each."""
    rows = [row for row in results["rows"] if row["radius"] == radius]
    return [
        [100 * error for error in over]
        for over in zip(*([row["clean"], *row["attacked"]] for row in rows), strict=True)
    ]


def markdown(results: dict[str, Any]) -> str:
    """Mean error in percent over the seeds, ± half of what lies between the highest and the lowest."""
    head = ["rho", "E[c]", "clean", *(f"attacked {epsilon:g}" for epsilon in results["settings"]["epsilons"])]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for radius in results["settings"]["radii"]:
        spent = statistics.fmean(row["rho_eff"] for row in results["rows"] if row["radius"] == radius)
        cells = [f"{radius:g}" if radius else "0 (ERM)", f"{spent:.3g}"]
        for over in errors(results, radius):
            cells.append(f"{statistics.fmean(over):.1f} ± {(max(over) - min(over)) / 2:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
    axis.set_ylim(0, 100)
    axis.yaxis.set_major_formatter(lambda percent, _: f"{percent:.0f} %")
    axis.grid(alpha=0.25)
    axis.set_title("Up to a point, a larger radius trades clean error for error under attack")
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], frameon=False)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.figure:
        figures.save(figure(json.loads(options.output.read_text())), options.figure)
        return
    if options.markdown:
        print(markdown(json.loads(options.output.read_text())))
        return
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
    write_json(options.output, {"settings": settings, "environment": environment("cpu"), "rows": rows})
    print(markdown(json.loads(options.output.read_text())))


if __name__ == "__main__":
    main()
