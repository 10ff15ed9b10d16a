"""Train across machines whose data never leave them."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rhobust.commands.federate import USUAL
from rhobust.commands.output import Quiet, show_run
from rhobust.commands.progress import TrainingProgress, in_words
from rhobust.commands.train import destination, layers
from rhobust.data.catalog import DATA
from rhobust.errors import ConfigError, RhobustError
from rhobust.runs.build import federation_of
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.support.console import ERR, OUT, say
from rhobust.support.interrupts import interruptible
from rhobust.support.renamed import with_new_names

Fed = Annotated[Path, typer.Argument(metavar="FED", help="Directory made by `init`, or one that holds a kit from it.")]
OneSite = Annotated[str | None, typer.Option("--site", help="One party only: server, site-1, ... Default: all.")]
Deadline = Annotated[float, typer.Option(help="Seconds that a site has to answer in a round.")]

federation = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

_DEMO = {"method": "drfl", "radius": 2.0, "rounds": 200, "evaluate_every": 100, "threads": 1, "checkpoint_every": 50}
_DEMO_SITES = 3
_SIMULATED = ("partition", "byzantine", "byzantine_attack")


@federation.command()
def init(
    out: Annotated[Path, typer.Option(help="Directory to make for the kits.")],
    workers: Annotated[int, typer.Option(help="Number of sites in the federation.")] = 3,
    server_name: Annotated[str, typer.Option(help="Host name by which the sites reach the server.")] = "localhost",
    port: Annotated[int, typer.Option(help="Port of the server, the only one that must be open.")] = 8002,
    quiet: Quiet = False,
) -> None:
    """Make certificates and start-up kits for the server, the sites and the administrator, who submits trainings."""
    _need_engine()
    from rhobust.deployment.kits import make_kits

    kits = make_kits(out, workers, server_name, port)
    if not quiet:
        say(OUT, f"{out}: kits for the server, {', '.join(kits.sites)} and admin; edit each site's site.toml, then")
        say(OUT, f"rhobust federation start {out}")


@federation.command()
def start(fed: Fed, site: OneSite = None, quiet: Quiet = False) -> None:
    """Start the server and the sites whose kits are here, or one of them, and wait until they are up."""
    _need_engine()
    from rhobust.deployment import processes

    with interruptible():
        processes.start(processes.parties(fed, site), lambda line: None if quiet else say(OUT, line))


@federation.command()
def stop(fed: Fed, site: OneSite = None, quiet: Quiet = False) -> None:
    """Stop the server and the sites that run here."""
    _need_engine()
    from rhobust.deployment import processes

    processes.stop(processes.parties(fed, site), lambda line: None if quiet else say(OUT, line))


@federation.command()
def status(fed: Fed) -> None:
    """List the parties that run here and the sites connected to the server. Exit code 1 if one is missing."""
    _need_engine()
    from rhobust.deployment import processes

    missing = False
    for party in processes.parties(fed):
        process = party.process()
        say(OUT, f"{party.name}: {'runs, process ' + str(process.pid) if process else 'does not run'}")
        missing |= process is None
    if (fed / "federation.json").exists():
        from rhobust.deployment.kits import Kits
        from rhobust.deployment.submission import admin, present

        kits = Kits.find(fed)
        with admin(kits) as session:
            there = present(session)
        for name in kits.sites:
            state = ("at work" if there[name] else "idle") if name in there else "not connected"
            say(OUT, f"{name}: {state}")
            missing |= name not in there
    if missing:
        raise typer.Exit(1)


@federation.command()
def submit(
    fed: Fed,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings (docs/settings.md) and knobs of the method. They win over the file.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory to make, on the server's machine.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run directory to continue from its last checkpoint.")] = None,
    deadline: Deadline = 30.0,
    quiet: Quiet = False,
) -> None:
    """Train with the sites that are up, to the end. Run it on the server's machine."""
    _need_engine()
    from rhobust.deployment.kits import Kits

    if not 0 < deadline < 3600:
        raise ConfigError([f"deadline must be between 0 and 3600 seconds, not {deadline:g}"])
    kits = Kits.find(fed)
    if resume is None:
        path, settings = destination(out), _settings(layers(config, {}, overrides), len(kits.sites))
    elif config or overrides or out:
        raise ConfigError(["--resume continues a run with the settings it was started with; drop the others"])
    else:
        path, settings = resume, None
    _follow(fed, path, settings, deadline, quiet)


