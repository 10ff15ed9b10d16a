"""What the engine wastes: messages in cycles are freed, and none is spelled out for a log that is off."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from rhobust.deployment.nvflare_memory import MessageCollector, shorten_message_repr


class Message:
    """As the engine leaves them: one that holds itself."""

    def __init__(self) -> None:
        self.payload, self.me = np.zeros(1000), self


@pytest.fixture
def _uncollected() -> Iterator[None]:
    """Python's own collector is off, so what is freed was swept; what was frozen is let go at the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.usefixtures("_uncollected")
def test_a_sweep_frees_messages_in_cycles() -> None:
    sweep = MessageCollector()
    kept = []
    for _ in range(5):
        message = Message()
        kept.append(weakref.ref(message))
        del message
        assert kept[-1]() is not None  # counting references is not enough
        sweep()
    assert [reference() for reference in kept] == [None] * 5


def test_a_message_is_not_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumableBufferList, "__repr__", ConsumableBufferList.__repr__)  # put back afterwards
    message = ConsumableBufferList([b"theta" * 100])
    assert "theta" in repr(message)
    shorten_message_repr()
    assert "theta" not in repr(message)
    assert "ConsumableBufferList" in repr(message)
