"""The command `rhobust evaluate`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rhobust.attacks.attack import ATTACKS
from rhobust.attacks.cascade import CASCADES
from rhobust.charts import curves, svg
from rhobust.commands.output import (
    Quiet,
    check_output,
    check_seed,
    measuring,
    names,
    numbers,
    warn_unkept,
    words,
)
from rhobust.errors import ConfigError
from rhobust.evaluation.evaluate import USUAL_EPSILONS
from rhobust.evaluation.evaluation import Evaluation
from rhobust.evaluation.regression_evaluation import RegressionEvaluation
from rhobust.evaluation.shifts import SHIFTS, ShiftEvaluation, find_shifts, shift_table
from rhobust.report.panels import shift_panel
from rhobust.report.scale import scale_of
from rhobust.report.spread import Spread
from rhobust.runs.directory import Run
from rhobust.runs.measurements import Measurement, TrainedRun, measure_errors, measure_shifts
from rhobust.support.console import OUT, say
from rhobust.support.files import write_atomically, write_json


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    attacks: Annotated[
        str | None,
        typer.Option(
            help=f"Comma-separated attacks: {', '.join(CASCADES)} (a series of attacks, strongest), or each alone: "
            f"{', '.join(ATTACKS)}. Empty: none. Default: cascade; for a regression apgd."
        ),
    ] = None,
    epsilons: Annotated[str, typer.Option(help="Comma-separated radii of the attacks.")] = words(USUAL_EPSILONS),
    budgets: Annotated[str, typer.Option(help="Comma-separated budgets E[c] for the Wasserstein attack.")] = "",
    shifts: Annotated[
        str, typer.Option(help=f"Distribution shifts as well: all, or comma-separated, of: {', '.join(SHIFTS)}.")
    ] = "",
    baseline: Annotated[Path | None, typer.Option(help="Another run, say ERM's, under the same shifts.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first N test samples only. Default: all.")] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs of each attack by name. A cascade ends after this many rounds without success. "
            "Default: 1; for a regression 3.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of random starts and of noise.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here as well.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the attacked inputs here, as .npz.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the shifts here, .png or .svg.")] = None,
    quiet: Quiet = False,
) -> None:
    """Error of a trained run on its test data: clean, under attack, under distribution shift."""
    check_seed(seed)
    check_output("--json", json)
    check_output("--save", save)
    svg.check_path(figure)
    if save is not None and save.suffix != ".npz":
        raise ConfigError([f"--save {save} needs a name that ends with .npz"])
    named = None if attacks is None else names(attacks)
    if save is not None and not (named is None or named or budgets):
        raise ConfigError(["--save keeps attacked inputs: give --attacks or --budgets"])
    if (baseline or figure) and not shifts:
        raise ConfigError(["--baseline and --figure are about shifts: say which, for example --shifts all"])
    trained = TrainedRun.of(Run.find(run))
    if shifts:  # all that can be refused, before anything is measured and put in place of what was
        find_shifts(names(shifts), trained.data)
    beside = TrainedRun.of(Run.find(baseline)) if baseline else None
    if beside and beside.test_digest != trained.test_digest:
        raise ConfigError([f"{baseline} was trained for {beside.data.name}, {run} for {trained.data.name}"])
    errors: Measurement[Evaluation | RegressionEvaluation] | None = None
    shifted: dict[str, Measurement[ShiftEvaluation]] = {}
    with measuring("evaluating") as tell:

        def done(part: str) -> None:
            tell(f"{part} done")

        if named is None or named or budgets or not shifts:
            errors = measure_errors(
                trained,
                attacks=named,
                epsilons=numbers("--epsilons", epsilons),
                budgets=numbers("--budgets", budgets),
                samples=samples,
                restarts=restarts,
                seed=seed,
                keep=save is not None,
                done=tell,
            )
        for name, one in {"shifts": trained, "baseline": beside}.items() if shifts else ():
            if one:
                shifted[name] = measure_shifts(one, shifts=names(shifts), samples=samples, seed=seed, done=done)
    made: dict[str, Measurement[Any]] = ({"errors": errors} if errors else {}) | shifted
    warn_unkept(*made.values())
    if not quiet:
        table = trained.model.table
        say(OUT, f"test data of {run}{table.unit if table else ''}")
        if errors:
            say(OUT, f"{errors.result}\n{errors.result.forwarded:,} samples forwarded through the model")
        if shifted:
            say(OUT, f"\n{shift_table([one.result for one in shifted.values()])}")
    if figure is not None:
        drawn = {trained.model.config.name: shifted["shifts"].result}
        if beside:
            drawn |= {f"{beside.model.config.name}, baseline": shifted["baseline"].result}
        _draw_shifts(drawn, figure)
    if save is not None and errors:
        _save_examples(trained, errors.result, save)
    if json is not None:
        alone = list(made) == ["errors"]
        write_json(json, made["errors"].to_json() if alone else {name: one.to_json() for name, one in made.items()})


def _save_examples(trained: TrainedRun, found: Evaluation | RegressionEvaluation, path: Path) -> None:
    """Inputs, labels, and for every attack and epsilon the attacked inputs, named like `cascade/0.1`."""
    samples = trained.test(found.samples)
    arrays = {"x": samples.x, "y": samples.y}
    for attack, by_epsilon in found.examples.items():
        arrays |= {f"{attack}/{epsilon:g}": zeta for epsilon, zeta in by_epsilon.items()}
    content = io.BytesIO()
    np.savez(content, **{name: array.cpu().numpy() for name, array in arrays.items()})  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())
    say(OUT, f"attacked inputs: {path}")


def _draw_shifts(found: Mapping[str, ShiftEvaluation], path: Path) -> None:
    """The mean error of each name under every shift, and over them."""
    drawn: list[tuple[str, dict[str, Any], dict[str, Spread]]] = []
    for name, one in found.items():
        style = curves.style(name) | ({"markerfacecolor": "none"} if drawn else {})
        errors = one.means | {"mean over shifts": one.mean}
        drawn.append((name, style, {shift: Spread((error,)) for shift, error in errors.items()}))
    scale = scale_of(next(iter(found.values())).task)
    shift_panel(list(drawn[0][2]), drawn, scale).save(path)
