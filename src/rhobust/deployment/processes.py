"""The processes of a federation on this machine: the server and the sites, each started from its kit."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rhobust.deployment.kits import FederationError, check_version, place_stores
from rhobust.errors import ConfigError, RunError, unknown
from rhobust.support.files import write_json

_PATIENCE = 60.0  # seconds for a process to come up
_GRACE = 5.0  # seconds to end by itself before it is killed
_JOINED = b"Successfully registered client"
# The engine has hundreds of threads; glibc would spread what they free over many heaps.
_ARENAS = {"MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True)
class Party:
    """The server or a site, by the kit that is on this machine."""

    kit: Path

    @property
    def name(self) -> str:
        return self.kit.name

    @property
    def is_server(self) -> bool:
        return (self.kit / "startup" / "fed_server.json").exists()

    @property
    def log(self) -> Path:
        """Where it writes what went wrong."""
        return self.kit / "log.txt"

    def process(self) -> psutil.Process | None:
        """Its process, if it runs."""
        try:
            noted = json.loads((self.kit / "process.json").read_text())
            process = psutil.Process(noted["pid"])
            # By its command, not by when it began: that is counted from the boot, which moves when the clock is set.
            same = str(self.kit) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, ValueError, KeyError, psutil.Error):
            return None
        return process if same else None

    def launch(self) -> Callable[[], None]:
        """Start it. The function returned waits until it is up: the server listens, a site has joined."""
        if self.is_server:
            place_stores(self.kit)
            self._refuse_taken_port()
        else:
            check_version(self.kit)
        before = self.log.stat().st_size if self.log.exists() else 0
        pid = self._spawn()
        write_json(self.kit / "process.json", {"pid": pid})

        def wait() -> None:
            until = time.monotonic() + _PATIENCE
            while not (self._listens() if self.is_server else self._has_joined(before)):
                ended = self.process() is None
                if ended or time.monotonic() > until:
                    why = "its process ended" if ended else f"waited {_PATIENCE:g} s"
                    what = (
                        "does not come up" if self.is_server else "cannot join; is the server up, and the kit its own?"
                    )
                    raise FederationError(f"{self.name} {what} ({why}; {self.log} says more)")
                time.sleep(0.05)

        return wait

    def stop(self) -> None:
        """End it and every process that it started; kill those that do not end in time."""
        process = self.process()
        if process is None:
            return
        family = [*process.children(recursive=True), process]
        for member in family:
            _gently(member.terminate)
        for member in psutil.wait_procs(family, timeout=_GRACE)[1]:
            _gently(member.kill)
        psutil.wait_procs(family, timeout=_GRACE)

    def _spawn(self) -> int:
        """A process that outlives this one, in its own session, so that Ctrl-C at the terminal does not reach it."""
        words = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.kit / "output.txt"), words, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawn(sys.executable, self._command(), _environment(), file_actions=files, setsid=True)

    def _command(self) -> list[str]:
        kind = "server" if self.is_server else "client"
        identity = [] if self.is_server else [f"uid={self.name}", "heart_beat_interval=5"]
        return [
            *(sys.executable, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train"),
            *("-m", str(self.kit), "-s", f"fed_{kind}.json"),
            *("--set", "secure_train=true", *identity, "org=rhobust", "config_folder=config"),
        ]

    def _address(self) -> tuple[str, int]:
        target = json.loads((self.kit / "startup" / "fed_server.json").read_text())["servers"][0]["service"]["target"]
        host, port = target.rsplit(":", 1)
        return host, int(port)

    def _listens(self) -> bool:
        try:
            socket.create_connection(self._address(), timeout=1).close()
        except OSError:
            return False
        return True

    def _refuse_taken_port(self) -> None:
        if self._listens():
            raise FederationError(
                f"port {self._address()[1]} is taken by another program; init again with another --port"
            )

    def _has_joined(self, before: int) -> bool:
        if not self.log.exists():
            return False
        with self.log.open("rb") as file:
            file.seek(before if before <= self.log.stat().st_size else 0)
            return _JOINED in file.read()


def parties(path: Path, only: str | None = None) -> list[Party]:
    """The server and the sites whose kits are in a directory, the server first; or one of them."""
    here = [Party(kit.resolve()) for kit in path.glob("*") if any((kit / "startup").glob("fed_[sc]*.json"))]
    if not here:
        raise RunError(f"{path} holds no kits; make them with rhobust federation init --out {path}")
    found = sorted(here, key=lambda party: (not party.is_server, party.name))
    if only is not None and only not in (names := [party.name for party in found]):
        raise ConfigError([unknown(f"party in {path}", only, names)])
    return [party for party in found if only in (None, party.name)]


def start(found: Sequence[Party], tell: Callable[[str], None]) -> None:
    """Start them, the sites at once; if one does not start, those that this call started are stopped again."""
    waits: dict[Party, Callable[[], None]] = {}
    try:
        for party in found:
            if party.process():
                tell(f"{party.name} runs already")
                continue
            waits[party] = party.launch()
            if party.is_server:
                waits[party]()
        for party, wait in waits.items():
            wait()
            tell(f"{party.name} is up")
    except BaseException:
        for party in waits:
            party.stop()
        raise


def stop(found: Sequence[Party], tell: Callable[[str], None]) -> None:
    """Stop them, the server first: no round should be taken with the sites that are left."""
    for party in found:
        if party.process():
            party.stop()
            tell(f"{party.name} is stopped")


def _gently(act: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        act()


def _environment() -> dict[str, str]:
    """This process's environment, with an absolute RHOBUST_DATA, since a party works in its kit."""
    where = os.environ.get("RHOBUST_DATA")
    return _ARENAS | os.environ | ({"RHOBUST_DATA": str(Path(where).absolute())} if where else {})
