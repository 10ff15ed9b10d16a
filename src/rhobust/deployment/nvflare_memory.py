"""Message cleanup: a workaround for memory that NVFlare keeps in every round."""

from __future__ import annotations

import gc

from nvflare.fuel.utils.buffer_list import ConsumableBufferList

_FULL_EVERY = 20  # collections, of which one is of all generations


class MessageCollector:
    """Frees the messages of past rounds, each of which the engine leaves in a cycle of references.

    Python collects cycles when there are many objects, however large they are. A message is a few objects as large as
    the model, so without this class messages fill hundreds of megabytes.
    """

    def __init__(self) -> None:
        self._done = 0
        gc.collect()
        gc.freeze()  # objects that exist by now stay, and need not be inspected again

    def __call__(self) -> None:
        """Between two rounds, when no message is under way."""
        self._done += 1
        gc.collect(2 if self._done % _FULL_EVERY == 0 else 1)


def shorten_message_repr() -> None:
    """The engine formats every message for its debug log, on or off; from now on it formats only the type."""
    ConsumableBufferList.__repr__ = object.__repr__
