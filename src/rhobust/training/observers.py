"""Observers of a training, which see its steps, its warnings and the ends of its epochs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from rhobust.errors import Refused
from rhobust.support.user_warnings import warn_user
from rhobust.training.record import Record


class Observer:
    """Watches a training, and may end it: subclass it, override what you need, pass it to `fit(observer=...)`.

    An error that a method raises ends the training and reaches the caller. A run directory then keeps its last
    checkpoint.

    >>> class EarlyStop(Observer):  # after three epochs without a better test loss
    ...     def __init__(self, x, y):
    ...         self.x, self.y, self.losses = x, y, []
    ...     def epoch_ended(self, number, model):
    ...         with torch.no_grad():
    ...             self.losses.append(nn.functional.cross_entropy(model.eval()(self.x), self.y).item())
    ...         return min(self.losses) not in self.losses[-3:]
    >>> from rhobust import fit
    >>> x = torch.randn(96, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> watch, model = EarlyStop(x[64:], y[64:]), nn.Linear(3, 2)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    >>> trained = fit(model, (x[:64], y[:64]), radius=0.5, epochs=1000, optimizer=optimizer, observer=watch)
    >>> len(trained.history) == len(watch.losses) < 1000
    True
    """

    def started(self, steps: int | None, start: int, radius: float | None) -> None:
        """Before the first step: how many there are in all, if known, and how many are already done."""

    def stepped(self, record: Record) -> None:
        """The log: the record of each step, in their order; on a GPU those of many steps come together."""

    def warned(self, message: str) -> None:
        """Something that the user should know of; here it becomes one of Python's warnings."""
        warn_user(message)

    def epoch_ended(self, number: int, model: nn.Module) -> bool | None:
        """Where an epoch ends, counted from 0: True ends the training here, False or None goes on.

        The model has its current weights; with `ema` the averaged ones come when the training is over. It may be put
        into evaluation mode and draw random numbers: modes and generators come back as they were. Its weights are the
        training's own: leave them alone. A run that goes on from a checkpoint at the end of an epoch asks again.
        """
        return None


class Silent(Observer):
    """Drops the warnings."""

    def warned(self, message: str) -> None:
        pass


def asked_to_end(observer: Observer, number: int, model: nn.Module) -> bool:
    """The observer's answer where an epoch ends; its look leaves no trace in the training."""
    with _untouched(model):
        answer: object = observer.epoch_ended(number, model)
    if answer is None or isinstance(answer, bool):
        return bool(answer)
    raise Refused(
        f"{type(observer).__name__}.epoch_ended must return True to end the training, or False or None to go on, not "
        f"{answer!r}; bool(...) makes one of an array or a tensor"
    )


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """The modes of the model and the generators come back as they were."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {weight.get_device() for weight in model.parameters() if weight.is_cuda}
    try:
        with torch.random.fork_rng(devices=sorted(devices)):
            yield
    finally:
        for module, training in modes:
            module.training = training
