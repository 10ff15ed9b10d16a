"""Training into a run directory, central or federated: build what the settings say, go on from where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from rhobust.aggregators import find_aggregator
from rhobust.batches import batches_of
from rhobust.config import PRECISIONS, Config
from rhobust.data import DataSet, Samples, load_data
from rhobust.engines.federated import Server
from rhobust.engines.local import LocalEngine
from rhobust.engines.worker import LocalWork
from rhobust.errors import ConfigError, DataError, RunError
from rhobust.evaluate import evaluate
from rhobust.federation import Federation
from rhobust.losses import cross_entropy
from rhobust.models import build_model
from rhobust.observer import Observer
from rhobust.optim import adam
from rhobust.partitions import partition
from rhobust.rounds import Rounds, Workers
from rhobust.runs import Run
from rhobust.simulation import Simulation
from rhobust.toml import read_toml
from rhobust.trainer import Trainer, compose, no_use, seeded

# What a look at the test error in the middle of a federated training costs: these attacks, on so many samples.
_LOOK = (("ifgsm", "pgd"), 0.1, 1000)


def train_run(path: Path, config: Config | None, observer: Observer | None = None, data: DataSet | None = None) -> Run:
    """Train into a run directory: a new one with `config`, or, without, the one that is there, from its checkpoint.

    `data`, where given, stand for those that the settings name: already loaded, or split in another way.
    """
    run = Run.find(path) if config is None else Run.vacant(path)
    if run.finished:
        run.trained()  # a model that is damaged is not finished
        return run
    settings = config or Config.resolve(read_toml(run.config_path))
    device = torch.device(settings.device)
    data = data or load_data(settings.data, settings.data_dir, settings.limit)
    if data.classes < 2:
        raise DataError(f"{settings.data}: the labels are of one class only; there is nothing to tell apart")
    build = _rounds if settings.federation else _trainer
    with seeded(settings.seed, device, settings.threads):
        trainer = build(settings, data, run, device)  # whatever is wrong with data or model, before a directory is
        with run.locked():
            if config is not None:
                run.begin(config, train=data.train.digest(), test=data.test.digest())
            if not run.finished:  # by another process, meanwhile
                carry_on(run, trainer, data, observer)
    return run


def carry_on(run: Run, trainer: Trainer | Rounds, data: DataSet, observer: Observer | None) -> None:
    """Train from the last checkpoint to the end, and write the model."""
    run.check_data(train=data.train.digest(), test=data.test.digest())
    start, state = run.restore((observer or Observer()).warned)
    if state is not None:
        try:
            trainer.load_state(state)
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as problem:
            raise RunError(f"the checkpoint of step {start} in {run.path} does not fit the run: {problem}") from None
    trainer.train(observer, start)
    test = Samples(data.test.x.to(trainer.objective.gamma.device), data.test.y.to(trainer.objective.gamma.device))
    if useless := no_use(trainer.objective, test):
        (observer or Observer()).warned(useless)
    run.finish(
        {
            "model": dict(trainer.objective.model.state_dict()),
            "gamma": float(trainer.objective.gamma.detach()),
            "shape": list(data.train.x.shape[1:]),
            "classes": data.classes,
            "bounds": data.bounds,
        }
    )


def engine_of(config: Config, data: DataSet, device: torch.device, rate: float | None = None) -> LocalEngine:
    """Model, objective and step of a run; the weights come from the global generator."""
    model = build_model(config.model, data.train.x.shape[1:], data.classes).to(device)
    if device.type == "cuda":
        # As a GPU convolves fastest; the values are the same.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return compose(
        model,
        cross_entropy,
        config.make_method(),
        radius=config.radius or 0.0,
        optimizer=_optimizer(config, model, rate),
        cost=config.make_cost(),
        regularizer=config.make_regularizer(),
        gamma_min=config.gamma_min,
        gamma_rule=config.make_gamma_rule(),
        bounds=data.bounds,
        precision=PRECISIONS[config.precision],
        average=config.average,
    )


def _optimizer(config: Config, model: nn.Module, rate: float | None) -> torch.optim.Optimizer:
    if rate is not None:
        return torch.optim.SGD(model.parameters(), lr=rate)
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)
    return adam(model, config.learning_rate)


def _trainer(config: Config, data: DataSet, run: Run, device: torch.device) -> Trainer:
    engine = engine_of(config, data, device)
    batches = batches_of(data.train, config.batch_size, config.seed, device)
    return Trainer(engine, batches, config.epochs, run, config.log_every, config.checkpoint_every, config.memory)


def server_of(config: Config, data: DataSet, device: torch.device) -> Server:
    """The server of a federated run.

    Where it averages theta after H local steps of size a, the mean of theta - a sum g is a step of size H a along the
    mean of the uploads, which are means of H gradients.
    """
    settings = federation_of(config)
    averaged = settings.local_rate * settings.local_steps if settings.server == "average" else None
    engine = engine_of(config, data, device, averaged)
    aggregator, weighted = find_aggregator(settings.aggregator), settings.weights == "samples"
    return Server(engine.objective, engine.optimizer, aggregator, quorum=settings.quorum, weighted=weighted)


def federation_of(config: Config) -> Federation:
    """The federation's settings, which must be there."""
    if config.federation is None:
        raise ConfigError(["this is not a federated run: it has no rounds"])
    return config.federation


def work_of(config: Config) -> LocalWork:
    """What a worker of the federation does in a round."""
    settings = federation_of(config)
    return LocalWork(config.batch_size, settings.local_steps, settings.local_rate, config.seed)


def _rounds(config: Config, data: DataSet, run: Run, device: torch.device) -> Rounds:
    settings, server = federation_of(config), server_of(config, data, device)
    train = Samples(data.train.x.to(device), data.train.y.to(device))
    workers = Simulation(
        engine_of(config, data, device).objective,  # the workers' own copy: the server's model is not theirs to move
        train,
        [share.to(device) for share in partition(settings.partition, data.train.y, settings.workers, config.seed)],
        work_of(config),
        classes=data.classes,
        liars=settings.liars,
        how=settings.lie,
    )
    return rounds_of(config, server, workers, data, run)


def rounds_of(config: Config, server: Server, workers: Workers, data: DataSet, run: Run) -> Rounds:
    """The loop over rounds of a federated run, whoever the workers are."""
    settings, device = federation_of(config), torch.device(config.device)
    return Rounds(
        server,
        workers,
        settings.rounds,
        asked_each=settings.asked,
        seed=config.seed,
        judge=_judge(server.objective.model, data, device),
        judge_every=settings.evaluate_every,
        run=run,
        log_every=config.log_every,
        checkpoint_every=config.checkpoint_every or 50,
    )


def _judge(model: nn.Module, data: DataSet, device: torch.device) -> Callable[[], dict[str, float]]:
    """Clean and attacked error of the model as it is when asked."""
    attacks, epsilon, samples = _LOOK
    test = data.test[:samples]
    test = Samples(test.x.to(device), test.y.to(device))

    def judge() -> dict[str, float]:
        found = evaluate(
            model, test, loss=cross_entropy, bounds=data.bounds, attacks=attacks, epsilons=[epsilon], checks=False
        )
        return {"clean": found.clean, **{name: found.error(name, epsilon) for name in attacks}}

    return judge
