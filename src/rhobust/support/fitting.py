"""Work in batches that fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def fitting(size: int, work: Callable[[int], T]) -> tuple[T, int]:
    """What work in batches of this size gives, or of half of it, a quarter, ...; and the size that fits."""
    while True:
        try:
            return work(size), size
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size //= 2


def in_batches(count: int, size: int, work: Callable[[slice], T]) -> tuple[list[T], int]:
    """The results of the work on `count` items, batch by batch; and the batch size that fits."""
    found: list[T] = []
    start = 0
    while start < count:
        part, size = fitting(size, lambda size, start=start: work(slice(start, start + size)))  # type: ignore[misc]
        found.append(part)
        start += size
    return found, size
