"""A per-sample loss that checks its inputs and its values."""

from __future__ import annotations

from torch import Tensor, nn

from rhobust.losses import PerSampleLoss, check_cross_entropy
from rhobust.validator import check_classes, check_labels, check_loss, check_output


class CheckedLoss:
    """The loss of the model's output, (B,), where output, labels and loss are as the theory needs them.

    What cannot change from batch to batch is looked at once, at the first output: from then on it is known whether the
    labels are class numbers. `wants_classes`: they must be, since a margin is climbed.
    """

    def __init__(self, loss: PerSampleLoss, wants_classes: bool) -> None:
        self.loss, self.wants_classes = loss, wants_classes
        self.classes: int | None = None
        """How many classes there are; 0 where the labels are no class numbers, none before the first output."""

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        known = self.classes is not None
        classes = self._count(output, y) if self.classes is None else self.classes
        loss = self.loss(output, y)
        if self.wants_classes and not (known and classes):
            check_classes(y, output)  # one output: whether y holds classes, only its values tell
        self.classes = classes
        check_loss(loss, len(y))
        return loss

    def _count(self, output: Tensor, y: Tensor) -> int:
        check_output(output)
        if isinstance(self.loss, nn.CrossEntropyLoss):  # our own looks itself
            check_cross_entropy(output, y)
        if not (output.ndim == 2 and output.shape[1] > 1 and y.ndim == 1 and not y.is_floating_point()):
            return 0
        check_labels(y, output.shape[1])
        return output.shape[1]
