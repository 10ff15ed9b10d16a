"""Data sets, samples and batches."""

from rhobust.data.catalog import digits
from rhobust.data.groups import leave_one_group_out
from rhobust.data.table import Table

__all__ = ["Table", "digits", "leave_one_group_out"]
