"""Interrupts: whatever ends a process from outside is heard in the same way, for as long as it should be."""

import os
import signal
import time

import pytest

from rhobust.support.interrupts import deferred_signals, interruptible


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
        with interruptible(), deferred_signals(enabled=True) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
        assert signals == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_and_its_second_time_does_not(number: signal.Signals) -> None:
    def raised() -> None:
        with deferred_signals(enabled=True) as signals:
            signal.raise_signal(number)
            assert signals == [number]
            signal.raise_signal(number)
            time.sleep(10)

    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            raised()
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
