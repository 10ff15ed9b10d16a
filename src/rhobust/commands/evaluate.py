"""rhobust evaluate"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from rhobust.attacks import ATTACKS
from rhobust.commands.shared import ERR, OUT, Quiet, check_seed, names, numbers, show_flags, words
from rhobust.files import write_json
from rhobust.measurements import ATTACKS as DEFAULT_ATTACKS
from rhobust.measurements import EPSILONS, Subject, measure_errors
from rhobust.progress import say
from rhobust.runs import Run


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    attacks: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(ATTACKS)}.")] = words(DEFAULT_ATTACKS),
    epsilons: Annotated[str, typer.Option(help="Comma-separated radii of the attacks.")] = words(EPSILONS),
    budgets: Annotated[str, typer.Option(help="Comma-separated budgets E[c] for the Wasserstein attack.")] = "",
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first so many test samples only.")] = None,
    restarts: Annotated[int, typer.Option(min=1, help="Runs of each attack; the worst counts.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the attacks' random starts.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here as well.")] = None,
    quiet: Quiet = False,
) -> None:
    """Clean and attacked error of a trained run on its test data."""
    check_seed(seed)
    grid, spend = numbers("--epsilons", epsilons), numbers("--budgets", budgets)
    with ERR.status("attacking", spinner="dots") as status:
        made = measure_errors(
            Subject.of(Run.find(run)),
            attacks=names(attacks),
            epsilons=grid,
            budgets=spend,
            samples=samples,
            restarts=restarts,
            seed=seed,
            done=lambda cell: status.update(f"attacking: {cell} done"),
        )
    if not quiet:
        _show(made.result, f"error in percent on {made.result['samples']} test samples of {run}")
    if json is not None:
        write_json(json, made.to_json())


def _show(result: Mapping[str, Any], title: str) -> None:
    """Attacks in columns, epsilons in rows, and a line for each Wasserstein budget."""
    say(OUT, title)
    cells = {(cell["attack"], cell["epsilon"]): cell for cell in result["attacked"]}
    balls = dict.fromkeys(attack for attack, _ in cells if attack != "wasserstein")
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("epsilon", *balls):
        table.add_column(column, justify="right", no_wrap=True)
    for epsilon in dict.fromkeys(epsilon for attack, epsilon in cells if attack in balls):
        table.add_row(f"{epsilon:g}", *(f"{100 * cells[attack, epsilon]['error']:.2f}" for attack in balls))
    if balls:
        OUT.print(table)
    for (attack, budget), cell in cells.items():
        if attack == "wasserstein":
            say(
                OUT,
                f"wasserstein attack, E[c] = {cell['mean_cost']:.4g} of {budget:g}: error {100 * cell['error']:.2f}",
            )
    show_flags(result["flags"])
