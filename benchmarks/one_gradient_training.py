"""One gradient, as robust as ten? Trains and attacks what docs/one-gradient.md compares.

RHOBUST_DATA=... python -m benchmarks.one_gradient_training [--workers 12] [--only "mnist/ifgsm, epsilon 0.4"]
python -m benchmarks.one_gradient_training [--markdown] [--figure docs/images/one-gradient.png]

It trains what the output lacks: what the tables ask for, and whatever else stands in the committed file, whose rows
say by their names how they were trained. Attacked is the worst of PGD (40 steps, 5 restarts), Auto-PGD on the loss and
on the margin, and random squares, on the first 1,000 test images. What is chosen by these is confirmed with other
seeds on the next 1,000, which nothing was chosen by.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.command import command, write_csv
from benchmarks.one_gradient_tables import COLUMNS, EPSILONS, TABLES, WORST, Row, figure, read
from benchmarks.one_gradient_variants import ABLATED, ABLATION, BASELINES, CONFIRMED, DATA, DEEP, WAYS, settings
from rhobust.data.catalog import load_data
from rhobust.data.samples import Samples
from rhobust.evaluation.evaluate import evaluate
from rhobust.evaluation.evaluation import Evaluation
from rhobust.losses import cross_entropy
from rhobust.reproduction.nvidia_mps import shared_card
from rhobust.runs.config import Config
from rhobust.runs.load import load
from rhobust.runs.start import train_run
from rhobust.support.environment import environment
from rhobust.training.record import rho_eff

RESULTS = Path(__file__).parents[1] / "results" / "one-gradient.csv"
SHARED = {"epochs": 30, "batch_size": 128, "log_every": 25, "checkpoint_every": 10**9}
SAMPLES = 1000
IMAGES = {"sweep": slice(SAMPLES), "confirmed": slice(SAMPLES, 2 * SAMPLES)}
SEEDS = {"sweep": ("0", "1", "2"), "confirmed": ("3", "4", "5")}
ATTACKS, RESTARTS = ("pgd", "apgd", "apgd-margin", "square"), 5


class Job(NamedTuple):
    """A training; a row has these columns, too."""

    part: str
    data: str
    variant: str
    seed: str

    @property
    def settings(self) -> dict[str, Any]:
        return SHARED | {"data": self.data, "seed": int(self.seed)} | settings(self.variant)


def jobs(rows: Iterable[Row]) -> list[Job]:
    """What the tables ask for, and these rows but for those that an earlier version made."""
    asked = [
        Job(part, data, variant, seed)
        for data in DATA
        for part, names in (("sweep", (*BASELINES[data], *WAYS[data], DEEP[data])), ("confirmed", CONFIRMED[data]))
        for seed in SEEDS[part]
        for variant in names
    ]
    data, seed = ABLATED
    asked += [Job("sweep", data, variant, seed) for _, variant in ABLATION]
    asked += [_job(row) for row in rows if row["part"] in IMAGES]
    return list(dict.fromkeys(asked))


def _job(row: Row) -> Job:
    return Job(*(row[key] for key in Job._fields))


def measure(job: Job) -> Row:
    """One training, and its errors."""
    torch.set_num_threads(1)
    torch.compiler.reset()
    config = Config.resolve(job.settings)
    data, place = load_data(config.data), environment(config.device)
    with tempfile.TemporaryDirectory() as folder:
        run = train_run(Path(folder) / "run", config, data=data)
        model, records = load(run.path), run.metrics()
    if config.device == "cuda":
        model = model.to("cuda", memory_format=torch.channels_last)  # type: ignore[call-overload]  # as it was trained

    def attacked(samples: Samples, attacks: Sequence[str], epsilons: Sequence[float] = EPSILONS) -> Evaluation:
        there = Samples(samples.x.to(config.device), samples.y.to(config.device))
        how = {"loss": cross_entropy, "bounds": data.bounds, "restarts": RESTARTS, "checks": False}
        found = evaluate(model, there, attacks=attacks, epsilons=epsilons, **how)  # type: ignore[arg-type]
        assert isinstance(found, Evaluation)
        return found

    found = attacked(data.test[IMAGES[job.part]], ATTACKS)
    # Training images under one of the attacks: what is left there, the network cannot learn or the training did not.
    seen = attacked(data.train[:SAMPLES], ["apgd"])
    return {
        **job._asdict(),
        "gradients": config.make_method().maximizer.mean_gradients,
        "rho_eff": rho_eff(records),
        "gamma": records[-1]["gamma"],
        "clean": attacked(data.test, ["fgsm"], [0.0]).clean,
        **{key: found.error("worst", epsilon) for key, epsilon in zip(WORST, EPSILONS, strict=True)},
        "apgd": statistics.fmean(found.error("apgd", epsilon) for epsilon in EPSILONS),
        "apgd_in_training": statistics.fmean(seen.error("apgd", epsilon) for epsilon in EPSILONS),
        **{key: place[key] for key in ("device", "torch", "git")},
    }


def train(output: Path, workers: int, only: str) -> None:
    """What the output lacks."""
    rows = read(output) if output.exists() else []
    there = {_job(row) for row in rows}
    left = [job for job in jobs(read(RESULTS)) if job not in there and "/".join(job[1:]).startswith(only)]
    context = multiprocessing.get_context("spawn")
    with shared_card(print), ProcessPoolExecutor(workers, mp_context=context) as pool:
        for future in as_completed([pool.submit(measure, job) for job in left]):
            rows.append(future.result())
            write_csv(output, COLUMNS, sorted(rows, key=_job))
            print(f"{len(rows)} rows: {rows[-1]}", flush=True)


if __name__ == "__main__":
    options = {"workers": (12, "trainings at once"), "only": ("", "only those whose data/variant/seed starts so")}
    command(__doc__, RESULTS, train, TABLES, figure=figure, read=read, options=options)
