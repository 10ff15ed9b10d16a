"""The command `rhobust audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from rhobust.commands.output import Quiet, check_output, check_seed, measuring, show_flags, warn_unkept
from rhobust.evaluation.referee import OURS, RESTARTS, SQUARE
from rhobust.runs.directory import Run
from rhobust.runs.measurements import TrainedRun, measure_audit
from rhobust.support.console import OUT, say, show
from rhobust.support.files import write_json


def audit(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    epsilon: Annotated[float, typer.Option(help="Radius of the l_inf ball.")] = 0.2,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first N test samples only. Default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is random in it.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here as well.")] = None,
    quiet: Quiet = False,
) -> None:
    """Let an independent referee attack a trained run, and compare its error with ours. Needs the extra `audit`."""
    check_seed(seed)
    check_output("--json", json)
    with measuring("auditing") as tell:
        trained = TrainedRun.of(Run.find(run))
        made = measure_audit(
            trained, epsilon=epsilon, samples=samples, seed=seed, done=lambda part: tell(f"{part} done")
        )
    warn_unkept(made)
    if not quiet:
        found = made.result
        say(OUT, f"error in percent on {found.samples} test samples of {run} at epsilon {epsilon:g}")
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("attacked by", no_wrap=True)
        table.add_column("error", justify="right", no_wrap=True)
        table.add_row("nothing", f"{100 * found.clean:.2f}")
        table.add_row(f"us: {', '.join(OURS)}, {RESTARTS} restarts", f"{100 * found.ours:.2f}", end_section=True)
        for number, (name, error) in enumerate(found.attacks.items()):
            table.add_row(f"{'and' if number else 'the referee:'} {name}", f"{100 * error:.2f}")
        show(table)
        if SQUARE not in found.attacks:
            say(OUT, "the referee's squares are for images (channels, height, width), and were left out")
        show_flags(found.flags)
    if json is not None:
        write_json(json, made.to_json())
