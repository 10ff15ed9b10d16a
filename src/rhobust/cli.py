"""The command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

import rhobust
from rhobust import figures
from rhobust.attacks import ATTACKS
from rhobust.certificates import certify as find_certificates
from rhobust.config import Config, parse_overrides, read_toml
from rhobust.data import DATA, Samples, load_data
from rhobust.errors import ConfigError, RhobustError
from rhobust.evaluate import Evaluation
from rhobust.evaluate import evaluate as run_evaluation
from rhobust.files import write_json
from rhobust.losses import cross_entropy
from rhobust.methods import methods as all_methods
from rhobust.models import MODELS
from rhobust.progress import TrainingProgress, say
from rhobust.runs import environment
from rhobust.trained import load
from rhobust.trainer import train_run

app = typer.Typer(
    help="Train PyTorch models that hold up everywhere inside a Wasserstein ball around the data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_out = Console()
_err = Console(stderr=True)

Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


@app.command()
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
    if resume is not None:
        if options or overrides or config or out:
            raise ConfigError(["--resume continues a run with the settings it was started with; drop the others"])
        path, settings, label = resume, None, f"resuming {resume}"
    else:
        if out is None:
            raise ConfigError(["say where the run should go: --out DIRECTORY (or --resume DIRECTORY to continue one)"])
        layers = [read_toml(config) if config else {}, options, parse_overrides(overrides or [])]
        path, settings = out, Config.resolve(*layers)
        label = f"{settings.method} on {settings.data}"
    try:
        with TrainingProgress(_err, label, quiet) as progress:
            run = train_run(path, settings, progress)
    except KeyboardInterrupt:
        say(_err, f"interrupted; continue with: rhobust train --resume {path}")
        raise typer.Exit(130) from None
    if not quiet:
        say(_out, f"{path}: {run.summary()}")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    attacks: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(ATTACKS)}.")] = "fgsm,ifgsm,pgd",
    epsilons: Annotated[str, typer.Option(help="Comma-separated radii of the attacks.")] = "0,0.1,0.2",
    budgets: Annotated[str, typer.Option(help="Comma-separated budgets E[c] for the Wasserstein attack.")] = "",
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first so many test samples only.")] = None,
    restarts: Annotated[int, typer.Option(min=1, help="Runs of each attack; the worst counts.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the attacks' random starts.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here as well.")] = None,
    quiet: Quiet = False,
) -> None:
    """Clean and attacked error of a trained run on its test data."""
    names = [name.strip() for name in attacks.split(",") if name.strip()]
    if seed < 0:
        raise ConfigError([f"seed must be >= 0, not {seed}"])
    grid, spend = _numbers("--epsilons", epsilons), _numbers("--budgets", budgets)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(run).to(device)
    data = load_data(model.config.data, model.config.data_dir)
    test = data.test[slice(samples)]
    with _err.status("attacking", spinner="dots") as status:
        result = run_evaluation(
            model,
            Samples(test.x.to(device), test.y.to(device)),
            loss=cross_entropy,
            bounds=model.bounds,
            attacks=names,
            epsilons=grid,
            budgets=spend,
            restarts=restarts,
            seed=seed,
            done=lambda cell: status.update(f"attacking: {cell} done"),
        )
    if not quiet:
        _show(result, names, grid, f"error in percent on {result.samples} test samples of {run}")
    if json is not None:
        settings = {"run": str(run), "restarts": restarts, "seed": seed}
        write_json(json, {**settings, "environment": environment(device), **result.to_json()})


@app.command()
def certify(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    radii: Annotated[str, typer.Option(help="Comma-separated radii rho.")] = "0.1,0.5,1,2,6",
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first so many test samples only.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here as well.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the curve here, .png or .svg.")] = None,
    quiet: Quiet = False,
) -> None:
    """How bad the expected loss of a trained run can get inside a Wasserstein ball around its test data."""
    model = load(run)
    test = load_data(model.config.data, model.config.data_dir).test[slice(samples)]
    with _err.status("certifying", spinner="dots") as status:
        found = find_certificates(
            model,
            test,
            loss=cross_entropy,
            radii=_numbers("--radii", radii),
            cost=model.config.make_cost(),
            bounds=model.bounds,
            done=lambda radius: status.update(f"certifying: {radius} done"),
        )
    if not quiet:
        say(_out, f"worst expected loss over the ball of radius rho around {len(test)} test samples of {run}")
        table = Table(box=box.SIMPLE_HEAD)
        for column in ("rho", "bound", "status", "attained", "gap", "gamma", "rho_hat"):
            table.add_column(column, justify="right", no_wrap=True)
        for one in found:
            numbers = [f"{value:.4g}" for value in (one.attained, one.gap, one.gamma, one.rho_hat)]
            table.add_row(f"{one.radius:g}", f"{one.bound:.4g}", one.status, *numbers)
        _out.print(table)
        if any(one.status == "estimated" for one in found):
            say(_out, "estimated: the sup was approached by ascent, so the bound is an estimate, not a bound")
    if json is not None:
        rows = [one.to_json() for one in found]
        write_json(
            json, {"run": str(run), "samples": len(test), "environment": environment("cpu"), "certificates": rows}
        )
    if figure is not None:
        figures.save(figures.certificate_curve([one.to_json() for one in found], model.config.method), figure)


def _show(result: Evaluation, names: list[str], grid: list[float], title: str) -> None:
    """Attacks in columns, epsilons in rows, and a line for each Wasserstein budget."""
    say(_out, title)
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("epsilon", *dict.fromkeys(names)):
        table.add_column(column, justify="right", no_wrap=True)
    for epsilon in dict.fromkeys(grid):
        errors = [f"{100 * result.error(name, epsilon):.2f}" for name in dict.fromkeys(names)]
        table.add_row(f"{epsilon:g}", *errors)
    if table.row_count and names:
        _out.print(table)
    for cell in result.attacked:
        if cell.attack == "wasserstein":
            spent = f"E[c] = {cell.mean_cost:.4g} of {cell.epsilon:g}"
            say(_out, f"wasserstein attack, {spent}: error {100 * cell.error:.2f}")


@app.command()
def methods() -> None:
    """List the training methods and their knobs."""
    table = Table(show_lines=False)
    for column in ("method", "what it is", "knobs"):
        table.add_column(column)
    for method in all_methods().values():
        knobs = ", ".join(key if value is None else f"{key}={value}" for key, value in method.knobs.items())
        table.add_row(method.name, method.summary, ", ".join(filter(None, ["radius" if method.robust else "", knobs])))
    _out.print(table)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs, the figures and the page go.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train every method on the embedded digits, attack them all, and draw a page to look at."""
    from rhobust.demo import Demo

    try:
        table, page = Demo(out, seed=seed).show(_err, quiet)
    except KeyboardInterrupt:
        say(_err, "interrupted; the same command goes on from here")
        raise typer.Exit(130) from None
    if not quiet:
        _out.print(table)
        say(_out, f"Open {page} in a browser.")


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")] if text else []
    except ValueError:
        raise ConfigError([f"{option} takes numbers separated by commas, not '{text}'"]) from None


def _version(asked: bool) -> None:
    if asked:
        say(_out, f"rhobust {rhobust.__version__}, torch {torch.__version__}")
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
