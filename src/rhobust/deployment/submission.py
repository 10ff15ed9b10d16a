"""Trainings submitted to a running federation: followed, restarted when a site returns, stopped."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.fuel.flare_api.api_spec import NoClientsAvailable
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.job_config.api import FedJob

from rhobust.deployment.controller import PatientController
from rhobust.deployment.coordinator import FINISHED, STOPPED, Coordinator, stop_file
from rhobust.deployment.kits import ADMIN, FederationError, Kits
from rhobust.deployment.site import Site
from rhobust.errors import RhobustError
from rhobust.runs.build import federation_of
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.support.files import write_atomically
from rhobust.training.observers import Observer
from rhobust.training.record import RoundRecord

_LOGIN = 10.0  # seconds to reach the server
_LOOK = 2.0  # seconds between two questions which sites are connected
_STOP = 30.0  # seconds for a training to end its round and write a checkpoint
_SILENCE = 60.0  # seconds without an answer after which the server counts as gone
_FRESH = 10.0  # seconds since a site was heard of; it calls every five
_POLL = 1.0  # seconds between two requests of a site for a task: it gets two, and asks to the end
_COMING_UP = 30.0  # seconds for a site's process to start, besides those for an answer
_REJOINING = 20.0  # seconds for sites to find a server again that was started anew
_PAUSE = 30.0  # seconds at least between two restarts for a site that came back; doubles


def job_of(coordinator: Coordinator, sites: Mapping[str, Site]) -> FedJob:
    """The training as the engine takes it, for these sites: the names of our two classes and settings; no code."""
    job = FedJob(name="rhobust", min_clients=1)
    job.set_app_packages(["rhobust"])
    server = job.to_server(coordinator, id="coordinator")
    come_up = _COMING_UP + coordinator.deadline
    job.to_server(PatientController(server_obj_id=server, sync_task_timeout=come_up), id="controller")
    job.to_server({"server": {"task_request_interval": _POLL}})
    for name, site in sites.items():
        client = job.to(site, name, id="site")
        job.to(CollabExecutor(client_obj_id=client), name, id="executor", tasks=["*"])
        job.to({"default_task_fetch_interval": _POLL}, name)
    return job


@contextlib.contextmanager
def admin(kits: Kits) -> Iterator[Session]:
    """A session with the server; every failure in it is a `FederationError`."""
    where = f"the server at {kits.host}:{kits.port}"
    try:
        if not kits.answers():
            raise ConnectionError("no process listens there")
        with _hushed():
            session = Session(username=ADMIN, startup_path=str(kits.admin), secure_mode=True)
            try:
                session.try_connect(_LOGIN)
            except BaseException:  # also an interrupt: its threads would keep the process
                with contextlib.suppress(Exception):
                    session.close()
                raise
    except Exception as problem:  # the engine raises many kinds
        start = f"rhobust federation start {kits.path}"
        raise FederationError(f"{where} cannot be reached ({_line(problem)}); start it with: {start}") from None
    try:
        yield session
    except RhobustError:
        raise
    except Exception as problem:
        raise FederationError(f"{where} could not do what was asked: {_line(problem)}") from None
    finally:
        with _hushed(), contextlib.suppress(Exception):
            session.close()


def present(session: Session, names: Sequence[str] = ()) -> dict[str, bool]:
    """The sites (of these, or of all) that are connected now, and whether each is at work."""
    with _hushed():
        try:
            found = session.get_client_job_status(list(names) or None) or []
        except NoClientsAvailable:
            return {}
    return {one["client_name"]: one["status"] != "no_jobs" for one in found if one["status"] != "no_reply"}


@dataclass
class Submission:
    """A training that a federation is asked for, into a run directory on the server's machine.

    The server runs it as one job of the engine. If a lost site comes back, the job is stopped with a checkpoint, and
    another one goes on from there with all sites.
    """

    kits: Kits
    out: Path
    deadline: float
    observer: Observer
    config: Config | None = None
    _read: int = field(default=0, init=False)
    _dropped: frozenset[str] = field(default=frozenset(), init=False)
    _pause: float = field(default=_PAUSE, init=False)
    _not_before: float = field(default=0.0, init=False)

    def follow(self) -> Run:
        """Follow the training until the model is trained. An interrupt stops it after a checkpoint."""
        run = Run.find(self.out.resolve()) if self.config is None else Run.vacant(self.out.resolve())
        known = self.config or run.config()
        if run.finished:
            return run
        self._check(run, known)
        with admin(self.kits) as session:
            while not run.finished:
                records = run.metrics()
                taken = records[-1]["step"] + 1 if records else 0
                self.observer.started(federation_of(known).rounds, taken, known.radius)
                self._read = run.metrics_path.stat().st_size if records else 0
                self._dropped = frozenset()
                self._take_part(session, run, known)
                self.config = None  # the next job goes on from here
        return run

    def _check(self, run: Run, known: Config) -> None:
        """A run that is resumed must be of this federation, or it would go on with other data."""
        federation = federation_of(known)
        if (federation.partition, federation.workers) != ("sites", len(self.kits.sites)):
            raise FederationError(
                f"{run.path} was trained by {federation.workers} workers with partition '{federation.partition}'; here "
                f"are {len(self.kits.sites)} sites with data of their own. Resume it where it began"
            )

    def _take_part(self, session: Session, run: Run, known: Config) -> None:
        needed, until = federation_of(known).quorum, time.monotonic() + _REJOINING
        while len(there := sorted(present(session))) < needed and time.monotonic() < until:
            time.sleep(0.5)
        if len(there) < needed:
            absent = ", ".join(site for site in self.kits.sites if site not in there)
            raise FederationError(f"{needed} sites are needed and {len(there)} are there; missing: {absent}")
        report = self.kits.path / "reports" / f"{uuid.uuid4()}.json"
        settings = "" if self.config is None else self.config.to_toml()
        coordinator = Coordinator(str(run.path), str(report), list(self.kits.sites), self.deadline, settings)
        job = None
        try:
            with tempfile.TemporaryDirectory() as folder, _hushed():
                job_of(coordinator, {name: Site() for name in there}).export_job(folder)
                job = str(session.submit_job(str(Path(folder) / "rhobust")))
            again = self._watched(session, run, job, report)
        except FederationError:
            raise  # there is no job left to be stopped
        except BaseException as problem:
            if job is not None or not isinstance(problem, Exception):  # a job that could not be submitted does not run
                _stop(session, job, report, self.deadline)
            raise
        finally:
            outcome = _outcome(report)
            report.unlink(missing_ok=True)
        self._show(run)
        if again and outcome in (STOPPED, ""):
            return  # the next goes on from the last checkpoint
        if outcome == STOPPED:
            raise FederationError("the training was stopped from outside, through NVFlare")
        if outcome != FINISHED:
            raise FederationError(
                outcome or f"the training was lost; {self.kits.path / 'server' / str(job) / 'log.txt'} says more"
            )

    def _watched(self, session: Session, run: Run, job: str, report: Path) -> bool:
        """Show the rounds until the job has ended; whether it was stopped for another because a site came back."""
        look, waiting, silent_since = time.monotonic() + _LOOK, set[str](), None
        while not _outcome(report):
            self._show(run)
            if (now := time.monotonic()) > look:
                look = now + _LOOK
                try:
                    with _hushed():
                        status = str(session.get_job_status(job))
                    back = self._idle(session) if now > self._not_before else set()
                    silent_since = None
                except Exception as problem:  # a busy server may miss one question; a server that is gone misses all
                    silent_since = silent_since or now
                    if now - silent_since > _SILENCE or not self.kits.answers():
                        raise FederationError(f"the server is gone: {_line(problem)}") from None
                    continue
                if status.startswith("FINISHED:"):
                    return False
                if (back & waiting) and not _outcome(report):  # seen twice: it has settled
                    self.observer.warned(f"{', '.join(sorted(back))} came back; going on with all sites")
                    self._not_before, self._pause = now + self._pause, 2 * self._pause
                    _stop(session, job, report, self.deadline)
                    return True
                waiting = back
            time.sleep(0.1)
        return False

    def _idle(self, session: Session) -> set[str]:
        """The sites that were dropped, but are connected and idle."""
        with _hushed():
            clients = session.get_connected_client_list() if self._dropped else []
        heard = [
            one.name for one in clients if one.name in self._dropped and time.time() - one.last_connect_time < _FRESH
        ]
        return {name for name, busy in present(session, heard).items() if not busy} if heard else set()

    def _show(self, run: Run) -> None:
        """Report the rounds that were logged since the last call to the observer."""
        if not run.metrics_path.exists():
            return
        self._read = min(self._read, run.metrics_path.stat().st_size)  # a resumed run is cut back to its checkpoint
        with run.metrics_path.open("rb") as file:
            if self._read:  # a file that was cut back and grew again may have no line that begins there
                file.seek(self._read - 1)
                if file.read(1) != b"\n":
                    self._read += len(file.readline())
            for line in file:
                if line.endswith(b"\n"):
                    self._read += len(line)
                    self._tell(RoundRecord(**json.loads(line)))

    def _tell(self, record: RoundRecord) -> None:
        """Report a round; a dropped site only if it was not dropped before."""
        for name, reason in record.dropped.items():
            if name not in self._dropped:
                self.observer.warned(f"round {record.step}: {name} was dropped: {reason}")
        complete = record.workers + len(record.dropped) >= len(self.kits.sites)
        # If only some sites are asked, one that was dropped before may still be gone.
        self._dropped = frozenset(record.dropped) | (frozenset() if complete else self._dropped)
        self.observer.stepped(record)


def _stop(session: Session, job: str | None, report: Path, deadline: float) -> None:
    """Have a job end after a checkpoint, and wait for it; if it does not end, the engine aborts it.

    A job whose submission was interrupted has no name yet; if it begins, it finds the stop file and ends.
    """
    request = stop_file(report)
    write_atomically(request, b"")
    if job is None:
        return
    _await(report, deadline + _STOP)  # the round that is under way may take its whole time
    request.unlink(missing_ok=True)
    if not _outcome(report):
        with _hushed(), contextlib.suppress(Exception):
            session.abort_job(job)
            _await(report, _STOP)


def _await(report: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not _outcome(report) and time.monotonic() < until:
        time.sleep(0.1)


def _outcome(report: Path) -> str:
    """What the coordinator reported; empty if there is no report yet."""
    try:
        return str(json.loads(report.read_text())["outcome"])
    except (OSError, ValueError, KeyError):
        return ""


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Silences the engine's output; everything that matters of it arrives as values and errors."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
