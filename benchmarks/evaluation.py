"""Is `rhobust evaluate` as strong as AutoAttack, and at what price? Trains runs and attacks them with both.

RHOBUST_DATA=... python -m benchmarks.evaluation --device cpu --models mlp [--workers 2] [--who referee] [--minutes 9]
RHOBUST_DATA=... python -m benchmarks.evaluation --device cuda --models cnn --workers 8
python -m benchmarks.evaluation --markdown

A cell is a run, a norm and an epsilon, on the first 500 test images. It goes on where the output stops: with --minutes
it begins nothing new after that time. Times are processor times of one thread, and count on the CPU only.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.command import read_csv, write_csv
from benchmarks.evaluation_runs import DATA, METHODS, train
from rhobust.ascent.steps import Ball
from rhobust.data.catalog import load_data
from rhobust.data.samples import Samples
from rhobust.evaluation.evaluate import evaluate
from rhobust.evaluation.evaluation import Evaluation
from rhobust.evaluation.referee import attack_by, find_suite
from rhobust.reproduction.nvidia_mps import shared_card
from rhobust.reproduction.tables import markdown
from rhobust.runs.load import load
from rhobust.support.counting import counted_passes

RESULTS = Path(__file__).parents[1] / "results" / "evaluation"
EPSILONS = {"linf": (0.1, 0.2, 0.3, 0.4), "l2": (0.5, 1.0, 1.5, 2.0)}
NORMS = {"linf": math.inf, "l2": 2.0}
SAMPLES, SEED = 500, 0
ALL = "all"
"""In the column of epsilon: the row with what our one evaluation at all epsilons took."""
COLUMNS = ("who", "run", "norm", "epsilon", "device", "samples", "error", "seconds", "forwarded", "stages")
Row = dict[str, Any]


class Cell(NamedTuple):
    """What is measured at a time: the referee's at one epsilon, ours at all."""

    who: str
    run: str
    norm: str
    epsilon: str
    device: str

    @classmethod
    def of(cls, row: Row) -> Cell:
        return cls(*(row[key] for key in cls._fields))


def cells(who: str, models: list[str], device: str) -> Iterator[Cell]:
    for data in DATA:
        for method in METHODS:
            for model in models:
                for norm, epsilons in EPSILONS.items():
                    for epsilon in [ALL] if who == "ours" else map(str, epsilons):
                        yield Cell(who, f"{data}/{model}/{method}", norm, epsilon, device)


def measure(cell: Cell, root: Path) -> list[Row]:
    """The rows of a cell."""
    torch.set_num_threads(1)
    model = load(train(cell.run, root)).to(cell.device)
    data = load_data(cell.run.split("/")[0])
    samples = Samples(data.test.x[:SAMPLES].to(cell.device), data.test.y[:SAMPLES].to(cell.device))
    start = time.process_time()
    with counted_passes(model) as passes:
        if cell.who == "ours":
            found = _ours(model, samples, cell.norm)
        else:
            ball = Ball(float(cell.epsilon), NORMS[cell.norm])
            suite = find_suite(model, samples, ball, model.bounds, SEED)
            fooled, errors = attack_by(suite, model, samples, ball, model.bounds, SEED)
            found = {cell.epsilon: (float(fooled.double().mean()), _words(errors))}
    spent = {"seconds": round(time.process_time() - start, 3), "forwarded": passes.forwarded}
    asked = cell._asdict() | {"samples": SAMPLES}
    return [
        asked | {"epsilon": epsilon, "error": error, "stages": stages} | (spent if epsilon == cell.epsilon else {})
        for epsilon, (error, stages) in found.items()
    ]


def _ours(model: Any, samples: Samples, norm: str) -> dict[str, tuple[float | str, str]]:
    """Our default evaluation in this norm: the errors at every epsilon, and a row for the whole."""
    name = "cascade" if norm == "linf" else "cascade-l2"
    made = evaluate(model, samples, bounds=model.bounds, attacks=[name], epsilons=EPSILONS[norm], seed=SEED)
    assert isinstance(made, Evaluation)
    cascade = made.grid[name]
    each: dict[str, tuple[float | str, str]] = {
        str(epsilon): (cascade[epsilon].error, _words(cascade[epsilon].stages)) for epsilon in EPSILONS[norm]
    }
    return each | {ALL: ("", " ".join(flag.check for flag in made.flags))}


def _words(errors: dict[str, float]) -> str:
    return "; ".join(f"{name} {error:g}" for name, error in errors.items())


