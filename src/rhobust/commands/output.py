"""What the commands share: lists as options, output files, spinners and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from rhobust.checks import seed_problems
from rhobust.errors import ConfigError
from rhobust.evaluation.trust import Flag
from rhobust.runs.directory import FILES, Run
from rhobust.runs.measurements import KINDS, Measurement
from rhobust.runs.summary import summary
from rhobust.support.console import ERR, OUT, say

Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]
_OF_A_RUN = {*FILES, *(kind.file for kind in KINDS)}


def check_output(option: str, path: Path | None) -> None:
    """Refuse to write over a file of a run, or where one will be."""
    if path is not None and path.name in _OF_A_RUN and Run(path.resolve().parent).config_path.exists():
        raise ConfigError([f"{option} {path} is a file of a run; choose another name"])


def numbers(option: str, text: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(word) for word in text.split(",")] if text else []
    except ValueError:
        raise ConfigError([f"{option} takes numbers separated by commas, not '{text}'"]) from None


def names(text: str) -> list[str]:
    """Names separated by commas, each once, in their order."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def check_seed(seed: int) -> None:
    """Refuse a seed that torch would not take."""
    if problems := seed_problems(seed):
        raise ConfigError(problems)


def warn_unkept(*made: Measurement[Any]) -> None:
    """Say which measurements could not be written beside their model."""
    for one in made:
        if one.unkept:
            say(ERR, f"warning: {one.unkept}. The numbers are what was measured, and were not kept there")


@contextmanager
def measuring(what: str) -> Iterator[Callable[[str], None]]:
    """Where to tell how far it is; says after an interrupt that nothing else was lost."""
    with ERR.status(what, spinner="dots") as status:
        try:
            yield lambda part: status.update(f"{what}: {part}")
        except KeyboardInterrupt:
            say(ERR, "interrupted; what was finished is kept, and what was measured before still stands")
            raise


def show_flags(flags: Sequence[Flag]) -> None:
    """Reasons not to trust a number, under the number."""
    for flag in flags:
        say(OUT, str(flag))


def show_run(run: Run, before: bool) -> None:
    """A run that is finished, in a line; `before`: it was so when the command began."""
    say(OUT, f"{run.path}{' was finished already, nothing was done' if before else ''}: {summary(run)}")


def words(values: Sequence[object]) -> str:
    """Values as one option takes them: separated by commas."""
    return ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
