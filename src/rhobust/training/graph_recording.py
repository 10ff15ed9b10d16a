"""Recordings of a function of tensors as CUDA graphs, one for each set of shapes."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

# Batches of each shape that are taken eagerly first: libraries make their plans then, which a capture cannot.
_WARM_UP = 3

T = TypeVar("T")
_Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


class Recording(Generic[T]):
    """A function recorded for one shape of batch as a CUDA graph, with the tensors that it reads and writes."""

    def __init__(
        self,
        work: Callable[..., T],
        batch: Sequence[Tensor],
        stream: torch.cuda.Stream,
        other: Recording[T] | None = None,
    ) -> None:
        self.batch = [part.clone() for part in batch]
        self.graph = torch.cuda.CUDAGraph()
        # Recordings share memory: they are replayed one after the other, and no result is read after the next replay.
        pool = None if other is None else other.graph.pool()
        # thread_local: a loader's thread may go on copying batches to the device meanwhile.
        with _uncollected(), torch.cuda.graph(self.graph, pool, stream, capture_error_mode="thread_local"):
            self.result = work(*self.batch)

    def replay(self, *batch: Tensor) -> T:
        """Run it for this batch. The next replay of any recording may overwrite the result."""
        for part, new in zip(self.batch, batch, strict=True):
            part.copy_(new)
        self.graph.replay()
        return self.result


class Recordings(Generic[T]):
    """The recordings of one function, `work(batch..., turn)`, on tensors that keep their memory.

    The function may depend on the turn, a number besides the tensors; each turn has its own recordings.

    A function that cannot be captured (because of an `obstacle` known beforehand, or because the attempt fails) has no
    recording, and `warn` is called with the reason.
    """

    def __init__(
        self,
        work: Callable[..., T],
        device: torch.device,
        warn: Callable[[str], None],
        obstacle: str | None = None,
    ) -> None:
        self.work, self.warn, self.obstacle = work, warn, obstacle
        self._stream = _stream(device)
        self._captures = True
        self._seen: Counter[tuple[int, _Shapes]] = Counter()
        self._recordings: dict[tuple[int, _Shapes], Recording[T]] = {}

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._recordings)

    def find(self, *batch: Tensor, turn: int = 0) -> Recording[T] | None:
        """The recording for this shape of batch; none before it is warm, or where it cannot be captured."""
        kind = turn, _shapes(batch)
        if self._captures and kind not in self._recordings and self._seen[kind] == _WARM_UP:
            self._capture(batch, turn)
        self._seen[kind] += 1
        return self._recordings.get(kind)

    @contextmanager
    def warming(self) -> Iterator[None]:
        """Around an eager step: on the stream that will be captured, whose plans and buffers it prepares."""
        outer = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            yield
        outer.wait_stream(self._stream)

    def forget(self) -> None:
        """What was recorded does not hold any more: every shape of batch is warmed and recorded again."""
        self._recordings.clear()
        self._seen = Counter(dict.fromkeys(self._seen, 0))

    def is_first(self, *batch: Tensor) -> bool:
        """Whether this shape of batch was met before any other."""
        return _shapes(batch) == next(iter(self._seen))[1]

    def _capture(self, batch: Sequence[Tensor], turn: int) -> None:
        if self.obstacle is None:
            generator = torch.cuda.default_generators[batch[0].device.index]
            before = generator.clone_state()
            work, other = partial(self.work, turn=turn), next(iter(self._recordings.values()), None)
            try:
                self._recordings[turn, _shapes(batch)] = Recording(work, batch, self._stream, other)
            except RuntimeError as problem:
                self.obstacle = first_line(problem)
                generator.graphsafe_set_state(before)  # the current one waits forever for the capture to end
        if self.obstacle is not None:
            self._captures = False
            self.warn(f"the steps are launched one by one, not captured in a CUDA graph: {self.obstacle}")


@contextmanager
def _uncollected() -> Iterator[None]:
    """Garbage waits: collecting an engine frees its CUDA graphs, and none may be freed while another is recorded."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings: the matrix libraries keep tens of megabytes for every stream that they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def first_line(problem: Exception) -> str:
    """What a problem says first."""
    return str(problem).strip().partition("\n")[0]


def _shapes(batch: Sequence[Tensor]) -> _Shapes:
    return tuple((part.shape, part.dtype) for part in batch)
