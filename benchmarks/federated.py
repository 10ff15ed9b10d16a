"""What a round costs: a plain loop, in process, in NVFlare's simulator, and deployed with mutual TLS on one machine.

python -m benchmarks.federated [--long 1000] [--markdown]

DRFL on the digits with the paper's network (its 714,058 weights travel in every round, while 8 x 8 images keep the
arithmetic small), batches of 16, K = 2 and 10 workers. Seconds per round are the median over the rounds after the
first tenth for the plain loop, else the mean over the rounds after the start.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.command import command
from rhobust.data import digits
from rhobust.federation.worker import Worker
from rhobust.reproduction.tables import markdown
from rhobust.runs.build import compose_run, server_of, work_of
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.start import train_run
from rhobust.support.environment import environment
from rhobust.support.files import write_json
from tests.deployments import deployed, in_process

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "bench" / "federated.json"
WORKERS = (2, 10)
ROUNDS = 60
GOALS = {2: 0.1, 10: 0.4}  # seconds per deployed round


SETTINGS = {"data": "digits", "model": "cnn", "method": "drfl-loss", "radius": 2.0, "batch_size": 16}
SETTINGS |= {"threads": 1, "device": "cpu", "checkpoint_every": 1000}


def config(workers: int, rounds: int) -> Config:
    return Config.resolve(SETTINGS, {"workers": workers, "rounds": rounds})


def plain(workers: int) -> float:
    """The arithmetic alone: a gradient for each worker, their mean, a step; nothing checked, logged or sent."""
    settings, data = config(workers, ROUNDS), digits()
    torch.manual_seed(0)
    here = torch.device("cpu")
    server = server_of(settings, data, here)
    worker = Worker(compose_run(settings, data, here)[0], work_of(settings))
    shares = [data.train[torch.arange(first, len(data.train), workers)] for first in range(workers)]
    seconds = []
    for _ in range(ROUNDS):
        start, task = time.perf_counter(), server.task()
        uploads = [worker.upload(share, task, k) for k, share in enumerate(shares)]
        theta, place = torch.stack([upload.theta for upload in uploads]).mean(0), 0
        for weight in server.objective.model.parameters():
            weight.grad = theta[place : place + weight.numel()].view_as(weight)
            place += weight.numel()
        server.objective.gamma.grad = torch.tensor(statistics.fmean(upload.gamma for upload in uploads))
        server.optimizer.step()
        server.round += 1
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[ROUNDS // 10 :])


def fused(workers: int) -> float:
    """`rhobust federate`: one batch for all."""

    def train(rounds: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            train_run(Path(folder) / "run", config(workers, rounds))

    return besides_the_first(train)


def loop(workers: int) -> float:
    """In process, one worker after another, every upload checked."""
    return besides_the_first(lambda rounds: in_process(config(workers, rounds), workers))


def besides_the_first(train: Callable[[int], object]) -> float:
    """Seconds per round of a training, its start left out; a first one warms up what is imported and loaded once."""
    train(5)
    ends = [time.perf_counter()]
    for rounds in (5, 5 + ROUNDS):
        train(rounds)
        ends.append(time.perf_counter())
    return (ends[2] - ends[1] - (ends[1] - ends[0])) / ROUNDS


def simulated(workers: int) -> float:
    """NVFlare's simulator."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "config.toml").write_text(config(workers, ROUNDS).to_toml())
        words = [str(place / "engine"), str(place / "run"), str(place / "config.toml"), str(workers)]
        watch = Watch(place / "run")
        return watch.of([sys.executable, "-m", "tests.equivalence.simulated", *words])


