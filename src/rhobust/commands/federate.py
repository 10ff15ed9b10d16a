"""rhobust federate"""

from __future__ import annotations

from typing import Annotated

import typer

from rhobust.aggregators import AGGREGATORS
from rhobust.commands import options
from rhobust.commands.shared import Quiet
from rhobust.commands.train import destination, layers, run_training
from rhobust.config import Config
from rhobust.federation import WEIGHTS
from rhobust.liars import LIARS
from rhobust.methods import FEDERATED
from rhobust.partitions import PARTITIONS
from rhobust.build import federation_of


def federate(
    overrides: options.Words = None,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    limit: options.Limit = None,
    model: options.Model = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(FEDERATED)}.", show_default="drfl")] = None,
    radius: options.Radius = None,
    workers: Annotated[int | None, typer.Option(help="How many share the data.")] = None,
    partition: Annotated[str | None, typer.Option(help=f"How: {', '.join(PARTITIONS)}.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Times that theta goes out and gradients come back.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per worker and step.")] = None,
    participation: Annotated[float | None, typer.Option(help="Share of the workers asked in a round.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Steps of a worker between two uploads.")] = None,
    aggregator: Annotated[str | None, typer.Option(help=f"{', '.join(AGGREGATORS)}; some with :F liars.")] = None,
    weights: Annotated[str | None, typer.Option(help=f"Uploads count: {' or '.join(WEIGHTS)}.")] = None,
    liars: Annotated[int | None, typer.Option(help="So many workers lie.")] = None,
    lie: Annotated[str | None, typer.Option(help=f"How: {', '.join(LIARS)}; some with :STRENGTH.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Rounds between two looks at the test error.")] = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    device: options.Device = None,
    config: options.ConfigFile = None,
    out: options.Out = None,
    quiet: Quiet = False,
) -> None:
    """Train by a federation of simulated workers in one process. Continue one with `rhobust train --resume`."""
    given = options.given(
        data=data,
        data_dir=data_dir,
        limit=limit,
        model=model,
        method=method,
        radius=radius,
        workers=workers,
        partition=partition,
        rounds=rounds,
        batch_size=batch_size,
        participation=participation,
        local_steps=local_steps,
        aggregator=aggregator,
        weights=weights,
        liars=liars,
        lie=lie,
        evaluate_every=evaluate_every,
        learning_rate=learning_rate,
        seed=seed,
        device=device,
    )
    usual = {"method": "drfl", "batch_size": 64}  # the paper's
    path, settings = destination(out), Config.resolve(usual, *layers(config, given, overrides))
    federation_of(settings)
    run_training(path, settings, f"{settings.name} on {settings.data}", quiet)
