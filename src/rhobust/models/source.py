"""Sources of models of one's own: the file of a factory, found and identified by its digest without running it."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from pathlib import Path

from rhobust.errors import ConfigError

FORM = "FILE.py:FACTORY or PACKAGE.MODULE:FACTORY"


def is_own(model: str) -> bool:
    """Whether this names a factory, or was meant to, and no model of the library.

    >>> is_own("nets.py:wide"), is_own("mlp")
    (True, False)
    """
    return ":" in model or model.endswith(".py")


@dataclass(frozen=True)
class Source:
    """A factory and the place where it is written."""

    place: str
    """A file that ends in .py, or the dotted name of a module."""
    factory: str

    @classmethod
    def parse(cls, model: str) -> Source:
        """As `--model` names it.

        >>> Source.parse("nets.py:wide")
        Source(place='nets.py', factory='wide')
        """
        if ":" not in model:
            raise ConfigError([f"model '{model}' names no factory; write {model}:FACTORY"])
        place, _, factory = model.rpartition(":")
        found = cls(place, factory)
        module = all(part.isidentifier() for part in place.split("."))
        if not (factory.isidentifier() and (found.is_file or module)):
            raise ConfigError([f"model '{model}' is no factory: write {FORM}"])
        return found

    def __str__(self) -> str:
        return f"{self.place}:{self.factory}"

    @property
    def is_file(self) -> bool:
        """Whether it is given by the path of a file."""
        return self.place.endswith(".py")

    @property
    def label(self) -> str:
        """The same for a reader, without the folder.

        >>> Source.parse("/home/me/nets.py:wide").label
        'nets.py:wide'
        """
        return str(replace(self, place=Path(self.place).name))

    def inside(self, folder: Path) -> Source:
        """The same, where the path of a file starts from this folder."""
        return replace(self, place=str(folder / self.place)) if self.is_file else self

    @property
    def path(self) -> Path:
        """The file of the source."""
        if self.is_file:
            return Path(self.place)
        spec = _spec(self.place)
        if spec is None:
            raise ConfigError(
                [f"model '{self}': Python finds no module '{self.place}'; install it, or name its file: {FORM}"]
            )
        if not (spec.has_location and spec.origin):
            raise ConfigError([f"model '{self}': the module '{self.place}' has no file, so it has no digest"])
        return Path(spec.origin)

    def read(self) -> bytes:
        """The source as bytes."""
        path = self.path
        try:
            if path.is_file():  # a pipe would be waited for
                return path.read_bytes()
            problem = "is no file" if path.exists() else "does not exist"
        except (OSError, ValueError) as error:
            problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError([f"model '{self}': {path} {problem}"])

    def digest(self) -> str:
        """SHA-256 of the source."""
        return digest_of(self.read())

    def checked(self, digest: str | None) -> bytes:
        """The source, which must have this digest."""
        content = self.read()
        if digest is None:
            raise ConfigError([f"model '{self}': the settings have no model_digest, which says that it is the source"])
        if (found := digest_of(content)) != digest:
            raise ConfigError(
                [
                    f"model '{self}': {self.path} has changed. Its SHA-256 is {found}, and model_digest is {digest}. "
                    "Put the file back as it was; for a new run of the file as it is now, drop model_digest"
                ]
            )
        return content


def digest_of(content: bytes) -> str:
    """SHA-256, as a run keeps it."""
    return hashlib.sha256(content).hexdigest()


def digest_problems(key: str, digest: str) -> Iterator[str]:
    """What is wrong with the text of a digest."""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        yield f"{key} must be a SHA-256, 64 digits of 0-9 and a-f, not '{digest}'"


def _spec(module: str) -> ModuleSpec | None:
    """Where a module lies. `importlib.util.find_spec` would run the packages around it."""
    importlib.invalidate_caches()  # a file may be new
    name, *rest = module.split(".")
    spec = next(filter(None, (finder.find_spec(name, None) for finder in sys.meta_path)), None)
    for part in rest:
        name = f"{name}.{part}"
        places = (spec and spec.submodule_search_locations) or ()
        importers = filter(None, map(pkgutil.get_importer, places))
        spec = next(filter(None, (importer.find_spec(name) for importer in importers)), None)
    return spec
