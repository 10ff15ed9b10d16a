"""One call of the command: the trainings that are left, with a bar and a line for each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rhobust.data.catalog import load_data
from rhobust.reproduction.experiments import FIGURES
from rhobust.reproduction.nvidia_mps import shared_card
from rhobust.reproduction.plan import foreseen, plan
from rhobust.reproduction.pool import Ended, work_through
from rhobust.reproduction.store import Store, session_summary
from rhobust.support.console import say
from rhobust.support.interrupts import deferred_signals

_GPU_WORKERS, _CPU_WORKERS = 12, 1
_REMEMBERED = 600.0  # seconds of speed that the time left is judged by: jobs are long


@dataclass(frozen=True)
class Session:
    """What was asked for."""

    store: Store
    figures: Sequence[str]
    seeds: int
    workers: int | None = None

    def run(self, console: Console, quiet: bool = False) -> list[Ended]:
        """Do everything that is left; the jobs that failed."""
        store, asked = self.store, (self.figures, self.seeds, self.store.scale)
        cuda = torch.cuda.is_available()
        workers = self.workers or (_GPU_WORKERS if cuda else _CPU_WORKERS)
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
            speed_estimate_period=_REMEMBERED,
            transient=True,
        )
        if not plan(*asked, store.results):
            return []
        for data in dict.fromkeys(FIGURES[name].data for name in self.figures):
            load_data(data)  # fetched, or found missing, once and not by every worker

        def tell(message: str) -> None:
            if not quiet:
                say(console, message)

        start, done, made, failed = time.perf_counter(), 0.0, [], []
        card = shared_card(tell) if cuda and workers > 1 else nullcontext(False)
        with deferred_signals(enabled=True) as signals, card as shared:
            try:
                with bar, closing(work_through(lambda: plan(*asked, store.results), workers, signals)) as ends:
                    task = bar.add_task("reproducing", total=foreseen(*asked, store.results))
                    for ended in ends:
                        if ended.result is None:
                            failed.append(ended)
                            say(console, f"FAILED {ended.job.name}: {ended.problem}")
                            continue
                        store.add(ended.job.name, ended.result)
                        made.append(ended.result)
                        done += ended.job.cost
                        bar.update(task, completed=done, total=done + foreseen(*asked, store.results))
                        tell(_line(ended, time.perf_counter() - start))
            finally:
                if made:
                    spent = time.perf_counter() - start
                    told: dict[str, Any] = {"figures": list(self.figures), "seeds": self.seeds, "workers": workers}
                    store.add_session(session_summary(made, spent, **told, mps=shared, failed=len(failed)))
        return failed


def _line(ended: Ended, seconds: float) -> str:
    """A job that ended, in one line: the hardest of what was measured says most."""
    assert ended.result is not None
    panel, errors = list(ended.result["errors"].items())[-1]
    where, error = list(errors.items())[-1]
    unit = "round" if ended.job.measuring["kind"] == "rounds" else "epsilon"
    spent = f"{ended.result['training_seconds']:.0f} + {ended.result['evaluation_seconds']:.0f} s"
    return f"{seconds:6.0f} s  {ended.job.name}: {panel} at {unit} {where}: {error:.1%} ({spent})"
