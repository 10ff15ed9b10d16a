"""rhobust federate"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rhobust.aggregators import AGGREGATORS
from rhobust.commands.shared import Quiet
from rhobust.commands.train import destination, layers, run_training
from rhobust.config import Config
from rhobust.data import DATA
from rhobust.federation import METHODS, WEIGHTS
from rhobust.liars import LIARS
from rhobust.models import MODELS
from rhobust.partitions import PARTITIONS
from rhobust.runner import federation_of


def federate(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Any setting (docs/settings.md); wins over options."),
    ] = None,
    data: Annotated[str | None, typer.Option(help=f"{', '.join(DATA)}, or a path: .npz, images.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where to look for mnist/ and fashion-mnist/ first.")] = None,
    limit: Annotated[int | None, typer.Option(help="Train on the first so many samples only.")] = None,
    model: Annotated[str | None, typer.Option(help=f"{', '.join(MODELS)}.")] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)}.", show_default="drfl")] = None,
    radius: Annotated[float | None, typer.Option(help="rho, the bound on the expected transport cost.")] = None,
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
    learning_rate: Annotated[float | None, typer.Option(help="Step size alpha of theta on the server.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything that is random.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; options and KEY=VALUE win.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory to make.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train by a federation of simulated workers in one process. Continue one with `rhobust train --resume`."""
    given = {
        "data": data,
        "data_dir": None if data_dir is None else str(data_dir),
        "limit": limit,
        "model": model,
        "method": method,
        "radius": radius,
        "workers": workers,
        "partition": partition,
        "rounds": rounds,
        "batch_size": batch_size,
        "participation": participation,
        "local_steps": local_steps,
        "aggregator": aggregator,
        "weights": weights,
        "liars": liars,
        "lie": lie,
        "evaluate_every": evaluate_every,
        "learning_rate": learning_rate,
        "seed": seed,
        "device": device,
    }
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    usual = {"method": "drfl", "batch_size": 64}  # the paper's
    path, settings = destination(out), Config.resolve(usual, *layers(config, options, overrides))
    federation_of(settings)
    run_training(path, settings, f"{settings.name} on {settings.data}", quiet)
