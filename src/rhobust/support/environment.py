"""The versions, the device and the revision of the code that a result depends on."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rhobust.support.version import __version__


def environment(device: str) -> dict[str, Any]:
    """Here and now, with the device that is used."""
    return {
        "rhobust": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "git": _git_revision(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git_revision() -> str | None:
    """Of the directory the command runs in; none where it is no repository."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return answer.stdout.strip() or None
