"""One gradient, as robust as ten? Every variant that was tried, with what it costs.

RHOBUST_DATA=... python benchmarks/one_gradient.py [--only PREFIX] [--workers 12]   trains what the file lacks
python benchmarks/one_gradient.py --markdown                                          prints the table
python benchmarks/one_gradient.py --figure docs/images/one-gradient.png               draws clean against attacked error

Attacked is the worst of PGD (40 steps, 5 restarts), Auto-PGD on the loss and on the margin, and random squares, on the
first 1,000 test images, averaged over epsilon 0.1, 0.2, 0.3 and 0.4 in pixels in [-1, 1].
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from rhobust import figures
from rhobust.config import Config
from rhobust.data import Samples, load_data
from rhobust.evaluate import WORST, evaluate
from rhobust.files import write_json
from rhobust.losses import cross_entropy
from rhobust.reproduction.mps import shared_card
from rhobust.runner import train_run
from rhobust.runs import environment, rho_eff
from rhobust.trained import load

RESULTS = Path(__file__).parents[1] / "results" / "one-gradient.json"
DATA, SEEDS, EPOCHS = ("mnist", "fashion-mnist"), (0, 1, 2), 30
SAMPLES, EPSILONS = 1000, (0.1, 0.2, 0.3, 0.4)
ATTACKS, RESTARTS = ("pgd", "apgd", "apgd-margin", "square"), 5


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way to train, by a name that says its settings."""
    yield "erm", {"method": "erm"}
    for gamma in (0.3, 0.1, 0.03, 0.01):
        yield f"wrm, gamma {gamma:g}", {"method": "wrm", "gamma": gamma}
    for epsilon in (0.1, 0.15, 0.2, 0.3):
        yield f"fgsm, epsilon {epsilon:g}", {"method": "fgsm", "epsilon": epsilon}
        yield f"ifgsm, epsilon {epsilon:g}", {"method": "ifgsm", "epsilon": epsilon}
    for epsilon in (0.1, 0.15, 0.2, 0.25, 0.3):
        for noise in (0.2, 0.3, 0.4, 0.6):
            name = f"nfgsm, epsilon {epsilon:g}, noise {noise:g}"
            yield name, {"method": "nfgsm", "epsilon": epsilon, "noise": noise}
    for radius, cap in ((0.01, 0.15), (0.02, 0.2), (0.03, 0.25), (0.04, 0.3), (0.06, 0.35)):
        for noise in (0.0, 0.3, 0.5):
            settings = {"method": "spgda-margin", "cost": "linf", "radius": radius, "cap": cap, "noise": noise}
            yield f"ours, rho {radius:g}, cap {cap:g}, noise {noise:g}", settings
            if noise:
                yield f"ours, rho {radius:g}, cap {cap:g}, noise {noise:g}, average", settings | {"average": 0.999}
    averaged = {"method": "nfgsm", "epsilon": 0.2, "noise": 0.4, "average": 0.999}
    yield "nfgsm, epsilon 0.2, noise 0.4, average", averaged


