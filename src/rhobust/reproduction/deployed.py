"""The check that the federation of figure 5 computes the same in one process and with real processes.

In process the workers' batches are fused into one, which is exact up to rounding; Adam divides a gradient by its size,
so where one is all but zero, rounding moves a weight. One worker after another there is no such difference to expect.
"""

from __future__ import annotations

import importlib.util
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rhobust.box import pair
from rhobust.data.catalog import load_data
from rhobust.data.partitions import partition
from rhobust.data.samples import Samples
from rhobust.errors import RhobustError
from rhobust.federation.simulation import Simulation
from rhobust.reproduction.experiments import FIGURES, Scale
from rhobust.runs.build import compose_run, federated_engine, federation_of, server_of, work_of
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.load import load
from rhobust.runs.start import train_run
from rhobust.support.environment import environment
from rhobust.support.seeding import seeded
from rhobust.training.loop import train
from rhobust.training.observers import Silent

_FIGURE, _ROUNDS, _SITES = "figure5", 20, 10
_DEADLINE = 120.0  # seconds: ten sites may share a few cores


def check_deployment(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    """DRFL with the paper's radius, twice: what the two come to, and how far apart theta and gamma are."""
    if importlib.util.find_spec("nvflare") is None:
        raise RhobustError("a federation of processes needs NVFlare: pip install 'rhobust[federated]'")
    figure = FIGURES[_FIGURE]
    rounds, sites = (_ROUNDS, _SITES) if not scale.quick else (3, 2)
    shared = {"data": figure.data, "method": "drfl-loss", **figure.paper["drfl-loss"], "batch_size": 64, "seed": 0}
    shared |= {"rounds": rounds, "workers": sites, "evaluate_every": rounds, "device": "cpu", "threads": 1}
    shared |= scale.slice
    simulated = Config.resolve(shared, {"partition": figure.partition})
    with tempfile.TemporaryDirectory() as place:
        say(f"{rounds} rounds in process")
        begun = time.perf_counter()
        here = train_run(Path(place) / "here", simulated)
        between = time.perf_counter()
        say(f"{rounds} rounds with {sites} sites and a server, each a process of its own")
        there = _deployed(Path(place), simulated, Config.resolve(shared, {"partition": "sites"}))
        ended = time.perf_counter()
        fused, deployed = load(here.path), load(there.path)
        say(f"{rounds} rounds in process again, one worker after another")
        apart = {"fused": _apart(fused.model, deployed.model)}
        apart["one_by_one"] = _apart(_one_by_one(simulated), deployed.model)
        return {
            "quick": scale.quick,
            "settings": shared | {"partition": figure.partition},
            "in_process": _told(here, fused.gamma, between - begun),
            "deployed": _told(there, deployed.gamma, ended - between),
            "largest_difference_in_theta": apart,
            "environment": environment("cpu"),
        }


def _apart(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of any weight."""
    return max(
        float((tensor - other.state_dict()[name]).abs().max().detach()) for name, tensor in one.state_dict().items()
    )


def _one_by_one(config: Config) -> nn.Module:
    """The model after the same rounds in this process, no batches fused."""
    settings, data = federation_of(config), load_data(config.data, limit=config.train_samples)
    here = torch.device("cpu")
    with seeded(config.seed, here, config.threads):
        server = server_of(config, data, here)
        objective, _ = compose_run(config, data, here)
        shares = partition(settings.partition, data.train.y, settings.workers, config.seed)
        workers = Simulation(objective, data.train, shares, work_of(config), classes=data.classes, fuse=False)
        train(federated_engine(config, server, workers))
    return server.objective.model


def _told(run: Run, gamma: float, seconds: float) -> dict[str, Any]:
    last = run.metrics()[-1]
    return {"errors": last["errors"], "gamma": gamma, "dropped": last["dropped"], "seconds": seconds}


def _deployed(place: Path, simulated: Config, config: Config) -> Run:
    """The run of a federation whose sites hold what the simulated workers hold."""
    from rhobust.deployment import processes
    from rhobust.deployment.kits import make_kits
    from rhobust.deployment.submission import Submission

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings, data = federation_of(simulated), load_data(simulated.data, limit=simulated.train_samples)
    kits = make_kits(place / "fed", settings.workers, "localhost", port)
    shares = partition(settings.partition, data.train.y, settings.workers, simulated.seed)
    for site, share in zip(kits.sites, shares, strict=True):
        _write_share(kits.path / site, data.train[share], pair(data.bounds))
    torch.set_num_threads(1)
    try:
        processes.start(processes.parties(kits.path), lambda line: None)
        return Submission(kits, place / "there", _DEADLINE, Silent(), config).follow()
    finally:
        processes.stop(processes.parties(kits.path), lambda line: None)


def _write_share(folder: Path, own: Samples, bounds: tuple[float, float]) -> None:
    """A site's data as it would bring them; it tests nothing, but without test samples some would be split off."""
    x, y = own.x.numpy(), own.y.numpy()
    np.savez(folder / "own.npz", x=x, y=y, x_test=x[:2], y_test=y[:2], bounds=np.array(bounds))
    (folder / "site.toml").write_text('data = "own.npz"\n')
