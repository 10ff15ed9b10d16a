"""One job: a training, its evaluation, and the numbers of both."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rhobust.data.catalog import load_data
from rhobust.data.samples import DataSet, Samples
from rhobust.evaluation.evaluate import evaluate
from rhobust.evaluation.evaluation import Evaluation
from rhobust.evaluation.regression_evaluation import RegressionEvaluation
from rhobust.losses import cross_entropy
from rhobust.reproduction.flops import Flops, flops_of
from rhobust.reproduction.plan import Job
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.load import TrainedModel, load
from rhobust.runs.start import train_run
from rhobust.support.counting import counted_passes
from rhobust.support.environment import environment
from rhobust.training.record import rho_eff

_ATTACKS = ("fgsm", "ifgsm", "pgd-paper")
_SPLIT_SEED = 0  # the same images are held out for every candidate, whatever a run's seed is

Errors = dict[str, dict[str, float]]
"""errors[measurement][epsilon or round], fractions."""


def do(job: Job, scratch: str | None = None) -> dict[str, Any]:
    """Train, measure, and say what came out; the run itself, for as long as it is needed, is in `scratch`."""
    torch.compiler.reset()  # each job in a process compiles for itself, and only so many are kept
    config = Config.resolve(job.training)
    data = dataset(config.data, config.train_samples, job.measuring.get("held_out"))
    each = flops_of(config.model, data.train.x.shape[1:], data.classes)
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        start = time.perf_counter()
        run = train_run(Path(directory) / "run", config, data=data)
        trained = time.perf_counter()
        records = run.metrics()
        found, spent = _measured(run, data, config, job.measuring, each)
        evaluated = time.perf_counter()
        gamma = load(run.path).gamma
    return {
        "asked": job.asked,
        "config": _not_asked(config, job),
        **found,
        "rho_eff": rho_eff(records),
        "gamma": gamma,
        **_work(config, len(data.train), records, each),
        "evaluation_flops": spent,
        "training_seconds": trained - start,
        "evaluation_seconds": evaluated - trained,
        "environment": environment(config.device),
    }


@cache
def dataset(name: str, limit: int | None, held_out: int | None) -> DataSet:
    """The data of a job, loaded once. Those of a candidate are training data alone: its test set is held out of them.

    So the real test set has no part in any choice.
    """
    data = load_data(name, limit=limit)
    if held_out is None:
        return data
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    return DataSet(data.name, data.train[order[:-held_out]], data.train[order[-held_out:]], data.bounds, data.classes)


def _measured(
    run: Run, data: DataSet, config: Config, how: Mapping[str, Any], each: Flops
) -> tuple[dict[str, Any], float]:
    """Errors, and the arithmetic spent to find them; that of the looks between rounds is not counted."""
    if how["kind"] == "rounds":
        looks = [record for record in run.metrics() if record["errors"]]
        by_round: Errors = {
            name: {str(look["step"] + 1): look["errors"][name] for look in looks} for name in looks[0]["errors"]
        }
        return {"errors": by_round}, 0.0
    device = torch.device(config.device)
    model = load(run.path).to(device)
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as it was trained
    with counted_passes(model) as passes:
        if how["kind"] == "validation":
            test = _on(device, data.test)
            found = _evaluated(model, test, attacks=["pgd"], epsilons=how["epsilons"], checks=False)
            return {"errors": _grid(found, ["pgd"], how["epsilons"])}, each.spent(passes)
        test = _on(device, data.test[: how["samples"]])
        found = _evaluated(model, test, attacks=_ATTACKS, epsilons=how["epsilons"])
        strict = _evaluated(
            model,
            test[: how["strict_samples"]],
            attacks=["pgd"],
            epsilons=how["strict_epsilons"],
            restarts=how["restarts"],
            checks=False,
        )
    errors = _grid(found, _ATTACKS, how["epsilons"]) | _grid(strict, ["pgd"], how["strict_epsilons"])
    flags = [{"check": flag.check, "message": flag.message} for flag in found.flags]
    return {"errors": errors, "flags": flags}, each.spent(passes)


def _on(device: torch.device, samples: Samples) -> Samples:
    return Samples(samples.x.to(device), samples.y.to(device))


def _evaluated(model: TrainedModel, samples: Samples, **how: Any) -> Evaluation | RegressionEvaluation:
    return evaluate(model, samples, loss=cross_entropy, bounds=model.bounds, **how)


def _grid(
    found: Evaluation | RegressionEvaluation, attacks: tuple[str, ...] | list[str], epsilons: list[float]
) -> Errors:
    return {name: {f"{epsilon:g}": found.error(name, epsilon) for epsilon in epsilons} for name in attacks}


def _work(config: Config, images: int, records: list[dict[str, Any]], each: Flops) -> dict[str, Any]:
    """Steps, gradients and arithmetic of a training; the oracle may stop early, so its gradients are those logged."""
    gradients = statistics.fmean(record["gradients"] for record in records)
    if config.federation:
        steps, asked = config.federation.rounds, config.federation.asked
        seen = steps * asked * config.federation.local_steps * config.batch_size
        gradients /= asked  # the record counts every worker's
    else:
        epochs = int(config.epochs)  # none of the paper's is 'auto'
        steps = epochs * math.ceil(images / config.batch_size)
        seen = epochs * images
    flops = seen * (each.theta + gradients * each.zeta)
    return {"steps": steps, "gradients_per_step": gradients, "flops": flops}


def _not_asked(config: Config, job: Job) -> dict[str, Any]:
    """The settings that the method, or the machine, has by itself."""
    settings = config.settings().items()
    return {key: _plain(value) for key, value in settings if value is not None and key not in job.training}


def _plain(value: Any) -> Any:
    """As JSON has it, which knows no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
