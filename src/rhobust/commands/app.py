"""The command `rhobust`, whose subcommands are imported when they are called."""

from __future__ import annotations

import sys
from typing import Annotated

import torch
import typer

import rhobust
from rhobust.commands.audit import audit
from rhobust.commands.certify import certify
from rhobust.commands.demo import demo
from rhobust.commands.evaluate import evaluate
from rhobust.commands.federate import federate
from rhobust.commands.federation import federation
from rhobust.commands.methods import methods
from rhobust.commands.options import SETTINGS_AS_WORDS
from rhobust.commands.radius import radius
from rhobust.commands.report import report
from rhobust.commands.reproduce import reproduce
from rhobust.commands.train import train
from rhobust.errors import RhobustError
from rhobust.support.console import OUT, say

app = typer.Typer(
    help="Train PyTorch models that hold up everywhere inside a Wasserstein ball around the data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (train, federate, evaluate, certify, audit, radius, report, reproduce, methods, demo):
    app.command(context_settings=SETTINGS_AS_WORDS if command in (train, federate) else None)(command)
app.add_typer(federation, name="federation")


def _version(asked: bool) -> None:
    if asked:
        say(OUT, f"rhobust {rhobust.__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    """Options that come before any command."""


def main() -> None:
    """Run the command; an error of ours is one message and exit code 1, never a traceback."""
    try:
        app()
    except RhobustError as error:
        lines = str(error).splitlines()
    except OSError as error:  # a full disk, a read-only place, a file where a directory should be
        lines = [f"{error.filename or 'the output'} cannot be written or read: {error.strerror or error}"]
    else:
        return
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    raise SystemExit(1)
