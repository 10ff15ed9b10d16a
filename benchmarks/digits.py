"""Every method on the embedded digits, seeds 0 to 2: the table and the picture of the README.

python -m benchmarks.digits [--markdown] [--figure docs/images/digits.png]
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.command import command
from rhobust.charts import curves
from rhobust.data.catalog import load_data
from rhobust.evaluation.evaluate import evaluate
from rhobust.losses import cross_entropy
from rhobust.method import methods
from rhobust.reproduction.tables import markdown
from rhobust.runs.config import Config
from rhobust.runs.load import load
from rhobust.runs.start import train_run
from rhobust.support.environment import environment
from rhobust.support.files import write_json
from rhobust.training.record import rho_eff

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
        "ema": 0.99,
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


def errors_table(results: dict[str, Any]) -> str:
    """Mean error in percent over the seeds, ± half the range over the seeds."""
    epsilons = results["settings"]["epsilons"]
    head = ["trained by", "clean", *(f"attacked {epsilon:g}" for epsilon in epsilons[1:]), "E[c]", "gradients per step"]
    rows = []
    for variant in dict.fromkeys(row["variant"] for row in results["rows"]):
        seeds = [row for row in results["rows"] if row["variant"] == variant]
        errors = [
            [100 * error for error in over] for over in zip(*(row["errors"]["worst"] for row in seeds), strict=True)
        ]
        cells = [f"{statistics.fmean(over):.1f} ± {(max(over) - min(over)) / 2:.1f}" for over in errors]
        spent = [f"{statistics.fmean(row[key] for row in seeds):.3g}" for key in ("rho_eff", "gradients_per_step")]
        rows.append([variant, *cells, *spent])
    return markdown(head, rows)


def figure(results: dict[str, Any]) -> Figure:
    """Mean error over the seeds against epsilon, a panel for each attack, for every method at its default knobs."""
    epsilons = results["settings"]["epsilons"]
    drawn, axes = curves.new_figure(len(CURVES), 1, 4.2 * len(CURVES), 4.2)
    for axis, attack in zip(axes[0], CURVES, strict=True):
        for method in methods():
            seeds = [row["errors"][attack] for row in results["rows"] if row["variant"] == method]
            means = [statistics.fmean(errors) for errors in zip(*seeds, strict=True)]
            axis.plot(epsilons, means, label=method, **curves.style(method))
        axis.set_title("the worst of all attacks" if attack == "worst" else f"{attack.upper()} attack")
        axis.set_xlabel("epsilon (pixels in [-1, 1])")
        axis.set_ylim(0, 1)
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("error")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=-(-len(labels) // 2), frameon=False)
    return drawn


def measure_all(output: Path) -> None:
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
    write_json(output, {"settings": settings, "environment": environment("cpu"), "rows": rows})


TABLES = {"errors": errors_table}

if __name__ == "__main__":
    command(__doc__, RESULTS, measure_all, TABLES, figure=figure)
