"""Data sets, samples and batches."""

from rhobust.data.catalog import digits

__all__ = ["digits"]
