"""The command `rhobust audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from rhobust.commands.output import Quiet, check_output, check_seed, measuring, show_flags, warn_unkept
from rhobust.evaluation.audit import NORMS
from rhobust.evaluation.intervals import interval
from rhobust.runs.directory import Run
from rhobust.runs.measurements import TrainedRun, measure_audit
from rhobust.support.console import OUT, say, show
from rhobust.support.files import write_json


def audit(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    epsilon: Annotated[float, typer.Option(help="Radius of the ball.")] = 0.2,
    norm: Annotated[str, typer.Option(help=f"Norm of the ball: {' or '.join(NORMS)}.")] = "inf",
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first N test samples only. Default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is random in it.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here as well.")] = None,
    quiet: Quiet = False,
) -> None:
    """Attack a trained run by independent attacks, and compare their error with ours. Needs the extra `audit`.

    Images of four classes or more are attacked by the standard AutoAttack, all else by the attacks of ART.
    """
    check_seed(seed)
    check_output("--json", json)
    with measuring("auditing") as tell:
        trained = TrainedRun.of(Run.find(run))
        made = measure_audit(trained, epsilon=epsilon, norm=norm, samples=samples, seed=seed, done=tell)
    warn_unkept(made)
    if not quiet:
        found = made.result
        where = f"on {found.samples} test samples of {run} at epsilon {epsilon:g} in norm {norm}"
        say(OUT, f"error in percent, with 95 % intervals, {where}")
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("attacked by", no_wrap=True)
        table.add_column("error", justify="right", no_wrap=True)
        table.add_column("95 %", justify="right", no_wrap=True)

        def row(name: str, error: float, end_section: bool = False) -> None:
            low, high = interval(error, found.samples)
            ends = f"{100 * low:.1f}-{100 * high:.1f}"
            table.add_row(name, f"{100 * error:.2f}", ends, end_section=end_section)

        row("nothing", found.clean)
        row("our cascade", found.ours, end_section=True)
        for number, (name, error) in enumerate(found.attacks.items()):
            row(f"{'and' if number else f'{found.suite}:'} {name}", error)
        show(table)
        if found.reason:
            say(OUT, f"{found.reason}: ART's attacks were used")
        show_flags(found.flags)
    if json is not None:
        write_json(json, made.to_json())
