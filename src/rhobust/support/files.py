"""Atomic writes of files, and the lock of a directory."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from rhobust.errors import RunError

LOCK = ".lock"


def write_atomically(path: Path, content: bytes) -> None:
    """Write so that a reader, or a crash at any moment, sees the old file or the new one, never a part."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if (path.exists() and not path.is_file()) or path.absolute().parts[1:2] in (("dev",), ("proc",)):
        with path.open("ab") as stream:  # a pipe or a device, /dev/stdout say, which cannot be replaced
            stream.write(content)
        return
    try:
        path = path.resolve()  # through a link, not in place of it
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, partial)
        os.replace(partial, path)  # noqa: PTH105 (one system call, the atomic one)
    finally:
        partial.unlink(missing_ok=True)
    with suppress(OSError):  # the file is there; that its name survives a power cut is more than some systems offer
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Only one process at a time writes into this directory; another one is refused at once."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(directory / LOCK).acquire(blocking=False)
    except Timeout:
        raise RunError(f"{directory} is being written by another process; wait for it, or stop it") from None
    with lock:
        yield


def write_json(path: Path, content: object) -> None:
    """Readable JSON, atomically; NaN and infinity are not JSON and are refused."""
    write_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
