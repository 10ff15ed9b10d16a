"""The command `rhobust demo`: every method on the digits, and a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from rhobust.commands.output import Quiet
from rhobust.commands.progress import TrainingProgress
from rhobust.errors import RunError
from rhobust.method import methods
from rhobust.report import tables
from rhobust.report.gather import gather
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.start import train_run
from rhobust.support.console import ERR, OUT, say, show
from rhobust.support.files import write_atomically
from rhobust.support.seeding import seeded


@dataclass(frozen=True)
class Demo:
    """Every method on the embedded digits, attacked, drawn and tabled, in one directory."""

    out: Path
    radius: float = 2.0
    epochs: int = 30
    seed: int = 0

    def show(self, quiet: bool = False) -> tuple[Table, Path]:
        """Train what is not trained yet, measure what is not measured, draw the report; its table and its path."""
        from rhobust.report.page import to_html

        if (self.out / "config.toml").exists():
            raise RunError(f"{self.out} is a run itself; choose another --out for the demo's runs")
        for number, name in enumerate(methods(), start=1):
            with TrainingProgress(ERR, f"{number}/{len(methods())} {name}", quiet) as progress:
                path, config = self.out / name, self._config(name)
                known = (path / "config.toml").exists()
                if known and Run.find(path).config() != config:
                    raise RunError(f"{path} holds a run with other settings; choose another --out")
                train_run(path, None if known else config, progress)
        page = self.out / "report.html"
        # One thread, as in training: beside other work two threads wait for each other.
        with ERR.status("attacking", spinner="dots") as status, seeded(self.seed, torch.device("cpu"), threads=1):
            runs = [self.out / name for name in methods()]
            report = gather(runs, done=lambda what: status.update(f"measuring {what}"))
            status.update("drawing")
            write_atomically(page, to_html(report, page).encode(errors="backslashreplace"))
        return self._table(tables.headline(report)), page

    def _config(self, name: str) -> Config:
        """The settings of one method's run."""
        radius = {"radius": self.radius} if methods()[name].robust else {}
        shared = {"data": "digits", "model": "mlp", "method": name, "epochs": self.epochs, "seed": self.seed}
        shared |= {"threads": 1}  # so small a network is faster on one core than shared between two
        return Config.resolve(shared, radius)

    def _table(self, found: tables.Table) -> Table:
        """For eighty columns: rho and the one seed are in the title."""
        title = f"{found.caption}, clean and attacked at an epsilon; rho = {self.radius:g}, seed {self.seed}"
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, column in enumerate(found.columns[:-2]):
            head = column.replace("cascade ", "at ").replace(" ", "\n")
            table.add_column(escape(head), justify="right" if i else "left", no_wrap=True)
        for line in found.lines:
            table.add_row(line.head, *(cell.text for cell in line.cells[:-2]))
        return table


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs, the figures and the page go.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train every method on the embedded digits, attack them all, and draw a page to look at."""
    try:
        table, page = Demo(out, seed=seed).show(quiet)
    except KeyboardInterrupt:
        say(ERR, "interrupted; the same command goes on from here")
        raise typer.Exit(130) from None
    if not quiet:
        show(table)
        say(OUT, f"Open {page} in a browser.")
