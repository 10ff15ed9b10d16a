"""Models with BatchNorm, converted to GroupNorm, which normalizes every sample by itself."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from rhobust.errors import Refused

_MOST_GROUPS = 32  # as in the paper of GroupNorm (Wu and He, 2018)
_FEWEST_CHANNELS = 4  # in a group: the value of a group of one would always be 0 for samples without pixels


def to_group_norm(model: nn.Module) -> nn.Module:
    """A copy in which every BatchNorm layer (1d, 2d, 3d) is a GroupNorm with the same affine weights.

    The number of groups is the largest divisor of the channels that is at most 32 and leaves four channels or more in a
    group: 4 groups for 16 channels, 16 for 64, 1 where no other number will do. The model itself stays as it is. The
    copy computes another function, since running statistics are dropped: convert a model before it is trained. An
    optimizer must be built over the weights of the copy.

    >>> converted = to_group_norm(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)))
    >>> type(converted[1]).__name__, converted[1].num_groups
    ('GroupNorm', 4)
    """
    if not isinstance(model, nn.Module):
        raise Refused(f"to_group_norm takes a model, an nn.Module, not {model!r}")
    if any(isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params() for layer in model.modules()):
        raise Refused("the model has layers that do not know their sizes yet: run one batch through it first")
    converted = copy.deepcopy(model)
    if isinstance(converted, _BatchNorm):
        return _group_norm(converted)
    made: dict[nn.Module, nn.GroupNorm] = {}  # a layer that is used in several places stays one
    for name, layer in list(converted.named_modules(remove_duplicate=False)):
        if isinstance(layer, _BatchNorm):
            made[layer] = made.get(layer) or _group_norm(layer)
            converted.set_submodule(name, made[layer])
    return converted


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    groups = max(
        groups
        for groups in range(1, _MOST_GROUPS + 1)
        if channels % groups == 0 and (groups == 1 or channels // groups >= _FEWEST_CHANNELS)
    )
    converted = nn.GroupNorm(groups, channels, layer.eps, layer.affine)
    converted.weight, converted.bias = layer.weight, layer.bias
    return converted.train(layer.training)
