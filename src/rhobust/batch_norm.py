"""Ways to train a model with BatchNorm, whose loss of one sample depends on the batch.

In training mode such a layer normalizes with the statistics of the batch. If one sample moves, the losses of the others
change, and the sup is not per sample. In evaluation mode it uses its running statistics, and samples stay apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rhobust.errors import DataError, Refused, unknown

WAYS = ("ascent-eval", "frozen", "refuse")
"""How BatchNorm is treated.

`ascent-eval`: running statistics in the ascent, those of the batch in the weights' step. `frozen`: running statistics
in both. `refuse`: a BatchNorm layer in training mode is refused.
"""

HELP = (
    "BatchNorm: ascent-eval (running statistics in the ascent, those of the batch in the training step), "
    "frozen (running ones in both) or refuse."
)

_WAYS_OUT = (
    "Use batch_norm='frozen', which keeps the running statistics in every pass, or convert the model with "
    "rhobust.models.to_group_norm(model)"
)

_BEYOND_THEORY = (
    "the ascent uses the running statistics of the BatchNorm layers, and the weights' step those of the batch. "
    f"This is common practice but outside the theory: the sup is of another function. {_WAYS_OUT}"
)


def check_way(batch_norm: object) -> None:
    """Refuse what is none of the ways."""
    if not isinstance(batch_norm, str) or batch_norm not in WAYS:
        raise Refused(unknown("batch_norm", batch_norm, WAYS))


def check_apart(model: nn.Module) -> None:
    """Refuse layers that let one sample of a batch see another in evaluation mode."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is None:
            raise Refused(_untracked(name, layer))


def check_batch_norm(model: nn.Module, batch_norm: str, moves: bool, size: int | None = None) -> str | None:
    """Refuse layers that the chosen way does not allow, and a batch of one sample, which has no statistics.

    The answer is what the user should know, if anything. `moves`: an ascent moves the samples. `size`: the number of
    samples in the batch, where there is one.
    """
    coupled = False
    for name, layer in model.named_modules():
        if not isinstance(layer, _BatchNorm) or not (layer.training or layer.running_mean is None):
            continue
        if layer.running_mean is None and (moves or batch_norm != "ascent-eval"):
            raise Refused(_untracked(name, layer))
        if batch_norm == "refuse":
            raise Refused(
                f"layer '{name}' ({type(layer).__name__}) normalizes with the statistics of the batch, so moving one "
                f"sample changes the loss of the others and the sup is no longer per sample. {_WAYS_OUT}"
            )
        if batch_norm == "ascent-eval":
            if size == 1 and not isinstance(layer, nn.SyncBatchNorm):  # which has the samples of other processes
                raise DataError(
                    f"layer '{name}' ({type(layer).__name__}) normalizes with the statistics of the batch, and a batch "
                    "of one sample has none. Choose a batch size that leaves no single sample at the end of an epoch, "
                    "drop that batch, or use batch_norm='frozen'"
                )
            coupled = True
    return _BEYOND_THEORY if coupled and moves else None


def check_federated(model: nn.Module, batch_norm: str) -> None:
    """Refuse BatchNorm layers whose running statistics a federation would have to train."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and batch_norm == "ascent-eval":
            raise Refused(
                f"layer '{name}' ({type(layer).__name__}) needs running statistics, and in a federation they never "
                f"move: uploads carry gradients only. {_WAYS_OUT}"
            )


@contextmanager
def frozen(model: nn.Module, batch_norm: str) -> Iterator[None]:
    """Around a training pass: where the way is `frozen`, BatchNorm layers are in evaluation mode."""
    found = model.modules() if batch_norm == "frozen" else ()
    layers = [layer for layer in found if isinstance(layer, _BatchNorm) and layer.training]
    try:
        for layer in layers:
            layer.training = False
        yield
    finally:
        for layer in layers:
            layer.training = True


def _untracked(name: str, layer: nn.Module) -> str:
    return (
        f"layer '{name}' ({type(layer).__name__}) has no running statistics and normalizes with the statistics of the "
        "batch in every mode, so moving one sample changes the loss of the others. Build it with "
        "track_running_stats=True, or convert the model with rhobust.models.to_group_norm(model)"
    )
