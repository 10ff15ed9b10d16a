"""Several trainings at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

from rhobust.errors import RhobustError, RunError
from rhobust.reproduction.plan import Job

# Between two looks whether to stop. An interrupt that cuts a wait in two would leave its locks in disorder.
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Ended:
    """A job that ended: with a result, or with the reason why there is none."""

    job: Job
    result: dict[str, Any] | None
    problem: str = ""


def work_through(
    ready: Callable[[], Sequence[Job]], workers: int, signals: Sequence[int] = ()
) -> Generator[Ended, None, None]:
    """Do every job that is ready, first things first, until none is; ask anew whenever one ends.

    A job that fails is told of and not tried again here. A worker that is ended from outside ends all: a second call
    goes on where this one stopped. As soon as there is something in `signals`, `KeyboardInterrupt` is raised.
    """
    failed: set[str] = set()
    running: dict[Future[Any], Job] = {}
    with tempfile.TemporaryDirectory() as scratch:  # what is left behind by a worker that is killed goes with it
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_work)
        try:
            while True:
                busy = failed | {job.name for job in running.values()}
                waiting = [job for job in ready() if job.name not in busy]
                for job in waiting[: workers - len(running)]:
                    with _deaf_to_interrupts():  # as the workers started here stay: Ctrl-C is for the parent alone
                        running[pool.submit(_attempt, job, scratch)] = job
                if not running:
                    return
                done, _ = wait(running, _LOOK_SECONDS, return_when=FIRST_COMPLETED)
                if signals:
                    raise KeyboardInterrupt
                for future in sorted(done, key=lambda one: one.exception() is not None):  # results first: they are kept
                    result, problem = future.result()
                    job = running.pop(future)
                    if result is None:
                        failed.add(job.name)
                    yield Ended(job, result, problem)
        except BrokenProcessPool:
            names = ", ".join(job.name for job in running.values()) or "none"
            raise RunError(
                f"a process was ended from outside (killed, or out of memory); trainings at work: {names}. What was "
                "done before is kept, and the same command goes on from here; fewer --workers need less memory"
            ) from None
        finally:
            # Interrupted: what was begun is not worth waiting for. Otherwise: nothing is at work.
            for process in multiprocessing.active_children():
                if running:
                    process.kill()
            pool.shutdown(cancel_futures=True)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started here do not hear Ctrl-C; this one hears it when it is through, and misses none."""
    if sys.platform == "win32":  # there it reaches everybody
        yield
        return
    resource_tracker.ensure_running()  # started by the first process, it would open our ears again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_work() -> None:
    """In a worker, first of all."""
    import torch

    torch.set_num_threads(1)  # workers share the cores between them
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """No worker outlives the one it works for, also where that was killed and could say nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _attempt(job: Job, scratch: str) -> tuple[dict[str, Any] | None, str]:
    """The result, or why there is none: an exception that cannot cross the border would end the pool."""
    from rhobust.reproduction.job import do

    try:
        return do(job, scratch), ""
    except RhobustError as problem:
        return None, "; ".join(str(problem).splitlines())
    except Exception as problem:
        return None, f"{type(problem).__name__}: {problem}"
