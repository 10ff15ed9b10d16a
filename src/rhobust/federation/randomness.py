"""Random streams of a federation: one for each purpose and place, independent of the order of calls."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What random numbers are for: each purpose has a stream of its own."""

    PARTICIPANTS = 1
    MINIBATCH = 2
    ASCENT = 3
    BYZANTINE = 4

    def draws(self, seed: int, *place: int) -> np.random.Generator:
        """The stream at one place, such as (round, worker): the same whenever and wherever it is asked for."""
        return np.random.default_rng([self, seed, *place])

    def seed(self, seed: int, *place: int) -> int:
        """A seed for torch's generators."""
        return int(self.draws(seed, *place).integers(2**62))
