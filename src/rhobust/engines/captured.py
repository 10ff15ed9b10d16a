"""The engine of one GPU: the same step, captured in a CUDA graph once and replayed.

At the paper's batch size a step is hundreds of kernels of a few microseconds; launched one by one from Python they
keep the device waiting most of the time. In bfloat16, where bits are not what is asked for, small kernels are also
fused. Nothing here knows what the step computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from rhobust.averaging import WeightAverage
from rhobust.engines.fusion import Fusion
from rhobust.engines.graphs import Graphs, first_line
from rhobust.engines.local import LocalEngine, Numbers, Record, diverged, sound
from rhobust.errors import Diverged
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer

# Steps between two looks at the numbers; each look waits for the device.
_WINDOW = 64


class CapturedEngine(LocalEngine):
    """Replays one graph for each shape of batch; records arrive in bunches.

    What cannot be captured (an optimizer that counts its steps on the host, a model that reads values back) is run
    eagerly, and `warn` hears why. A value that is not finite is noticed with its bunch: the weights go back to where
    they were when that began.
    """

    def __init__(
        self,
        objective: RobustObjective,
        optimizer: ProximalOptimizer,
        precision: torch.dtype = torch.float32,
        average: WeightAverage | None = None,
    ) -> None:
        super().__init__(objective, optimizer, precision, average)
        self._fusion = None if precision == torch.float32 else Fusion(objective)
        self._graphs = Graphs(
            self._recorded, objective.gamma.device, lambda message: self.warn(message), _obstacle(optimizer.base)
        )
        self._data: tuple[Tensor, Tensor] | None = None
        self._looked = False  # whether at the data
        self._rates: list[dict[str, Any]] = []
        self._pending: list[Numbers] = []
        self._before: list[Tensor] = []  # theta, gamma and buffers as they were before the first of the pending
        self._diverged: Diverged | None = None

    @property
    def captured(self) -> bool:
        """Whether steps are being replayed."""
        return bool(self._graphs)

    def admit(self, x: Tensor, y: Tensor) -> None:
        self._data, self._looked = (x, y), False

    def step(self, x: Tensor, y: Tensor, step: int, epoch: int, at: Tensor | None = None) -> list[Record]:
        if self._diverged is not None:
            raise self._diverged
        self._notice_rates()
        batch = (x, y) if self.memory is None or at is None else (x, y, at)
        graph = self._graphs.find(*batch, turn=self.objective.maximizer.turn(step))
        if graph is None:
            records = self.flush()
            return records if self._diverged is not None else [*records, *self._eagerly(batch, step, epoch)]
        self._look(x, y)
        if not self._pending:
            self._before = [part.detach().clone() for part in self._parts()]
        numbers = graph.replay(*batch)
        self.follow()
        self._pending.append(Numbers(step, epoch, numbers.values.clone(), numbers.gradients))
        return self.flush() if len(self._pending) == _WINDOW else []

    def flush(self) -> list[Record]:
        if self._diverged is not None:
            raise self._diverged
        pending, self._pending = self._pending, []
        if not pending:
            return []
        values = torch.stack([numbers.values for numbers in pending]).tolist()  # the one wait
        records = [numbers.read(row) for numbers, row in zip(pending, values, strict=True)]
        good = list(takewhile(sound, records))
        if len(good) < len(records):
            with torch.no_grad():
                for part, before in zip(self._parts(), self._before, strict=True):
                    part.copy_(before)
            self._diverged = diverged(records[len(good)], f"the weights are those from before step {records[0].step}")
            if not good:
                raise self._diverged
        return good

    def _parts(self) -> list[Tensor]:
        return [*self.objective.parameters(), *self.objective.buffers()]

    def _look(self, x: Tensor, y: Tensor) -> None:
        """What a replay cannot: at its batch, or once at all the data."""
        if self._data is None:
            self.objective.check(x, y)
        elif not self._looked:
            self.objective.check(*self._data)
            self._looked = True

    def _eagerly(self, batch: Sequence[Tensor], step: int, epoch: int) -> list[Record]:
        x, y, *at = batch
        before = self._versions()
        with self._graphs.warming():
            try:
                with self._fused(*batch):
                    return super().step(x, y, step, epoch, *at)
            except RuntimeError as problem:
                if self._fusion is None or self._versions() != before:  # no step is taken twice
                    raise
                # Perhaps the compiler's; if it is the model's, it comes again.
                self._fusion = None
                self.warn(f"kernels are not fused, which takes longer: {first_line(problem)}")
                return super().step(x, y, step, epoch, *at)

    def _versions(self) -> list[int]:
        """They differ once theta or gamma was updated."""
        return [theta._version for theta in self.objective.parameters()]

    def _recorded(self, x: Tensor, y: Tensor, *at: Tensor, turn: int) -> Numbers:
        """The step, as it is captured."""
        with self._fused(x, y, *at):
            numbers = self.gradient(x, y, turn, 0, *at)
            self.update()
        return numbers

    def _fused(self, *batch: Tensor) -> AbstractContextManager[None]:
        """Only for full batches: to compile for the last of an epoch costs more than it brings.

        A run that is resumed with such a last one fuses what it would have fused.
        """
        full = self._graphs.is_first(*batch) if self.full_batch is None else len(batch[0]) == self.full_batch
        return self._fusion.applied() if self._fusion and full else nullcontext()

    def _notice_rates(self) -> None:
        """Learning rates and other numbers of the optimizer are recorded with a step: when one changes, record anew.

        Where they change in every step, none is recorded. Tensors on the device are not looked at: a recording reads
        them.
        """
        rates = [
            {
                name: value.tolist() if isinstance(value, Tensor) else value
                for name, value in group.items()
                if name != "params" and not (isinstance(value, Tensor) and value.is_cuda)
            }
            for group in self.optimizer.param_groups
        ]
        if rates != self._rates:
            self._graphs.forget()
            self._rates = rates


def _obstacle(optimizer: Optimizer) -> str | None:
    """Why a step of this optimizer cannot be replayed, if it cannot."""
    if type(optimizer) is SGD or all(group.get("capturable") for group in optimizer.param_groups):
        return None
    name = type(optimizer).__name__
    if "capturable" in optimizer.defaults:
        return f"{name} counts its steps on the host; build it with capturable=True"
    return f"{name} has no form that can be captured"
