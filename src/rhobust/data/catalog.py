"""Data sets by name or path.

By name: `digits` (embedded), `mnist`, `fashion-mnist`. By path: a `.npz` file with arrays x and y, a table
(`.csv`, `.parquet`), or a folder with one folder of images for each class. Pixels come in [-1, 1], and the bounds
travel with the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rhobust.data.archives import FASHION_MNIST, MNIST, Archive
from rhobust.data.frame import SUFFIXES
from rhobust.data.image_folder import from_folder
from rhobust.data.npz import from_npz
from rhobust.data.samples import PIXELS, REGRESSION, TASKS, DataSet, Samples, pixels, split
from rhobust.data.table import Table
from rhobust.data.table_file import from_table
from rhobust.data.table_settings import TableSettings, table_problems
from rhobust.errors import ConfigError, unknown


def digits() -> DataSet:
    """The 1,797 handwritten 8 x 8 digits that ship with scikit-learn.

    >>> digits().train.x.shape
    torch.Size([1437, 1, 8, 8])
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = torch.from_numpy(raw.images.astype(np.float32) / 8 - 1).unsqueeze(1)
    train, test = split(Samples(x, torch.from_numpy(raw.target.astype(np.int64))))
    return DataSet("digits", train, test, PIXELS, classes=10)


def _archived(archive: Archive, directory: Path | None) -> DataSet:
    def part(name: str) -> Samples:
        images, labels = archive.load(name, directory)
        return Samples(pixels(images[:, None]), torch.from_numpy(labels.astype(np.int64)))

    return DataSet(archive.name, part("train"), part("t10k"), PIXELS, classes=10)


DATA: dict[str, Callable[[Path | None], DataSet]] = {
    "digits": lambda directory: digits(),
    "mnist": lambda directory: _archived(MNIST, directory),
    "fashion-mnist": lambda directory: _archived(FASHION_MNIST, directory),
}
"""Loader of every data set by name, given the directory to look in first."""


def data_problem(name: str, task: str = TASKS[0]) -> str | None:
    """What is wrong with the name or path of a data set, if anything that can be told without loading it."""
    path = Path(name)
    try:
        if task == REGRESSION and (name in DATA or path.is_dir()):
            return f"data '{name}' has classes, and task regression takes numbers: an .npz file whose y are numbers"
        if name in DATA or path.is_dir() or (path.suffix in (".npz", *SUFFIXES) and path.is_file()):
            return None
        if path.suffix == ".npy" and path.is_file():
            return f"data '{name}': a .npy file holds one array; an .npz is needed: numpy.savez('mine.npz', x=x, y=y)"
    except OSError as problem:  # a folder on the way that may not be entered, a name too long
        return f"data set '{name}' cannot be looked for: {problem.strerror}"
    if path.suffix or len(path.parts) > 1:
        kinds = f".npz file, table ({', '.join(SUFFIXES)}) or folder of images"
        return f"data '{name}': there is no such {kinds} (looked for {path.absolute()})"
    return (
        f"{unknown('data set', name, DATA)}, or the path of an .npz file, of a table or of a folder of images per class"
    )


def load_data(
    name: str,
    directory: str | Path | None = None,
    limit: int | None = None,
    task: str = TASKS[0],
    table: TableSettings | None = None,
    learned: Table | None = None,
) -> DataSet:
    """A data set by name or path; `limit` keeps only the first N training samples, N = `limit`.

    A file with a table needs the settings of `table`. `learned` is the preprocessing of a trained run.
    """
    if problem := data_problem(name, task):
        raise ConfigError([problem])
    if problems := [*table_problems(name, table)]:
        raise ConfigError(problems)
    where = directory or os.environ.get("RHOBUST_DATA")
    if name in DATA:
        data = DATA[name](Path(where) if where else None)
    elif table is not None:
        data = from_table(Path(name), table, task, learned)
    else:
        data = from_npz(Path(name), task) if Path(name).is_file() else from_folder(Path(name))
    return data if limit is None else replace(data, train=data.train[:limit])
