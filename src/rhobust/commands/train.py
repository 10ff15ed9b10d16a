"""The command `rhobust train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rhobust.commands import options
from rhobust.commands.output import Quiet, show_run
from rhobust.commands.progress import TrainingProgress
from rhobust.errors import ConfigError
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.start import train_run
from rhobust.support.console import ERR, say
from rhobust.support.toml import parse_overrides, read_toml

_OPTIONS = (
    *("data", "data_dir", "target", "test", "drop", "fixed", "clip_to_training", "task", "loss", "train_samples"),
    *("model", "method", "radius", "epochs", "batch_size", "learning_rate", "seed", "device"),
)


@options.settings_as_options(*_OPTIONS)
def train(
    *,
    overrides: options.Words = None,
    given: dict[str, Any],
    config: options.ConfigFile = None,
    out: options.Out = None,
    resume: Annotated[Path | None, typer.Option(help="Run directory to continue from its last checkpoint.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a model into a run directory, or continue one."""
    if resume is None:
        path, settings = destination(out), Config.resolve(*layers(config, given, overrides))
        run_training(path, settings, f"{settings.name} on {settings.data}", quiet)
        return
    if given or overrides or config or out:
        raise ConfigError(["--resume continues a run with the settings it was started with; drop the others"])
    run_training(resume, None, f"resuming {resume}", quiet)


def destination(out: Path | None) -> Path:
    """Where a new run goes, which the user must say."""
    if out is None:
        raise ConfigError(
            ["say where the run should go: --out DIRECTORY (to continue one: rhobust train --resume DIRECTORY)"]
        )
    return out


def layers(config: Path | None, given: dict[str, Any], overrides: list[str] | None) -> list[dict[str, Any]]:
    """The file, the options given, the KEY=VALUE words: later ones win."""
    return [read_toml(config) if config else {}, given, parse_overrides(overrides or [])]


def run_training(path: Path, settings: Config | None, label: str, quiet: bool) -> None:
    """Train, with progress and a line at the end; without settings, what is there goes on."""
    before = Run(path).finished
    task = (settings or Run.find(path).config()).task
    try:
        with TrainingProgress(ERR, label, quiet, task) as progress:
            run = train_run(path, settings, progress)
    except KeyboardInterrupt:
        begun = (path / "config.toml").exists()
        say(
            ERR,
            f"interrupted; continue with: rhobust train --resume {path}" if begun else "interrupted; nothing was begun",
        )
        raise typer.Exit(130) from None
    if not quiet:
        show_run(run, before)
