"""The server's side of a deployed training: the run, whose sites are called through NVFlare."""

from __future__ import annotations

import json
import logging
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from rhobust.box import pair
from rhobust.data.samples import DataSet
from rhobust.deployment.nvflare_memory import MessageCollector
from rhobust.deployment.remote_workers import RemoteWorkers, printable
from rhobust.deployment.wire import Message
from rhobust.errors import ConfigError, Halted, RhobustError
from rhobust.federation.federated_engine import FederatedEngine
from rhobust.runs.build import federated_engine, server_of
from rhobust.runs.config import Config
from rhobust.runs.start import train_run
from rhobust.support.files import write_json
from rhobust.training.observers import Observer

FINISHED, STOPPED = "finished", "stopped"

_LOG = logging.getLogger("rhobust.coordinator")
_ABORTING = 1.0  # seconds between a site's hearing of an abort and the server's


class Coordinator:
    """Runs the rounds into a run directory: a new one if there are settings, else the existing one.

    How it ended is written to `report`, for the administrator who submitted the training. Once there is a `stop_file`
    beside it, no further round begins.
    """

    def __init__(self, out: str, report: str, sites: list[str], deadline: float, config: str = "") -> None:
        self.out, self.report, self.sites, self.deadline, self.config = out, report, sites, deadline, config
        self.missing: list[str] = []  # sites that are connected and whose process does not start
        self._collect_messages: MessageCollector | None = None

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """From the last checkpoint to the end."""
        outcome = STOPPED
        try:
            config = Config.resolve(tomllib.loads(self.config)) if self.config else None
            train_run(Path(self.out), config, _Log(), engine_of=self._engine)
            outcome = FINISHED
        except _Stop:
            pass
        except _Aborted:  # the outcome is STOPPED, too
            raise RunAborted from None
        except Exception as problem:
            outcome = str(problem) if isinstance(problem, RhobustError) else f"{type(problem).__name__}: {problem}"
            raise
        finally:
            write_json(Path(self.report), {"outcome": outcome})

    def _engine(self, config: Config, data: DataSet, device: torch.device) -> FederatedEngine:
        """The rounds of this job's sites."""
        settings: Message = {
            "config": config.to_toml(),
            "shape": list(data.train.x.shape[1:]),
            "classes": data.classes,
        }
        if config.table is None:
            settings["bounds"] = list(pair(data.bounds))
        elif config.table.clip_to_training:  # all sites prepare their rows alike, and keep to the same bounds
            settings["preprocessing"] = json.dumps(data.preprocessing)
        else:
            raise ConfigError(
                ["sites train on a table with clip_to_training=true only: without it each would have other bounds"]
            )
        present = [client.name for client in collab.clients if client.name not in self.missing]
        self._collect_messages = MessageCollector()
        sites = RemoteWorkers(self.sites, present, settings, self.deadline, self._call)
        return federated_engine(config, server_of(config, data, device), sites)

    def _call(
        self, names: Sequence[str], function: str, argument: Message, seconds: float
    ) -> tuple[Mapping[str, object], Mapping[str, str]]:
        """One function of several sites at once."""
        if stop_file(Path(self.report)).exists():
            raise _Stop
        if self._collect_messages:
            self._collect_messages()
        found = getattr(collab.get_clients(list(names))(timeout=seconds), function)(argument)
        reasons = {name: _reason(error, seconds) for name, error in found.failures.items()}
        # A site that fails at once may have heard of an abort before the server. After a timeout the server knows, too.
        quick = not all(isinstance(_cause(error), TimeoutError) for error in found.failures.values())
        if reasons and _is_aborted(_ABORTING if quick else 0.0):
            raise _Aborted  # sites that are being shut down have not failed: no round without them
        return dict(found), reasons


class _Stop(Halted):
    """The administrator asked for a stop."""


class _Aborted(Halted):
    """The engine ends the job."""


def _is_aborted(seconds: float) -> bool:
    """Whether the engine has ended the job, or does within the given seconds."""
    until = time.monotonic() + seconds
    while not collab.is_aborted and time.monotonic() < until:
        time.sleep(0.05)
    return bool(collab.is_aborted)


def stop_file(report: Path) -> Path:
    """The file that asks for a stop."""
    return report.with_name(f"{report.name}.stop")


class _Log(Observer):
    """Writes the warnings of a training to the server's log."""

    def warned(self, message: str) -> None:
        _LOG.warning(message)


def _reason(error: Exception, seconds: float) -> str:
    """Why a call failed, in one line."""
    cause = _cause(error)
    if isinstance(cause, TimeoutError):
        return f"no answer within {seconds:g} s"
    return f"cannot be reached: {printable(' '.join(str(cause).split()), 200)}"


def _cause(error: Exception) -> object:
    return getattr(error, "cause", error)
