"""The engine of one GPU, which captures the eager step in a CUDA graph and replays it.

At the paper's batch size a step is hundreds of kernels of a few microseconds; launched one by one from Python they
keep the device waiting most of the time. In bfloat16, where bits are not what is asked for, small kernels are also
fused. Nothing here knows what the step computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from rhobust.data.batches import Batch
from rhobust.errors import Diverged
from rhobust.training.eager import EagerEngine
from rhobust.training.engine import Engine, Warn
from rhobust.training.graph_recording import Recordings, first_line
from rhobust.training.kernel_fusion import Fusion
from rhobust.training.record import Record
from rhobust.training.step import Numbers, diverged, sound

# Steps between two looks at the numbers; each look waits for the device.
_WINDOW = 64


class CudaGraphEngine(Engine):
    """Replays one recording for each shape of batch; records arrive in bunches.

    What cannot be captured (an optimizer that counts its steps on the host, a model that reads values back) is run
    eagerly, and a warning says why. A value that is not finite is noticed with its bunch: the weights go back to where
    they were when that began.
    """

    def __init__(self, eager: EagerEngine) -> None:
        self.eager, self.objective = eager, eager.objective
        self.epochs, self.epoch_steps, self.total = eager.epochs, eager.epoch_steps, eager.total
        self._warn: Warn = lambda message: None
        self._fusion = None if eager.precision == torch.float32 else Fusion(self.objective)
        self._recordings = Recordings(
            self._recorded,
            self.objective.gamma.device,
            lambda message: self._warn(message),
            _obstacle(eager.optimizer.base),
        )
        self._whole = eager.batches.whole()
        self._checked = False  # whether all the data were
        self._like = Batch(torch.empty(0), torch.empty(0))  # in the form that a recording puts its tensors into
        self._rates: list[dict[str, Any]] = []
        self._pending: list[Numbers] = []
        self._before: list[Tensor] = []  # theta, gamma and buffers as they were before the first of the pending

    @property
    def captured(self) -> bool:
        """Whether steps are being replayed."""
        return bool(self._recordings)

    def epoch(self, number: int, skip: int, warn: Warn) -> Iterator[Sequence[Record]]:
        self._warn = warn
        for step, batch in self.eager.numbered(number, skip):
            yield self.take(batch, step, number)

    def take(self, batch: Batch, step: int, epoch: int) -> Sequence[Record]:
        """One training step; the records that are ready."""
        self._notice_rates()
        self._like = self._read(batch)
        tensors = self._like.tensors()
        recording = self._recordings.find(*tensors, turn=self.objective.maximizer.turn(step))
        if recording is None:
            records = self.flush()
            try:
                return [*records, self._eagerly(batch, step, epoch)]
            except Diverged as error:
                error.records = records
                raise
        self._check(batch)
        if not self._pending:
            self._before = [part.detach().clone() for part in self._parts()]
        numbers = recording.replay(*tensors)
        self.eager.follow()
        self._pending.append(Numbers(step, epoch, numbers.values.clone(), numbers.gradients))
        return self.flush() if len(self._pending) == _WINDOW else []

    def flush(self) -> Sequence[Record]:
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
            raise diverged(records[len(good)], f"the weights are those from before step {records[0].step}", good)
        return records

    def anywhere(self, flag: bool) -> bool:
        return self.eager.anywhere(flag)

    def settle(self) -> None:
        self.eager.settle()

    def state_dict(self) -> dict[str, Any]:
        return self.eager.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.eager.load_state_dict(state)

    def _read(self, batch: Batch) -> Batch:
        """What a step reads of a batch: only a memory asks which samples it holds."""
        return batch._replace(at=None) if self.eager.memory is None else batch

    def _parts(self) -> list[Tensor]:
        return [*self.objective.parameters(), *self.objective.buffers()]

    def _check(self, batch: Batch) -> None:
        """What a replay cannot: look at its batch, or once at all the data."""
        if self._whole is None:
            self.objective.check(batch.x, batch.y, batch.weight)
        elif not self._checked:
            self.objective.check(self._whole.x, self._whole.y)
            self._checked = True

    def _eagerly(self, batch: Batch, step: int, epoch: int) -> Record:
        before = self._versions()
        with self._recordings.warming():
            try:
                with self._fused(batch):
                    return self.eager.take(batch, step, epoch)
            except RuntimeError as problem:
                if self._fusion is None or self._versions() != before:  # no step is taken twice
                    raise
                # Perhaps the compiler's; if it is the model's, it comes again.
                self._fusion = None
                self._warn(f"kernels are not fused, which takes longer: {first_line(problem)}")
                return self.eager.take(batch, step, epoch)

    def _versions(self) -> list[int]:
        """They differ once theta or gamma was updated."""
        return [theta._version for theta in self.objective.parameters()]

    def _recorded(self, *tensors: Tensor, turn: int) -> Numbers:
        """The step, as it is captured, of the tensors of a batch."""
        batch = self._like.refilled(iter(tensors))
        with self._fused(batch):
            numbers = self.eager.gradient(batch, turn, 0)
            self.eager.update()
        return numbers

    def _fused(self, batch: Batch) -> AbstractContextManager[None]:
        """Only for full batches: to compile for the last of an epoch costs more than it brings.

        A run that is resumed with such a last one fuses what it would have fused.
        """
        size = self.eager.batches.full
        full = self._recordings.is_first(*self._read(batch).tensors()) if size is None else len(batch.y) == size
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
            for group in self.eager.optimizer.param_groups
        ]
        if rates != self._rates:
            self._recordings.forget()
            self._rates = rates


def _obstacle(optimizer: Optimizer) -> str | None:
    """Why a step of this optimizer cannot be replayed, if it cannot."""
    if type(optimizer) is SGD or all(group.get("capturable") for group in optimizer.param_groups):
        return None
    name = type(optimizer).__name__
    if "capturable" in optimizer.defaults:
        return f"{name} counts its steps on the host; build it with capturable=True"
    return f"{name} has no form that can be captured"
