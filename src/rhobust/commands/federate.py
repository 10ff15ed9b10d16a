"""The command `rhobust federate`."""

from __future__ import annotations

from typing import Any

from rhobust.commands import options
from rhobust.commands.output import Quiet
from rhobust.commands.train import destination, layers, run_training
from rhobust.runs.build import federation_of
from rhobust.runs.config import Config

USUAL = {"method": "drfl", "batch_size": 64}
"""The paper's settings, where others are not given."""

_OPTIONS = (
    *("data", "data_dir", "target", "test", "drop", "fixed", "clip_to_training", "task", "loss", "train_samples"),
    *("model", "method", "radius", "workers", "partition", "rounds"),
    *("batch_size", "participation", "local_steps", "aggregator", "weights", "byzantine", "byzantine_attack"),
    *("evaluate_every", "learning_rate", "seed", "device"),
)


@options.settings_as_options(*_OPTIONS, usual=USUAL)
def federate(
    *,
    overrides: options.Words = None,
    given: dict[str, Any],
    config: options.ConfigFile = None,
    out: options.Out = None,
    quiet: Quiet = False,
) -> None:
    """Train by a federation of simulated workers in one process. Continue one with `rhobust train --resume`."""
    path, settings = destination(out), Config.resolve(USUAL, *layers(config, given, overrides))
    federation_of(settings)
    run_training(path, settings, f"{settings.name} on {settings.data}", quiet)
