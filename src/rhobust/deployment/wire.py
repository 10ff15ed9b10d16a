"""The wire format: numbers, text and vectors as raw bytes, checked on arrival.

    task      round, theta, gamma
    upload    round, theta (its gradient), gamma (its gradient), samples, loss, gradients

Every message is checked on arrival; a wrong one raises a `ValueError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rhobust.federation.messages import Task, Upload

Message = dict[str, Any]
"""Names with an int, a float, a str, bytes, or a list or dict of such."""

_TYPES = {torch.float32: "<f4", torch.float64: "<f8"}
_VECTOR = {"type": str, "numbers": bytes}
_TASK = {"round": int, "theta": dict, "gamma": float}
_UPLOAD = {"round": int, "theta": dict, "gamma": float, "samples": int, "loss": float, "gradients": int}


def from_task(task: Task) -> Message:
    """A task as a message."""
    return {"round": task.round, "theta": _packed(task.theta), "gamma": task.gamma}


def to_task(message: object) -> Task:
    """The task in a message.

    >>> to_task(from_task(Task(3, torch.tensor([0.5, -1.0]), 2.0)))
    Task(round=3, theta=tensor([ 0.5000, -1.0000]), gamma=2.0)
    """
    fields = _checked(message, _TASK, "task")
    return Task(fields["round"], _unpacked(fields["theta"]), fields["gamma"])


def from_upload(upload: Upload) -> Message:
    """An upload as a message."""
    return {
        "round": upload.round,
        "theta": _packed(upload.theta),
        "gamma": upload.gamma,
        "samples": upload.samples,
        "loss": upload.loss,
        "gradients": upload.gradients,
    }


def to_upload(message: object) -> Upload:
    """The upload in a message."""
    fields = _checked(message, _UPLOAD, "answer")
    return Upload(**(fields | {"theta": _unpacked(fields["theta"])}))


def _packed(vector: Tensor) -> Message:
    kind = _TYPES[vector.dtype]
    return {"type": kind, "numbers": vector.detach().cpu().numpy().astype(kind, copy=False).tobytes()}


def _unpacked(message: object) -> Tensor:
    fields = _checked(message, _VECTOR, "vector")
    if fields["type"] not in _TYPES.values():
        raise ValueError(f"its vector is of type {fields['type']!r}")
    kind = np.dtype(fields["type"])
    if len(fields["numbers"]) % kind.itemsize:
        raise ValueError("its vector ends within a number")
    return torch.from_numpy(np.frombuffer(fields["numbers"], kind).astype(kind.newbyteorder("="), copy=True))


def _checked(message: object, kinds: Mapping[str, type], what: str) -> Message:
    """The message, if it has these fields of exactly these types, and no others."""
    if not isinstance(message, dict):
        raise ValueError(f"its {what} is a {type(message).__name__}, not a dict")
    if message.keys() != kinds.keys():
        raise ValueError(f"its {what} has the fields {', '.join(sorted(map(str, message)))}")
    for name, kind in kinds.items():
        if type(message[name]) is not kind:
            raise ValueError(f"its {what} has {name} of type {type(message[name]).__name__}, not {kind.__name__}")
    return message
