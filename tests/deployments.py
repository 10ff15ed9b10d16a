"""Federations of real processes for the tests: on this machine only, on a port that is free, gone when the test is."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import rhobust
from rhobust.data import digits
from rhobust.data.catalog import load_data
from rhobust.deployment.kits import Kits, make_kits
from rhobust.deployment.processes import parties, start, stop
from rhobust.federation.federated_engine import FederatedEngine
from rhobust.federation.server import Server
from rhobust.federation.simulation import Simulation
from rhobust.runs.build import compose_run, federation_of, server_of, work_of
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.support.seeding import seeded
from rhobust.training.loop import train

PATIENCE = 90.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def until(happened: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for something to be true; fail where it does not become so."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)
    return found


@dataclass(frozen=True)
class Deployment:
    """A federation in a directory."""

    kits: Kits

    @property
    def path(self) -> Path:
        return self.kits.path

    def use(self, data: Path) -> None:
        """Every site takes its share of this file."""
        for number, site in enumerate(self.kits.sites, start=1):
            share = f"{number}/{len(self.kits.sites)}"
            (self.path / site / "site.toml").write_text(f'data = "{data}"\nshare = "{share}"\n')

    def start(self, only: str | None = None, **environment: str) -> None:
        before = os.environ.copy()
        os.environ.update(environment)
        try:
            start(parties(self.path, only), lambda line: None)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def kill(self, name: str) -> None:
        """With -9, and whatever it started, as when a machine loses its power."""
        (party,) = parties(self.path, name)
        process = party.process()
        assert process is not None, f"{name} does not run"
        for member in [process, *process.children(recursive=True)]:
            member.kill()
            member.wait(10)

    def kill_job(self, name: str) -> None:
        """With -9, its part of the training alone: the site itself stays connected."""
        (party,) = parties(self.path, name)
        process = party.process()
        assert process is not None, f"{name} does not run"
        jobs = process.children(recursive=True)
        assert jobs, f"{name} has nothing to do"
        for job in jobs:
            job.kill()
        psutil.wait_procs(jobs, timeout=10)
        assert party.process() is not None

    def submit(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rhobust", "federation", "submit", str(self.path), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def sweep(self) -> None:
        """Nothing of this federation may be left, whatever a test did to it."""
        stop(parties(self.path), lambda line: None)
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.path) in word for word in process.info["cmdline"] or []):
                process.kill()
                process.wait(10)


@contextmanager
def killed_at_last(process: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens, the process does not outlive the block."""
    try:
        yield
    except BaseException:
        process.kill()
        print(*process.communicate(), sep="\n")  # what it said, beside the failure
        raise


@contextmanager
def deployed(path: Path, sites: int) -> Iterator[Deployment]:
    """Kits for a federation; whatever is started from them is stopped at the end."""
    deployment = Deployment(make_kits(path, sites, "localhost", free_port()))
    try:
        yield deployment
    finally:
        deployment.sweep()


def digits_file(path: Path) -> Path:
    """The digits as somebody would bring their own data: quicker to load than from the package they come with."""
    data = digits()
    parts = {"x": data.train.x, "y": data.train.y, "x_test": data.test.x, "y_test": data.test.y}
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in parts.items()}
    np.savez(path, bounds=np.array(data.bounds), **arrays)
    return path


def lines(run: Path) -> list[dict[str, Any]]:
    """The rounds that were logged so far."""
    return Run(run).metrics()


def last(run: Path) -> dict[str, Any]:
    """The newest of them."""
    with (run / "metrics.jsonl").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        found: dict[str, Any] = json.loads(file.read().split(b"\n")[-2])
        return found


def in_process(config: Config, sites: int) -> Server:
    """The server after a federation in one process, of workers who hold the shares that the sites hold."""
    data, device = load_data(config.data), torch.device("cpu")
    shares = [torch.arange(first, len(data.train), sites) for first in range(sites)]
    with seeded(config.seed, device, config.threads):
        server = server_of(config, data, device)
        workers = Simulation(
            compose_run(config, data, device)[0],
            data.train,
            shares,
            work_of(config),
            classes=data.classes,
            fuse=False,
        )
        train(FederatedEngine(server, workers, federation_of(config).rounds, sites, config.seed))
    return server


def assert_same(run: Path, server: Server) -> None:
    """Every bit of theta and gamma."""
    trained = rhobust.load(run)
    assert trained.gamma == float(server.objective.gamma.detach())
    for name, tensor in server.objective.model.state_dict().items():
        assert torch.equal(trained.model.state_dict()[name], tensor), name
