"""Every method on the embedded digits, seeds 0 to 2: the table of the README.

python benchmarks/digits.py [--output results/digits.json]     trains, attacks, writes the numbers
python benchmarks/digits.py --markdown                         prints the table from the committed numbers
python benchmarks/digits.py --figure docs/images/digits.png    draws the README's picture from them
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
from rhobust.methods import methods
from rhobust.start import train_run
from rhobust.runs import rho_eff
from rhobust.trained import load

RESULTS = Path(__file__).parents[1] / "results" / "digits.json"
RADIUS, EPOCHS, SEEDS = 2.0, 30, (0, 1, 2)
ATTACKS, EPSILONS, RESTARTS = ("fgsm", "ifgsm", "pgd", "pgd-margin"), (0.0, 0.1, 0.2, 0.3, 0.4), 3
CURVES = ("fgsm", "ifgsm", "worst")


# Besides every method at the paper's settings: the baselines at knobs that spend about the same E[c] as the robust
# methods do, so that nobody wins by a bigger budget; and spgda with the cost of an l_inf attack, with the knobs of
# docs/one-gradient.md, and as much to spend as a ball of epsilon 0.2 does in that cost.
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in methods()},
    "fgsm, epsilon 0.2": {"method": "fgsm", "epsilon": 0.2},
    "ifgsm, epsilon 0.2": {"method": "ifgsm", "epsilon": 0.2},
    "wrm, gamma 0.3": {"method": "wrm", "gamma": 0.3},
    "spgda, linf, rho 0.04": {
        "method": "spgda",
        "cost": "linf",
        "radius": 0.04,
        "cap": 0.3,
        "noise": 0.3,
        "average": 0.99,
    },
}


def measure(variant: str, seed: int) -> dict[str, Any]:
    """Train one variant from one seed and attack it on the test set."""
    radius = {"radius": RADIUS} if methods()[VARIANTS[variant]["method"]].robust else {}
    config = Config.resolve({"data": "digits", "epochs": EPOCHS, "seed": seed}, radius, VARIANTS[variant])
    data = load_data("digits")
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
        "variant": variant,
        "seed": seed,
        "gamma": model.gamma,
        "rho_eff": rho_eff(metrics),
        "gradients_per_step": statistics.fmean(record["gradients"] for record in metrics),
        "clean": result.clean,
        "errors": {name: [result.error(name, epsilon) for epsilon in EPSILONS] for name in (*ATTACKS, "worst")},
    }


def markdown(results: dict[str, Any]) -> str:
    """Mean error in percent over the seeds, ± half of what lies between the highest and the lowest."""
    epsilons = results["settings"]["epsilons"]
    head = ["trained by", "clean", *(f"attacked {epsilon:g}" for epsilon in epsilons[1:]), "E[c]", "gradients per step"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for variant in dict.fromkeys(row["variant"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["variant"] == variant]
        cells = [variant]
        for column in range(len(epsilons)):
            errors = [100 * row["errors"]["worst"][column] for row in rows]
            cells.append(f"{statistics.fmean(errors):.1f} ± {(max(errors) - min(errors)) / 2:.1f}")
        cells.append(f"{statistics.fmean(row['rho_eff'] for row in rows):.3g}")
        cells.append(f"{statistics.fmean(row['gradients_per_step'] for row in rows):.3g}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def figure(results: dict[str, Any]) -> Figure:
    """Mean error over the seeds against epsilon, for every method at its default knobs."""
    epsilons = results["settings"]["epsilons"]
    curves = {
        method: {
            attack: {
                epsilon: statistics.fmean(
                    row["errors"][attack][i] for row in results["rows"] if row["variant"] == method
                )
                for i, epsilon in enumerate(epsilons)
            }
            for attack in CURVES
        }
        for method in methods()
    }
    return figures.error_curves(curves)


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
    for variant in VARIANTS:
        for seed in SEEDS:
            rows.append(measure(variant, seed))
            print(f"{variant}, seed {seed}: clean {100 * rows[-1]['clean']:.1f} %", flush=True)
    settings = {
        "data": "digits",
        "model": "mlp",
        "radius": RADIUS,
        "epochs": EPOCHS,
        "seeds": SEEDS,
        "attacks": ATTACKS,
        "epsilons": EPSILONS,
        "restarts": RESTARTS,
        "variants": VARIANTS,
    }
    write_json(options.output, {"settings": settings, "environment": environment("cpu"), "rows": rows})
    print(markdown(json.loads(options.output.read_text())))


if __name__ == "__main__":
    main()
