"""Options that the training commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rhobust.data import DATA
from rhobust.models import MODELS

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Any setting (docs/settings.md), a method's knobs too; wins over options."
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
