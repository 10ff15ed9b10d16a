"""DRFL and FedAvg on Fashion-MNIST, ten workers in one process: error over rounds and under Byzantine attacks.

On the embedded digits: error over rounds by the number of local steps between two uploads.

RHOBUST_DATA=... python -m benchmarks.drfl [--workers 4] [--only local/] [--markdown] [--figure docs/images/drfl.png]
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.command import command, read_json
from rhobust.charts import curves
from rhobust.reproduction.tables import markdown, percent
from rhobust.runs.config import Config
from rhobust.runs.start import train_run
from rhobust.support.environment import environment
from rhobust.support.files import write_json

RESULTS = Path(__file__).parents[1] / "results" / "drfl.json"
SEEDS = (0, 1, 2)
SHARED = {"data": "fashion-mnist", "batch_size": 64, "workers": 10, "evaluate_every": 50}
ROUNDS, FEDAVG_ROUNDS, ATTACKED_ROUNDS = 1000, 300, 300  # FedAvg takes five local steps in each

LOCAL_ROUNDS, LOCAL_STEPS = 200, (1, 2, 5, 10)

METHODS: dict[str, dict[str, Any]] = {
    "drfl": {"method": "drfl", "radius": 2.0},
    "drfl-loss": {"method": "drfl-loss", "radius": 2.0},
    "drfl-margin": {"method": "drfl-margin", "radius": 2.0},
    "drfl-literal": {"method": "drfl-literal", "radius": 25.0},
    "fedavg": {"method": "fedavg"},
}
PARTITIONS = ("iid", "one-class")
ATTACKS = ("sign-flip:4", "noise", "label-flip", "alie", "alie:1.5", "inner-product:3")
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
    attacked = SHARED | METHODS["drfl-loss"] | {"rounds": ATTACKED_ROUNDS, "evaluate_every": ATTACKED_ROUNDS, "seed": 0}
    for aggregator in AGGREGATORS:
        found[f"byzantine/none/{aggregator}"] = attacked | {"aggregator": aggregator}
        for attack in ATTACKS:
            own = {"aggregator": aggregator, "byzantine": 3, "byzantine_attack": attack}
            found[f"byzantine/{attack}/{aggregator}"] = attacked | own
    digits = {"data": "digits", "batch_size": 16, "workers": 10, "evaluate_every": 20, "rounds": LOCAL_ROUNDS}
    for seed in SEEDS:
        for steps in LOCAL_STEPS:
            found[f"local/{steps}/{seed}"] = digits | METHODS["drfl-loss"] | {"local_steps": steps, "seed": seed}
    return found


def measure(name: str) -> dict[str, Any]:
    """One run, as the errors at the rounds in which they were measured."""
    config = Config.resolve(jobs()[name])
    with tempfile.TemporaryDirectory() as directory:
        records = train_run(Path(directory) / "run", config).metrics()
    judged = [record for record in records if record["errors"]]
    return {
        "rounds": [record["step"] + 1 for record in judged],
        "errors": {key: [record["errors"][key] for record in judged] for key in judged[0]["errors"]},
        "rho_eff": [
            statistics.fmean(r["rho_eff"] for r in records[max(0, i["step"] - 49) : i["step"] + 1]) for i in judged
        ],
        "gamma": [record["gamma"] for record in judged],
        "dropped": sum(len(record["dropped"]) for record in records),
        "bytes_up_per_round": records[0]["bytes_up"],
        "environment": environment(config.device),
    }


def train(output: Path, workers: int, only: str) -> None:
    """What the file lacks. An environment stands in it once; a run has its number."""
    settings = {"shared": SHARED, "methods": METHODS}
    found: Any = read_json(output) if output.exists() else {"settings": settings, "environments": [], "runs": {}}
    done, places = found["runs"], found["environments"]
    left = [name for name in jobs() if name not in done and name.startswith(only)]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(measure, name): name for name in left}
        for future in as_completed(futures):
            name, made = futures[future], future.result()
            if made["environment"] not in places:
                places.append(made["environment"])
            done[name] = made | {"environment": places.index(made["environment"])}
            write_json(output, found)
            print(f"{len(done)} of {len(jobs())}: {name}: {made['errors']}", flush=True)


def rounds_table(found: dict[str, Any]) -> str:
    """IFGSM error at epsilon 0.1 over rounds, and the clean error at the end."""
    shown, runs, rows = (50, 100, 300, 1000), found["runs"], []
    for partition in PARTITIONS:
        for method in METHODS:
            seeds = [run for name, run in runs.items() if name.startswith(f"rounds/{partition}/{method}/")]
            at = {round_: index for index, round_ in enumerate(seeds[0]["rounds"])}
            cells = [
                percent([run["errors"]["ifgsm"][at[round_]] for run in seeds]) if round_ in at else ""
                for round_ in shown
            ]
            cells.append(percent([run["errors"]["clean"][-1] for run in seeds]))
            rows.append([partition, method, *cells, f"{statistics.fmean(run['rho_eff'][-1] for run in seeds):.2g}"])
    head = ["data", "method", *(f"IFGSM after {round_}" for round_ in shown), "clean at the end", "E[c]"]
    return markdown(head, rows)


def byzantine_table(found: dict[str, Any]) -> str:
    """Clean / IFGSM error after the last round, three of ten workers Byzantine."""
    rows = []
    for aggregator in AGGREGATORS:
        errors = [found["runs"][f"byzantine/{attack}/{aggregator}"]["errors"] for attack in ("none", *ATTACKS)]
        rows.append([aggregator, *(f"{100 * one['clean'][-1]:.1f} / {100 * one['ifgsm'][-1]:.1f}" for one in errors)])
    return markdown(["aggregator", "all honest", *ATTACKS], rows)


def local_table(found: dict[str, Any]) -> str:
    """Clean / IFGSM error after some rounds, by the number of local steps: equal rounds are equal bytes."""
    shown, rows = (20, 60, 100, 200), []
    for steps in LOCAL_STEPS:
        seeds = [run for name, run in found["runs"].items() if name.startswith(f"local/{steps}/")]
        at = {round_: index for index, round_ in enumerate(seeds[0]["rounds"])}
        cells = [
            " / ".join(percent([run["errors"][kind][at[round_]] for run in seeds]) for kind in ("clean", "ifgsm"))
            for round_ in shown
        ]
        rows.append([str(steps), *cells, f"{statistics.fmean(run['rho_eff'][-1] for run in seeds):.2g}"])
    return markdown(["local steps", *(f"after {round_} rounds" for round_ in shown), "E[c]"], rows)


TABLES = {"rounds": rounds_table, "byzantine": byzantine_table, "local": local_table}


def figure(found: dict[str, Any]) -> Figure:
    """Error over rounds, means over the seeds; a column for each partition, a row for each kind of error."""
    kinds = {"clean": "clean error", "ifgsm": "error under IFGSM 0.1", "pgd": "error under PGD 0.1"}
    drawn, axes = curves.new_figure(len(kinds), len(PARTITIONS), 12, 6.4)
    for row, partition in zip(axes, PARTITIONS, strict=True):
        for axis, (kind, title) in zip(row, kinds.items(), strict=True):
            for method in METHODS:
                start = f"rounds/{partition}/{method}/"
                seeds = [run for name, run in found["runs"].items() if name.startswith(start)]
                means = [
                    statistics.fmean(values) for values in zip(*(run["errors"][kind] for run in seeds), strict=True)
                ]
                axis.plot(seeds[0]["rounds"], means, label=method, **curves.style(method))
            axis.set_title(f"{title}, {partition}")
            axis.set_xlabel("round")
            axis.set_ylim(0, 1)
            axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
            axis.grid(alpha=0.25)
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return drawn


if __name__ == "__main__":
    options = {"workers": (1, "trainings at once"), "only": ("", "only trainings whose names start so")}
    command(__doc__, RESULTS, train, TABLES, figure=figure, options=options)
