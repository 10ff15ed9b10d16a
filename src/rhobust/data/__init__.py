"""Data sets, samples and batches."""

from rhobust.data.catalog import digits
from rhobust.data.table import Table

__all__ = ["Table", "digits"]
