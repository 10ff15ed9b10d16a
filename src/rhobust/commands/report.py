"""The command `rhobust report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rhobust.commands.output import Quiet, check_output, measuring
from rhobust.errors import ConfigError, unknown
from rhobust.support.console import OUT, say
from rhobust.support.files import write_atomically


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Finished run directories.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the report goes; by default report.html, .md or .json.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="html, md or json; else the suffix of --out says.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Test samples for what was not measured yet.")] = 1000,
    quiet: Quiet = False,
) -> None:
    """Compare trained runs: one page with tables, figures, examples, and whether the numbers can be trusted.

    What `evaluate`, `certify` and `audit` left in the run directories is shown; what is missing is measured and kept
    there (the audit apart).
    """
    from rhobust.report.gather import gather
    from rhobust.report.page import FORMATS
    from rhobust.report.rows import counted

    if out and out.is_dir():
        raise ConfigError([f"{out} is a folder; --out needs the name of a file, such as {out / 'report.html'}"])
    form = form or (out.suffix.removeprefix(".") if out else "html")
    if form not in FORMATS:
        raise ConfigError([unknown("format of a report", form, FORMATS)])
    path = out or Path(f"report.{form}")
    check_output("--out", path)
    with measuring("reporting") as tell:
        found = gather(runs, samples, tell)
        tell("drawing")
        write_atomically(path, FORMATS[form](found, path).encode(errors="backslashreplace"))
    if not quiet:
        flags = found.flags()
        rows, entries = counted(len(found.rows), "row"), counted(len(found.entries), "run")
        say(OUT, f"{path}: {rows} of {entries}, {counted(len(flags), 'flag')}")
        for flag in flags:
            say(OUT, f"flag, {flag.where}: {flag.message} ({flag.check})")
