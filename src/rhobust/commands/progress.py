"""The progress bar of a training, and its warnings on the console."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rhobust.data.samples import REGRESSION, TASKS
from rhobust.support.console import say
from rhobust.training.observers import Observer
from rhobust.training.record import Record, RoundRecord


def in_words(errors: Mapping[str, float], task: str = TASKS[0]) -> str:
    """Test errors by name, or the RMSEs of a regression.

    >>> in_words({"clean": 0.045, "pgd": 0.1}), in_words({"clean": 0.045, "pgd": 0.1}, "regression")
    ('test error: clean 4.5%, pgd 10.0%', 'test RMSE: clean 0.045, pgd 0.1')
    """
    if task == REGRESSION:
        return "test RMSE: " + ", ".join(f"{name} {error:.4g}" for name, error in errors.items())
    return "test error: " + ", ".join(f"{name} {error:.1%}" for name, error in errors.items())


class TrainingProgress(Observer):
    """A bar with the loss, gamma, and E[c] against rho, and a line for each look at the test error.

    Warnings go to the console in any case.
    """

    def __init__(self, console: Console, label: str, quiet: bool = False, task: str = TASKS[0]) -> None:
        self.console, self.label, self.quiet, self.task = console, label, quiet, task
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None, state="")
        self._radius: float | None = None

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the terminal was closed
            self._bar.stop()

    def started(self, steps: int | None, start: int, radius: float | None) -> None:
        self._radius = radius
        self._bar.update(self._task, total=steps, completed=start)

    def stepped(self, record: Record) -> None:
        against = f" / rho {self._radius:g}" if self._radius is not None else ""
        state = f"loss {record.loss:.3f}  gamma {record.gamma:.3g}  E[c] {record.rho_eff:.3g}{against}"
        self._bar.update(self._task, completed=record.step + 1, state=state)  # not every one need be told of
        if record.errors and not self.quiet:
            unit = "rounds" if isinstance(record, RoundRecord) else "steps"
            say(self.console, f"after {record.step + 1} {unit}: {in_words(record.errors, self.task)}")

    def warned(self, message: str) -> None:
        say(self.console, f"warning: {message}")
