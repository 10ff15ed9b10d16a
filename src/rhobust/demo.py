"""The demo: every method on the embedded digits, attacked, drawn and tabled, in one directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rhobust.config import Config
from rhobust.errors import RunError
from rhobust.files import write_atomically
from rhobust.methods import methods
from rhobust.observer import Observer
from rhobust.progress import TrainingProgress
from rhobust.report import gather, tables
from rhobust.report.page import to_html
from rhobust.start import train_run
from rhobust.runs import Run


@dataclass(frozen=True)
class Demo:
    """What was asked of the demo."""

    out: Path
    radius: float = 2.0
    epochs: int = 30
    seed: int = 0

    def config(self, name: str) -> Config:
        """The settings of one method's run."""
        radius = {"radius": self.radius} if methods()[name].robust else {}
        shared = {"data": "digits", "model": "mlp", "method": name, "epochs": self.epochs, "seed": self.seed}
        shared |= {"threads": 1}  # so small a network is faster on one core than shared between two
        return Config.resolve(shared, radius)

    def show(self, console: Console, quiet: bool = False) -> tuple[Table, Path]:
        """Train what is not trained yet, measure what is not measured, draw the report; its table and its path."""
        if (self.out / "config.toml").exists():
            raise RunError(f"{self.out} is a run itself; choose another --out for the demo's runs")
        for number, name in enumerate(methods(), start=1):
            with TrainingProgress(console, f"{number}/{len(methods())} {name}", quiet) as progress:
                self._train(name, progress)
        page = self.out / "report.html"
        with console.status("attacking", spinner="dots") as status:
            report = gather(
                [self.out / name for name in methods()], done=lambda what: status.update(f"measuring {what}")
            )
            status.update("drawing")
            write_atomically(page, to_html(report, page).encode(errors="backslashreplace"))
        return self._table(tables.headline(report)), page

    def _table(self, found: tables.Table) -> Table:
        """For eighty columns: rho and the one seed are in the title."""
        title = f"{found.caption}; rho = {self.radius:g}, seed {self.seed}"
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, column in enumerate(found.columns[:-2]):
            table.add_column(escape(column.replace(" ", "\n")), justify="right" if i else "left", no_wrap=True)
        for line in found.lines:
            table.add_row(line.head, *(cell.text for cell in line.cells[:-2]))
        return table

    def _train(self, name: str, observer: Observer) -> None:
        path, config = self.out / name, self.config(name)
        known = (path / "config.toml").exists()
        if known and Run.find(path).config() != config:
            raise RunError(f"{path} holds a run with other settings; choose another --out")
        train_run(path, None if known else config, observer)
