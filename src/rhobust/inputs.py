"""The inputs of a model: one tensor, a dict or a tuple of tensors, and which part of them moves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.errors import DataError, Refused
from rhobust.support.compiling import capturing
from rhobust.support.probing import probing

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
"""One tensor (B, ...), or several under names or in an order: what a model is called with."""


@dataclass(frozen=True)
class Perturb:
    """The part of the inputs that moves, and the mask of its positions that may.

    `what` is a key of a dict of inputs, an index into a tuple of inputs, or the name of a submodule, whose output then
    moves in the place of an input: the ascent runs in the space of that output, and the submodule still trains. Where
    a key and a submodule have the same name, the key is meant.

    `mask` is a key, an index, or a function of the inputs. It gives a tensor of the first dimensions of what moves,
    such as (B, length) for token embeddings (B, length, features). Positions where it is 0 or False stay: they neither
    move nor cost.

    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    >>> tokens = torch.tensor([[5, 7, 0], [2, 0, 0]])  # 0 pads
    >>> function, z = bound(model, tokens, Perturb("0", mask=lambda tokens: tokens != 0))
    >>> z.shape, mask_of(function)[:, :, 0].tolist()
    (torch.Size([2, 3, 4]), [[True, True, False], [True, False, False]])
    >>> torch.equal(function(z), model(tokens))
    True
    """

    what: str | int
    mask: str | int | Callable[[Any], Tensor] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.what, str | int) or isinstance(self.what, bool) or self.what == "":
            raise Refused(f"perturb names a key, an index or a submodule, not {self.what!r}")
        if not (self.mask is None or isinstance(self.mask, str | int) or callable(self.mask)) or self.mask is True:
            raise Refused(f"a mask is a key, an index or a function of the inputs, not {self.mask!r}")


class PartialModel(nn.Module):
    """A model as a function of the part of its inputs that moves; the rest of a batch stays as it was given."""

    def __init__(self, model: nn.Module, inputs: Inputs, what: str | int, mask: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.inputs, self.what, self.mask = model, inputs, what, mask

    def forward(self, zeta: Tensor) -> Any:
        """The model's output with zeta in the place of what moves."""
        if _is_part(self.inputs, self.what):
            return called(self.model, _with_part(self.inputs, self.what, zeta.clone()))
        # The value is zeta, and the submodule has the gradient of its own output: it trains at a fixed displacement.
        with _hooked(self.model, self.what, lambda output: _in_place_of(output, zeta.to(output.dtype, copy=True))):
            return called(self.model, self.inputs)

    def __getitem__(self, chosen: slice | Tensor) -> PartialModel:
        """The same for some samples of the batch."""
        mask = None if self.mask is None else self.mask[chosen]
        return PartialModel(self.model, each(self.inputs, lambda part: part[chosen]), self.what, mask)


def bound(model: nn.Module, x: Inputs, perturb: Perturb | str | int | None) -> tuple[nn.Module, Tensor]:
    """The model as a function of one tensor, and that tensor: x itself, or the part of x that `perturb` names."""
    if perturb is None:
        if isinstance(x, Mapping | tuple | list):
            raise DataError(f"x is {_described(x)}, and not all of it moves: name the part that does with perturb=")
        return model, x
    perturb = perturb if isinstance(perturb, Perturb) else Perturb(perturb)
    x = as_inputs(x)
    what = perturb.what
    z = _part(x, what) if _is_part(x, what) else _output_of(model, x, what)
    if not z.is_floating_point():
        raise DataError(
            f"perturb={what!r} names values of {z.dtype}, which cannot move: they must be of floating point. Token "
            "numbers do not move, but their embeddings do: name the submodule that embeds them"
        )
    mask = None if perturb.mask is None else _mask(x, perturb.mask, z)
    return PartialModel(model, x, what, mask), z


def part_of(model: nn.Module, chosen: slice | Tensor) -> nn.Module:
    """The model for some samples of a batch: a `PartialModel` belongs to all of them, any other to none."""
    return model[chosen] if isinstance(model, PartialModel) else model


def underlying(model: nn.Module) -> nn.Module:
    """The model that a `PartialModel` calls, or the model itself."""
    return model.model if isinstance(model, PartialModel) else model


def mask_of(model: nn.Module) -> Tensor | None:
    """Which positions may move, in the shape of what moves; None where all may."""
    return model.mask if isinstance(model, PartialModel) else None


def attached(center: Tensor, zeta: Tensor) -> Tensor:
    """zeta, with the gradient in the center where that has one: the sample moves with its center."""
    return _in_place_of(center, zeta) if center.requires_grad else zeta


def called(model: nn.Module, x: Inputs) -> Any:
    """The output of a model: a dict is passed by keyword and a tuple by position where the model takes them so.

    A model that takes one argument is given the dict or the tuple as it is.
    """
    if isinstance(x, dict):
        return model(**x) if _takes(model, **x) else model(x)
    if isinstance(x, tuple):
        return model(*x) if _takes(model, *x) else model(x)
    return model(x)