def jobs(seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Settings of every training by its name: data/variant/seed."""
    shared = {"epochs": EPOCHS, "batch_size": 128, "log_every": 25, "checkpoint_every": 10**9}
    return {
        f"{data}/{name}/{seed}": shared | {"data": data, "seed": seed} | settings
        for seed in seeds
        for data in DATA
        for name, settings in variants()
    }


def measure(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """One training and its errors."""
    torch.set_num_threads(1)
    torch.compiler.reset()
    config = Config.resolve(settings)
    data, device = load_data(config.data), torch.device(config.device)
    with tempfile.TemporaryDirectory() as directory:
        run = train_run(Path(directory) / "run", config)
        model, records = load(run.path).to(device), run.metrics()
    test = Samples(data.test.x.to(device), data.test.y.to(device))
    how = {"loss": cross_entropy, "bounds": data.bounds, "checks": False}
    clean = evaluate(model, test, attacks=["fgsm"], epsilons=[0.0], **how).clean  # type: ignore[arg-type]
    found = evaluate(model, test[:SAMPLES], attacks=ATTACKS, epsilons=EPSILONS, restarts=RESTARTS, **how)  # type: ignore[arg-type]
    errors = {
        attack: [found.error(attack, epsilon) for epsilon in EPSILONS] for attack in (*ATTACKS, WORST[float("inf")])
    }
    return name, {
        "settings": dict(settings),
        "precision": config.precision,
        "clean": clean,
        "errors": errors,
        "rho_eff": rho_eff(records),
        "gamma": records[-1]["gamma"],
        "gradients": statistics.fmean(record["gradients"] for record in records),
        "environment": environment(config.device),
    }


def train(output: Path, workers: int, only: str, seeds: int) -> None:
    """What the file lacks."""
    done = json.loads(output.read_text())["runs"] if output.exists() else {}
    wanted = jobs(SEEDS[:seeds])
    left = {
        name: settings
        for name, settings in wanted.items()
        if name.startswith(only) and done.get(name, {}).get("settings") != settings
    }
    context = multiprocessing.get_context("spawn")
    with shared_card(print), ProcessPoolExecutor(workers, mp_context=context) as pool:
        for future in as_completed([pool.submit(measure, name, settings) for name, settings in left.items()]):
            name, made = future.result()
            done[name] = made
            write_json(output, {"epsilons": EPSILONS, "samples": SAMPLES, "restarts": RESTARTS, "runs": done})
            print(f"{len(done)} of {len(wanted)}: {name}: {100 * made['clean']:.1f} {_average(made):.1f}", flush=True)


def _average(run: Mapping[str, Any]) -> float:
    return 100 * statistics.fmean(run["errors"]["worst"])


def table(runs: Mapping[str, Any]) -> str:
    """Every variant, the most robust first; means over the seeds."""
    head = ["data", "variant", "seeds", "gradients", "E[c]", "clean", *(f"worst {e:g}" for e in EPSILONS), "average"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for data in DATA:
        by_variant = {
            name: [run for key, run in runs.items() if key.rpartition("/")[0] == f"{data}/{name}"]
            for name, _ in variants()
        }
        known = {name: seeds for name, seeds in by_variant.items() if seeds}
        for name, seeds in sorted(known.items(), key=lambda item: statistics.fmean(map(_average, item[1]))):
            means = [statistics.fmean(100 * run["errors"]["worst"][i] for run in seeds) for i in range(len(EPSILONS))]
            clean, spent = (statistics.fmean(run[key] for run in seeds) for key in ("clean", "rho_eff"))
            cells = [f"{100 * clean:.1f}", *(f"{mean:.1f}" for mean in means), f"{statistics.fmean(means):.1f}"]
            start = [data, name, str(len(seeds)), f"{seeds[0]['gradients']:.3g}", f"{spent:.3g}"]
            lines.append(f"| {' | '.join([*start, *cells])} |")
    return "\n".join(lines)


def figure(runs: Mapping[str, Any]) -> Figure:
    """Clean error against the average attacked error, a panel for each data set, a point for each variant."""
    drawn, axes = figures.new_figure(len(DATA), 1, 11, 4.6)
    for axis, data in zip(axes[0], DATA, strict=True):
        points: dict[str, list[tuple[float, float]]] = {}
        for name, run in runs.items():
            if name.startswith(f"{data}/"):
                points.setdefault(run["settings"]["method"], []).append((100 * run["clean"], _average(run)))
        for method, found in points.items():
            style = figures.style(method)
            axis.scatter(*zip(*found, strict=True), label=method, color=style["color"], marker=style["marker"], s=22)
        axis.set_title(data)
        axis.set_xlabel("clean error, %")
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("attacked error, %, average over epsilon")
    axes[0][0].legend(frameon=False)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--only", default="", help="names that start so")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.markdown:
        print(table(json.loads(options.output.read_text())["runs"]))
    elif options.figure:
        figures.save(figure(json.loads(options.output.read_text())["runs"]), options.figure)
    else:
        train(options.output, options.workers, options.only, options.seeds)


if __name__ == "__main__":
    main()
