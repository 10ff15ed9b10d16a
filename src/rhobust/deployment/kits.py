"""Start-up kits: certificates and rules by which the parties of a federation know each other.

    fed/federation.json     the server's name and port, and the names of all sites
    fed/authority/          the certificate authority, which signed every certificate: keep it secret
    fed/server/             the server's kit
    fed/site-1/, ...        a kit for each site, to be carried to its machine; site.toml there names its data
    fed/admin/              the kit of the administrator, who submits trainings

Every party runs only the rhobust that is installed on its machine. A job may name two classes of rhobust and the two of
the engine that carry calls. No party has the right to send code.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rhobust.errors import ConfigError, RhobustError, RunError
from rhobust.support.files import write_atomically, write_json

# A name as the network has them, or an address.
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
ADMIN = "admin@rhobust.local"
SERVER = "server"
_ORGANIZATION, _PROJECT = "rhobust", "rhobust"
_CONTROLLER = "rhobust.deployment.controller.PatientController"
_EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
COORDINATOR = "rhobust.deployment.coordinator.Coordinator"
SITE = "rhobust.deployment.site.Site"
LAUNCHER = "rhobust.deployment.launcher.PatientLauncher"

# Messages go in pieces of 4 MiB, each acknowledged: a small model is one piece. The engine keeps a message, with a
# thread, while it might be sent again; a piece that took half a minute is too late for its round anyway.
_PIECE = 4 * 2**20
_TRANSPORT = {"streaming_chunk_size": _PIECE, "streaming_ack_interval": _PIECE, "streaming_retry_timeout": 30.0}

_REGISTERS = "nvflare.private.fed.client.fed_client.FederatedClient"  # says when a site has joined

_SITE_TOML = """\
# The data of this site. Only this file names them; the server never sees it.
# A name (digits, mnist, fashion-mnist) or a path: an .npz file with x and y, or a folder of images per class.
data = "digits"
# data_dir = "/where/mnist/is"
# This site's copy of a model that is none of rhobust's: FILE.py:FACTORY or PACKAGE.MODULE:FACTORY. Its code is run.
# model = "nets.py:net"
# Only the k-th of n equal parts of the training data, to try out a federation on one machine:
{share}
"""


class FederationError(RhobustError):
    """The federation cannot do what was asked of it; the message gives the reason."""


@dataclass(frozen=True)
class Kits:
    """A federation that was provisioned into a directory."""

    path: Path
    host: str
    port: int
    sites: tuple[str, ...]

    @classmethod
    def find(cls, path: Path) -> Kits:
        """The federation in a directory."""
        file = path / "federation.json"
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return cls(path.resolve(), str(found["host"]), int(found["port"]), tuple(found["sites"]))
        except FileNotFoundError:
            raise RunError(f"{path} is no federation: make one with rhobust federation init --out {path}") from None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise RunError(f"{file} cannot be read: {problem}") from None

    @property
    def admin(self) -> Path:
        """The folder of the administrator's kit."""
        return self.path / "admin"

    def answers(self) -> bool:
        """Whether a process listens at the server's address."""
        try:
            socket.create_connection((self.host, self.port), timeout=2).close()
        except OSError:
            return False
        return True


def make_kits(path: Path, workers: int, host: str, port: int) -> Kits:
    """Provision a certificate authority, a server, sites and an administrator, with mutual TLS between them."""
    problems = []
    if workers < 1:
        problems.append(f"a federation needs at least one site, but workers is {workers}")
    if not 0 < port < 2**16:
        problems.append(f"port must be between 1 and 65535, not {port}")
    digits = len(str(workers))
    sites = tuple(f"site-{number:0{digits}d}" for number in range(1, workers + 1))
    if not _HOST.fullmatch(host):
        problems.append(f"'{host}' is not the name of a machine, or its address")
    if host in (*sites, "admin", "authority"):
        problems.append(f"'{host}' is the name of another party here; the server needs one of its own")
    if problems:
        raise ConfigError(problems)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} exists and is not empty; nothing was changed. Choose another --out")
    try:
        return _made(path, sites, host, port)
    except BaseException:  # of an interrupt, too, nothing is left, least of all keys
        shutil.rmtree(path, ignore_errors=True)
        raise


def _made(path: Path, sites: Sequence[str], host: str, port: int) -> Kits:
    work = path / "authority"
    work.mkdir(mode=0o700, parents=True)  # before there are keys in it
    kits = _provisioned(work, host, port, sites)
    for name, folder in ((SERVER, host), *((site, site) for site in sites), ("admin", ADMIN)):
        shutil.move(kits / folder, path / name)
    shutil.rmtree(kits)
    _forget_keys(work)
    for key in work.rglob("*"):  # also once it is copied to where it is kept
        key.chmod(0o700 if key.is_dir() else 0o600)
    for number, site in enumerate(sites, start=1):
        _tighten(path / site)
        _restrict(path / site)
        share = f'share = "{number}/{len(sites)}"'
        write_atomically(path / site / "site.toml", _SITE_TOML.format(share=share).encode())
    _tighten(path / SERVER)
    place_stores(path / SERVER)
    found = Kits(path.resolve(), host, port, tuple(sites))
    write_json(path / "federation.json", {key: value for key, value in asdict(found).items() if key != "path"})
    return found


