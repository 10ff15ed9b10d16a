"""Message cleanup: a workaround for memory that NVFlare keeps in every round."""

from __future__ import annotations

import gc

from nvflare.fuel.utils.buffer_list import ConsumableBufferList

_THOROUGH = 20  # sweeps, one of which looks at everything


class MessageCollector:
    """Frees the messages of past rounds, each of which the engine leaves in a cycle of references.

    Python looks for cycles when there are many objects, however large they are; a message is few objects and as large
    as the model. Unswept, they fill hundreds of megabytes, and every new one is written to cold memory.
    """

    def __init__(self) -> None:
        self._done = 0
        gc.collect()
        gc.freeze()  # what is here by now stays, and need not be looked at again

    def __call__(self) -> None:
        """Between two rounds, when nothing is on its way."""
        self._done += 1
        gc.collect(2 if self._done % _THOROUGH == 0 else 1)


def shorten_message_repr() -> None:
    """The engine spells out every message for its debug log, on or off; from now on only that there was one."""
    ConsumableBufferList.__repr__ = object.__repr__
