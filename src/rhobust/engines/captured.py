"""The engine of one GPU: the same step, captured in a CUDA graph once and replayed.

At the paper's batch size a step is hundreds of kernels of a few microseconds; launched one by one from Python they
keep the device waiting most of the time. In bfloat16, where bits are not what is asked for, small kernels are also
fused. Nothing here knows what the step computes.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from rhobust.averaging import WeightAverage
from rhobust.engines.fusion import Fusion
from rhobust.engines.local import LocalEngine, Numbers, Record, diverged, sound
from rhobust.errors import Diverged
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer

# Batches of each shape that are taken eagerly first: libraries make their plans then, which a capture cannot.
_WARM_UP = 3
# Steps between two looks at the numbers; each look waits for the device.
_WINDOW = 64

_Shape = tuple[torch.Size, torch.dtype, torch.Size, torch.dtype]


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
        self._captures = True
        self._fusion = None if precision == torch.float32 else Fusion(objective)
        self._stream = torch.cuda.Stream(objective.gamma.device)  # type: ignore[no-untyped-call]
        self._seen: Counter[_Shape] = Counter()
        self._graphs: dict[_Shape, _Graph] = {}
        self._data: tuple[Tensor, Tensor] | None = None
        self._pending: list[Numbers] = []
        self._before: list[Tensor] = []  # theta, gamma and buffers as they were before the first of the pending
        self._diverged: Diverged | None = None

    @property
    def captured(self) -> bool:
        """Whether steps are being replayed."""
        return bool(self._graphs)

    def admit(self, x: Tensor, y: Tensor) -> None:
        self._data = x, y

    def step(self, x: Tensor, y: Tensor, step: int, epoch: int) -> list[Record]:
        if self._diverged is not None:
            raise self._diverged
        graph = self._graph_for(x, y)
        if graph is None:
            records = self.flush()
            return records if self._diverged is not None else [*records, *self._eagerly(x, y, step, epoch)]
        if self._data is None:  # a replay cannot look at its batch
            self.objective.check(x, y)
        if not self._pending:
            self._before = [part.detach().clone() for part in self._parts()]
        self._pending.append(graph.replay(x, y, step, epoch))
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

    def _eagerly(self, x: Tensor, y: Tensor, step: int, epoch: int) -> list[Record]:
        """On the stream that will be captured, whose plans and buffers this step prepares."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            try:
                with self._fused(x, y):
                    records = super().step(x, y, step, epoch)
            except RuntimeError as problem:
                if self._fusion is None:
                    raise
                # Perhaps the compiler's, before anything was updated; if it is the model's, it comes again.
                self._fusion = None
                self.warn(f"kernels are not fused, which takes longer: {_first_line(problem)}")
                records = super().step(x, y, step, epoch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return records

    def _graph_for(self, x: Tensor, y: Tensor) -> _Graph | None:
        """The graph of this shape of batch; none before it is warm, or where it cannot be captured."""
        shape = _shape(x, y)
        if self._captures and shape not in self._graphs and self._seen[shape] == _WARM_UP:
            self._capture(x, y)
        self._seen[shape] += 1
        return self._graphs.get(shape)

    def _capture(self, x: Tensor, y: Tensor) -> None:
        if self._data is not None and not self._graphs:
            self.objective.check(*self._data)
        obstacle = _obstacle(self.optimizer.base)
        if obstacle is None:
            generator = torch.cuda.default_generators[x.device.index]
            before = generator.clone_state()
            try:
                with self._fused(x, y):
                    self._graphs[_shape(x, y)] = _Graph(self, x, y, self._stream)
            except RuntimeError as problem:
                obstacle = _first_line(problem)
                generator.graphsafe_set_state(before)  # the other one waits forever for the capture to end
        if obstacle is not None:
            self._captures = False
            self.warn(f"the steps are launched one by one, not captured in a CUDA graph: {obstacle}")

    def _fused(self, x: Tensor, y: Tensor) -> AbstractContextManager[None]:
        """Only for the first shape of batch: to compile for the last of an epoch costs more than it brings."""
        is_first = _shape(x, y) == next(iter(self._seen))
        return self._fusion.applied() if self._fusion is not None and is_first else nullcontext()


class _Graph:
    """The step for one shape of batch: what it reads, what it leaves, and the recording between them."""

    def __init__(self, engine: LocalEngine, x: Tensor, y: Tensor, stream: torch.cuda.Stream) -> None:
        self.x, self.y = x.clone(), y.clone()
        self.graph = torch.cuda.CUDAGraph()
        # thread_local: a loader's thread may go on copying batches to the device meanwhile.
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.numbers = engine.gradient(self.x, self.y, 0, 0)
            engine.update()

    def replay(self, x: Tensor, y: Tensor, step: int, epoch: int) -> Numbers:
        """Take the step."""
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return Numbers(step, epoch, self.numbers.values.clone(), self.numbers.gradients)


def _shape(x: Tensor, y: Tensor) -> _Shape:
    return x.shape, x.dtype, y.shape, y.dtype


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0]


def _obstacle(optimizer: Optimizer) -> str | None:
    """Why a step of this optimizer cannot be replayed, if it cannot."""
    if type(optimizer) is SGD or all(group.get("capturable") for group in optimizer.param_groups):
        return None
    name = type(optimizer).__name__
    if "capturable" in optimizer.defaults:
        return f"{name} counts its steps on the host; build it with capturable=True"
    return f"{name} has no form that can be captured"
