"""What the commands share: where they speak, and how they read lists."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from rhobust.errors import ConfigError

OUT = Console()
ERR = Console(stderr=True)

Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


def numbers(option: str, text: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(word) for word in text.split(",")] if text else []
    except ValueError:
        raise ConfigError([f"{option} takes numbers separated by commas, not '{text}'"]) from None


def names(text: str) -> list[str]:
    """Names separated by commas, each once, in their order."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
