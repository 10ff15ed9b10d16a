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
    modes = [(module, module.training) for module in model.modules() if module.training]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    buffers = [
        (module, name, buffer, buffer._version, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    devices = {weight.device for weight in model.parameters() if weight.is_cuda}
    recorded = any(capturing(weight) for weight in model.parameters())
    try:
        for module, _ in modes:
            module.training = False
        for weight in weights:
            weight.requires_grad_(False)
        with torch.random.fork_rng(devices=sorted(d.index for d in devices), enabled=not recorded):
            yield
    finally:
        for module, training in modes:
            module.training = training
        for weight in weights:
            weight.requires_grad_(True)
        with torch.no_grad():
            for module, name, buffer, version, before in buffers:
                setattr(module, name, buffer)  # a model may have put another tensor there
                if buffer._version != version:  # untouched ones may be part of a graph that is still to be used
                    buffer.copy_(before)
