"""Where the ascent of every sample was left, so that the next one goes on from there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rhobust.errors import Refused, is_number


class Memory:
    """zeta_i - z_i for every sample of the data.

    On finite data the objective is a min-max problem with a zeta of its own for each sample,

        min over theta, gamma of sum over i of max over zeta_i of psi(theta, gamma; z_i, zeta_i),

    and descent-ascent takes one step in each variable at a time. An ascent that begins at z_i anew in every epoch
    forgets its variable; this keeps it. A sample is seen once an epoch, and theta has moved on by then: the next ascent
    begins at z_i + decay (zeta_i - z_i).

    >>> memory = Memory(torch.zeros(4, 2), decay=0.5)
    >>> memory.keep(torch.tensor([2]), torch.tensor([[1.0, -2.0]]))
    >>> memory.recall(torch.tensor([2, 0]))
    tensor([[ 0.5000, -1.0000],
            [ 0.0000,  0.0000]])
    """

    def __init__(self, x: Tensor, decay: float) -> None:
        if not is_number(decay) or not 0 < decay <= 1:
            raise Refused(f"the decay of a memory is a number above 0 and at most 1, not {decay!r}")
        self.decay = decay
        # Half precision: it is only where to begin, and as large as the data.
        self.moves = torch.zeros_like(x, dtype=torch.float16)
        self.dtype = x.dtype

    def recall(self, at: Tensor) -> Tensor:
        """How far from their centers the samples numbered `at` begin, (B, ...)."""
        return self.decay * self.moves[at].to(self.dtype)

    def keep(self, at: Tensor, moved: Tensor) -> None:
        """How far from their centers they ended."""
        most = torch.finfo(self.moves.dtype).max
        self.moves[at] = moved.clamp(-most, most).to(self.moves.dtype)

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on."""
        return {"moves": self.moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.moves.copy_(state["moves"])
