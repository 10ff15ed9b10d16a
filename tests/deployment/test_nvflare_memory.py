"""Memory that the engine keeps: messages in cycles are freed, and none is formatted for a log that is off."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from rhobust.deployment.nvflare_memory import MessageCollector, shorten_message_repr


class Message:
    """A message as the engine leaves it: it holds itself."""

    def __init__(self) -> None:
        self.payload, self.me = np.zeros(1000), self


@pytest.fixture
def _uncollected() -> Iterator[None]:
    """Python's own collector is off, so only the code under test frees objects; frozen ones are released at the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.usefixtures("_uncollected")
def test_a_collection_frees_messages_in_cycles() -> None:
    collect_messages = MessageCollector()
    kept = []
    for _ in range(5):
        message = Message()
        kept.append(weakref.ref(message))
        del message
        assert kept[-1]() is not None  # counting references is not enough
        collect_messages()
    assert [reference() for reference in kept] == [None] * 5


def test_a_message_is_not_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumableBufferList, "__repr__", ConsumableBufferList.__repr__)  # put back afterwards
    message = ConsumableBufferList([b"theta" * 100])
    assert "theta" in repr(message)
    shorten_message_repr()
    assert "theta" not in repr(message)
    assert "ConsumableBufferList" in repr(message)
