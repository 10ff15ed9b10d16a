"""Models of one's own: a factory is imported from a source whose digest is known, called, and its model checked."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Size, Tensor, nn
from torch.nn.parameter import is_lazy

from rhobust.errors import ConfigError
from rhobust.models.source import Source, digest_of
from rhobust.support.probing import probing

T = TypeVar("T")

_BATCH = 2  # zeros that a new model is shown

_imported: dict[str, str] = {}  # digests of modules when they were imported: Python imports a module once
_neighbors: set[str] = set()  # modules that lay beside the last file
_made: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()


def build_own(model: str, shape: Size, outputs: int, args: Mapping[str, Any], digest: str | None) -> nn.Module:
    """The model that a factory makes, on the CPU: `factory(shape, outputs, **args)`.

    This runs the code of the source, if the source has this digest; anything wrong is one `ConfigError`.
    """
    source = Source.parse(model)
    content = source.checked(digest)
    module = _attempt(source, "cannot be imported", lambda: _module(source, content))
    factory = _factory(source, module)
    _check_call(source, factory, shape, outputs, args)
    given = copy.deepcopy(dict(args))  # the settings are not the factory's to change
    made = _attempt(source, f"{source.factory} raised", lambda: factory(shape, outputs, **given))
    if not isinstance(made, nn.Module):
        raise _problem(source, f"{source.factory} returned a {type(made).__name__}; it must return a torch.nn.Module")
    if _made.get(id(made)) is made:
        raise _problem(source, f"{source.factory} returned the same model twice; it must build a new one in every call")
    _made[id(made)] = made
    _check_weights(source, made)
    _check_outputs(source, made.cpu(), shape, outputs)
    return made


def _problem(source: Source, problem: str) -> ConfigError:
    return ConfigError([f"model '{source}': {problem}"])


def _attempt(source: Source, failed: str, work: Callable[[], T]) -> T:
    """What the user's code gives; what it raises becomes one error with the line of the user's code."""
    try:
        return work()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        said = " ".join(str(getattr(error, "msg", error)).split())[:300]
        where = _line_of(error, source.path.absolute().parent)
        raise _problem(source, f"{failed}: {type(error).__name__}: {said}{where}") from None


def _line_of(error: BaseException, folder: Path) -> str:
    """Where the user's code failed: the last line that lies beside the source."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent == folder]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


# Import.


def _module(source: Source, content: bytes) -> ModuleType:
    if source.is_file:
        return _executed(source.path.absolute(), content)
    digest = digest_of(content)
    module = importlib.import_module(source.place)
    if _imported.setdefault(source.place, digest) != digest:
        raise _problem(source, f"{source.path} has changed since it was imported; start Python again")
    return module


def _executed(path: Path, content: bytes) -> ModuleType:
    """A file as a module, once for each content: of the bytes whose digest is known, under a name of its own."""
    name = f"rhobust_model_{digest_of(str(path).encode(errors='surrogateescape') + content)[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None  # it ends in .py
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look for their module there
    try:
        with _importing_beside(path.parent):
            exec(compile(content, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importing_beside(folder: Path) -> Iterator[None]:
    """For a while, modules beside a file can be imported, as where `python FILE.py` runs.

    Those that lay beside another file before are forgotten: they may have the same names.
    """
    for name in _neighbors:
        sys.modules.pop(name, None)
    _neighbors.clear()
    importlib.invalidate_caches()
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        new = sys.modules.keys() - before
        beside = {name for name in new if "." not in name and _lies_in(folder, sys.modules[name])}
        _neighbors.update(name for name in new if name.partition(".")[0] in beside)


def _lies_in(folder: Path, module: ModuleType) -> bool:
    places = getattr(module, "__path__", None) or [getattr(module, "__file__", None) or ""]
    return any(Path(place).parent == folder for place in places)


# Call.


def _factory(source: Source, module: ModuleType) -> Callable[..., object]:
    try:
        found = getattr(module, source.factory)
    except AttributeError:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        hint = f"; it defines {', '.join(own)}" if own else ""
        raise _problem(source, f"{source.path} has no '{source.factory}'{hint}") from None
    if not callable(found):
        raise _problem(
            source, f"{source.factory} is of type {type(found).__name__}, and a factory is a function or class"
        )
    home = getattr(found, "__module__", None)
    if (inspect.isfunction(found) or inspect.isclass(found)) and home != module.__name__:
        raise _problem(
            source,
            f"{source.factory} is written in the module '{home}', whose source the digest would not cover; name that "
            f"one, or write a function in {source.path.name} that calls it",
        )
    return found  # type: ignore[no-any-return]


def _check_call(
    source: Source, factory: Callable[..., object], shape: Size, outputs: int, args: Mapping[str, Any]
) -> None:
    try:
        signature = inspect.signature(factory)
    except (ValueError, TypeError):  # some callables have none
        return
    try:
        signature.bind(shape, outputs, **args)
    except TypeError as error:
        given = ", ".join(["shape", "outputs", *(f"{name}=..." for name in args)])
        raise _problem(
            source,
            f"it is called as {source.factory}({given}) and defined as {source.factory}{signature}: {error}; the "
            "keyword arguments are model_args",
        ) from None


# Check of the model.


def _check_weights(source: Source, model: nn.Module) -> None:
    named = [*model.named_parameters(), *model.named_buffers()]
    if lazy := [name for name, value in named if is_lazy(value)]:
        raise _problem(source, f"the size of '{lazy[0]}' is not known yet; give lazy layers their sizes")
    if empty := [name for name, value in named if value.is_meta]:
        raise _problem(source, f"'{empty[0]}' has no values: it is on the device 'meta'")
    if not any(weight.requires_grad for weight in model.parameters()):
        raise _problem(source, f"the {type(model).__name__} has no parameters to train")
    for name, weight in model.named_parameters():
        if weight.dtype != torch.float32:
            raise _problem(source, f"parameters must be float32, and '{name}' is {weight.dtype}; use model.float()")


def _check_outputs(source: Source, model: nn.Module, shape: Size, outputs: int) -> None:
    def passed() -> object:
        with probing(model), torch.no_grad():
            return model(torch.zeros(_BATCH, *shape))

    found = _attempt(source, f"the model takes no batch of shape {(_BATCH, *shape)}", passed)
    if not isinstance(found, Tensor):
        raise _problem(source, f"the model returned a {type(found).__name__}; its output must be one tensor")
    if found.shape != (_BATCH, outputs) or not found.is_floating_point():
        raise _problem(
            source,
            f"for a batch of shape {(_BATCH, *shape)} the outputs must be floats of shape {(_BATCH, outputs)}, one "
            f"for each class; they are {found.dtype} of shape {tuple(found.shape)}",
        )
