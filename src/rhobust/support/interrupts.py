"""Signals that wait until a step is over.

A signal that was ignored when the command began stays so: SIGHUP under nohup, SIGINT in the background of a script.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, are as good as Ctrl-C: what is in charge cleans up."""
    with _handled(signal.default_int_handler, "SIGTERM", "SIGHUP"):
        yield


@contextmanager
def deferred_signals(enabled: bool) -> Iterator[list[int]]:
    """Collects SIGINT, SIGTERM and SIGHUP, which would cut a step in two; the same signal again acts at once."""
    received: list[int] = []

    def defer(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, before[number])

    with _handled(defer, *(("SIGINT", "SIGTERM", "SIGHUP") if enabled else ())) as before:
        yield received


@contextmanager
def _handled(handler: Callable[[int, Any], None], *names: str) -> Iterator[dict[int, Any]]:
    """Another handler for those signals that are known here and not ignored; theirs before, which they get back."""
    able = threading.current_thread() is threading.main_thread()  # to have handlers
    known = [getattr(signal, name) for name in names if able and hasattr(signal, name)]
    before = {number: old for number in known if (old := signal.getsignal(number)) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)