class Watch:
    """When each round of a run was over, and what the server's processes held then."""

    def __init__(self, run: Path, memory: Callable[[], int] | None = None) -> None:
        self.run, self.memory = run, memory
        self.seen: list[tuple[int, float]] = []
        self.held: list[tuple[int, int]] = []

    def look(self) -> None:
        metrics = self.run / "metrics.jsonl"
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if lines > (self.seen[-1][0] if self.seen else 0):
            self.seen.append((lines, time.perf_counter()))
            if self.memory and lines // 50 > (self.held[-1][0] // 50 if self.held else 0):
                self.held.append((lines, self.memory()))

    def of(self, command: list[str]) -> float:
        """Seconds per round of a command that writes the run."""
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
            while process.poll() is None:
                self.look()
                time.sleep(0.005)
            if process.returncode:
                said.seek(0)
                raise SystemExit(said.read().decode()[-2000:])
        return self.per_round()

    def per_round(self) -> float:
        rounds = self.seen[len(self.seen) // 10 :]
        (first, begun), (last, ended) = rounds[0], rounds[-1]
        return (ended - begun) / (last - first)


def deployment(workers: int, rounds: int) -> dict[str, Any]:
    """A federation of real processes; memory is that of the server with its job."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with deployed(place / "fed", workers) as federation:
            start = time.perf_counter()
            federation.start(OMP_NUM_THREADS="1")
            up = time.perf_counter() - start
            noted = json.loads((federation.path / "server" / "process.json").read_text())["pid"]

            def memory() -> int:
                family = [psutil.Process(noted), *psutil.Process(noted).children(recursive=True)]
                return sum(process.memory_info().rss for process in family)

            watch, settings = Watch(place / "run", memory), [f"{key}={value}" for key, value in SETTINGS.items()]
            words = ["federation", "submit", str(federation.path), *settings, f"rounds={rounds}"]
            start = time.perf_counter()
            seconds = watch.of([sys.executable, "-m", "rhobust", *words, "--out", str(watch.run), "--quiet"])
            whole = time.perf_counter() - start
        record = Run(place / "run").metrics()[-1]
    return {
        "seconds_per_round": seconds,
        "seconds_to_start": up,
        "seconds_besides_rounds": whole - seconds * rounds,
        "bytes_up": record["bytes_up"],
        "bytes_down": record["bytes_down"],
        "memory": watch.held,
    }


def measure(output: Path, long: int) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    rows = []
    for workers in WORKERS:
        row: dict[str, Any] = {"workers": workers}
        for name, way in {"plain": plain, "fused": fused, "loop": loop, "simulated": simulated}.items():
            row[name] = way(workers)
            print(f"K = {workers}, {name}: {1000 * row[name]:.0f} ms a round", flush=True)
        row["deployed"] = deployment(workers, ROUNDS)
        print(f"K = {workers}, deployed: {row['deployed']}", flush=True)
        rows.append(row)
    soak = deployment(2, long)
    results = {"environment": environment("cpu"), "rounds": ROUNDS, "rows": rows, "soak": {"rounds": long, **soak}}
    write_json(output, results)


def rounds_table(results: dict[str, Any]) -> str:
    """Milliseconds a round."""
    rows = []
    for row in results["rows"]:
        found, goal = row["deployed"], GOALS[row["workers"]]
        times = [row[key] for key in ("plain", "fused", "loop", "simulated")] + [found["seconds_per_round"]]
        rows.append(
            [
                str(row["workers"]),
                *(f"{1000 * one:.0f}" for one in times),
                f"{found['seconds_per_round'] / row['plain']:.1f} times",
                f"<= {1000 * goal:.0f}: {'met' if found['seconds_per_round'] <= goal else 'missed'}",
                f"{found['bytes_up'] / 1e6:.1f} and {found['bytes_down'] / 1e6:.1f}",
            ]
        )
    ways = ["plain loop", "fused", "loop, checked", "NVFlare simulator", "deployed, TLS"]
    return markdown(["workers", *ways, "over the plain loop", "goal", "MB up and down"], rows)


def memory_table(results: dict[str, Any]) -> str:
    """What the server held, at some six rounds of the soak test."""
    held = results["soak"]["memory"]
    shown = held[:: max(1, len(held) // 6)]
    row = ["2 workers", *(f"{size / 1e6:.0f}" for _, size in shown)]
    return markdown(["MB of the server", *(f"after {count}" for count, _ in shown)], [row])


TABLES = {"rounds": rounds_table, "memory": memory_table}

if __name__ == "__main__":
    command(__doc__, RESULTS, measure, TABLES, options={"long": (1000, "rounds of the soak test")})
