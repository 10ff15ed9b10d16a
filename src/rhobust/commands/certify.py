"""The command `rhobust certify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rhobust.charts import svg
from rhobust.commands.output import Quiet, check_output, measuring, numbers, warn_unkept, words
from rhobust.report.panels import certificate_panel
from rhobust.runs.directory import Run
from rhobust.runs.measurements import LINF_RADII, RADII, TrainedRun, measure_certificates
from rhobust.support.console import OUT, say
from rhobust.support.files import write_json


def certify(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    radii: Annotated[
        str | None,
        typer.Option(
            help=f"Comma-separated radii rho (default: {words(RADII)}; with linf {words(LINF_RADII)}; and its own)."
        ),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first N test samples only. Default: all.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here as well.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the curve here, .png or .svg.")] = None,
    quiet: Quiet = False,
) -> None:
    """How bad the expected loss of a trained run can get inside a Wasserstein ball around its test data."""
    svg.check_path(figure)
    check_output("--json", json)
    grid = None if radii is None else numbers("--radii", radii)
    trained = TrainedRun.of(Run.find(run))
    with measuring("certifying") as tell:
        made = measure_certificates(trained, radii=grid, samples=samples, done=lambda part: tell(f"{part} done"))
    warn_unkept(made)
    found = made.result
    if not quiet:
        table = trained.model.table
        say(OUT, f"test data of {run}{table.unit if table else ''}\n{found}")
    if json is not None:
        write_json(json, made.to_json())
    if figure is not None:
        certificate_panel(trained.model.config.name, trained.model.config.name, found).save(figure)
