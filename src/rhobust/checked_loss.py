"""The value of a per-sample loss, with checks of its inputs and of what it returns."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rhobust.errors import Refused
from rhobust.losses import PerSampleLoss, check_cross_entropy, is_regression, losses_of
from rhobust.validator import check_classes, check_labels, check_loss


class CheckedLoss:
    """The loss of the model's output, (B,), where output, labels and loss are as the theory needs them.

    What cannot change from batch to batch is looked at once, at the first output: from then on it is known whether the
    labels are class numbers. An output that is no tensor, such as a tuple or a dict, is for the loss to read.
    """

    def __init__(self) -> None:
        self.classes: int | None = None
        """How many classes there are; 0 where the labels are no class numbers, none before the first output."""

    def __call__(self, loss: PerSampleLoss, output: Any, y: Tensor, wants_classes: bool) -> Tensor:
        """The values of `loss`. Where the labels must be class numbers, since a margin is climbed: `wants_classes`."""
        known = self.classes is not None
        classes = self._count(loss, output, y) if self.classes is None else self.classes
        values = _read(loss, output, y)
        if wants_classes and not (known and classes):
            check_classes(y, output, loss)  # one output: whether y holds classes, only its values tell
        self.classes = classes
        check_loss(values, len(y))
        return values

    def _count(self, loss: PerSampleLoss, output: Any, y: Tensor) -> int:
        if isinstance(loss, nn.CrossEntropyLoss):  # our own looks itself
            check_cross_entropy(output, y)
        if not isinstance(output, Tensor) or is_regression(loss):
            return 0
        if not (output.ndim == 2 and output.shape[1] > 1 and y.ndim == 1 and not y.is_floating_point()):
            return 0
        check_labels(y, output.shape[1])
        return output.shape[1]


def _read(loss: PerSampleLoss, output: Any, y: Tensor) -> Tensor:
    """The loss; of an output that is no tensor, with a clear error where it cannot read that."""
    if isinstance(output, Tensor):
        return losses_of(loss, output, y)
    try:
        return losses_of(loss, output, y)
    except (TypeError, AttributeError, LookupError) as problem:
        raise Refused(
            f"the model returned a {type(output).__name__}, which the loss cannot read ({problem}). Pass a loss= that "
            "picks what it needs, such as lambda output, y: cross_entropy(output[0], y)"
        ) from None
