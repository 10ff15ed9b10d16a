"""NVIDIA's Multi-Process Service, by which several processes share one GPU.

Without it processes on one card take turns, and a step that leaves half of the card idle leaves it idle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
_PROBE = "import torch; torch.zeros(1, device='cuda')"


@contextmanager
def shared_card(say: Callable[[str], None]) -> Iterator[bool]:
    """A service of our own for as long as the block lasts, used by the processes started in it; whether there is one.

    The variables that lead to it are in the environment meanwhile.
    """
    control = shutil.which(_CONTROL)
    if control is None:
        say(f"{_CONTROL} is not here: processes take turns on the card")
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as directory:
        ours = {f"CUDA_MPS_{what}_DIRECTORY": str(Path(directory) / what.lower()) for what in ("PIPE", "LOG")}
        for path in ours.values():
            Path(path).mkdir()
        surroundings = os.environ | ours
        started = subprocess.run([control, "-d"], env=surroundings, capture_output=True, text=True, check=False)
        try:
            probe = [sys.executable, "-c", _PROBE]
            tried = subprocess.run(probe, env=surroundings, capture_output=True, text=True, check=False)
            if started.returncode or tried.returncode:
                said = (started.stderr + started.stdout + tried.stderr).strip().splitlines()
                say(f"{_CONTROL} does not work here ({said[-1] if said else 'no reason given'}): processes take turns")
                yield False
                return
            os.environ.update(ours)
            try:
                yield True
            finally:
                for name in ours:
                    del os.environ[name]
        finally:
            subprocess.run([control], input="quit\n", env=surroundings, capture_output=True, text=True, check=False)
