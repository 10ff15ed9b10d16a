"""DRFL and FedAvg on Fashion-MNIST, ten workers in one process: error over rounds, and what liars do to it.

And, on the embedded digits, what local steps between two uploads buy.

RHOBUST_DATA=... python benchmarks/drfl.py [--output results/drfl.json] [--jobs 4]    trains what the file lacks
python benchmarks/drfl.py --markdown rounds|liars|local                               prints a table
python benchmarks/drfl.py --figure docs/images/drfl.png                               draws the errors over rounds
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rhobust import figures
from rhobust.config import Config
from rhobust.environment import environment
from rhobust.files import write_json
from rhobust.start import train_run

RESULTS = Path(__file__).parents[1] / "results" / "drfl.json"
SEEDS = (0, 1, 2)
SHARED = {"data": "fashion-mnist", "batch_size": 64, "workers": 10, "evaluate_every": 50}
ROUNDS, FEDAVG_ROUNDS, LIARS_ROUNDS = 1000, 300, 300  # FedAvg takes five local steps in each

LOCAL_ROUNDS, LOCAL_STEPS = 200, (1, 2, 5, 10)

METHODS: dict[str, dict[str, Any]] = {
    "drfl": {"method": "drfl", "radius": 2.0},
    "drfl-loss": {"method": "drfl-loss", "radius": 2.0},
    "drfl-margin": {"method": "drfl-margin", "radius": 2.0},
    "drfl-literal": {"method": "drfl-literal", "radius": 25.0},
    "fedavg": {"method": "fedavg"},
}
PARTITIONS = ("iid", "one-class")
LIES = ("sign-flip:4", "noise", "label-flip", "alie", "alie:1.5", "inner-product:3")
AGGREGATORS = ("mean", "multi-krum:3", "geometric-median", "clipped-geometric-median", "median", "trimmed-mean:3")


def jobs() -> dict[str, dict[str, Any]]:
    """Every run by name."""
    found: dict[str, dict[str, Any]] = {}
    for seed in SEEDS:
        for partition in PARTITIONS:
            for name, settings in METHODS.items():
                rounds = FEDAVG_ROUNDS if name == "fedavg" else ROUNDS
                own = {"partition": partition, "rounds": rounds, "seed": seed}
                found[f"rounds/{partition}/{name}/{seed}"] = SHARED | settings | own
    liars = SHARED | METHODS["drfl-loss"] | {"rounds": LIARS_ROUNDS, "evaluate_every": LIARS_ROUNDS, "seed": 0}
    for aggregator in AGGREGATORS:
        found[f"liars/none/{aggregator}"] = liars | {"aggregator": aggregator}
        for lie in LIES:
            found[f"liars/{lie}/{aggregator}"] = liars | {"aggregator": aggregator, "liars": 3, "lie": lie}
    digits = {"data": "digits", "batch_size": 16, "workers": 10, "evaluate_every": 20, "rounds": LOCAL_ROUNDS}
    for seed in SEEDS:
        for steps in LOCAL_STEPS:
            found[f"local/{steps}/{seed}"] = digits | METHODS["drfl-loss"] | {"local_steps": steps, "seed": seed}
    return found


def measure(name: str) -> dict[str, Any]:
    """One run, as the errors at the rounds that were looked at."""
    config = Config.resolve(jobs()[name])
    with tempfile.TemporaryDirectory() as directory:
        records = train_run(Path(directory) / "run", config).metrics()
    looks = [record for record in records if record["errors"]]
    return {
        "name": name,
        "rounds": [record["step"] + 1 for record in looks],
        "errors": {key: [record["errors"][key] for record in looks] for key in looks[0]["errors"]},
        "rho_eff": [
            statistics.fmean(r["rho_eff"] for r in records[max(0, i["step"] - 49) : i["step"] + 1]) for i in looks
        ],
        "gamma": [record["gamma"] for record in looks],
        "dropped": sum(len(record["dropped"]) for record in records),
        "bytes_up_per_round": records[0]["bytes_up"],
        "environment": environment(config.device),
    }


def train(output: Path, workers: int, only: str) -> None:
    done = json.loads(output.read_text())["runs"] if output.exists() else {}
    left = [name for name in jobs() if name not in done and name.startswith(only)]
    settings = {"jobs": jobs()}
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(measure, name) for name in left]):
            made = future.result()
            done[made["name"]] = made
            write_json(output, {"settings": settings, "runs": done})
            print(f"{len(done)} of {len(jobs())}: {made['name']}: {made['errors']}", flush=True)


def _spread(values: list[float]) -> str:
    mean = 100 * statistics.fmean(values)
    return f"{mean:.1f} ± {50 * (max(values) - min(values)):.1f}" if len(values) > 1 else f"{mean:.1f}"


def rounds_table(runs: dict[str, Any]) -> str:
    """IFGSM error at epsilon 0.1 over rounds, and the clean error at the end."""
    shown = (50, 100, 300, 1000)
    head = ["data", "method", *(f"IFGSM after {round_}" for round_ in shown), "clean at the end", "E[c]"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for partition in PARTITIONS:
        for method in METHODS:
            seeds = [run for name, run in runs.items() if name.startswith(f"rounds/{partition}/{method}/")]
            at = {round_: index for index, round_ in enumerate(seeds[0]["rounds"])}
            cells = [
                _spread([run["errors"]["ifgsm"][at[round_]] for run in seeds]) if round_ in at else ""
                for round_ in shown
            ]
            cells += [_spread([run["errors"]["clean"][-1] for run in seeds])]
            spent = statistics.fmean(run["rho_eff"][-1] for run in seeds)
            lines.append(f"| {partition} | {method} | {' | '.join(cells)} | {spent:.2g} |")
    return "\n".join(lines)


def liars_table(runs: dict[str, Any]) -> str:
    """Clean / IFGSM error after the last round, three of ten workers lying."""
    head = ["aggregator", "all honest", *LIES]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for aggregator in AGGREGATORS:
        cells = []
        for lie in ("none", *LIES):
            errors = runs[f"liars/{lie}/{aggregator}"]["errors"]
            cells.append(f"{100 * errors['clean'][-1]:.1f} / {100 * errors['ifgsm'][-1]:.1f}")
        lines.append(f"| {aggregator} | {' | '.join(cells)} |")
    return "\n".join(lines)


def local_table(runs: dict[str, Any]) -> str:
    """Clean / IFGSM error after some rounds, by the number of local steps: equal rounds are equal bytes."""
    shown = (20, 60, 100, 200)
    head = ["local steps", *(f"after {round_} rounds" for round_ in shown), "E[c]"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for steps in LOCAL_STEPS:
        seeds = [run for name, run in runs.items() if name.startswith(f"local/{steps}/")]
        at = {round_: index for index, round_ in enumerate(seeds[0]["rounds"])}
        cells = [
            " / ".join(_spread([run["errors"][kind][at[round_]] for run in seeds]) for kind in ("clean", "ifgsm"))
            for round_ in shown
        ]
        spent = statistics.fmean(run["rho_eff"][-1] for run in seeds)
        lines.append(f"| {steps} | {' | '.join(cells)} | {spent:.2g} |")
    return "\n".join(lines)


TABLES = {"rounds": rounds_table, "liars": liars_table, "local": local_table}


def figure(runs: dict[str, Any]) -> Figure:
    """Error over rounds, means over the seeds; a column for each partition, a row for each kind of error."""
    kinds = {"clean": "clean error", "ifgsm": "error under IFGSM 0.1", "pgd": "error under PGD 0.1"}
    drawn, axes = figures.new_figure(len(kinds), len(PARTITIONS), 12, 6.4)
    for row, partition in zip(axes, PARTITIONS, strict=True):
        for axis, (kind, title) in zip(row, kinds.items(), strict=True):
            for method in METHODS:
                seeds = [run for name, run in runs.items() if name.startswith(f"rounds/{partition}/{method}/")]
                means = [
                    statistics.fmean(values) for values in zip(*(run["errors"][kind] for run in seeds), strict=True)
                ]
                axis.plot(seeds[0]["rounds"], means, label=method, **figures.style(method))
            axis.set_title(f"{title}, {partition}")
            axis.set_xlabel("round")
            axis.set_ylim(0, 1)
            axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
            axis.grid(alpha=0.25)
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="names that start so")
    parser.add_argument("--markdown", choices=TABLES)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.figure:
        figures.save(figure(json.loads(options.output.read_text())["runs"]), options.figure)
    elif options.markdown:
        print(TABLES[options.markdown](json.loads(options.output.read_text())["runs"]))
    else:
        train(options.output, options.jobs, options.only)


if __name__ == "__main__":
    main()
