"""The trained model of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor, nn

from rhobust.box import Box
from rhobust.data.predictions import outputs_of, predicted_numbers, predictions
from rhobust.data.samples import REGRESSION, tensor_of
from rhobust.data.table import Table
from rhobust.errors import ConfigError, DataError, RunError
from rhobust.models.source import Source, is_own
from rhobust.models.wrapper import ModelWrapper
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.support.seeding import seeded


class TrainedModel(ModelWrapper):
    """A model in evaluation mode that remembers how it was trained and in which box its inputs live."""

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        gamma: float,
        bounds: tuple[float, float] | Box,
        shape: Size,
        names: tuple[str, ...] = (),
        table: Table | None = None,
    ) -> None:
        super().__init__(model)
        self.config, self.gamma, self.bounds = config, gamma, bounds
        self.shape, self.names, self.table = shape, names, table
        self.eval()

    def predict(self, data: object) -> Any:
        """What the model predicts, by column: a DataFrame for a pandas DataFrame, otherwise a dict of arrays.

        Of a run on a table, `data` are its raw rows (`Table.predict`); of another, x as it was trained on, (N, ...).
        `prediction` is the name of a class, or the number of a regression; `probability of NAME` that of each class.
        """
        if self.table is not None:
            return self.table.predict(self.model, data)
        x = tensor_of(data, torch.float32)
        if x.shape[1:] != self.shape or not len(x):
            raise DataError(f"x must be samples of shape {tuple(self.shape)}, one at least, not {tuple(x.shape)}")
        outputs = outputs_of(self.model, x.float())
        return predicted_numbers(outputs) if self.config.task == REGRESSION else predictions(outputs, self.names)


def load(path: str | Path) -> TrainedModel:
    """The model that `rhobust train` left in a run directory, on the CPU. The data need not be there.

    A model of your own runs code: its source is imported and its factory called, if the source still has the SHA-256
    that the run keeps. A model of the library runs no code but the library's. Nothing is unpickled in either case.

    Raises `RunError` if the run is not finished, its weights do not pass their checksum, or the source has changed.
    """
    run = Run.find(Path(path))
    config, state = run.config(), run.trained()
    if is_own(config.model):
        _check_source(run, config)
    try:
        outputs = state["classes"] if "classes" in state else state["outputs"]  # as older runs call them
        shape, bounds = Size(state["shape"]), _bounds(state["bounds"])
        model = _with_weights(config, shape, outputs, state["model"])
        kept = state.get("preprocessing")  # older runs have none, and no names
        table = None if kept is None else Table.from_json(kept)
        names = tuple(state.get("names", ()))
        return TrainedModel(model, config, float(state["gamma"]), bounds, shape, names, table)
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise RunError(f"{run.model_path} does not fit the model '{config.model}': {problem}") from None


def _check_source(run: Run, config: Config) -> None:
    """Refuse to run the source of a model if it is not the one that was trained."""
    try:
        Source.parse(config.model).checked(config.model_digest)
    except ConfigError as problem:
        raise RunError(
            f"{run.path} needs the source of its model. {problem}. If the file was moved, correct model in "
            f"{run.config_path}"
        ) from None


def _with_weights(config: Config, shape: Size, outputs: int, weights: dict[str, Tensor]) -> nn.Module:
    """The model with these weights, made without drawing a number from the global generator."""
    if is_own(config.model):  # it may compute with values that its state does not hold: made in full, as in training
        with seeded(config.seed, torch.device("cpu")):
            model = config.make_model(shape, outputs)
        model.load_state_dict(weights)
    else:
        with torch.device("meta"):  # no room is made for what the file may claim
            model = config.make_model(shape, outputs)
        model.load_state_dict(weights, assign=True)
    return model


def _bounds(stored: Any) -> tuple[float, float] | Box:
    if isinstance(stored, dict):
        return Box(**stored)
    lower, upper = stored
    return float(lower), float(upper)
