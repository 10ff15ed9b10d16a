"""Progress on a terminal; silence elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rhobust.engines.local import Record
from rhobust.trainer import Observer


def say(console: Console, message: str) -> None:
    """A plain line: brackets and paths stay as they are, whatever the width."""
    console.print(message, markup=False, highlight=False, soft_wrap=True)


class TrainingProgress(Observer):
    """A bar with the loss, gamma, and E[c] against rho; warnings go to the console in any case."""

    def __init__(self, console: Console, label: str, quiet: bool = False) -> None:
        self.console, self.label = console, label
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
        self._bar.stop()

    def started(self, steps: int | None, start: int, radius: float | None) -> None:
        self._radius = radius
        self._bar.update(self._task, total=steps, completed=start)

    def stepped(self, record: Record) -> None:
        against = f" / rho {self._radius:g}" if self._radius is not None else ""
        state = f"loss {record.loss:.3f}  gamma {record.gamma:.3g}  E[c] {record.rho_eff:.3g}{against}"
        self._bar.update(self._task, advance=1, state=state)

    def warned(self, message: str) -> None:
        say(self.console, f"warning: {message}")
