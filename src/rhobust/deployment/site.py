"""A site: it holds its own data, and answers a task with the gradient of its objective."""

from __future__ import annotations

import json
import logging
import os
import threading
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from nvflare.collab import collab
from torch import Tensor

from rhobust.data.catalog import DATA, load_data
from rhobust.data.samples import TASKS, DataSet, Samples
from rhobust.data.table import Table
from rhobust.data.table_settings import TableSettings
from rhobust.deployment.nvflare_memory import MessageCollector, shorten_message_repr
from rhobust.deployment.wire import Message, from_upload, to_task
from rhobust.errors import ConfigError, DataError, RhobustError, unknown
from rhobust.federation.worker import Worker
from rhobust.models.source import Source, is_own
from rhobust.runs.build import compose_run, work_of
from rhobust.runs.config import Config
from rhobust.support.toml import read_toml

_LOG = logging.getLogger("rhobust.site")
_COORDINATOR = "server"  # the engine's name for the process of the job's controller
_KEYS = ("data", "data_dir", "share", "model")


class OtherModel(RhobustError):
    """The site has no copy of the model that is trained. The message may leave the site, so it names no file there."""


@dataclass(frozen=True)
class LocalData:
    """What a site's own file, site.toml, says of its data, and of its copy of the model."""

    data: str
    data_dir: str | None = None
    share: str | None = None
    model: str | None = None

    @classmethod
    def read(cls, path: Path) -> LocalData:
        """The file's settings, with paths relative to its folder; one error lists every problem."""
        found = read_toml(path)
        problems = [unknown("key", key, _KEYS) for key in found if key not in _KEYS]
        problems += [f"{key} must be text" for key in _KEYS if not isinstance(found.get(key, ""), str)]
        if "data" not in found:
            problems.append("data is missing: a name or a path")
        if problems:
            raise ConfigError(f"{path}: {problem}" for problem in problems)
        local = cls(**found)
        local.part(1)  # raises if the share is wrong
        if local.model is not None:
            local = replace(local, model=str(Source.parse(local.model).inside(path.parent)))
        if local.data not in DATA:
            local = replace(local, data=str(path.parent / local.data))
        return local if local.data_dir is None else replace(local, data_dir=str(path.parent / local.data_dir))

    def load(self, task: str = TASKS[0], table: TableSettings | None = None, learned: Table | None = None) -> DataSet:
        """The data; training samples only those of the share. Rows of a table are prepared as the coordinator says."""
        if table is not None and table.test_file is not None:  # which is the coordinator's
            table = replace(table, test=None)
        data = load_data(self.data, self.data_dir, task=task, table=table, learned=learned)
        return replace(data, train=data.train[self.part(len(data.train))])

    def with_own_model(self, config: Config) -> Config:
        """The settings with this site's copy of the model, whose source must be the coordinator's.

        The coordinator chooses among the models of the library. Of other code only what site.toml names is run.
        """
        if not is_own(config.model):
            return config
        wanted, digest = Source.parse(config.model), config.model_digest
        named = f"{wanted.label} with the SHA-256 {digest}"
        if self.model is None:
            raise OtherModel(f"its site.toml names no model; install {named} there and name it")
        own = Source.parse(self.model)
        try:
            found = own.digest()
        except ConfigError as problem:
            _LOG.warning("%s", problem)
            found = "none, as its file is not there"
        if (own.factory, found) != (wanted.factory, digest):
            raise OtherModel(f"its model is {own.factory} with the SHA-256 {found}; install {named} there")
        return replace(config, model=self.model)

    def part(self, samples: int) -> slice:
        """This site's part of the samples: all of them, or every n-th from the k-th on for a share of "k/n".

        >>> LocalData("digits", share="2/3").part(8)
        slice(1, 8, 3)
        """
        if self.share is None:
            return slice(0, samples)
        try:
            k, n = (int(word) for word in self.share.split("/"))
        except ValueError:
            k, n = 0, 0
        if not 1 <= k <= n:
            raise ConfigError([f"share must read k/n with 1 <= k <= n, such as 1/3, not '{self.share}'"])
        return slice(k - 1, samples, n)


