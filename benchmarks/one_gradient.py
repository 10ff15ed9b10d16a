"""One gradient, as robust as ten? Every variant that was tried, with what it costs.

RHOBUST_DATA=... python benchmarks/one_gradient.py [--only PREFIX] [--workers 12]   trains what the file lacks
RHOBUST_DATA=... python benchmarks/one_gradient.py --clock                            times steps, nothing beside them
python benchmarks/one_gradient.py --markdown                                          prints the table
python benchmarks/one_gradient.py --figure docs/images/one-gradient.png               draws clean against attacked error

Attacked is the worst of PGD (40 steps, 5 restarts), Auto-PGD on the loss and on the margin, and random squares, on the
first 1,000 test images, averaged over epsilon 0.1, 0.2, 0.3 and 0.4 in pixels in [-1, 1].
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import softplus

from rhobust import figures
from rhobust.batches import batches_of
from rhobust.config import Config
from rhobust.data import Samples, load_data
from rhobust.engines.local import Record
from rhobust.evaluate import WORST, evaluate
from rhobust.files import write_json
from rhobust.losses import cross_entropy
from rhobust.objective import RobustObjective, undisturbed
from rhobust.reproduction.mps import shared_card
from rhobust.runner import engine_of
from rhobust.runs import environment, rho_eff
from rhobust.trainer import Observer, Trainer, seeded

RESULTS = Path(__file__).parents[1] / "results" / "one-gradient.json"
DATA, SEEDS, EPOCHS = ("mnist", "fashion-mnist"), (0, 1, 2), 30
SAMPLES, EPSILONS = 1000, (0.1, 0.2, 0.3, 0.4)
LOOK = 500  # test images, not among those that are attacked, that the promise of a step is checked on
AVERAGE, MEMORY = 0.999, 0.9
OURS = ("spgda-margin", "spgda-error")  # with the cost ||.||_inf^2: the attacks are measured so
ATTACKS, RESTARTS = ("pgd", "apgd", "apgd-margin", "square"), 5
WINDOWS = 7
CLOCKED = (
    *("erm", "fgsm, epsilon 0.2", "nfgsm, epsilon 0.2, noise 0.4", "ifgsm, epsilon 0.2"),
    "spgda-error, radius 0.04, cap 0.4, noise 0.5, average 0.999, memory 0.9",
)


def named(method: str, **settings: float) -> tuple[str, dict[str, Any]]:
    """A way to train, by a name that says its settings."""
    said = [f"{key} {value:g}" for key, value in settings.items()]
    more = {"cost": "linf"} if method in OURS else {}
    return ", ".join([method, *said]), {"method": method, **more, **settings}


def baselines() -> Iterator[tuple[str, dict[str, Any]]]:
    """What others do, each over its own knobs."""
    yield named("erm")
    for epsilon in (0.1, 0.2, 0.3, 0.4):
        yield named("ifgsm", epsilon=epsilon)
    for epsilon, noise in ((0.1, 0.2), (0.1, 0.4), (0.15, 0.3), (0.2, 0.4), (0.3, 0.4), (0.3, 0.6), (0.4, 0.8)):
        yield named("nfgsm", epsilon=epsilon, noise=noise)


def ours() -> Iterator[tuple[str, dict[str, Any]]]:
    """One gradient after errors, a smoothed center, averaged weights, memory: from little robustness to much."""
    ways = ((0.01, 0.3, 0.3), (0.02, 0.4, 0.3), (0.04, 0.5, 0.3), (0.04, 0.4, 0.5), (0.06, 0.4, 0.6), (0.1, 0.5, 0.6))
    for radius, cap, noise in ways:
        yield named("spgda-error", radius=radius, cap=cap, noise=noise, average=AVERAGE, memory=MEMORY)


def ablations() -> Iterator[tuple[str, dict[str, Any]]]:
    """What each idea is worth, also to the others; and what did not help."""
    for gamma in (0.1, 0.01):
        yield named("wrm", gamma=gamma)
    for epsilon in (0.1, 0.2, 0.3):
        yield named("fgsm", epsilon=epsilon)
    yield named("ifgsm", epsilon=0.3, average=AVERAGE)
    yield named("nfgsm", epsilon=0.2, noise=0.4, average=AVERAGE)
    yield named("nfgsm", epsilon=0.3, noise=0.6, average=AVERAGE)
    yield named("nfgsm", epsilon=0.2, noise=0.4, average=AVERAGE, memory=MEMORY)
    own = {"radius": 0.04, "cap": 0.4, "noise": 0.5}
    yield named("spgda-error", **own)
    yield named("spgda-error", **own, average=AVERAGE)
    yield named("spgda-error", **own, memory=MEMORY)
    for noise in (0.0, 0.1):
        yield named("spgda-error", **own | {"noise": noise}, average=AVERAGE, memory=MEMORY)
    yield named("spgda-error", **own, average=AVERAGE, memory=1.0)
    yield named("spgda-margin", **own, average=AVERAGE, memory=MEMORY)
    yield named("spgda-margin", radius=0.02, cap=0.2, noise=0.3)
    yield named("spgda-margin", radius=0.02, cap=0.2, noise=0.0)
    for radius in (0.02, 0.04, 0.08):
        yield named("spgda-error", radius=radius, cap=0.5, noise=0.3, steps=10, average=AVERAGE)
    for radius in (0.06, 0.1):
        yield named("spgda-error", radius=radius, cap=0.5, noise=0.6, steps=3, average=AVERAGE, memory=MEMORY)
    yield "spgda-literal, radius 6, memory 1", {"method": "spgda-literal", "radius": 6.0, "memory": 1.0}


def jobs(seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Settings of every training by its name, data/variant/seed; ablations with the first seed only."""
    shared = {"epochs": EPOCHS, "batch_size": 128, "log_every": 25, "checkpoint_every": 10**9}
    return {
        f"{data}/{name}/{seed}": shared | {"data": data, "seed": seed} | settings
        for seed in seeds
        for name, settings in (*baselines(), *ours(), *(ablations() if seed == 0 else ()))
        for data in DATA
    }


