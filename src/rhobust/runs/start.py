"""The start of every run, new or resumed, central or federated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rhobust.box import Bounds, Box
from rhobust.data.samples import DataSet, Samples
from rhobust.errors import DataError, RunError
from rhobust.evaluation.evaluate import evaluate
from rhobust.objective import RobustObjective
from rhobust.runs.build import build_engine
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.run_data import run_data
from rhobust.support.seeding import seeded
from rhobust.training.engine import Engine
from rhobust.training.loop import Every, Judge, train
from rhobust.training.observers import Observer, Silent
from rhobust.training.remarks import remarks, useless
from rhobust.training.spread import deviations, price_of
from rhobust.training.stopping_rule import StoppingRule, stopping_rule
from rhobust.training.trend import unsettled

EngineOf = Callable[[Config, DataSet, torch.device], Engine]
"""Builds the engine of a run."""

# The test errors measured in the middle of a training: these attacks, at this epsilon, on the first samples.
_JUDGED = (("ifgsm", "pgd"), 0.1, 1000)


def train_run(
    path: Path,
    config: Config | None = None,
    observer: Observer | None = None,
    *,
    data: DataSet | None = None,
    engine_of: EngineOf = build_engine,
) -> Run:
    """Train into a run directory: a new one with `config`, or, without, the one that is there, from its checkpoint.

    `data`, where given, stand for those that the settings name: already loaded, or split in another way.
    """
    run = Run.find(path) if config is None else Run.vacant(path)  # before data are loaded; `begin` asks it again, alone
    if run.finished:
        run.trained()  # a model that is damaged is not finished
        return run
    observer, settings = observer or Silent(), config or Config.from_toml(run.config_path, here=True)
    device = torch.device(settings.device)
    data = data or run_data(settings)
    if data.classes == 1:
        raise DataError(f"{settings.data}: the labels are of one class only; there is nothing to tell apart")
    if settings.radius_per_feature is not None:
        config = settings = _with_radius(settings, data)
    digests = {"train": data.train.digest(), "test": data.test.digest()}
    with seeded(settings.seed, device, settings.threads):
        engine = engine_of(settings, data, device)  # whatever is wrong with data or model, before a directory is
        with run.locked():
            if config is not None:
                run.begin(config, _price(config, data), **digests)
            else:
                run.check_data(**digests)
            if not run.finished:  # by another process, meanwhile
                _carry_on(run, settings, engine, data, observer)
    return run


def _price(config: Config, data: DataSet) -> float:
    """The cost of a move by one standard deviation of every feature."""
    cost = config.make_cost()
    return price_of(deviations(data.train.x, cost, data.bounds), cost)


def _with_radius(config: Config, data: DataSet) -> Config:
    """The settings with the radius that `radius_per_feature` stands for."""
    price, size = _price(config, data), config.radius_per_feature or 0.0
    if not 0 < price < math.inf:
        raise DataError(
            f"{config.data}: no feature that may move differs between samples, so radius_per_feature is none"
        )
    return replace(config, radius=size**2 * price, radius_per_feature=None)


def _carry_on(run: Run, config: Config, engine: Engine, data: DataSet, observer: Observer) -> None:
    """Train from the last checkpoint to the end, and write the model."""
    stop, objective = stopping_rule(config.epochs), engine.objective
    start = _restored(run, engine, stop, observer)
    for remark in data.remarks:
        observer.warned(remark)
    for remark in remarks(objective, data.train.x, None if stop else engine.total, config.ema):
        observer.warned(remark)
    test = data.test.to(objective.gamma.device)
    judged = None if config.federation is None else config.federation.evaluate_every
    every = Every(config.log_every, config.checkpoint_every, judged)
    judge = _judge(objective, test, data.bounds) if every.judge else None
    train(engine, start=start, every=every, keeper=run, observer=observer, judge=judge, stop=stop)
    run.finish(
        {
            "model": dict(objective.model.state_dict()),
            "gamma": float(objective.gamma.detach()),
            "shape": list(data.train.x.shape[1:]),
            "outputs": data.outputs,
            "bounds": data.bounds.to_state() if isinstance(data.bounds, Box) else data.bounds,
            "names": data.test.names,
            "preprocessing": data.preprocessing,
        }
    )
    if doubt := useless(objective, test, config.batch_size):
        observer.warned(doubt)
    if stop is None and (doubt := unsettled(run.metrics(), config.schedule)):
        observer.warned(doubt)


def _restored(run: Run, engine: Engine, stop: StoppingRule | None, observer: Observer) -> int:
    """Put engine and rule where the last sound checkpoint was taken; after how many steps that was."""
    start, state = run.restore(observer.warned)
    if state is not None:
        try:
            engine.load_state_dict(state)
            if stop is not None:
                stop.load_state_dict(state["stop"])
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as problem:
            raise RunError(f"the checkpoint of step {start} in {run.path} does not fit the run: {problem}") from None
    return start


def _judge(objective: RobustObjective, test: Samples, bounds: Bounds) -> Judge:
    """Clean and attacked error, or RMSE, of the model as it is when asked."""
    attacks, epsilon, most = _JUDGED
    asked: dict[str, Any] = {"loss": objective.loss, "bounds": bounds, "attacks": attacks, "epsilons": [epsilon]}

    def judge() -> dict[str, float]:
        found = evaluate(objective.model, test[:most], **asked, restarts=1, checks=False)
        return {"clean": found.clean, **{name: found.error(name, epsilon) for name in attacks}}

    return judge
