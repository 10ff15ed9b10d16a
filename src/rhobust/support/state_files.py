"""Files of tensors and plain values, with a checksum and without pickle."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from rhobust.errors import RunError
from rhobust.support.files import write_atomically

_HEADER = "rhobust"


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
