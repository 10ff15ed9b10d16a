"""rhobust train"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rhobust.commands.shared import ERR, OUT, Quiet
from rhobust.config import Config, parse_overrides, read_toml
from rhobust.data import DATA
from rhobust.errors import ConfigError
from rhobust.models import MODELS
from rhobust.progress import TrainingProgress, say
from rhobust.runner import train_run


def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Any setting (docs/settings.md) or knob of the method; wins over options."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help=f"{', '.join(DATA)}, or a path: .npz, images.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where to look for mnist/ and fashion-mnist/ first.")] = None,
    limit: Annotated[int | None, typer.Option(help="Train on the first so many samples only.")] = None,
    model: Annotated[str | None, typer.Option(help=f"{', '.join(MODELS)}.")] = None,
    method: Annotated[str | None, typer.Option(help="Training method; `rhobust methods` lists them.")] = None,
    radius: Annotated[float | None, typer.Option(help="rho, the bound on the expected transport cost.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Step size alpha of theta.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything that is random.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; options and KEY=VALUE win over it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory to make.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run directory to continue from its last checkpoint.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a model into a run directory, or continue one."""
    given = {
        "data": data,
        "data_dir": None if data_dir is None else str(data_dir),
        "limit": limit,
        "model": model,
        "method": method,
        "radius": radius,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "device": device,
    }
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if resume is None:
        path, settings = destination(out), Config.resolve(*layers(config, options, overrides))
        run_training(path, settings, f"{settings.name} on {settings.data}", quiet)
        return
    if options or overrides or config or out:
        raise ConfigError(["--resume continues a run with the settings it was started with; drop the others"])
    run_training(resume, None, f"resuming {resume}", quiet)


def destination(out: Path | None) -> Path:
    """Where a new run goes; nobody but the user can say."""
    if out is None:
        raise ConfigError(["say where the run should go: --out DIRECTORY (or --resume DIRECTORY to continue one)"])
    return out


def layers(config: Path | None, options: dict[str, Any], overrides: list[str] | None) -> list[dict[str, Any]]:
    """The file, the options, the KEY=VALUE words: later ones win."""
    return [read_toml(config) if config else {}, options, parse_overrides(overrides or [])]


def run_training(path: Path, settings: Config | None, label: str, quiet: bool) -> None:
    """Train, with progress and a line at the end; without settings, what is there goes on."""
    try:
        with TrainingProgress(ERR, label, quiet) as progress:
            run = train_run(path, settings, progress)
    except KeyboardInterrupt:
        say(ERR, f"interrupted; continue with: rhobust train --resume {path}")
        raise typer.Exit(130) from None
    if not quiet:
        say(OUT, f"{path}: {run.summary()}")
