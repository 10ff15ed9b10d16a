"""Leads that were followed for training with one gradient, most of them in vain.

RHOBUST_DATA=... python -m benchmarks.leads [--only PREFIX] [--workers 15]   trains what the file lacks
python -m benchmarks.leads --markdown                                        prints the tables

One seed, a short attack, and test images that benchmarks/one_gradient.py does not attack: this is where leads are
dropped, not where methods are compared. Attacked is the worst of Auto-PGD on the loss and on the margin, in percent,
at epsilon 0.1, 0.2, 0.3 and 0.4 in pixels in [-1, 1]. What each setting does is said in benchmarks/lead.py.
The committed results were made by an earlier form of this script, with the same arithmetic but for the averages, which
looked at the weights of every step, not of every tenth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.lead import LR, SEED, TOLD, Lead, Training
from rhobust.data import DataSet, Samples, load_data
from rhobust.environment import environment
from rhobust.errors import Refused
from rhobust.evaluate import WORST, evaluate
from rhobust.files import write_json
from rhobust.losses import cross_entropy
from rhobust.models import build_model
from rhobust.reproduction.mps import shared_card

RESULTS = Path(__file__).parents[1] / "results" / "leads.json"
DATA, EPOCHS, BATCH = ("fashion-mnist", "mnist"), 30, 128
FIRST = 1000  # test image to be attacked
ATTACKS, RESTARTS, EPSILONS = ("apgd", "apgd-margin"), 1, (0.1, 0.2, 0.3, 0.4)
LOOKS = sorted({*range(1, EPOCHS + 1, 4), EPOCHS})  # epochs that are told of
SETTINGS = {
    **{"epochs": EPOCHS, "batch_size": BATCH, "lr": LR, "seed": SEED, "model": "cnn", "first": FIRST},
    **{"attacks": list(ATTACKS), "restarts": RESTARTS, "epsilons": list(EPSILONS)},
}

Named = tuple[str, dict[str, Any]]


class Job(NamedTuple):
    """A training to be done."""

    data: str
    settings: dict[str, Any]
    evaluated: int  # test images, from number `FIRST` on


def named(kind: str, **settings: Any) -> Named:
    """A lead, by a name that says its settings."""
    return ", ".join([kind, *(_said(*item) for item in settings.items())]), {"kind": kind, **settings}


def _said(key: str, value: Any) -> str:
    words = key.replace("_", " ")
    if value is True:
        return words
    return f"{words} {' and '.join(map(str, value)) if isinstance(value, list) else value}"


def ball(epsilon: float, noise: float, **more: Any) -> Named:
    """All move alike: N-FGSM, and what may be done to it."""
    return named("ball", epsilon=epsilon, noise=noise, **more)


def error(radius: float, cap: float, noise: float, kind: str = "error", **more: Any) -> Named:
    """Each moves as far as pays."""
    return named(kind, radius=radius, cap=cap, noise=noise, **more)


def plain() -> Iterator[Named]:
    """What the leads start from, and, with more gradients, what they are after."""
    for epsilon, noise in ((0.1, 0.2), (0.1, 0.3), (0.15, 0.3), (0.3, 0.3), (0.4, 0.2), (0.4, 0.4)):
        yield ball(epsilon, noise)
    for epsilon in (0.2, 0.3):
        yield ball(epsilon, 0.4, averages=[0.999, 0.9997])
    for radius, cap, noise in ((0.005, 0.15, 0.3), (0.01, 0.2, 0.3), (0.02, 0.2, 0.3), (0.02, 0.2, 0.4)):
        yield error(radius, cap, noise)
    for radius, cap, noise in ((0.04, 0.25, 0.4), (0.04, 0.25, 0.5), (0.04, 0.3, 0.4), (0.06, 0.3, 0.4)):
        yield error(radius, cap, noise)
    yield error(0.08, 0.35, 0.3)
    yield error(0.02, 0.2, 0.3, kind="margin")
    yield error(0.04, 0.3, 0.4, kind="margin")
    for radius, noise, steps in ((0.08, 0.4, 3), (0.06, 0.3, 5), (0.06, 0.3, 10), (0.08, 0.4, 10), (0.12, 0.3, 10)):
        yield error(radius, 0.5, noise, steps=steps)


def noises() -> Iterator[Named]:
    """Other noise."""
    yield ball(0.3, 0.4, amplitudes=True)
    yield ball(0.3, 0.4, blocks=2)
    yield ball(0.3, 0.4, blocks=4, mix=0.5)
    yield ball(0.3, 0.4, guard=0.85)
    yield error(0.04, 0.4, 0.4, guard=0.85)


def lengths() -> Iterator[Named]:
    """Other lengths: random, or shorter where lines promise too much."""
    for epsilon, noise, fraction in ((0.2, 0.3, 0.5), (0.3, 0.4, 0.0), (0.3, 0.4, 0.5), (0.4, 0.4, 0.0)):
        yield ball(epsilon, noise, fraction=fraction)
    for epsilon, noise, fraction in ((0.4, 0.4, 0.5), (0.4, 0.5, 0.5), (0.5, 0.4, 0.3)):
        yield ball(epsilon, noise, fraction=fraction)
    yield error(0.06, 0.3, 0.4, fraction=0.5)
    yield error(0.06, 0.4, 0.4, fraction=0.3)
    yield error(0.06, 0.3, 0.4, kind="margin", fraction=0.5)
    yield error(0.08, 0.3, 0.4, floor=0.15)
    yield error(0.06, 0.4, 0.4, fraction=0.5, floor=0.1)
    for epsilon in (0.3, 0.4):
        yield ball(epsilon, 0.4, trust=0.5)
    yield ball(0.4, 0.4, fraction=0.5, trust=0.5)
    for radius, cap in ((0.04, 0.3), (0.06, 0.4)):
        yield error(radius, cap, 0.4, trust=0.5)
        yield error(radius, cap, 0.4, calibrated=True)
    yield error(0.06, 0.4, 0.5, fraction=0.5, trust=0.5)
    yield error(0.06, 0.4, 0.4, fraction=0.5, calibrated=True)
    yield error(0.08, 0.4, 0.4, trust=0.5, calibrated=True)


def descents() -> Iterator[Named]:
    """Other ways to descend."""
    for epsilon, consistency in ((0.3, 1.0), (0.3, 3.0), (0.4, 2.0)):
        yield ball(epsilon, 0.4, consistency=consistency)
    yield ball(0.4, 0.4, fraction=0.5, consistency=3.0)
    for radius, cap in ((0.04, 0.3), (0.06, 0.4)):
        yield error(radius, cap, 0.4, consistency=2.0)
    yield error(0.08, 0.4, 0.4, trust=0.5, consistency=2.0)
    yield ball(0.3, 0.4, label_smoothing=0.1)
    for weight_decay in (0.05, 0.2):
        yield ball(0.3, 0.4, weight_decay=weight_decay)
    yield ball(0.4, 0.4, fraction=0.5, weight_decay=0.2)
    yield ball(0.3, 0.4, falling_rate=True)
    yield error(0.04, 0.3, 0.4, falling_rate=True)
    yield ball(0.3, 0.4, warm_up=10)


def halves() -> Iterator[Named]:
    """One gradient and a half: a second one for some samples of each batch, or for all in some of the steps."""
    for half in ("random", "failed"):
        yield ball(0.3, 0.4, half=half)
        yield error(0.06, 0.4, 0.4, half=half)
    yield error(0.06, 0.35, 0.4, kind="margin", fraction=0.5, half="failed")
    yield error(0.06, 0.4, 0.4, fraction=0.5, calibrated=True, half="failed")
    yield error(0.08, 0.4, 0.4, fraction=0.5, half="failed", consistency=3.0, weight_decay=0.1)
    for noise in (0.3, 0.4):
        yield ball(0.3, noise, every=4)
    yield ball(0.4, 0.4, fraction=0.5, every=4)
    yield error(0.06, 0.35, 0.4, every=4)
    yield error(0.08, 0.4, 0.4, every=4)
    for memory, way in ((0.5, 0.5), (0.9, 0.3)):  # the climb goes on where it was left, instead
        yield error(0.06, 0.4, 0.4, memory=memory, way=way)


def later() -> Iterator[Named]:
    """More of what was best, turns and memory."""
    for epsilon, noise in ((0.3, 0.2), (0.35, 0.3), (0.4, 0.3)):
        yield ball(epsilon, noise, every=4)
    yield ball(0.3, 0.3, every=10, more=6)
    for radius, cap in ((0.02, 0.25), (0.06, 0.4), (0.08, 0.4)):
        yield error(radius, cap, 0.3, every=4)
    yield error(0.08, 0.4, 0.3, kind="margin", every=4)
    yield error(0.08, 0.5, 0.3, every=10, more=6)
    yield error(0.06, 0.4, 0.3, every=4, memory=0.5, way=0.5)
    yield error(0.08, 0.5, 0.3, memory=0.5, way=0.5)
    yield error(0.06, 0.5, 0.3, steps=5, falling_rate=True, weight_decay=0.05)


def turns() -> Iterator[Named]:
    """Turns with everything else, and fewer of them."""
    for radius, cap in ((0.0315, 0.3), (0.0585, 0.3)):
        yield error(radius, cap, 0.3, every=4)
    for radius, cap in ((0.02, 0.25), (0.0585, 0.3), (0.07, 0.3)):
        yield error(radius, cap, 0.3, every=5)
    yield error(0.0585, 0.3, 0.2, every=4)
    yield error(0.0585, 0.3, 0.3, every=4, falling_rate=True, weight_decay=0.05)
    yield error(0.085, 0.3, 0.2, kind="margin", every=5)
    for radius, cap in ((0.02, 0.3), (0.04, 0.4), (0.08, 0.4), (0.1, 0.5)):
        yield error(radius, cap, 0.3, every=4, memory=0.5, way=0.5)
    for radius in (0.06, 0.08):
        yield error(radius, 0.4, 0.3, every=5, memory=0.5, way=0.5)
    yield error(0.06, 0.4, 0.2, every=4, memory=0.5, way=0.5)
    yield error(0.06, 0.4, 0.3, every=4, memory=0.5, way=0.5, falling_rate=True)
    yield ball(0.3, 0.1, every=4)
    yield ball(0.3, 0.2, every=5)
    yield ball(0.3, 0.2, every=4, falling_rate=True)
    yield ball(0.3, 0.2, every=4, weight_decay=0.05)
    yield ball(0.3, 0.2, every=4, falling_rate=True, weight_decay=0.05)
    for epsilon in (0.3, 0.4):
        yield ball(epsilon, 0.2, every=4, memory=0.5, way=0.5)
    yield ball(0.3, 0.2, every=4, memory=0.5, way=0.5, falling_rate=True, weight_decay=0.05)


def mnist() -> Iterator[Named]:
    """The same, and what it starts from, on easier data."""
    yield ball(0.2, 0.4)
    yield ball(0.3, 0.6)
    yield ball(0.3, 0.3, every=4)
    yield ball(0.4, 0.4, every=4)
    yield error(0.02, 0.25, 0.3)
    yield error(0.08, 0.4, 0.3, every=4)
    yield error(0.12, 0.5, 0.3, every=4)
    yield error(0.08, 0.4, 0.4, memory=0.5, way=0.5)
    for radius, cap in ((0.02, 0.3), (0.05, 0.5), (0.08, 0.6)):
        yield error(radius, cap, 0.3, every=4)
    yield error(0.05, 0.5, 0.3, every=4, memory=0.5, way=0.5)
    for radius, noise in ((0.12, 0.3), (0.15, 0.2)):
        yield error(radius, 0.5, noise, every=5, gamma_min=1e-6)
    yield error(0.08, 0.4, 0.3, every=5, memory=0.5, way=0.5, gamma_min=1e-6)
    yield error(0.12, 0.5, 0.3, steps=5, gamma_min=1e-6)
    yield error(0.12, 0.4, 0.2, kind="margin", every=5)
    yield error(0.15, 0.5, 0.3, kind="margin", every=5)
    for noise in (0.1, 0.2):
        yield ball(0.4, noise, every=5)
    yield ball(0.4, 0.3, every=4)


def jobs() -> dict[str, Job]:
    """Every training by its name, data/variant."""
    early = (*plain(), *noises(), *lengths(), *descents(), *halves())
    late = (*later(), *turns())
    rounds = (("fashion-mnist", early, 1500), ("fashion-mnist", late, 1000), ("mnist", mnist(), 1000))
    return {
        f"{data}/{name}": Job(data, settings, evaluated)
        for data, leads, evaluated in rounds
        for name, settings in leads
    }


def measure(name: str, job: Job) -> tuple[str, dict[str, Any]]:
    """One training, and its errors."""
    torch.set_num_threads(1)
    torch.compiler.reset()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    data, device = load_data(job.data), torch.device(_device())
    torch.manual_seed(SEED)
    model = build_model("cnn", data.train.x.shape[1:], data.classes).to(device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    train = Samples(data.train.x.to(device), data.train.y.to(device))
    training = Training(Lead(**job.settings), model, train, EPOCHS, BATCH)
    training.train()
    rows = {}
    for decay, average in training.averages.items():
        average.put()
        rows[str(decay)] = errors(model, data, device, job.evaluated)
    history = {key: [training.history[epoch][key] for epoch in LOOKS] for key in TOLD}
    gamma = float(training.gamma)
    found = {"rows": rows, "history": {"epoch": LOOKS, **history}, "gamma": gamma}
    return name, {"settings": job.settings, "evaluated": job.evaluated, **found}


def errors(model: torch.nn.Module, data: DataSet, device: torch.device, evaluated: int) -> dict[str, Any]:
    """Clean, attacked at every epsilon, and the mean of those, in percent."""
    test = Samples(data.test.x.to(device), data.test.y.to(device))
    how: dict[str, Any] = {"loss": cross_entropy, "bounds": data.bounds, "checks": False}
    clean = evaluate(model, test, attacks=["fgsm"], epsilons=[0.0], **how).clean
    attacked = test[FIRST : FIRST + evaluated]
    found = evaluate(model, attacked, attacks=ATTACKS, epsilons=EPSILONS, restarts=RESTARTS, **how)
    worst = [100 * found.error(WORST[float("inf")], epsilon) for epsilon in EPSILONS]
    mean = round(statistics.fmean(worst), 2)
    return {"clean": round(100 * clean, 2), "errors": [round(one, 1) for one in worst], "mean": mean}


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def train(output: Path, workers: int, only: str) -> None:
    """What the file lacks."""
    here = environment(_device())
    fresh = {"settings": SETTINGS, "environment": here, "runs": {}}
    found = json.loads(output.read_text()) if output.exists() else fresh
    if found["environment"] | {"git": None} != here | {"git": None}:
        raise Refused(f"{output} was made in another environment; go on there, or give another --output")
    done, wanted = found["runs"], jobs()
    left = {
        name: job
        for name, job in wanted.items()
        if name.startswith(only) and done.get(name, {}).get("settings") != job.settings
    }
    context = multiprocessing.get_context("spawn")
    with shared_card(print), ProcessPoolExecutor(workers, mp_context=context) as pool:
        for future in as_completed([pool.submit(measure, name, job) for name, job in left.items()]):
            name, done_now = future.result()
            done[name] = done_now
            write_json(output, found)
            print(f"{len(done)} of {len(wanted)}: {name}: {done_now['rows']}", flush=True)


def table(runs: Mapping[str, Any], data: str) -> str:
    """Every variant on a data set, and every average of its weights, the least clean error first."""
    head = ["variant", "gradients", "E[c]", "promised / kept", "clean", *(f"{e:g}" for e in EPSILONS), "average"]
    lines = []
    for key, run in runs.items():
        if key.startswith(f"{data}/"):
            spent, promised, kept = (run["history"][told][-1] for told in ("spent", "promised", "kept"))
            start = [f"{Lead(**run['settings']).gradients:g}", f"{spent:.4f}", f"{promised:.3f} / {kept:.3f}"]
            for decay, row in run["rows"].items():
                variant = key.partition("/")[2] + (f": {decay}" if len(run["rows"]) > 1 else "")
                cells = [f"{row['clean']:.2f}", *(f"{one:.1f}" for one in row["errors"]), f"{row['mean']:.1f}"]
                lines.append((row["clean"], f"| {' | '.join([variant, *start, *cells])} |"))
    ordered = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *ordered])


def markdown(runs: Mapping[str, Any]) -> str:
    """The tables of all data sets."""
    return "\n\n".join(f"**{data}**\n\n{table(runs, data)}" for data in DATA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--only", default="", help="names that start so")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.output.read_text())["runs"]))
    else:
        train(options.output, options.workers, options.only)


if __name__ == "__main__":
    main()
