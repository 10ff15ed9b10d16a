"""What the settings of a run stand for: model, objective, optimizer, engine, server, workers."""

from __future__ import annotations

import torch
from torch import nn

from rhobust.batch_norm import check_federated
from rhobust.data.batches import batches_of
from rhobust.data.partitions import partition
from rhobust.data.samples import DataSet
from rhobust.errors import ConfigError
from rhobust.federation.aggregators import find_aggregator
from rhobust.federation.federated_engine import FederatedEngine, Workers
from rhobust.federation.server import Server
from rhobust.federation.settings import Federation
from rhobust.federation.simulation import Simulation
from rhobust.federation.worker import LocalSteps
from rhobust.objective import RobustObjective
from rhobust.optim import OPTIMIZERS, ProximalOptimizer
from rhobust.runs.config import Config
from rhobust.training.compose import central_engine, compose
from rhobust.training.engine import Engine
from rhobust.training.step import PRECISIONS
from rhobust.training.stopping_rule import most_epochs


def compose_run(
    config: Config, data: DataSet, device: torch.device, rate: float | None = None
) -> tuple[RobustObjective, ProximalOptimizer]:
    """Model, objective and optimizer of a run; the weights come from the global generator.

    `rate` is that of plain gradient descent, in place of the settings' optimizer.
    """
    model = config.make_model(data.train.x.shape[1:], data.outputs).to(device)
    if device.type == "cuda":
        # As a GPU convolves fastest; the values are the same.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.federation is not None:
        check_federated(model, config.batch_norm)
    return compose(
        model,
        config.make_loss(),
        config.make_method(),
        radius=config.radius or 0.0,
        optimizer=_optimizer(config, model, rate),
        cost=config.make_cost(),
        regularizer=config.make_regularizer(),
        gamma_min=config.gamma_min,
        gamma_rule=config.make_gamma_rule(),
        bounds=data.bounds,
        batch_norm=config.batch_norm,
    )


def build_engine(config: Config, data: DataSet, device: torch.device) -> Engine:
    """The engine of a run in this process, central or federated."""
    if config.federation is not None:
        return federated_engine(config, server_of(config, data, device), simulation_of(config, data, device))
    objective, optimizer = compose_run(config, data, device)
    return central_engine(
        objective,
        optimizer,
        batches_of(data.train, config.batch_size, config.seed, device),
        most_epochs(config.epochs),
        precision=PRECISIONS[config.precision],
        ema=config.ema,
        memory=config.memory,
        schedule=config.schedule,
    )


def federated_engine(config: Config, server: Server, workers: Workers) -> FederatedEngine:
    """The engine of a federated run, simulated or deployed."""
    settings = federation_of(config)
    return FederatedEngine(server, workers, settings.rounds, settings.asked, config.seed)


def _optimizer(config: Config, model: nn.Module, rate: float | None) -> torch.optim.Optimizer:
    if rate is not None:
        return torch.optim.SGD(model.parameters(), lr=rate)
    return OPTIMIZERS[config.optimizer](model, config.learning_rate, config.momentum)


def server_of(config: Config, data: DataSet, device: torch.device) -> Server:
    """The server of a federated run.

    Where it averages theta after H local steps of size a, the mean of theta - a sum g is a step of size H a along the
    mean of the uploads, which are means of H gradients.
    """
    settings = federation_of(config)
    averaged = settings.local_learning_rate * settings.local_steps if settings.server_update == "average" else None
    objective, optimizer = compose_run(config, data, device, averaged)
    aggregator, weighted = find_aggregator(settings.aggregator), settings.weights == "samples"
    return Server(objective, optimizer, aggregator, quorum=settings.quorum, weighted=weighted)


def federation_of(config: Config) -> Federation:
    """The federation's settings, which must be there."""
    if config.federation is None:
        raise ConfigError(["this is not a federated run: it has no rounds"])
    return config.federation


def work_of(config: Config) -> LocalSteps:
    """What a worker of the federation does in a round."""
    settings = federation_of(config)
    return LocalSteps(config.batch_size, settings.local_steps, settings.local_learning_rate, config.seed)


def simulation_of(config: Config, data: DataSet, device: torch.device) -> Simulation:
    """The workers of a federated run in this process."""
    settings = federation_of(config)
    return Simulation(
        compose_run(config, data, device)[0],  # the workers' own copy: the server's model is not theirs to move
        data.train.to(device),
        [share.to(device) for share in partition(settings.partition, data.train.y, settings.workers, config.seed)],
        work_of(config),
        classes=data.classes,
        byzantine=settings.byzantine,
        attack=settings.byzantine_attack,
    )