def foresight(objective: RobustObjective, x: Tensor, y: Tensor) -> tuple[float, float]:
    """What a linear margin promised for the loss at zeta, and what the loss is there: means over a batch.

    A model that has learned to resist one gradient, and no other, bends just there: the promise is not kept.
    """
    problem = objective.problem(x, y)
    with undisturbed(objective.model):
        point = problem.at(x)
        zeta = objective.maximum(x, y).zeta
        with torch.no_grad():
            loss = point.loss.clamp_min(torch.finfo(x.dtype).eps)
            doubt = -torch.expm1(-loss)
            rise = (point.slope * (zeta - x)).flatten(1).sum(1) / doubt
            return float(softplus(loss + doubt.log() + rise).mean()), float(problem.loss(zeta).mean())


class Foresight(Observer):
    """Looks once an epoch."""

    def __init__(self, objective: RobustObjective, test: Samples) -> None:
        self.objective, self.test, self.found = objective, test, [foresight(objective, test.x, test.y)]

    def stepped(self, record: Record) -> None:
        if record.epoch + 1 > len(self.found):
            self.found.append(foresight(self.objective, self.test.x, self.test.y))


def measure(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """One training and its errors."""
    torch.set_num_threads(1)
    torch.compiler.reset()
    config = Config.resolve(settings)
    data, device = load_data(config.data), torch.device(config.device)
    test = Samples(data.test.x.to(device), data.test.y.to(device))
    with seeded(config.seed, device):
        engine = engine_of(config, data, device)
        batches = batches_of(data.train, config.batch_size, config.seed, device)
        looks = Foresight(engine.objective, test[-LOOK:])
        trainer = Trainer(engine, batches, config.epochs, log_every=config.log_every, memory=config.memory)
        trainer.train(looks)
    model, records = engine.objective.model, [asdict(record) for record in trainer.history]
    how = {"loss": cross_entropy, "bounds": data.bounds, "checks": False}
    clean = evaluate(model, test, attacks=["fgsm"], epsilons=[0.0], **how).clean  # type: ignore[arg-type]
    found = evaluate(model, test[:SAMPLES], attacks=ATTACKS, epsilons=EPSILONS, restarts=RESTARTS, **how)  # type: ignore[arg-type]
    errors = {
        attack: [found.error(attack, epsilon) for epsilon in EPSILONS] for attack in (*ATTACKS, WORST[float("inf")])
    }
    return name, {
        "settings": dict(settings),
        "precision": config.precision,
        "clean": clean,
        "errors": errors,
        "foresight": looks.found,
        "rho_eff": rho_eff(records),
        "gamma": records[-1]["gamma"],
        "gradients": statistics.fmean(record["gradients"] for record in records),
        "environment": environment(config.device),
    }


class Clock:
    """The steps of a way to train, taken a window at a time, on the device that is there."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        config = Config.resolve(settings)
        data, self.device = load_data(config.data), torch.device(config.device)
        torch.manual_seed(0)
        batches = batches_of(data.train, config.batch_size, 0, self.device)
        self.trainer = Trainer(engine_of(config, data, self.device), batches, 1, memory=config.memory)
        whole = batches.whole()
        assert whole is not None
        self.trainer.engine.admit(whole.x, whole.y)
        self.batches, self.steps = list(batches.epoch(0))[:-1], 0
        self.window = 300 if self.device.type == "cuda" else 6

    def milliseconds(self) -> float:
        """Of a step, over one window."""
        self._wait()
        start = time.perf_counter()
        for _ in range(self.window):
            x, y, at = self.batches[self.steps % len(self.batches)]
            self.trainer.engine.step(x, y, self.steps, 0, at)
            self.steps += 1
        self._wait()
        return 1e3 * (time.perf_counter() - start) / self.window

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def clock(output: Path) -> None:
    """Milliseconds a step, window by window in turn, so that whatever else the machine does hits all alike."""
    found = read(output)
    first = {name: settings | {"data": "mnist"} for name, settings in (*baselines(), *ours(), *ablations())}
    chosen = {name: first[name] for name in first if name in CLOCKED}
    clocks = {name: Clock(settings) for name, settings in chosen.items()}
    windows: dict[str, list[float]] = {name: [] for name in clocks}
    for number in range(WINDOWS + 1):
        for name, one in clocks.items():
            spent = one.milliseconds()
            if number:  # the first compiles
                windows[name].append(spent)
    device = clocks["erm"].device.type
    middle = {name: statistics.median(values) for name, values in windows.items()}
    rows = {name: {"ms": ms, "over_erm": ms / middle["erm"]} for name, ms in middle.items()}
    found["times"] = found.get("times", {}) | {device: {"steps": rows, "environment": environment(device)}}
    write_json(output, found)
    for name, row in rows.items():
        print(f"{device}: {name}: {row['ms']:.3f} ms, {row['over_erm']:.2f} of erm")


def read(output: Path) -> dict[str, Any]:
    """What is there."""
    empty = {"epsilons": EPSILONS, "samples": SAMPLES, "restarts": RESTARTS, "runs": {}}
    found: dict[str, Any] = json.loads(output.read_text()) if output.exists() else empty
    return found


def train(output: Path, workers: int, only: str, seeds: int) -> None:
    """What the file lacks."""
    found = read(output)
    done = found["runs"]
    wanted = jobs(SEEDS[:seeds])
    left = {
        name: settings
        for name, settings in wanted.items()
        if name.startswith(only) and done.get(name, {}).get("settings") != settings
    }
    context = multiprocessing.get_context("spawn")
    with shared_card(print), ProcessPoolExecutor(workers, mp_context=context) as pool:
        for future in as_completed([pool.submit(measure, name, settings) for name, settings in left.items()]):
            name, made = future.result()
            done[name] = made
            write_json(output, found)
            print(f"{len(done)} of {len(wanted)}: {name}: {100 * made['clean']:.1f} {_average(made):.1f}", flush=True)


def _average(run: Mapping[str, Any]) -> float:
    return 100 * statistics.fmean(run["errors"]["worst"])


def table(runs: Mapping[str, Any]) -> str:
    """Every variant, the most robust first; means over the seeds."""
    head = ["data", "variant", "seeds", "gradients", "E[c]", "clean", *(f"worst {e:g}" for e in EPSILONS), "average"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for data in DATA:
        by_variant: dict[str, list[Any]] = {}
        for key, run in runs.items():
            if key.startswith(f"{data}/"):
                by_variant.setdefault(key.split("/")[1], []).append(run)
        for name, seeds in sorted(by_variant.items(), key=lambda item: statistics.fmean(map(_average, item[1]))):
            means = [statistics.fmean(100 * run["errors"]["worst"][i] for run in seeds) for i in range(len(EPSILONS))]
            clean, spent = (statistics.fmean(run[key] for run in seeds) for key in ("clean", "rho_eff"))
            cells = [f"{100 * clean:.1f}", *(f"{mean:.1f}" for mean in means), f"{statistics.fmean(means):.1f}"]
            start = [data, name, str(len(seeds)), f"{seeds[0]['gradients']:.3g}", f"{spent:.3g}"]
            lines.append(f"| {' | '.join([*start, *cells])} |")
    return "\n".join(lines)


def figure(runs: Mapping[str, Any]) -> Figure:
    """Clean error against the average attacked error, a panel for each data set, a point for each variant."""
    drawn, axes = figures.new_figure(len(DATA), 1, 11, 4.6)
    for axis, data in zip(axes[0], DATA, strict=True):
        points: dict[str, list[tuple[float, float]]] = {}
        for name, run in runs.items():
            if name.startswith(f"{data}/"):
                points.setdefault(run["settings"]["method"], []).append((100 * run["clean"], _average(run)))
        for method, found in points.items():
            style = figures.style(method)
            axis.scatter(*zip(*found, strict=True), label=method, color=style["color"], marker=style["marker"], s=22)
        axis.set_title(data)
        axis.set_xlabel("clean error, %")
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("attacked error, %, average over epsilon")
    axes[0][0].legend(frameon=False)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--only", default="", help="names that start so")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--clock", action="store_true", help="times alone, on the device that is there")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.markdown:
        print(table(json.loads(options.output.read_text())["runs"]))
    elif options.clock:
        clock(options.output)
    elif options.figure:
        figures.save(figure(json.loads(options.output.read_text())["runs"]), options.figure)
    else:
        train(options.output, options.workers, options.only, options.seeds)


if __name__ == "__main__":
    main()
