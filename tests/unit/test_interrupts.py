"""Interrupts: whatever ends a process from outside is heard in the same way, for as long as it should be."""

import os
import signal
import time

import pytest

from rhobust.interrupts import interruptible


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_or_a_closed_terminal_is_an_interrupt(number: signal.Signals) -> None:
    def killed() -> None:
        with interruptible():
            os.kill(os.getpid(), number)
            time.sleep(10)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        killed()
    assert signal.getsignal(number) is before


def test_what_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
