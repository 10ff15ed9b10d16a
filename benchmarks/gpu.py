"""One training step on a GPU: ours as it is chosen by itself, its parts, and loops as others write them.

python -m benchmarks.gpu [--markdown]    measures on this GPU what the file lacks

Every time is the median over windows, on the paper's network and random images: arithmetic does not depend on the
pixels. RHOBUST_DATA names the data for the last part, which compares the errors that both precisions reach.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.command import command, read_json
from rhobust.ascent import Ball, Identity, MarginAscent, Maximizer, Oracle, PenalizedAscent
from rhobust.data.batches import Batch, SampleBatches
from rhobust.data.catalog import load_data
from rhobust.data.samples import Samples
from rhobust.evaluation.evaluate import evaluate
from rhobust.gamma_rules import Multiplicative
from rhobust.losses import cross_entropy
from rhobust.models.block_convolution import on_pixels
from rhobust.models.catalog import build_model
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer, adam
from rhobust.reproduction.flops import flops_of
from rhobust.reproduction.tables import markdown
from rhobust.runs.config import Config
from rhobust.runs.load import load
from rhobust.runs.start import train_run
from rhobust.support.environment import environment
from rhobust.support.files import write_json
from rhobust.training.cuda_graph import CudaGraphEngine
from rhobust.training.eager import EagerEngine

RESULTS = Path(__file__).parents[1] / "results" / "bench" / "gpu.json"
SHAPE, CLASSES, BATCHES = torch.Size([1, 28, 28]), 10, (128, 2048)
WINDOWS = 5
MAXIMIZERS: dict[str, Maximizer] = {
    "erm": Identity(),
    "spgda-loss": PenalizedAscent(),
    "spgda-margin": MarginAscent(),
    "ten penalized steps": PenalizedAscent(steps=10),
    "spgd": Oracle(),
    "ifgsm": Ball(0.1, steps=10),
}
ENGINES: dict[str, tuple[bool, torch.dtype]] = {
    "eager": (False, torch.float32),
    "graph": (True, torch.float32),
    "graph, bfloat16": (True, torch.bfloat16),
}
PRECISION = {"data": "fashion-mnist", "method": "spgd", "radius": 6.0, "epochs": 5, "batch_size": 128}
SEEDS, PRECISIONS = (0, 1, 2), ("float32", "bfloat16")


def batch(size: int) -> Batch:
    draws = torch.Generator("cuda").manual_seed(0)
    x = 2 * torch.rand(size, *SHAPE, device="cuda", generator=draws) - 1
    return Batch(x, torch.randint(CLASSES, (size,), device="cuda", generator=draws))


def network() -> nn.Module:
    torch.manual_seed(0)
    return build_model("cnn", SHAPE, CLASSES).cuda()


def ours(maximizer: Maximizer, captured: bool, precision: torch.dtype, data: Batch) -> CudaGraphEngine | EagerEngine:
    model = network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    objective = RobustObjective(model, cross_entropy, radius=6.0, maximizer=maximizer, bounds=(-1, 1))
    rule = Multiplicative() if maximizer.penalized else None
    optimizer = ProximalOptimizer(adam(model), objective, gamma_rule=rule)
    batches = SampleBatches(Samples(data.x, data.y), len(data.x), 0, data.x.device)
    engine = EagerEngine(objective, optimizer, batches, precision=precision)
    if not captured:
        return engine
    replaying = CudaGraphEngine(engine)
    replaying._warn = print  # outside of `epoch` it warns of nothing
    return replaying


def milliseconds(step: Callable[[], object], steps: int) -> float:
    """Median over windows of the time of a step, waiting for the device at the end of each window only."""
    found = []
    for _ in range(WINDOWS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - start) / steps)
    return statistics.median(found)


def useful_flops(maximizer: Maximizer, size: int) -> float:
    """Multiplications and additions of the convolutions and matrix products that the step asks for."""
    each = flops_of("cnn", SHAPE, CLASSES)
    return size * (each.theta + maximizer.gradients * each.zeta)


def warm_engine(name: str, how: str, data: Batch) -> CudaGraphEngine | EagerEngine:
    captured, precision = ENGINES[how]
    engine = ours(MAXIMIZERS[name], captured, precision, data)
    for number in range(8):  # warm-up, compilation, capture
        engine.take(data, number, 0)
    engine.flush()
    return engine


def measured_engine(name: str, size: int, how: str) -> dict[str, Any]:
    data = batch(size)
    engine = warm_engine(name, how, data)
    steps = max(10, 320 * 128 // size) if isinstance(engine, CudaGraphEngine) else 10
    found = {"engine_ms": milliseconds(lambda: engine.take(data, 0, 0), steps)}
    if isinstance(engine, CudaGraphEngine):
        engine.flush()
        recording = engine._recordings.find(data.x, data.y)
        assert recording is not None
        found["graph_ms"] = milliseconds(recording.graph.replay, steps)
    return found


def like_torchattacks(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """IFGSM training as an eager loop over tensors: clone, differentiate the mean loss, sign, clamp."""
    zeta = x.clone().detach()
    for _ in range(10):
        zeta.requires_grad = True
        cost = nn.functional.cross_entropy(model(zeta), y)
        (slope,) = torch.autograd.grad(cost, zeta, retain_graph=False, create_graph=False)
        zeta = zeta.detach() + 0.01 * slope.sign()
        zeta = torch.clamp(x + torch.clamp(zeta - x, -0.1, 0.1), -1, 1).detach()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(zeta), y).backward()
    optimizer.step()


def like_art(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """The same, with the images in numpy and a copy to the device and back for every gradient."""
    clean, zeta = x.cpu().numpy(), x.cpu().numpy()
    for _ in range(10):
        at = torch.from_numpy(zeta).cuda().requires_grad_(True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(at), y).backward()
        assert at.grad is not None
        zeta = (zeta + 0.01 * at.grad.sign().cpu().numpy()).clip(clean - 0.1, clean + 0.1).clip(-1, 1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.from_numpy(zeta).cuda()), y).backward()
    optimizer.step()


PEERS = {"as torchattacks loops": like_torchattacks, "as ART loops": like_art}


def warm_peer(how: str, data: Batch) -> Callable[[], object]:
    model = on_pixels(network())  # the network as they would write it
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        PEERS[how](model, optimizer, data.x, data.y)
    return lambda: PEERS[how](model, optimizer, data.x, data.y)


def measured_peer(how: str, size: int) -> dict[str, Any]:
    return {"engine_ms": milliseconds(warm_peer(how, batch(size)), 10)}


def measured_memory(name: str, size: int, how: str) -> dict[str, Any]:
    """The most that was allocated at once, of what came after the batch: weights, optimizer, passes, capture."""
    data = batch(size)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    if how in ENGINES:
        warm_engine(name, how, data)
    else:
        warm_peer(how, data)
    return {"peak_mb": (torch.cuda.max_memory_allocated() - before) / 2**20, "before_mb": before / 2**20}


def measured_precision(precision: str, seed: int) -> dict[str, Any]:
    """What a short training reaches."""
    config = Config.resolve(PRECISION | {"precision": precision, "seed": seed, "device": "cuda", "log_every": 50})
    data = load_data(config.data)
    test = Samples(data.test.x.cuda(), data.test.y.cuda())
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        run = train_run(Path(directory) / "run", config)
        seconds = time.perf_counter() - start
        model = load(run.path).cuda()
    found = evaluate(
        model, test, loss=cross_entropy, bounds=data.bounds, attacks=["ifgsm"], epsilons=[0.1, 0.2], checks=False
    )
    errors = {"clean": found.clean, **{f"ifgsm {e:g}": found.error("ifgsm", e) for e in (0.1, 0.2)}}
    return {"seconds": seconds, "errors": errors}


def jobs() -> Mapping[str, Callable[[], dict[str, Any]]]:
    """Every measurement by name."""
    ways = [(name, size, how) for size in BATCHES for name in MAXIMIZERS for how in ENGINES]
    ways += [("ifgsm", size, how) for size in BATCHES for how in PEERS]
    steps = {f"steps/{name}/{size}/{how}": partial(measured_step, name, size, how) for name, size, how in ways}
    memory = {f"memory/{name}/{size}/{how}": partial(measured_memory, name, size, how) for name, size, how in ways}
    trained = {
        f"precision/{precision}/{seed}": partial(measured_precision, precision, seed)
        for seed in SEEDS
        for precision in PRECISIONS
    }
    return steps | memory | trained


def measured_step(name: str, size: int, how: str) -> dict[str, Any]:
    made = measured_engine(name, size, how) if how in ENGINES else measured_peer(how, size)
    return made | {"tflops": useful_flops(MAXIMIZERS[name], size) / made["engine_ms"] / 1e9}


def measure(output: Path) -> None:
    """What the file lacks."""
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark measures a GPU, and torch sees none here")
    found = read_json(output) if output.exists() else {"settings": {"precision": PRECISION}, "rows": {}}
    for name, job in jobs().items():
        if name not in found["rows"]:
            torch.compiler.reset()  # no row inherits another's kernels or memory
            gc.collect()
            torch.cuda.empty_cache()
            found["rows"][name] = job()
            found["environment"] = environment("cuda")
            write_json(output, found)
            print(name, found["rows"][name], flush=True)


def steps_table(found: dict[str, Any]) -> str:
    """Milliseconds a step: every method, every way to run it."""
    ways, lines = [*ENGINES, *PEERS], []
    for size in BATCHES:
        for name in MAXIMIZERS:
            by_way = {way: row for way in ways if (row := found["rows"].get(f"steps/{name}/{size}/{way}"))}
            cells = [f"{by_way[way]['engine_ms']:.2f}" if way in by_way else "" for way in ways]
            lines.append([name, str(size), *cells, f"{by_way['graph, bfloat16']['tflops']:.0f}"])
    return markdown(["method", "batch", *(f"{way}, ms" for way in ways), "TFLOP/s of the last graph"], lines)


def overhead_table(found: dict[str, Any]) -> str:
    """The step of the engine over the bare graph."""
    lines = []
    for name, row in found["rows"].items():
        if "graph_ms" in row:
            times = (row["graph_ms"], row["engine_ms"], row["engine_ms"] - row["graph_ms"])
            lines.append([*name.split("/")[1:], *(f"{ms:.3f}" for ms in times)])
    return markdown(["method", "batch", "how", "bare graph, ms", "engine, ms", "overhead, ms"], lines)


def memory_table(found: dict[str, Any]) -> str:
    """Peak MiB of a training: every method, every way to run it."""
    ways, lines = [*ENGINES, *PEERS], []
    for size in BATCHES:
        for name in MAXIMIZERS:
            cells = [found["rows"].get(f"memory/{name}/{size}/{way}") for way in ways]
            lines.append([name, str(size), *(f"{row['peak_mb']:.0f}" if row else "" for row in cells)])
    return markdown(["method", "batch", *(f"{way}, MiB" for way in ways)], lines)


def precision_table(found: dict[str, Any]) -> str:
    """The errors that both precisions reach, mean and half the range over the seeds."""
    rows = found["rows"].items()
    made = {p: [row["errors"] for name, row in rows if name.startswith(f"precision/{p}/")] for p in PRECISIONS}
    kinds = list(made["float32"][0])
    lines = []
    for precision, seeds in made.items():
        errors = [[100 * one[kind] for one in seeds] for kind in kinds]
        cells = [f"{statistics.fmean(over):.1f} ± {(max(over) - min(over)) / 2:.1f}" for over in errors]
        lines.append([precision, str(len(seeds)), *cells])
    return markdown(["precision", "seeds", *(f"{kind}, %" for kind in kinds)], lines)


TABLES = {"steps": steps_table, "overhead": overhead_table, "memory": memory_table, "precision": precision_table}

if __name__ == "__main__":
    command(__doc__, RESULTS, measure, TABLES)
