"""The archives of MNIST and Fashion-MNIST: four IDX files each, found, downloaded and verified.

They are looked for in the directory that is given (`data_dir`, or the variable RHOBUST_DATA), then in the cache, and
downloaded from the data sets' public mirrors where neither has them. Nothing is used before its bytes, decompressed,
have the published SHA-256.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rhobust.errors import DataError, TruncatedFile, WrongHash
from rhobust.support.files import write_atomically

_LARGEST = 60000 * 28 * 28 + 16  # bytes of the largest published file; a gzip bomb is not unpacked further


@dataclass(frozen=True)
class Archive:
    """One data set's files: their published hashes, and where they are offered."""

    name: str
    mirrors: tuple[str, ...]
    hashes: dict[str, str]  # part -> SHA-256 of the decompressed file

    def load(self, part: str, directory: Path | None) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Images (N, 28, 28) and labels (N,) of `train` or `t10k`."""
        try:
            return self._array(f"{part}-images", 3, directory), self._array(f"{part}-labels", 1, directory)
        except OSError as problem:
            raise DataError(f"{self.name} cannot be read or kept: {problem}") from None

    def _array(self, part: str, dimensions: int, directory: Path | None) -> NDArray[np.uint8]:
        path = self._find(part, dimensions, directory)
        with path.open("rb") as file:
            content = decompressed(file.read(_LARGEST + 1), path)
        if hashlib.sha256(content).hexdigest() != self.hashes[part]:
            raise WrongHash(f"{path} is not the published {self.name} {part}: its SHA-256 differs; replace the file")
        head = 4 * (1 + dimensions)  # an IDX file: a magic number, the sizes as big-endian 32-bit numbers, the values
        sizes = np.frombuffer(content[4:head], dtype=">u4")
        return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(sizes)

    def _find(self, part: str, dimensions: int, directory: Path | None) -> Path:
        """The file in the given directory or the cache; fetched into the cache where it is in neither."""
        name = f"{part}-idx{dimensions}-ubyte"
        given = [] if directory is None else [directory / self.name]
        if found := _first(given, name):  # before there need be a cache
            return found
        places = [*given, cache() / self.name]
        return _first(places, name) or self._download(part, f"{name}.gz", places)

    def _download(self, part: str, name: str, places: list[Path]) -> Path:
        problems = []
        for mirror in self.mirrors:
            try:
                content = fetch(mirror + name)
                if hashlib.sha256(decompressed(content, mirror + name)).hexdigest() != self.hashes[part]:
                    raise ValueError("what came is not the published file")
            except (ImportError, OSError, ValueError) as problem:
                problems.append(f"{mirror}: {type(problem).__name__}")
                continue
            target = cache() / self.name / name
            write_atomically(target, content)
            return target
        looked = " nor in ".join(str(place) for place in places)
        raise DataError(
            f"{self.name} is not in {looked}, and could not be downloaded ({', '.join(problems)}). "
            f"Put {name} (and the other three files) into {places[0]}, or point RHOBUST_DATA (or the data_dir that you "
            f"gave) to a directory that has them in {self.name}/"
        )


def _first(places: Sequence[Path], name: str) -> Path | None:
    """The file, plain or compressed."""
    candidates = (candidate for place in places for candidate in (place / name, place / f"{name}.gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def cache() -> Path:
    """Where downloads are kept."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rhobust"
    except RuntimeError:  # a container's user may have none
        raise DataError(
            "this user has no home directory to keep downloads in; set XDG_CACHE_HOME to a directory for them, or "
            "RHOBUST_DATA to one that has the data"
        ) from None


def fetch(address: str) -> bytes:
    """The content at an address, with a progress bar on a terminal."""
    import pooch

    with tempfile.TemporaryDirectory() as folder:
        downloader = pooch.HTTPDownloader(progressbar=os.isatty(2), timeout=30)
        pooch.get_logger().setLevel("WARNING")  # it announces every download, and that no hash was given: we check ours
        path = pooch.retrieve(address, known_hash=None, path=folder, fname="file", downloader=downloader)
        return Path(path).read_bytes()


def decompressed(content: bytes, source: Path | str) -> bytes:
    """Bytes, gzipped or not, as the file they stand for; `source` names them in errors."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_LARGEST + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
            raise TruncatedFile(
                f"{source} is damaged: its compression breaks off ({problem}); replace the file"
            ) from None
    if len(content) > _LARGEST:
        raise DataError(f"{source} is too long: no published file has more than {_LARGEST} bytes; replace the file")
    return content


MNIST = Archive(
    "mnist",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    {
        "train-images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)
FASHION_MNIST = Archive(
    "fashion-mnist",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    {
        "train-images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)
