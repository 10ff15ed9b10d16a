"""rhobust evaluate"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from rhobust import figures
from rhobust.attacks import ATTACKS, only_weak
from rhobust.commands.shared import (
    Quiet,
    check_output,
    check_seed,
    measuring,
    names,
    numbers,
    show_flags,
    show_kept,
    words,
)
from rhobust.console import OUT, say, show
from rhobust.errors import ConfigError
from rhobust.evaluate import USUAL_ATTACKS, USUAL_EPSILONS
from rhobust.files import write_json
from rhobust.measurements import Measurement, Subject, measure_errors, measure_shifts
from rhobust.runs import Run
from rhobust.shifts import SHIFTS, find_shifts


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    attacks: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(ATTACKS)}. Empty: none.")] = words(
        USUAL_ATTACKS
    ),
    epsilons: Annotated[str, typer.Option(help="Comma-separated radii of the attacks.")] = words(USUAL_EPSILONS),
    budgets: Annotated[str, typer.Option(help="Comma-separated budgets E[c] for the Wasserstein attack.")] = "",
    shifts: Annotated[
        str, typer.Option(help=f"Distribution shifts as well: all, or comma-separated, of: {', '.join(SHIFTS)}.")
    ] = "",
    baseline: Annotated[Path | None, typer.Option(help="Another run, say ERM's, under the same shifts.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first so many test samples only.")] = None,
    restarts: Annotated[int, typer.Option(min=1, help="Runs of each attack; the worst counts.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of random starts and of noise.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here as well.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the shifts here, .png or .svg.")] = None,
    quiet: Quiet = False,
) -> None:
    """Error of a trained run on its test data: clean, under attack, under distribution shift."""
    check_seed(seed)
    check_output("--json", json)
    figures.check_path(figure)
    if (baseline or figure) and not shifts:
        raise ConfigError(["--baseline and --figure are about shifts: say which, for example --shifts all"])
    subject = Subject.of(Run.find(run))
    if shifts:  # all that can be refused, before anything is measured and put in place of what was
        find_shifts(names(shifts), subject.data)
    beside = Subject.of(Run.find(baseline)) if baseline else None
    if beside and beside.data.test.digest() != subject.data.test.digest():
        raise ConfigError([f"{baseline} was trained for {beside.data.name}, {run} for {subject.data.name}"])
    made: dict[str, Measurement] = {}
    with measuring("evaluating") as tell:

        def done(part: str) -> None:
            tell(f"{part} done")

        if names(attacks) or budgets or not shifts:
            made["errors"] = measure_errors(
                subject,
                attacks=names(attacks),
                epsilons=numbers("--epsilons", epsilons),
                budgets=numbers("--budgets", budgets),
                samples=samples,
                restarts=restarts,
                seed=seed,
                done=done,
            )
        if shifts:
            made["shifts"] = measure_shifts(subject, shifts=names(shifts), samples=samples, seed=seed, done=done)
        if beside:
            made["baseline"] = measure_shifts(beside, shifts=names(shifts), samples=samples, seed=seed, done=done)
    show_kept(quiet, *made.values())
    if not quiet:
        if "errors" in made:
            _show_errors(made["errors"].result, run)
        if "shifts" in made:
            _show_shifts(made["shifts"].result, made["baseline"].result if baseline else None, run)
    if figure is not None:
        shown = {subject.model.config.name: made["shifts"].result}
        if beside:
            shown |= {f"{beside.model.config.name}, baseline": made["baseline"].result}
        means = {name: result["mean"] for name, result in shown.items()}
        figures.save(figures.shift_curves({name: _by_shift(result) for name, result in shown.items()}, means), figure)
    if json is not None:
        write_json(json, made["errors"].to_json() if set(made) == {"errors"} else _all(made))


def _all(made: Mapping[str, Measurement]) -> dict[str, Any]:
    return {kind: measurement.to_json() for kind, measurement in made.items()}


def _show_errors(result: Mapping[str, Any], run: Path) -> None:
    """Attacks in columns, epsilons in rows, and a line for each Wasserstein budget."""
    say(OUT, f"error in percent on {result['samples']} test samples of {run}")
    cells = {(cell["attack"], cell["epsilon"]): cell for cell in result["attacked"]}
    balls = dict.fromkeys(attack for attack, _ in cells if attack != "wasserstein")
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("epsilon", *balls):
        table.add_column(column, justify="right", no_wrap=True)
    for epsilon in dict.fromkeys(epsilon for attack, epsilon in cells if attack in balls):
        table.add_row(f"{epsilon:g}", *(_percent(cells[attack, epsilon]["error"]) for attack in balls))
    if balls:
        show(table)
    for (attack, budget), cell in cells.items():
        if attack == "wasserstein":
            spent = f"E[c] = {cell['mean_cost']:.4g} of {budget:g}"
            say(OUT, f"wasserstein attack, {spent}: error {_percent(cell['error'])}")
    show_flags(result["flags"])
    named = [attack for attack in balls if not attack.startswith("worst")]
    if named and only_weak(named):
        say(
            OUT,
            f"only {', '.join(named)} stand behind these errors: stronger attacks find more. Drop --attacks for those",
        )
    elif not result["flags"]:
        say(OUT, f"no reason to doubt it: {', '.join(result['checked'])} were checked")


def _show_shifts(result: Mapping[str, Any], baseline: Mapping[str, Any] | None, run: Path) -> None:
    """Shifts in rows, severities in columns, their mean, and the baseline's."""
    say(
        OUT,
        f"error in percent on {result['samples']} shifted test samples of {run} (clean: {_percent(result['clean'])})",
    )
    own, other = _by_shift(result), _by_shift(baseline) if baseline else {}
    severities = sorted({severity for cells in own.values() for severity in cells})
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("shift", *map(str, severities), "mean", *(["baseline"] if baseline else [])):
        table.add_column(column, justify="left" if column == "shift" else "right", no_wrap=True)
    for shift, cells in own.items():
        row = [_percent(cells[severity]) if severity in cells else "" for severity in severities]
        means = [fmean(found.values()) for found in (cells, other.get(shift)) if found]
        table.add_row(shift, *row, *map(_percent, means), end_section=shift == list(own)[-1])
    overall = [_percent(found["mean"]) for found in (result, baseline) if found]
    table.add_row("mean over shifts", *[""] * len(severities), *overall)
    show(table)


def _by_shift(result: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for cell in result["shifted"]:
        found.setdefault(cell["shift"], {})[cell["severity"]] = cell["error"]
    return found


def _percent(error: float) -> str:
    return f"{100 * error:.2f}"
