"""The trained model of a run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Size, nn

from rhobust.errors import RunError
from rhobust.models.catalog import build_model
from rhobust.models.wrapper import ModelWrapper
from rhobust.runs.config import Config
from rhobust.runs.directory import Run


class TrainedModel(ModelWrapper):
    """A model in evaluation mode that remembers how it was trained and in which box its inputs live."""

    def __init__(self, model: nn.Module, config: Config, gamma: float, bounds: tuple[float, float]) -> None:
        super().__init__(model)
        self.config, self.gamma, self.bounds = config, gamma, bounds
        self.eval()


def load(path: str | Path) -> TrainedModel:
    """The model that `rhobust train` left in a run directory, on the CPU. The data need not be there.

    Raises `RunError` where the run is not finished or its weights do not pass their checksum.
    """
    run = Run.find(Path(path))
    config, state = run.config(), run.trained()
    try:
        with torch.device("meta"):  # no room is made for what the file may claim, and no random number is drawn
            model = build_model(config.model, Size(state["shape"]), state["classes"])
        model.load_state_dict(state["model"], assign=True)
        lower, upper = state["bounds"]
        return TrainedModel(model, config, float(state["gamma"]), (float(lower), float(upper)))
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise RunError(f"{run.model_path} does not fit the model '{config.model}': {problem}") from None