def each(x: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The same inputs with every tensor changed."""
    if isinstance(x, dict):
        return {key: change(part) for key, part in x.items()}
    return tuple(change(part) for part in x) if isinstance(x, tuple) else change(x)


def leaves(x: Inputs) -> tuple[Tensor, ...]:
    """The tensors, in their order."""
    if isinstance(x, dict):
        return tuple(x.values())
    return x if isinstance(x, tuple) else (x,)


def refilled(x: Inputs, tensors: Iterator[Tensor]) -> Inputs:
    """The same inputs with other tensors, in their order."""
    return each(x, lambda part: next(tensors))


def as_inputs(x: object) -> Inputs:
    """A mapping as a dict and a list as a tuple; refused where the parts are no tensors, or differ in length."""
    if isinstance(x, Mapping):
        x = dict(x)
    elif isinstance(x, list):
        x = tuple(x)
    if not isinstance(x, dict | tuple | Tensor) or (not isinstance(x, Tensor) and not x):
        raise DataError(f"x must be a tensor, or a dict or a tuple of tensors, not {_described(x)}")
    if isinstance(x, Tensor):
        return x
    named: list[tuple[Any, Any]] = list(x.items() if isinstance(x, dict) else enumerate(x))
    for name, part in named:
        if not isinstance(part, Tensor) or part.ndim == 0:
            kind = "a tensor without dimensions" if isinstance(part, Tensor) else type(part).__name__
            raise DataError(f"part {name!r} of x must be a tensor with a dimension for the samples, not {kind}")
    counts = {name: len(part) for name, part in named}
    if len(set(counts.values())) > 1:
        raise DataError(f"the parts of x have different numbers of samples: {counts}")
    return x


def _takes(model: nn.Module, *args: Any, **kwargs: Any) -> bool:
    signature = inspect.signature(model.forward)
    inner = getattr(model, "_orig_mod", getattr(model, "module", None))  # compiled, or data-parallel
    if isinstance(inner, nn.Module) and {kind.kind for kind in signature.parameters.values()} <= {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }:
        return _takes(inner, *args, **kwargs)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _is_part(x: Inputs, what: str | int) -> bool:
    if isinstance(x, tuple):
        return isinstance(what, int) and -len(x) <= what < len(x)
    return isinstance(x, dict) and what in x


def _part(x: Inputs, what: str | int) -> Tensor:
    return x[what]  # type: ignore[index]


def _with_part(x: Inputs, what: str | int, zeta: Tensor) -> Inputs:
    if isinstance(x, dict):
        return {key: zeta if key == what else part for key, part in x.items()}
    place = range(len(x))[int(what)]
    return tuple(zeta if number == place else part for number, part in enumerate(x))


def _in_place_of(output: Tensor, zeta: Tensor) -> Tensor:
    """The value of zeta, with the gradient of the output besides its own."""
    return zeta + (output - output.detach()) if output.requires_grad else zeta


@contextmanager
def _hooked(model: nn.Module, name: str | int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """For one pass, the output of a submodule is changed."""
    passes = 0

    def note(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        nonlocal passes
        passes += 1
        if not isinstance(output, Tensor):
            raise Refused(f"the output of submodule '{name}' must be one tensor to move, not {type(output).__name__}")
        return change(output)

    hook = model.get_submodule(str(name)).register_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()
    if passes != 1:
        raise Refused(
            f"submodule '{name}' was called {passes} times in one pass, and what moves must be one output. Name a "
            "submodule that is called once; of a compiled model name one before it is compiled"
        )


class _Reached(Exception):
    """The output of a submodule is known; the rest of the pass is not needed."""


def _output_of(model: nn.Module, x: Inputs, name: str | int) -> Tensor:
    """The output of a submodule, in evaluation mode."""
    known = [key for key, _ in model.named_modules() if key]
    if name not in known:
        raise Refused(f"perturb={name!r} names nothing: {_choices(x, known)}")
    found: Tensor | None = None

    def stop(output: Tensor) -> Tensor:
        nonlocal found
        found = output
        raise _Reached

    with torch.no_grad(), probing(model):
        try:
            with _hooked(model, name, stop):
                called(model, x)
        except _Reached:
            pass
    count = len(leaves(x)[0])
    if found is None or found.ndim == 0 or len(found) != count:
        shape = () if found is None else tuple(found.shape)
        raise Refused(
            f"the output of submodule '{name}' has shape {shape}; the first dimension must be the {count} samples"
        )
    # A sum over many positions wants more digits than a half.
    return found.to(torch.promote_types(found.dtype, torch.float32)) if found.is_floating_point() else found


def _mask(x: Inputs, which: Any, z: Tensor) -> Tensor:
    """The mask in the shape of what moves."""
    if callable(which):
        mask = which(x)
    elif _is_part(x, which):
        mask = _part(x, which)
    else:
        raise Refused(f"mask={which!r} names no part of x, which is {_described(x)}")
    if not isinstance(mask, Tensor):
        raise Refused(f"the mask must be a tensor, not {type(mask).__name__}")
    if not mask.ndim or mask.shape != z.shape[: mask.ndim]:
        raise Refused(
            f"the mask has shape {tuple(mask.shape)} for what moves, {tuple(z.shape)}: it must have the first "
            f"dimensions of that, such as {tuple(z.shape[: max(z.ndim - 1, 1)])}"
        )
    if mask.dtype != torch.bool and not capturing(mask) and not bool(((mask == 0) | (mask == 1)).all()):
        raise Refused("a mask holds True and False, or 1 for what may move and 0 for what stays")
    return mask.bool().reshape(*mask.shape, *[1] * (z.ndim - mask.ndim)).expand_as(z)


def _choices(x: Inputs, submodules: list[str]) -> str:
    few = ", ".join(submodules[:12]) + (", ..." if len(submodules) > 12 else "")
    return f"x is {_described(x)}, and the model's submodules are {few or 'none'}"


def _described(x: object) -> str:
    if isinstance(x, Mapping):
        return f"a dict with the keys {', '.join(map(str, x)) or '(none)'}"
    if isinstance(x, tuple | list):
        return f"a {type(x).__name__} of {len(x)}"
    return "one tensor" if isinstance(x, Tensor) else f"of type {type(x).__name__}"
