"""Forward passes through a model that leave no side effects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from rhobust.support.compiling import capturing


@contextmanager
def probing(model: nn.Module) -> Iterator[None]:
    """Run passes through the model that leave no trace, also when one of them raises.

    Evaluation mode (the sup is of one function, so no dropout), no weight gradients (they would be
    computed for nothing); modes, flags, buffers and the generators come back as they were.
    """
    modules, every = list(model.modules()), list(model.parameters())  # walked once: a step may be short
    training = [module for module in modules if module.training]
    weights = [weight for weight in every if weight.requires_grad]
    buffers = [
        (module, name, buffer, buffer._version, buffer.clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = {weight.device for weight in every if weight.is_cuda}
    recorded = any(capturing(weight) for weight in every)
    try:
        for module in training:
            module.training = False
        for weight in weights:
            weight.requires_grad_(False)
        with torch.random.fork_rng(devices=sorted(d.index for d in devices), enabled=not recorded):
            yield
    finally:
        for module in training:
            module.training = True
        for weight in weights:
            weight.requires_grad_(True)
        with torch.no_grad():
            for module, name, buffer, version, before in buffers:
                if module._buffers.get(name) is not buffer:  # a model may have put another tensor there
                    setattr(module, name, buffer)
                if buffer._version != version:  # untouched ones may be part of a graph that is still to be used
                    buffer.copy_(before)
