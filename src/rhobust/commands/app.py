"""The command `rhobust`, whose subcommands are imported when they are called."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rhobust.errors import ConfigError, RhobustError, unknown
from rhobust.support.console import OUT, say
from rhobust.support.version import __version__

# Each is a function, or a group of commands, in the module of its name.
_COMMANDS = (
    *("train", "federate", "predict", "evaluate", "certify", "audit", "radius", "report", "reproduce", "methods"),
    *("demo", "federation"),
)


class _Commands(TyperGroup):
    """The commands. Most need torch, which takes a second to import, so a list of them imports none."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What a list shows of a command."""
        return TyperCommand(cmd_name, help=_summary(cmd_name)) if cmd_name in _COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called."""
        name, *rest = args
        if name in _COMMANDS:
            return name, _command(name), rest
        if name.startswith("-"):  # an option: the error is the parser's
            return super().resolve_command(ctx, args)
        raise ConfigError([unknown("command", name, _COMMANDS)])


def _summary(name: str) -> str:
    """The first line of its docstring; a group of commands is described by its module's."""
    module = ast.parse(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    return (ast.get_docstring(functions.get(name, module)) or "").partition("\n")[0]


def _command(name: str) -> Any:
    module = import_module(f"rhobust.commands.{name}")
    command = getattr(module, name)
    if isinstance(command, typer.Typer):
        return typer.main.get_command(command)
    alone = typer.Typer(add_completion=False)
    alone.command(name, context_settings=getattr(command, "context_settings", None))(command)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Commands,
    help="Train PyTorch models that stay accurate when test inputs are shifted or attacked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        say(OUT, f"rhobust {__version__}, torch {version('torch')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
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
