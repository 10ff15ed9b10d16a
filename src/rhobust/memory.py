"""Warm starts: the last perturbation of every sample, kept for its next ascent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rhobust.checks import decay_problem
from rhobust.errors import Refused
from rhobust.support.compiling import compilable


class Memory:
    """zeta_i - z_i for every sample of the data.

    On finite data the objective is a min-max problem with a zeta of its own for each sample,

        min over theta, gamma of sum over i of max over zeta_i of psi(theta, gamma; z_i, zeta_i),

    and descent-ascent takes one step in each variable at a time. An ascent that begins at z_i anew in every epoch
    forgets its variable; this keeps it. The next ascent begins at z_i + decay (zeta_i - z_i), and goes on: where steps
    go a share of their way, its first one goes half of it. So do those of the first epoch, which have nothing to go on
    from: moves need a few epochs to become as long as they are to be. A decay below 1 takes a lower gamma for that.

    >>> memory = Memory(torch.zeros(4, 2), decay=0.5)
    >>> memory.keep(torch.tensor([2]), torch.zeros(1, 2), torch.tensor([[1.0, -2.0]]))
    >>> memory.recall(torch.tensor([2, 0]))
    tensor([[ 0.5000, -1.0000],
            [ 0.0000,  0.0000]])
    """

    def __init__(self, x: Tensor, decay: float) -> None:
        if problem := decay_problem(decay):
            raise Refused(problem)
        self.decay = decay
        # Half precision: it is only where to begin, and as large as the data.
        self.moves = torch.zeros_like(x, dtype=torch.float16)
        self.dtype = x.dtype

    def recall(self, at: Tensor) -> Tensor:
        """How far from their centers the samples numbered `at` begin, (B, ...)."""
        return _recalled(self.moves, at, self.decay, self.dtype)

    def keep(self, at: Tensor, center: Tensor, zeta: Tensor) -> None:
        """Where they ended, and the centers that they began from; the difference is kept."""
        _keep(self.moves, at, center, zeta)

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on."""
        return {"moves": self.moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.moves.copy_(state["moves"])


@compilable
def _recalled(moves: Tensor, at: Tensor, decay: float, dtype: torch.dtype) -> Tensor:
    return decay * moves[at].to(dtype)


def _write(moves: Tensor, at: Tensor, center: Tensor, zeta: Tensor) -> None:
    most = torch.finfo(moves.dtype).max
    moves[at] = (zeta - center).clamp(-most, most).to(moves.dtype)


_keep = compilable(_write, writes=True)
