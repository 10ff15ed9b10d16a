"""Observers of a training, which see its steps and its warnings."""

from __future__ import annotations

from rhobust.support.user_warnings import warn_user
from rhobust.training.record import Record


class Observer:
    """Watches a training. This one does nothing."""

    def started(self, steps: int | None, start: int, radius: float | None) -> None:
        """Before the first step: how many there are in all, if known, and how many are already done."""

    def stepped(self, record: Record) -> None:
        """After each step."""

    def warned(self, message: str) -> None:
        """Something was put right that the user should know of."""


class Warner(Observer):
    """Hands on what the user should know as Python's warnings."""

    def warned(self, message: str) -> None:
        warn_user(message)
