"""What keeps a run from beginning here: data or a device that are not there, and settings that would do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from rhobust.data.catalog import data_problem
from rhobust.method import methods

if TYPE_CHECKING:
    from rhobust.runs.config import Config


def of_new_run(config: Config) -> Iterator[str]:
    """A run that is there is read although its data or device are gone, or a setting has no effect."""
    method, federation = methods().get(config.method), config.federation
    if problem := data_problem(config.data):
        yield problem
    if config.device == "cuda" and not torch.cuda.is_available():
        yield "device 'cuda' was asked for, but torch sees no CUDA device here"
    if method and not method.maximizer.penalized and config.gamma_min != type(config).gamma_min:
        yield f"method '{config.method}' has no gamma: drop gamma_min"
    if federation and federation.rate_idles:
        yield "local_learning_rate is for workers who take several steps: set local_steps above 1, or drop it"
