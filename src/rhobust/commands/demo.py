"""rhobust demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rhobust.commands.shared import Quiet
from rhobust.console import ERR, OUT, say, show


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs, the figures and the page go.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train every method on the embedded digits, attack them all, and draw a page to look at."""
    from rhobust.demo import Demo

    try:
        table, page = Demo(out, seed=seed).show(ERR, quiet)
    except KeyboardInterrupt:
        say(ERR, "interrupted; the same command goes on from here")
        raise typer.Exit(130) from None
    if not quiet:
        show(table)
        say(OUT, f"Open {page} in a browser.")