def _forget_keys(work: Path) -> None:
    """Remove the private keys of the parties from the authority's records: each stays in its own kit alone."""
    for records in work.rglob("cert.json"):
        kept = json.loads(records.read_text())
        parties = {name: party for name, party in kept.items() if isinstance(party, dict)}
        write_json(records, kept | {name: {"cert": party["cert"]} for name, party in parties.items()})


def _provisioned(work: Path, host: str, port: int, sites: Sequence[str]) -> Path:
    """The engine's own kits, in a folder each."""
    from nvflare.lighter.ctx import CtxKey
    from nvflare.lighter.entity import Project, participant_from_dict
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(name=_PROJECT, description="", props={"api_version": 3, "name": _PROJECT})
    parties: list[dict[str, Any]] = [
        {"name": host, "type": "server", "fed_learn_port": port, "admin_port": port},
        *({"name": site, "type": "client"} for site in sites),
        {"name": ADMIN, "type": "admin", "role": "lead"},
    ]
    for party in parties:
        project.add_participant(participant_from_dict(party | {"org": _ORGANIZATION}))
    builders = [WorkspaceBuilder(), StaticFileBuilder(config_folder="config"), CertBuilder(), SignatureBuilder()]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        outcome = Provisioner(str(work), builders).provision(project)
    if outcome.get(CtxKey.BUILD_ERROR):
        raise FederationError(f"the kits could not be made: {said.getvalue().strip().splitlines()[-1]}")
    return Path(outcome[CtxKey.CURRENT_PROD_DIR])


def _tighten(kit: Path) -> None:
    """No rights to send code or to run shell commands; logs hold warnings only, and are files."""
    local = kit / "local"
    rights = json.loads((local / "authorization.json.default").read_text())
    rights["permissions"] = {
        "lead": {"submit_job": "any", "manage_job": "any", "view": "any", "operate": "any"}
        | dict.fromkeys(("clone_job", "download_job", "shell_commands", "byoc", "server-predeployed-flwr"), "none")
    }
    write_json(local / "authorization.json", rights)
    log = json.loads((local / "log_config.json.default").read_text())
    log["loggers"]["root"] = {"level": "WARNING", "handlers": ["logFileHandler"]}
    log["loggers"][_REGISTERS] = {"level": "INFO"}
    log["handlers"] = {"logFileHandler": log["handlers"]["logFileHandler"]}
    write_json(local / "log_config.json", log)
    write_json(local / "comm_config.json", _TRANSPORT)


def _restrict(kit: Path) -> None:
    """What a site lets a job do."""
    resources = _resources(kit)
    resources["class_allow_list"] = [SITE, _EXECUTOR]
    resources["allow_log_streaming"] = False
    components = {part["id"]: part for part in resources["components"]}
    components["process_launcher"]["path"] = LAUNCHER
    del components["site_log_streamer"]
    resources["components"] = list(components.values())
    write_json(kit / "local" / "resources.json", resources)


def check_version(kit: Path) -> None:
    """Refuse a site's kit that was made by another version, whose classes had other names."""
    try:
        resources = json.loads((kit / "local" / "resources.json").read_text())
        paths = {part["id"]: part.get("path") for part in resources["components"]}
        known = {SITE, _EXECUTOR} <= set(resources["class_allow_list"]) and paths["process_launcher"] == LAUNCHER
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise FederationError(f"{kit / 'local' / 'resources.json'} cannot be read: {problem}") from None
    if not known:
        raise FederationError(
            f"{kit} was made by another version of rhobust and allows classes that this one does not have. Make the "
            "federation anew: rhobust federation init --out DIRECTORY"
        )


def place_stores(kit: Path) -> None:
    """What the server lets a job do, and its stores: in its kit, at its current place, not in a temporary directory."""
    resources = _resources(kit)
    resources["class_allow_list"] = [COORDINATOR, _CONTROLLER]
    stores = kit.resolve() / "stores"
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(stores / "snapshots")
    components = {part["id"]: part for part in resources["components"]}
    components["job_manager"]["args"]["uri_root"] = str(stores / "jobs")
    components["job_scheduler"]["args"]["min_schedule_interval"] = 1.0
    del components["log_receiver"]
    resources["components"] = list(components.values())
    write_json(kit / "local" / "resources.json", resources)


def _resources(kit: Path) -> dict[str, Any]:
    """The engine's defaults."""
    found: dict[str, Any] = json.loads((kit / "local" / "resources.json.default").read_text())
    return found