@dataclass(frozen=True)
class SiteWork:
    """Everything a site needs to answer: what is trained, on what, and its number among the workers."""

    worker: Worker
    samples: Samples
    number: int

    @classmethod
    def built(cls, settings: Message, local: LocalData, name: str) -> SiteWork:
        """From the coordinator's settings and the site's own data, which must fit each other."""
        config = local.with_own_model(Config.resolve(tomllib.loads(settings["config"]), here=False))
        learned = Table.from_json(json.loads(settings["preprocessing"])) if config.table else None
        data = local.load(config.task, config.table, learned)
        shape, classes = torch.Size(settings["shape"]), int(settings["classes"])
        bounds = learned.box() if learned else (float(settings["bounds"][0]), float(settings["bounds"][1]))
        if data.train.x.shape[1:] != shape:
            raise DataError(f"samples here are {tuple(data.train.x.shape[1:])}, the model takes {tuple(shape)}")
        if not len(data.train):
            raise DataError("there are no samples here; is the share larger than the data?")
        if classes and int(data.train.y.max()) >= classes:
            raise DataError(f"the label {int(data.train.y.max())} is here, but the model has {classes} classes")
        if isinstance(bounds, tuple):
            _check_inside(data.train.x, bounds)
        device = torch.device(config.device if torch.cuda.is_available() else "cpu")
        torch.set_num_threads(min(config.threads or 1, os.cpu_count() or 1))
        common = DataSet(data.name, data.train, data.test, bounds, classes)
        objective, _ = compose_run(config, common, device)
        worker = Worker(objective, work_of(config), _LOG.warning)
        return cls(worker, data.train, settings["workers"].index(name))


def _check_inside(x: Tensor, bounds: tuple[float, float]) -> None:
    low, high = float(x.min()), float(x.max())
    lower, upper = torch.tensor(bounds, dtype=x.dtype).tolist()  # a float32 of -0.1 is below the double
    if not lower <= low <= high <= upper:
        raise DataError(f"samples here run from {low:g} to {high:g}, beyond the bounds {bounds}")


class Site:
    """The functions that the coordinator calls.

    The engine lets every party of a job call every other. A party that chooses the tasks of a site can reconstruct its
    samples from the answers, so the site answers the coordinator only. Answers are plain values; of a failure only its
    kind leaves the site.
    """

    def __init__(self) -> None:
        self._site_work: SiteWork | None = None
        self._collect_messages: MessageCollector | None = None
        self._busy = threading.Lock()

    @collab.publish  # type: ignore[untyped-decorator]
    def prepare(self, settings: dict) -> dict:  # type: ignore[type-arg]
        """Load the data and build the model, once; the answer is how many samples there are."""
        return self._answered(lambda: self._prepared(settings, collab.site_name))

    @collab.publish  # type: ignore[untyped-decorator]
    def gradient(self, task: dict) -> dict:  # type: ignore[type-arg]
        """The upload for a task."""
        return self._answered(lambda: self._gradient(task))

    def local(self) -> LocalData:
        """What the file in the site's own kit says."""
        return LocalData.read(Path(collab.workspace.get_root_dir()) / "site.toml")

    def _prepared(self, settings: Message, name: str) -> Message:
        if self._site_work is None:
            self._site_work = SiteWork.built(settings, self.local(), name)
            shorten_message_repr()
            self._collect_messages = MessageCollector()
        return {"samples": len(self._site_work.samples)}

    def _gradient(self, task: Message) -> Message:
        if self._site_work is None or self._collect_messages is None:
            raise RhobustError("a task before the settings")
        self._collect_messages()
        prepared = self._site_work
        return from_upload(prepared.worker.upload(prepared.samples, to_task(task), prepared.number))

    def _answered(self, work: Callable[[], Message]) -> dict[str, Any]:
        """The answer, or the kind of problem: its message may name files and values, and stays in the site's own log.
        Only that of `OtherModel` goes out.

        One call at a time: a site that is still busy with an earlier round answers `Busy`.
        """
        if collab.caller != _COORDINATOR:
            _LOG.warning("%s called, and only the coordinator may", collab.caller)
            return {"problem": "Stranger"}
        if not self._busy.acquire(blocking=False):
            return {"problem": "Busy"}
        try:
            return work()
        except OtherModel as problem:
            _LOG.warning("cannot answer: %s", problem)
            return {"problem": str(problem)}
        except Exception as problem:
            _LOG.exception("cannot answer")
            return {"problem": type(problem).__name__}
        finally:
            self._busy.release()
