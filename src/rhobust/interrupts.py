"""Interrupts that wait for a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, are as good as Ctrl-C: what is in charge cleans up.

    What is ignored, as under nohup, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    caught = [number for number in known if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before: dict[int, Any] = {number: signal.signal(number, signal.default_int_handler) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred_signals(enabled: bool) -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of letting them cut a step in two; the same signal again acts at once."""
    received: list[int] = []
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield received
        return
    caught = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in caught}

    def defer(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, before[number])

    for number in caught:
        signal.signal(number, defer)
    try:
        yield received
    finally:
        for number in caught:
            signal.signal(number, before[number])
