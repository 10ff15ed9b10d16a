"""The command `rhobust reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rhobust.commands.output import Quiet
from rhobust.errors import ConfigError, RhobustError, unknown
from rhobust.support.console import ERR, OUT, say
from rhobust.support.files import exclusive, write_json

_FIGURES = [f"figure{number}" for number in range(1, 6)]
_WHAT = [*_FIGURES, "all", "deployed", "draw"]
_OUT, _QUICK_OUT = Path("results/paper"), Path("runs/paper-quick")


def reproduce(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"{', '.join(_WHAT)}.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the numbers go.", show_default=f"{_OUT}; with --quick {_QUICK_OUT}")
    ] = None,
    seeds: Annotated[int, typer.Option(help="So many seeds, from 0 on.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="The same on a small slice, in a minute or two.")] = False,
    workers: Annotated[int | None, typer.Option(help="Trainings at once.", show_default="12 on a GPU, else 1")] = None,
    page: Annotated[
        Path | None, typer.Option(help="For draw: a page whose tables are to be filled in, figures beside it.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Remake the paper's figures; what is already there is kept, so the same command goes on after an interruption.

    `deployed` runs some rounds of figure 5 with real processes beside the same in one; `draw` only draws what is there.
    """
    problems = [] if what in _WHAT else [unknown("part", what, _WHAT)]
    problems += [f"seeds must be at least 1, not {seeds}"] if seeds < 1 else []
    problems += [f"workers must be at least 1, not {workers}"] if workers is not None and workers < 1 else []
    problems += ["--page belongs to draw"] if page is not None and what != "draw" else []
    idle = [option for option, given in (("--seeds", seeds != 1), ("--workers", workers is not None)) if given]
    problems += [f"{' and '.join(idle)}: draw trains nothing"] if idle and what == "draw" else []
    where = out or (_QUICK_OUT if quick else _OUT)
    files = [place for place in (where, *where.parents) if place.exists() and not place.is_dir()]
    problems += [f"{place} is a file, and the numbers go into a directory: choose another --out" for place in files]
    if problems:
        raise ConfigError(problems)
    if what == "deployed":
        _check_deployment(where, quick, quiet)
        return
    if what != "draw":
        _run(_FIGURES if what == "all" else [what], where, seeds, quick, workers, quiet)
    _draw(where, page, quick, quiet)


def _run(figures: list[str], out: Path, seeds: int, quick: bool, workers: int | None, quiet: bool) -> None:
    from rhobust.reproduction.experiments import FULL, QUICK
    from rhobust.reproduction.session import Session
    from rhobust.reproduction.store import Store

    with exclusive(out):
        store = Store(out, QUICK if quick else FULL)
        try:
            failed = Session(store, figures, seeds, workers).run(ERR, quiet)
        except KeyboardInterrupt:
            done = f"{len(store.results)} results are in {out}, and the same command goes on from here"
            say(ERR, f"interrupted; {done if store.results else 'nothing was done yet'}")
            raise typer.Exit(130) from None
    if failed:
        raise RhobustError(
            f"{len(failed)} failed, as said above; the same command tries them again. The rest is in {out}"
        )


def _check_deployment(out: Path, quick: bool, quiet: bool) -> None:
    from rhobust.reproduction.deployed import check_deployment
    from rhobust.reproduction.experiments import FULL, QUICK
    from rhobust.reproduction.store import DEPLOYED

    found = check_deployment(QUICK if quick else FULL, lambda line: None if quiet else say(ERR, line))
    write_json(out / DEPLOYED, found)
    if not quiet:
        apart = ", ".join(f"{how} {size:.2g}" for how, size in found["largest_difference_in_theta"].items())
        say(OUT, f"{out / DEPLOYED}: largest difference in theta: {apart}")


def _draw(out: Path, page: Path | None, quick: bool, quiet: bool) -> None:
    from rhobust.reproduction.page import draw

    for made in draw(out, page, quick):
        if not quiet:
            say(OUT, str(made))
