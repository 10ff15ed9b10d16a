"""The data of a run, as its settings name them."""

from __future__ import annotations

from rhobust.data.catalog import load_data
from rhobust.data.samples import DataSet
from rhobust.data.table import Table
from rhobust.runs.config import Config


def run_data(config: Config, learned: Table | None = None) -> DataSet:
    """The data set, with the training samples that the settings ask for.

    `learned` is the preprocessing that a trained run keeps; without it a table is prepared anew.
    """
    where, limit = config.data_dir, config.train_samples
    return load_data(config.data, where, limit, config.task, table=config.table, learned=learned)
