"""A trained run as a model again."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from rhobust.config import Config
from rhobust.data import load_data
from rhobust.errors import RunError
from rhobust.models import build_model
from rhobust.runs import Run


class TrainedModel(nn.Module):
    """A model in evaluation mode that remembers how it was trained and in which box its inputs live."""

    def __init__(self, model: nn.Module, config: Config, gamma: float, bounds: tuple[float, float]) -> None:
        super().__init__()
        self.model = model
        self.config, self.gamma, self.bounds = config, gamma, bounds
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The model's output."""
        output: Tensor = self.model(x)
        return output


def load(path: str | Path) -> TrainedModel:
    """The model that `rhobust train` left in a run directory, on the CPU.

    Raises `RunError` where the run is not finished or its weights do not pass their checksum.
    """
    run = Run.find(Path(path))
    config = run.config()
    data = load_data(config.data)
    state = run.trained()
    model = build_model(config.model, data.train.x.shape[1:], data.classes)
    try:
        model.load_state_dict(state["model"])
    except (RuntimeError, KeyError) as problem:
        raise RunError(f"{run.model_path} does not fit the model '{config.model}': {problem}") from None
    return TrainedModel(model, config, float(state["gamma"]), data.bounds)
