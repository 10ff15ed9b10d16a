"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings

_PASSED_THROUGH = {"rhobust", "torch"}  # a module is called through torch


def warn_user(message: str) -> None:
    """Warn as from the line that called into the library."""
    frame, depth = sys._getframe(), 1
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_THROUGH:
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, stacklevel=depth)
