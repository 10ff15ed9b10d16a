"""Functions that are compiled inside a recorded step, and whether a step is being recorded.

A compilable function becomes a kernel or two where a step is about to be recorded. While work is recorded into a CUDA
graph, no value can be read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

_fusing = ContextVar("fusing", default=False)

# A function is compiled for each radius, noise and shape that it meets. The compiler's own limit, eight, is for those
# who recompile by mistake; beyond it, steps of the ninth training in a process would be slow, with warnings.
_KINDS = 100


def compilable(function: Callable[P, T], *, writes: bool = False) -> Callable[P, T]:
    """The function, which inside of `fusing()` is a compiled one; its rounding is then the compiler's.

    Where that fails, the function is called as it is: half a step may have been taken, which must not begin again
    because of this. One that `writes` into its arguments may have done so before it failed, and is called only if the
    compiler failed, before anything ran.

    >>> @compilable
    ... def half(x: torch.Tensor) -> torch.Tensor:
    ...     return x / 2
    >>> half(torch.tensor(3.0))
    tensor(1.5000)
    """

    @cache
    def compiled() -> Callable[P, T]:  # not before it is needed: the compiler takes a second to import
        try:
            return torch.compile(function, dynamic=False)
        except RuntimeError:  # no compiler here
            return function

    @wraps(function)
    def either(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling() or not fuses():  # a compiler of the caller's sees the function itself
            return function(*args, **kwargs)
        try:
            return compiled()(*args, **kwargs)
        except RuntimeError as problem:
            if writes and not _is_the_compiler_s(problem):
                raise
            return function(*args, **kwargs)

    return either


def _is_the_compiler_s(problem: RuntimeError) -> bool:
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(problem, TorchDynamoException)


def fuses() -> bool:
    """Whether compilable functions are compiled here and now."""
    return _fusing.get()


@contextmanager
def fusing() -> Iterator[None]:
    """For as long as this lasts, compilable functions are compiled."""
    from torch._dynamo import config  # a second to import

    before = _fusing.set(True)
    try:
        with config.patch(recompile_limit=_KINDS):
            yield
    finally:
        _fusing.reset(before)


def capturing(tensor: Tensor) -> bool:
    """Whether work on this tensor is being recorded instead of done."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
