"""Data sets, samples and batches."""

from rhobust.data.catalog import digits
from rhobust.data.groups import leave_one_group_out

__all__ = ["digits", "leave_one_group_out"]
