"""Small functions of tensors, each compiled into a kernel or two where a step is about to be recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

_fusing = ContextVar("fusing", default=False)

# A function is compiled for each radius, noise and shape that it meets. The compiler's own limit, eight, is for those
# who recompile by mistake; beyond it, steps of the ninth training in a process would be slow, with warnings.
_KINDS = 100


def fusible(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which inside of `fusing()` is a compiled one; its rounding is then the compiler's.

    It changes its arguments in its last act, if at all: where the compiler fails, it is called as it is.

    >>> @fusible
    ... def half(x: torch.Tensor) -> torch.Tensor:
    ...     return x / 2
    >>> half(torch.tensor(3.0))
    tensor(1.5000)
    """

    @cache
    def compiled() -> Callable[P, T]:  # not before it is needed: the compiler takes a second to import
        return torch.compile(function, dynamic=False)

    @wraps(function)
    def either(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling() or not _fusing.get():  # a compiler of the caller's sees the function itself
            return function(*args, **kwargs)
        try:
            return compiled()(*args, **kwargs)
        except RuntimeError:  # half a step may have been taken: it must not begin again because of this
            return function(*args, **kwargs)

    return either


@contextmanager
def fusing() -> Iterator[None]:
    """For as long as this lasts, fusible functions are compiled."""
    from torch._dynamo import config  # a second to import

    before = _fusing.set(True)
    try:
        with config.patch(recompile_limit=_KINDS):
            yield
    finally:
        _fusing.reset(before)
