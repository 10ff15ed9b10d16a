"""The command `rhobust predict`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

from rhobust.commands.output import Quiet, check_output
from rhobust.data.frame import SUFFIXES, Frame
from rhobust.data.npz import unlabeled
from rhobust.data.table_settings import is_table
from rhobust.errors import ConfigError
from rhobust.runs.load import TrainedModel, load
from rhobust.support.console import ERR, OUT, say
from rhobust.support.files import write_atomically


def predict(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    data: Annotated[Path, typer.Argument(help="Rows to predict: .csv or .parquet; x of an .npz for a run on arrays.")],
    out: Annotated[Path, typer.Option(help="CSV file to write: predictions, and the probability of each class.")],
    quiet: Quiet = False,
) -> None:
    """Predict rows with a trained model, and write the predictions to a file."""
    model = load(run)
    _check(model, run, data, out)
    remarks: list[str] = []
    if model.table is None:
        found = model.predict(unlabeled(data).numpy())
    else:
        found = model.table.predict(model, Frame.read(data, model.table.text), remarks.append)
    for remark in remarks:
        say(ERR, f"warning: {remark}")
    write_atomically(out, _csv(found))
    if not quiet:
        say(OUT, f"{out}: predictions of {len(next(iter(found.values())))} rows")


def _check(model: TrainedModel, run: Path, data: Path, out: Path) -> None:
    """Refuse data of another kind than the run's, and an output that would replace the data."""
    check_output("--out", out)
    wrong = []
    if model.table is None and data.suffix != ".npz":
        wrong.append(f"{run} was trained on arrays, and predicts those of an .npz file, not {data}")
    if model.table is not None and not is_table(str(data)):
        wrong.append(f"{run} was trained on a table, and predicts the rows of one ({', '.join(SUFFIXES)}), not {data}")
    if not data.is_file():
        wrong.append(f"there is no file {data}")
    if out.suffix != ".csv":
        wrong.append(f"--out {out} must be a .csv file")
    settings = model.config.table
    test = settings.test_file if settings else None
    if out.resolve() in {path.resolve() for path in (data, Path(model.config.data), test) if path}:
        wrong.append(f"--out {out} is a file of data; choose another name")
    if wrong:
        raise ConfigError(wrong)


def _csv(found: Mapping[str, NDArray[Any]]) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(found)
    rows.writerows(zip(*(values.tolist() for values in found.values()), strict=True))
    return text.getvalue().encode()
