"""Trainings handed to a federation that is up: submitted, followed, continued when a site comes back, stopped."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.job_config.api import FedJob

from rhobust.config import Config
from rhobust.engines.federated import FederatedRecord
from rhobust.engines.nvflare.coordinator import Coordinator
from rhobust.engines.nvflare.kits import ADMIN, FederationError, Kits
from rhobust.engines.nvflare.site import Site
from rhobust.runner import federation_of
from rhobust.runs import Run
from rhobust.trainer import Observer

_LOGIN = 10.0  # seconds
_LOOK = 2.0  # seconds between two looks at who is connected
_STOP = 30.0  # seconds for a stopped training to write its checkpoint
_FINISHED = "FINISHED:"


def job_of(coordinator: Coordinator) -> FedJob:
    """The training as the engine takes it: the names of our two classes and the settings; no code."""
    job = FedJob(name="rhobust", min_clients=1)
    job.set_app_packages(["rhobust"])
    server = job.to_server(coordinator, id="coordinator")
    job.to_server(CollabController(server_obj_id=server), id="controller")
    client = job.to_clients(Site(), id="site")
    job.to_clients(CollabExecutor(client_obj_id=client), id="executor", tasks=["*"])
    return job


@contextlib.contextmanager
def admin(kits: Kits) -> Iterator[Session]:
    """The server's ear."""
    try:
        with _hushed():
            session = new_secure_session(ADMIN, str(kits.admin), timeout=_LOGIN)
    except Exception as problem:
        raise FederationError(
            f"the server at {kits.host}:{kits.port} cannot be reached ({problem}); "
            f"start it with rhobust federation start {kits.path}"
        ) from None
    try:
        yield session
    finally:
        with _hushed(), contextlib.suppress(Exception):
            session.close()


def connected(session: Session) -> dict[str, float]:
    """The sites that are connected now, and when each was heard of last."""
    return {client.name: client.last_connect_time for client in session.get_connected_client_list()}


@dataclass
class Submission:
    """A training that a federation is asked for.

    The server takes it through as many of the engine's jobs as needed: one, unless a site that was lost comes back. Then
    the job is stopped with a checkpoint, and the next goes on from there with everybody.
    """

    kits: Kits
    out: Path
    deadline: float
    observer: Observer
    config: Config | None = None
    _seen: int = field(default=0, init=False)

    def follow(self) -> Run:
        """Until the model is there. An interrupt stops the training after a checkpoint."""
        run = Run(self.out.resolve())
        known = run.config() if self.config is None else self.config
        needed = federation_of(known).quorum
        self.observer.started(federation_of(known).rounds, 0, known.radius)
        with admin(self.kits) as session:
            while not run.finished:
                present = sorted(connected(session))
                if len(present) < needed:
                    absent = ", ".join(site for site in self.kits.sites if site not in present)
                    raise FederationError(f"{needed} sites are needed and {len(present)} are connected; missing: {absent}")
                self._one_job(session, run, present)
                self.config = None  # whatever comes next goes on from here
        return run

    def _one_job(self, session: Session, run: Run, present: list[str]) -> None:
        report = self.kits.path / "reports" / f"{uuid.uuid4()}.json"
        settings = "" if self.config is None else self.config.to_toml()
        coordinator = Coordinator(str(run.path), str(report), list(self.kits.sites), self.deadline, settings)
        job = self._submitted(session, coordinator)
        try:
            ended = self._watched(session, run, job, report, present)
        except BaseException:
            self._stopped(session, job, report)
            raise
        finally:
            outcome = _outcome(report)
            report.unlink(missing_ok=True)
        self._show(run)
        if outcome not in ("finished", "stopped") or (outcome == "stopped" and ended):
            raise FederationError(outcome if outcome != "nothing" else f"the training ended without a word ({ended})")

    def _submitted(self, session: Session, coordinator: Coordinator) -> str:
        with tempfile.TemporaryDirectory() as folder, _hushed():
            job_of(coordinator).export_job(folder)
            return str(session.submit_job(str(Path(folder) / "rhobust")))

    def _watched(self, session: Session, run: Run, job: str, report: Path, present: list[str]) -> str:
        """Show what happens until the job has ended (how, is the answer) or should make room for the next ("")."""
        looked = time.monotonic()
        while True:
            self._show(run)
            if _outcome(report) == "finished":
                return ""
            if time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                with _hushed():
                    status = str(session.get_job_status(job))
                    back = sorted(set(connected(session)) - set(present))
                if status.startswith(_FINISHED):
                    return status
                if back:
                    self.observer.warned(f"{', '.join(back)} came back; going on with everybody from a checkpoint")
                    self._stopped(session, job, report)
                    return ""
            time.sleep(0.1)

    def _stopped(self, session: Session, job: str, report: Path) -> None:
        """Have the job end after a checkpoint."""
        with _hushed(), contextlib.suppress(Exception):
            session.abort_job(job)
        until = time.monotonic() + _STOP
        while _outcome(report) == "nothing" and time.monotonic() < until:
            time.sleep(0.1)

    def _show(self, run: Run) -> None:
        """Rounds that were logged since the last look, to the observer."""
        if not run.metrics_path.exists():
            return
        with run.metrics_path.open("rb") as file:
            file.seek(self._seen)
            for line in file:
                if line.endswith(b"\n"):
                    self._seen += len(line)
                    self._tell(FederatedRecord(**json.loads(line)))

    def _tell(self, record: FederatedRecord) -> None:
        for name, reason in record.dropped.items():
            self.observer.warned(f"round {record.step}: {name} was dropped: {reason}")
        self.observer.stepped(record)


def _outcome(report: Path) -> str:
    """What the coordinator reported, or "nothing"."""
    try:
        found: dict[str, Any] = json.loads(report.read_text())
        return str(found["outcome"])
    except (OSError, ValueError, KeyError):
        return "nothing"


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """The engine talks on the standard output; what matters of it arrives as values and errors."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
