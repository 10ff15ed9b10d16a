"""Files that are either whole or not there: atomic writes, and tensors with a digest instead of pickles."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from rhobust.errors import RunError

LOCK = ".lock"
_HEADER = "rhobust"


def write_atomically(path: Path, content: bytes) -> None:
    """Write so that a reader, or a crash at any moment, sees the old file or the new one, never a part."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if (path.exists() and not path.is_file()) or path.absolute().parts[1:2] in (("dev",), ("proc",)):
        with path.open("ab") as stream:  # a pipe or a device, /dev/stdout say, which cannot be replaced
            stream.write(content)
        return
    try:
        path = path.resolve()  # through a link, not in place of it
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, partial)
        os.replace(partial, path)  # noqa: PTH105 (one system call, the atomic one)
    finally:
        partial.unlink(missing_ok=True)
    with suppress(OSError):  # the file is there; that its name survives a power cut is more than some systems offer
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Only one process at a time writes into this directory; another one is refused at once."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(directory / LOCK).acquire(blocking=False)
    except Timeout:
        raise RunError(f"{directory} is being written by another process; wait for it, or stop it") from None
    with lock:
        yield


def write_json(path: Path, content: object) -> None:
    """Readable JSON, atomically; NaN and infinity are not JSON and are refused."""
    write_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Any nesting of dicts, lists, tuples, numbers, strings and tensors, as safetensors with a SHA-256 digest."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_pack(state, tensors))
    # One key alone: safetensors writes several in no fixed order, and equal states should be equal bytes.
    header = json.dumps({"digest": _digest(structure, tensors), "structure": structure})
    write_atomically(path, safetensors.torch.save(tensors, {_HEADER: header}))


def read_state(path: Path) -> dict[str, Any]:
    """What `write_state` wrote, tensors on the CPU; a damaged file is named, never half-read."""
    try:
        with path.open("rb") as file:  # by us: the library takes no name that is not UTF-8
            content = file.read(os.fstat(file.fileno()).st_size)  # a device has no end, and no size
        tensors = safetensors.torch.load(content)
        size = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][_HEADER])
        structure = header["structure"]
        sound = header["digest"] == _digest(structure, tensors)
        state: dict[str, Any] = dict(_unpack(json.loads(structure), tensors)) if sound else {}
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except PermissionError:
        raise RunError(f"{path} may not be read by this user") from None
    except Exception as problem:  # bytes of any kind can stand here, and every layer stumbles in its own way
        raise RunError(f"{path} is damaged or not ours ({type(problem).__name__})") from None
    if not sound:
        raise RunError(f"{path} is damaged: its content does not match its checksum")
    return state


def _digest(structure: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(structure.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _pack(part: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON that stands for `part`; tensors are put aside under a number."""
    if isinstance(part, Tensor):
        name = f"{len(tensors):05d}"
        tensors[name] = part.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(part, dict):  # as pairs: keys need not be strings
        return {"dict": [[_pack(key, tensors), _pack(value, tensors)] for key, value in part.items()]}
    if isinstance(part, tuple | list):
        return {type(part).__name__: [_pack(item, tensors) for item in part]}
    if part is None or isinstance(part, bool | int | float | str):
        return part
    raise RunError(f"cannot write a {type(part).__name__} without pickling it")


def _unpack(part: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(part, dict):
        return part
    ((kind, content),) = part.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_unpack(key, tensors): _unpack(value, tensors) for key, value in content}
    return {"list": list, "tuple": tuple}[kind](_unpack(item, tensors) for item in content)
