"""Options that the training commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rhobust.config import Config
from rhobust.data import DATA
from rhobust.errors import ConfigError, unknown
from rhobust.federation import Federation
from rhobust.methods import methods
from rhobust.models import MODELS

SETTINGS_AS_WORDS = {"ignore_unknown_options": True}  # they arrive among the words, where `_words` says what they are


def _words(context: typer.Context, words: list[str] | None) -> list[str] | None:
    """Settings, none of which is written as an option that there is not."""
    options = [name for option in context.command.params for name in option.opts if name.startswith("-")]
    settings = {*Config.known(), *Federation.known(), *(knob for method in methods().values() for knob in method.knobs)}
    problems = []
    for flag in (word.split("=")[0] for word in words or () if word.startswith("-")):
        key = flag.lstrip("-").replace("-", "_")
        setting = f"{flag} is not an option but a setting: write {key}=VALUE, without dashes"
        problems.append(setting if key in settings else unknown("option", flag, options))
    if problems:
        raise ConfigError(problems)
    return words


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Any setting (docs/settings.md), a method's knobs too; wins over options.",
        callback=_words,
    ),
]
Data = Annotated[str | None, typer.Option(help=f"{', '.join(DATA)}, or a path: .npz, images.")]
DataDir = Annotated[Path | None, typer.Option(help="Where to look for mnist/ and fashion-mnist/ first.")]
Limit = Annotated[int | None, typer.Option(help="Train on the first so many samples only.")]
Model = Annotated[str | None, typer.Option(help=f"{', '.join(MODELS)}.")]
Radius = Annotated[float | None, typer.Option(help="rho, the bound on the expected transport cost.")]
LearningRate = Annotated[float | None, typer.Option(help="Step size alpha of theta.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything that is random.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or auto.")]
ConfigFile = Annotated[Path | None, typer.Option(help="TOML file of settings; options and KEY=VALUE win over it.")]
Out = Annotated[Path | None, typer.Option(help="Run directory to make.")]


def given(**options: object) -> dict[str, Any]:
    """The options that were given, as settings."""
    return {
        key: str(value) if isinstance(value, Path) else value for key, value in options.items() if value is not None
    }
