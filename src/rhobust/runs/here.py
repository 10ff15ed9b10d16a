"""What a run needs where it is trained: its data and its device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rhobust.data.catalog import data_problem
from rhobust.data.table_settings import TableSettings, table_problems


def missing_here(data: str, task: str, device: str, table: TableSettings | None) -> Iterator[str]:
    """Which of them this machine does not have."""
    if problem := data_problem(data, task):
        yield problem
    else:
        yield from table_problems(data, table)
    if device == "cuda" and not torch.cuda.is_available():
        yield "device 'cuda' was asked for, but torch sees no CUDA device here"
