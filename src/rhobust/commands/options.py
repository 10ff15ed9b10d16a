"""Options of the training commands, made from the fields of the settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from rhobust.data.table_settings import TableSettings
from rhobust.errors import ConfigError, unknown
from rhobust.federation.settings import Federation
from rhobust.method import methods
from rhobust.runs.config import Config
from rhobust.support.renamed import RENAMED
from rhobust.support.setting import CountOrAuto, settings_of
from rhobust.support.toml import typed

_KNOWN = {**settings_of(Config), **settings_of(Federation), **settings_of(TableSettings)}

Command = Callable[..., None]


def _words(context: typer.Context, words: list[str] | None) -> list[str] | None:
    """Settings, none of which is written as an option that there is not."""
    shown = [option for option in context.command.params if not getattr(option, "hidden", False)]
    options = [name for option in shown for name in option.opts if name.startswith("-")]
    settings = {*_KNOWN, *(knob for method in methods().values() for knob in method.knobs)}
    problems = []
    for flag in (word.split("=")[0] for word in words or () if word.startswith("-")):
        key = flag.lstrip("-").replace("-", "_")
        key = RENAMED.get(key, key)
        setting = f"{flag} is not an option but a setting: write {key}=VALUE, without dashes"
        known = key.partition(".")[0] in settings  # model_args.width is a key of a table
        problems.append(setting if known else unknown("option", flag, options))
    if problems:
        raise ConfigError(problems)
    return words


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings (docs/settings.md) and knobs of the method. They win over options and files.",
        callback=_words,
    ),
]
ConfigFile = Annotated[Path | None, typer.Option(help="TOML file of settings; options and KEY=VALUE win over it.")]
Out = Annotated[Path | None, typer.Option(help="Run directory to make.")]


def settings_as_options(*keys: str, usual: Mapping[str, Any] | None = None) -> Callable[[Command], Command]:
    """Gives a command an option for each of these settings, in place of its parameter `given`.

    What was given arrives there, by key. `usual` are the command's own defaults, for the help. An old name of a setting
    is a hidden option, so that `Config.resolve` can name the new one beside all other problems.
    """
    keys += tuple(old for old, new in RENAMED.items() if new in keys)

    def decorate(function: Command) -> Command:
        @wraps(function)
        def command(**arguments: Any) -> None:
            values = {key: arguments.pop(key) for key in keys}
            function(given={key: value for key, value in values.items() if value is not None}, **arguments)

        signature = inspect.signature(function, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            parameters += [_option(key, usual or {}) for key in keys] if name == "given" else [parameter]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        # Unknown options arrive among the words, where `_words` says what they are.
        command.context_settings = {"ignore_unknown_options": True}  # type: ignore[attr-defined]
        return command

    return decorate


def _option(key: str, usual: Mapping[str, Any]) -> inspect.Parameter:
    """The option of a setting: unset unless it is given, its default told in the help."""
    known = _KNOWN[RENAMED.get(key, key)]
    default = typed(usual[key]) if key in usual else known.default
    about = f"{known.help} Default: {default}." if default else known.help
    option = typer.Option(help=about, hidden=key in RENAMED)
    kind = str if known.kind in (list, CountOrAuto) else known.kind  # which `Config.resolve` reads
    return inspect.Parameter(
        key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )
