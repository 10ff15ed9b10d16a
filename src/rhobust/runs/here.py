"""What a run needs where it is trained: its data and its device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rhobust.data.catalog import data_problem


def missing_here(data: str, task: str, device: str) -> Iterator[str]:
    """Which of them this machine does not have."""
    if problem := data_problem(data, task):
        yield problem
    if device == "cuda" and not torch.cuda.is_available():
        yield "device 'cuda' was asked for, but torch sees no CUDA device here"