@federation.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the federation and the run.")] = Path("runs/federation"),
    workers: Annotated[int | None, typer.Option(help="Number of sites in the federation.", show_default="3")] = None,
    quiet: Quiet = False,
) -> None:
    """Make a federation on this machine, start it, train on the digits, and stop it."""
    _need_engine()
    with interruptible():
        _demonstrate(out / "fed", out / "run", workers, quiet)


def _demonstrate(fed: Path, path: Path, workers: int | None, quiet: bool) -> None:
    from rhobust.deployment.kits import Kits, make_kits

    if not (fed / "federation.json").exists():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        kits = make_kits(fed, _DEMO_SITES if workers is None else workers, "localhost", port)
        if not quiet:
            say(OUT, f"{fed}: kits for the server, {', '.join(kits.sites)} and admin")
    sites = len(Kits.find(fed).sites)
    if workers not in (None, sites):
        raise ConfigError([f"{fed} is a federation of {sites} sites, not of {workers}: choose another --out"])
    try:
        start(fed, None, quiet)
        known = (path / "config.toml").exists()
        _follow(fed, path, None if known else _settings([_DEMO], sites), 30.0, quiet)
    finally:
        stop(fed, None, quiet)
    errors = Run.find(path).metrics()[-1]["errors"]
    if not quiet and errors:
        say(OUT, in_words(errors))


def _follow(fed: Path, path: Path, settings: Config | None, deadline: float, quiet: bool) -> None:
    """Submit and watch; what is left of a training that does not end well is named."""
    from rhobust.deployment.kits import Kits
    from rhobust.deployment.submission import Submission

    again, before = f"rhobust federation submit {fed} --resume {path}", Run(path).finished
    label = f"resuming {path}" if settings is None else f"{settings.name} at {fed}"
    task = (settings or Run.find(path).config()).task
    try:
        with interruptible(), TrainingProgress(ERR, label, quiet, task) as progress:
            Submission(Kits.find(fed), path, deadline, progress, settings).follow()
    except KeyboardInterrupt:
        begun = (path / "config.toml").exists()
        say(ERR, f"interrupted; {f'continue with: {again}' if begun else 'nothing was begun'}")
        raise typer.Exit(130) from None
    except RhobustError:
        if any((path / "checkpoints").glob("*")):
            say(ERR, f"the last checkpoint is kept; continue with: {again}")
        raise
    if not quiet:
        show_run(Run(path), before)


def _settings(given: list[dict[str, Any]], sites: int) -> Config:
    """Settings for real sites: their number and their data are given."""
    named = with_new_names({key.replace("-", "_"): value for layer in given for key, value in layer.items()})
    problems = [f"{key} is for simulated workers (rhobust federate); drop it" for key in _SIMULATED if key in named]
    if "train_samples" in named:
        problems.append(
            "train_samples needs all the data in one place; a site limits its own data by share in its site.toml"
        )
    if named.get("workers", sites) != sites:
        problems.append(f"workers is {named['workers']}, but this federation has {sites} sites; drop it")
    try:
        settings = Config.resolve(USUAL, *given, {"workers": sites, "partition": "sites"})
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    federation_of(settings)
    # The server's process is elsewhere: what is a path here must be one there.
    data = settings.data if settings.data in DATA else str(Path(settings.data).resolve())
    data_dir = settings.data_dir and str(Path(settings.data_dir).resolve())
    return replace(settings, data=data, data_dir=data_dir)


def _need_engine() -> None:
    if importlib.util.find_spec("nvflare") is None:
        raise RhobustError("a federation of processes needs NVFlare: pip install 'rhobust[federated]'")