def read(folder: Path) -> list[Row]:
    numbers = ("error", "seconds", "forwarded")
    return [row for name in ("cpu", "cuda") for row in read_csv(folder / f"{name}.csv", numbers)]


def missing(rows: list[Row]) -> dict[tuple[str, ...], float]:
    """AutoAttack's error less ours, in points, by (model, norm, data, method, epsilon); the CNN's from the GPU."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        data, model, method = row["run"].split("/")
        if row["epsilon"] != ALL and (row["device"] == "cuda") == (model == "cnn"):
            found.setdefault((model, row["norm"], data, method, row["epsilon"]), {})[row["who"]] = row["error"]
    return {cell: 100 * (one["referee"] - one["ours"]) for cell, one in found.items() if len(one) == 2}


def strength_table(rows: list[Row]) -> str:
    head = ["network", "norm", "cells", "mean missing", "most missing", "cells above 0.5", "most that only ours found"]
    lines = []
    for model in ("mlp", "cnn"):
        for norm in NORMS:
            apart = [points for cell, points in missing(rows).items() if cell[:2] == (model, norm)]
            above = sum(points > 0.5 + 1e-9 for points in apart)
            numbers = (statistics.fmean(apart), max(apart), -min(apart))
            mean, most, more = (f"{value:.2f}" for value in numbers)
            lines.append([model, norm, str(len(apart)), mean, most, str(above), more])
    return markdown(head, lines)


def price_table(rows: list[Row]) -> str:
    """Where AutoAttack was timed at one epsilon of a run alone, that one stands for four."""
    head = ["network", "norm", "runs", "AutoAttack, s per epsilon", "ours, s for four epsilons", "ours / AutoAttack"]
    head += ["samples forwarded per epsilon by AutoAttack", "by ours for four"]
    lines = []
    for model in ("mlp", "cnn"):
        for norm in NORMS:
            cells = [r for r in rows if (r["device"], r["norm"]) == ("cpu", norm) and f"/{model}/" in r["run"]]
            theirs: dict[str, list[Row]] = {}
            for row in cells:
                if row["who"] == "referee":
                    theirs.setdefault(row["run"], []).append(row)
            ours = {row["run"]: row for row in cells if row["who"] == "ours" and row["epsilon"] == ALL}
            runs = [run for run in ours if run in theirs]
            if not runs:
                continue

            def means(key: str, theirs: Any = theirs, ours: Any = ours, runs: Any = runs) -> tuple[float, float]:
                each = [statistics.fmean(row[key] for row in theirs[run]) for run in runs]
                return statistics.fmean(each), statistics.fmean(ours[run][key] for run in runs)

            (they, we), forwarded = means("seconds"), means("forwarded")
            share = f"{100 * we / (4 * they):.1f} %"
            shown = [f"{value:,.0f}" for value in forwarded]
            lines.append([model, norm, str(len(runs)), f"{they:.0f}", f"{we:.1f}", share, *shown])
    return markdown(head, lines)


TABLES = {"evaluation": strength_table, "price": price_table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--who", default="referee,ours")
    parser.add_argument("--only", default="", help="the cells whose names begin so, such as referee/mnist")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--runs", type=Path, default=Path("runs/evaluation"))
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--markdown", action="store_true", help="measure nothing: print the tables")
    asked = parser.parse_args()
    if asked.markdown:
        print("\n\n".join(table(read(RESULTS)) for table in TABLES.values()))
        return
    output = asked.output or RESULTS / f"{asked.device}.csv"
    rows = read_csv(output, ()) if output.exists() else []
    done = {Cell.of(row) for row in rows}
    todo = [cell for who in asked.who.split(",") for cell in cells(who, asked.models.split(","), asked.device)]
    todo = [cell for cell in todo if cell not in done and "/".join(cell).startswith(asked.only)]
    end = time.monotonic() + 60 * asked.minutes
    card = shared_card(print) if asked.device == "cuda" else nullcontext()
    with card, ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn")) as pool:
        running: dict[Future[list[Row]], Cell] = {}
        while running or (todo and time.monotonic() < end):
            while todo and len(running) < asked.workers and time.monotonic() < end:
                cell = todo.pop(0)
                running[pool.submit(measure, cell, asked.runs)] = cell
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                made = future.result()
                before = read_csv(output, ()) if output.exists() else []  # another call may have added to it
                write_csv(output, COLUMNS, [*before, *made])
                print(*running.pop(future), *(made[-1][key] for key in ("error", "seconds")), flush=True)


if __name__ == "__main__":
    main()
