"""The demo: every method on the embedded digits, attacked, drawn and tabled, in one directory."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import torch
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rhobust import figures
from rhobust.attacks import attack, find_attack
from rhobust.config import Config
from rhobust.data import DataSet, load_data
from rhobust.errors import RunError
from rhobust.evaluate import Evaluation, evaluate
from rhobust.files import write_atomically, write_json
from rhobust.losses import cross_entropy
from rhobust.methods import methods
from rhobust.progress import TrainingProgress
from rhobust.runs import Run, environment, rho_eff
from rhobust.trained import TrainedModel, load
from rhobust.trainer import Observer, train_run

ATTACKS = ("fgsm", "ifgsm", "pgd")
EPSILONS = (0.0, 0.1, 0.2, 0.3, 0.4)
_TABLE_ATTACK = "pgd"
_SHOWN_EPSILON = 0.3
_SHOWN_METHODS = ("erm", "ifgsm", "wrm", "spgd", "spgda")
_SHOWN_SAMPLES = 10


_CAPTIONS = {
    "curves": "Error of nine methods against epsilon under FGSM, IFGSM and PGD; the numbers are in the table",
    "trajectories": "gamma and E[c] over the training steps of the methods that learn gamma; E[c] settles at rho",
    "examples": "Ten digits, clean and attacked, and how five of the models read them",
}


@dataclass(frozen=True)
class Entry:
    """One method's run and how it fared."""

    model: TrainedModel
    metrics: list[dict[str, Any]]
    evaluation: Evaluation

    @property
    def rho_eff(self) -> float:
        """E c over the last epoch."""
        return rho_eff(self.metrics)


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
        """Train what is not trained yet, attack everything, draw the page; the table and where the page is."""
        if (self.out / "config.toml").exists():
            raise RunError(f"{self.out} is a run itself; choose another --out for the demo's nine")
        data = load_data("digits")
        entries = {}
        for number, name in enumerate(methods(), start=1):
            with TrainingProgress(console, f"{number}/{len(methods())} {name}", quiet) as progress:
                entries[name] = self._entry(name, data, progress)
        self._write(entries, data)
        return self._table(entries), self.out / "report.html"

    def _entry(self, name: str, data: DataSet, observer: Observer) -> Entry:
        path, config = self.out / name, self.config(name)
        known = (path / "config.toml").exists()
        if known and Run.find(path).config() != config:
            raise RunError(f"{path} holds a run with other settings; choose another --out")
        run = train_run(path, None if known else config, observer)
        model = load(path)
        evaluation = evaluate(
            model, data.test, loss=cross_entropy, bounds=data.bounds, attacks=ATTACKS, epsilons=EPSILONS, seed=self.seed
        )
        return Entry(model, run.metrics(), evaluation)

    def _write(self, entries: dict[str, Entry], data: DataSet) -> None:
        errors = {
            name: {kind: {epsilon: entry.evaluation.error(kind, epsilon) for epsilon in EPSILONS} for kind in ATTACKS}
            for name, entry in entries.items()
        }
        learned = {name: entry.metrics for name, entry in entries.items() if methods()[name].robust}
        drawn = {
            "curves": figures.error_curves(errors),
            "trajectories": figures.trajectories(learned, self.radius),
            "examples": self._examples(entries, data),
        }
        for name, figure in drawn.items():
            figures.save(figure, self.out / f"{name}.png")
        results = {
            "settings": {"data": data.name, "radius": self.radius, "epochs": self.epochs, "seed": self.seed},
            "environment": environment("cpu"),
            "methods": {
                name: {"gamma": entry.model.gamma, "rho_eff": entry.rho_eff, **entry.evaluation.to_json()}
                for name, entry in entries.items()
            },
        }
        write_json(self.out / "results.json", results)
        template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
            files("rhobust").joinpath("templates/demo.html").read_text()
        )
        columns, rows = self._cells(entries)
        best = [min(float(row[1][i]) for row in rows) for i in range(len(EPSILONS))]
        page = template.render(
            data=data.name,
            samples=len(data.train),
            radius=f"{self.radius:g}",
            epochs=self.epochs,
            seed=self.seed,
            attack=f"{_TABLE_ATTACK.upper()}-40 attack",
            attacks=",".join(ATTACKS),
            epsilons=",".join(f"{epsilon:g}" for epsilon in EPSILONS),
            environment=results["environment"],
            columns=columns,
            rows=[
                {
                    "method": name,
                    "cells": [
                        {"text": text, "best": i < len(best) and float(text) == best[i]} for i, text in enumerate(texts)
                    ],
                }
                for name, texts in rows
            ],
            **{name: Markup(figures.to_svg(figure, _CAPTIONS[name])) for name, figure in drawn.items()},
        )
        write_atomically(self.out / "report.html", page.encode())

    def _examples(self, entries: dict[str, Entry], data: DataSet) -> Any:
        x, y = data.test.x[:_SHOWN_SAMPLES], data.test.y[:_SHOWN_SAMPLES]
        shown = {}
        for name in _SHOWN_METHODS:
            model, ball = entries[name].model, find_attack(_TABLE_ATTACK)(_SHOWN_EPSILON)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                found = attack(model, x, y, ball, loss=cross_entropy, bounds=data.bounds)
            with torch.no_grad():
                shown[name] = (found.zeta, model(found.zeta).argmax(1))
        note = f"{_TABLE_ATTACK.upper()} with epsilon = {_SHOWN_EPSILON:g}, and how each model reads the result"
        return figures.example_grid(x, y, shown, data.bounds, note)

    def _cells(self, entries: dict[str, Entry]) -> tuple[list[str], list[tuple[str, list[str]]]]:
        """Column titles and, for each method, its cells: errors in percent, then gamma and E[c]."""
        columns = ["clean", *(f"{epsilon:g}" for epsilon in EPSILONS if epsilon), "gamma", "E[c]"]
        rows = []
        for name, entry in entries.items():
            errors = [entry.evaluation.error(_TABLE_ATTACK, epsilon) for epsilon in EPSILONS]
            gamma = f"{entry.model.gamma:.3g}" if entry.model.config.make_method().maximizer.penalized else "-"
            rows.append((name, [*(f"{100 * error:.1f}" for error in errors), gamma, f"{entry.rho_eff:.2g}"]))
        return columns, rows

    def _table(self, entries: dict[str, Entry]) -> Table:
        columns, rows = self._cells(entries)
        title = f"error in percent, clean and under PGD by epsilon; rho = {self.radius:g}, seed {self.seed}"
        table = Table(title=title, box=box.SIMPLE_HEAD)  # fits eighty columns
        table.add_column("method", no_wrap=True)
        for column in columns:
            table.add_column(escape(column), justify="right", no_wrap=True)
        for name, texts in rows:
            table.add_row(name, *texts)
        return table
