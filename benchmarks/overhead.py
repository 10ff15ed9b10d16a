"""What rhobust costs over the same arithmetic written by hand, and beside other libraries' PGD.

python -m benchmarks.overhead [--scale 0.1] [--markdown]

Every number is a ratio of two things measured side by side in one process with one thread, so that the machine's speed
and its other work cancel: reference and contestant alternate, and each run of a contestant is divided by the mean of
the two reference runs around it. The clock is the processor time of this process, which does not count the time that
other processes take.
"""

from __future__ import annotations

import copy
import datetime
import importlib.metadata
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# Before torch is imported: its profiler is talkative.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.command import command
from rhobust import ProximalOptimizer, RobustObjective
from rhobust.ascent import Ball, Identity, Maximizer, Oracle, PenalizedAscent
from rhobust.attacks.attack import Attack, attack
from rhobust.models.catalog import cnn, linear
from rhobust.models.resnet import resnet
from rhobust.support.environment import environment
from rhobust.support.files import write_json

RESULTS = Path(__file__).parents[1] / "results" / "bench" / "overhead.json"

Run = Callable[[], Tensor]
"""One training step or one attack; returns the zeta it found."""


@dataclass(frozen=True)
class Settings:
    """Everything that is fixed in a run."""

    seed: int = 0
    threads: int = 1
    batch: int = 64
    shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    attack_steps: int = 10
    learning_rate: float = 1e-3
    radius: float = 6.0
    gamma: float = 1.0
    gamma_learning_rate: float = 0.05
    gamma_min: float = 1e-3
    attack_epsilon: float = 0.1
    attack_step_size: float = 0.025
    time_goal: float = 1.05
    memory_goal: float = 1.1


SETTINGS = Settings()
TRAINING_BOX = (-1.0, 1.0)
ATTACK_BOX = (0.0, 1.0)  # the other libraries expect it
PGD = Ball(SETTINGS.attack_epsilon, steps=SETTINGS.attack_steps, step_size=SETTINGS.attack_step_size)


# The references: what a user would write without rhobust, and nothing more.


def ascent_by_hand(model: nn.Module, x: Tensor, y: Tensor, gamma: Tensor, steps: int) -> Tensor:
    """Ascent on loss - gamma ||zeta - x||^2 with the step 1 / (2 gamma sqrt(t + 1))."""
    zeta = x
    for t in range(steps):
        moving = zeta.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(F.cross_entropy(model(moving), y, reduction="sum"), moving)
        zeta = zeta + ((x + slope / (2 * gamma)).clamp(*TRAINING_BOX) - zeta) / math.sqrt(t + 1)
    return zeta


def training_by_hand(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> Run:
    """Ascent, Adam and the multiplicative rule for gamma; with no steps, ERM."""
    optimizer = torch.optim.Adam(model.parameters(), lr=SETTINGS.learning_rate)
    gamma = torch.tensor(SETTINGS.gamma)

    def step() -> Tensor:
        zeta = ascent_by_hand(model, x, y, gamma, steps)
        optimizer.zero_grad()
        F.cross_entropy(model(zeta), y).backward()
        optimizer.step()
        if steps:
            cost = (zeta - x).square().flatten(1).sum(1).mean()
            pull = ((SETTINGS.radius - cost) / SETTINGS.radius).clamp(-1, 1)
            gamma.mul_(torch.exp(-SETTINGS.gamma_learning_rate * pull)).clamp_min_(SETTINGS.gamma_min)
        return zeta

    return step


def attack_by_hand(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    """PGD in an l_inf ball."""
    epsilon, size = SETTINGS.attack_epsilon, SETTINGS.attack_step_size

    def attack() -> Tensor:
        zeta = x
        for _ in range(SETTINGS.attack_steps):
            moving = zeta.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(F.cross_entropy(model(moving), y, reduction="sum"), moving)
            zeta = x + (zeta + size * slope.sign() - x).clamp(-epsilon, epsilon)
            zeta = zeta.clamp(*ATTACK_BOX)
        return zeta

    return attack


# The contestants.


def per_sample_loss(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, one number per sample."""
    return F.cross_entropy(output, y, reduction="none")


def objective_of(model: nn.Module, maximizer: Maximizer, box: tuple[float, float]) -> RobustObjective:
    """The library's objective with the settings above."""
    return RobustObjective(
        model,
        per_sample_loss,
        radius=SETTINGS.radius,
        maximizer=maximizer,
        gamma=SETTINGS.gamma,
        gamma_min=SETTINGS.gamma_min,
        bounds=box,
    )


def training(model: nn.Module, x: Tensor, y: Tensor, maximizer: Maximizer) -> Run:
    """The library's step, as its users write it."""
    objective = objective_of(model, maximizer, TRAINING_BOX)
    adam = torch.optim.Adam(model.parameters(), lr=SETTINGS.learning_rate)
    optimizer = ProximalOptimizer(adam, objective)

    def step() -> Tensor:
        optimizer.zero_grad()
        surrogate = objective(x, y)
        surrogate.value.backward()
        optimizer.step()
        return surrogate.zeta

    return step


def inner_loop(model: nn.Module, x: Tensor, y: Tensor, maximizer: Maximizer, box: tuple[float, float]) -> Run:
    """The library's inner loop alone: for a ball, an attack."""
    objective = objective_of(model, maximizer, box)
    return lambda: objective.maximum(x, y).zeta


def verified_attack(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    """The library's evaluation attack: predictions before and after, and only who is not fooled yet goes on."""
    return lambda: attack(model, x, y, Attack(PGD), loss=per_sample_loss, bounds=ATTACK_BOX).zeta


def torchattacks_pgd(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    """PGD of torchattacks."""
    import torchattacks

    pgd = torchattacks.PGD(
        model,
        eps=SETTINGS.attack_epsilon,
        alpha=SETTINGS.attack_step_size,
        steps=SETTINGS.attack_steps,
        random_start=False,
    )
    return lambda: pgd(x, y)


def foolbox_pgd(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    """PGD of foolbox; its call also checks the result with one more forward pass."""
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=ATTACK_BOX, device="cpu")
    pgd = foolbox.attacks.LinfPGD(
        abs_stepsize=SETTINGS.attack_step_size, steps=SETTINGS.attack_steps, random_start=False
    )
    return lambda: pgd(wrapped, x, y, epsilons=SETTINGS.attack_epsilon)[1]


def art_pgd(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    """PGD of the Adversarial Robustness Toolbox; its call also predicts before and after."""
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        input_shape=SETTINGS.shape,
        nb_classes=SETTINGS.classes,
        clip_values=ATTACK_BOX,
        device_type="cpu",
    )
    pgd = ProjectedGradientDescentPyTorch(
        classifier,
        eps=SETTINGS.attack_epsilon,
        eps_step=SETTINGS.attack_step_size,
        max_iter=SETTINGS.attack_steps,
        num_random_init=0,
        batch_size=SETTINGS.batch,
        verbose=False,
    )
    inputs, labels = x.numpy(), y.numpy()
    return lambda: torch.from_numpy(pgd.generate(inputs, labels))


PEERS: dict[str, Callable[[nn.Module, Tensor, Tensor], Run]] = {
    "torchattacks": torchattacks_pgd,
    "foolbox": foolbox_pgd,
    "adversarial-robustness-toolbox": art_pgd,
}


# The measurements.


@dataclass(frozen=True)
class Contest:
    """A reference and what is measured against it."""

    what: str
    over: str
    reference: Run
    contestants: dict[str, Run]
    rounds: int = 0  # 0: memory only
    memory: bool = False
    time_goal: float | None = None
    same_arithmetic: bool = True


@dataclass(frozen=True)
class Timing:
    """Processor time of one thing over another's, over all rounds."""

    what: str
    measured: str
    over: str
    ratio: float  # the median
    quartiles: tuple[float, float]
    rounds: int
    seconds: float  # the median
    over_seconds: float
    agreement: float | None  # share of zeta's entries that equal the reference's; None: not the same arithmetic
    goal: float | None


@dataclass(frozen=True)
class Memory:
    """Peak of live memory of one thing over another's."""

    what: str
    measured: str
    over: str
    ratio: float
    bytes: int
    over_bytes: int
    goal: float | None


def seconds_of(run: Run) -> float:
    """Processor time of one run."""
    start = time.process_time()
    run()
    return time.process_time() - start


def side_by_side(reference: Run, contestants: dict[str, Run], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """For each contestant and round its seconds, and the reference's: the mean of the run before and the run after."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    before = seconds_of(reference)
    for _ in range(rounds):
        for name, contestant in contestants.items():
            own = seconds_of(contestant)
            after = seconds_of(reference)
            pairs[name].append((own, (before + after) / 2))
            before = after
    return pairs


def timings(contest: Contest) -> list[Timing]:
    """Compare the answers of the first runs, which also warm up, then time side by side."""
    answer = contest.reference()
    answers = {name: run() for name, run in contest.contestants.items()}
    rows = []
    for name, pairs in side_by_side(contest.reference, contest.contestants, contest.rounds).items():
        low, middle, high = statistics.quantiles([own / other for own, other in pairs], n=4, method="inclusive")
        comparable = contest.same_arithmetic and name not in NOT_COMPARABLE
        close = (answers[name] - answer).abs() <= 1e-4
        rows.append(
            Timing(
                contest.what,
                name,
                contest.over,
                ratio=round(middle, 4),
                quartiles=(round(low, 4), round(high, 4)),
                rounds=contest.rounds,
                seconds=round(statistics.median(own for own, _ in pairs), 6),
                over_seconds=round(statistics.median(other for _, other in pairs), 6),
                agreement=round(close.float().mean().item(), 5) if comparable else None,
                goal=contest.time_goal if name.startswith("rhobust") else None,
            )
        )
    return rows


def peak_memory(run: Run) -> int:
    """The most bytes that were alive at once, of those allocated during the run.

    The profiler notes every allocation and release of torch's CPU allocator, temporaries inside operators included, so
    their running sum is exact and repeats to the byte. The process's resident size would not do: it depends on what the
    C library keeps for later. Weights, data and optimizer state exist before and are not counted, which makes the ratio
    stricter.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        alive += event["args"]["Bytes"]
        peak = max(peak, alive)
    return peak


def memories(contest: Contest) -> list[Memory]:
    """Peak memory of every contestant over the reference's."""
    other = peak_memory(contest.reference)
    peaks = {name: peak_memory(run) for name, run in contest.contestants.items()}
    return [
        Memory(
            contest.what,
            name,
            contest.over,
            round(peak / other, 4),
            peak,
            other,
            goal=SETTINGS.memory_goal if name.startswith("rhobust") else None,
        )
        for name, peak in peaks.items()
    ]


# The run.

HAND = "by hand"
ERM = "rhobust, ERM"
ONE = "rhobust, PenalizedAscent(1)"
TEN = "rhobust, PenalizedAscent(10)"
ORACLE = "rhobust, Oracle(10)"
VERIFIED = "rhobust, attack (verified)"
NOT_COMPARABLE = {ORACLE, VERIFIED}  # an oracle may step back; an attack leaves alone what the model already errs on
MAXIMIZERS: dict[str, Maximizer] = {
    ERM: Identity(),
    ONE: PenalizedAscent(),
    TEN: PenalizedAscent(steps=10),
    ORACLE: Oracle(accuracy=0.0, max_steps=10),  # accuracy 0: it never stops early
}


def training_contests(network: nn.Module, x: Tensor, y: Tensor) -> list[Contest]:
    """Training steps over the same steps by hand, and over an ERM step."""

    def ours(*names: str) -> dict[str, Run]:
        return {name: training(copy.deepcopy(network), x, y, MAXIMIZERS[name]) for name in names}

    def by_hand(steps: int) -> Run:
        return training_by_hand(copy.deepcopy(network), x, y, steps)

    goal = SETTINGS.time_goal
    control = {"by hand, again (control)": by_hand(1)}
    return [
        Contest("ERM step", HAND, by_hand(0), ours(ERM), rounds=30, time_goal=goal),
        Contest("SPGDA step", HAND, by_hand(1), ours(ONE) | control, rounds=24, time_goal=goal, memory=True),
        Contest("SPGD-10 step", HAND, by_hand(10), ours(TEN, ORACLE), rounds=13, time_goal=goal, memory=True),
        Contest("training step", ERM, ours(ERM)[ERM], ours(ONE, TEN, ORACLE), rounds=5, same_arithmetic=False),
    ]


def batch_norm_contests(network: nn.Module, x: Tensor, y: Tensor) -> list[Contest]:
    """ERM steps of a network with BatchNorm, in training mode."""
    reference = training_by_hand(copy.deepcopy(network), x, y, 0)
    own = training(copy.deepcopy(network), x, y, MAXIMIZERS[ERM])
    return [Contest("ERM step, ResNet with BatchNorm", HAND, reference, {ERM: own}, 40, time_goal=SETTINGS.time_goal)]


def small_contests(network: nn.Module, x: Tensor, y: Tensor) -> list[Contest]:
    """The same steps on a model so small that what the library adds to each step stands out."""

    def compared(name: str, steps: int) -> Contest:
        own = training(copy.deepcopy(network), x, y, MAXIMIZERS[name])
        reference = training_by_hand(copy.deepcopy(network), x, y, steps)
        return Contest("step, linear model", HAND, reference, {name: own}, rounds=200)

    return [compared(ERM, 0), compared(ONE, 1), compared(TEN, 10), compared(ORACLE, 10)]


def inner_contests(model: nn.Module, x: Tensor, y: Tensor) -> list[Contest]:
    """Memory of the inner loop alone."""
    gamma = torch.tensor(SETTINGS.gamma)

    def by_hand(steps: int) -> Run:
        return lambda: ascent_by_hand(model, x, y, gamma, steps)

    def ours(*names: str) -> dict[str, Run]:
        return {name: inner_loop(model, x, y, MAXIMIZERS[name], TRAINING_BOX) for name in names}

    return [
        Contest("inner loop, 1 step", HAND, by_hand(1), ours(ONE), memory=True),
        Contest("inner loop, 10 steps", HAND, by_hand(10), ours(TEN, ORACLE), memory=True),
    ]


def attack_contests(network: nn.Module, x: Tensor, y: Tensor) -> tuple[list[Contest], dict[str, str]]:
    """PGD over PGD by hand, and the version of every peer or why it is missing."""
    by_hand = attack_by_hand(copy.deepcopy(network), x, y)
    ours = {"rhobust, Ball(10)": inner_loop(copy.deepcopy(network), x, y, PGD, ATTACK_BOX)}
    others = {VERIFIED: verified_attack(copy.deepcopy(network), x, y)}
    versions: dict[str, str] = {}
    for name, build in PEERS.items():
        try:
            run = build(copy.deepcopy(network), x, y)
            run()
        except ImportError as problem:
            versions[name] = f"not installed: {problem}"
        except Exception as problem:  # a peer that does not run is reported, whatever the reason
            versions[name] = f"does not run: {type(problem).__name__}: {problem}"
        else:
            versions[name] = importlib.metadata.version(name)
            others[name] = run
    contests = [
        Contest("PGD-10 attack", HAND, by_hand, ours, rounds=13, time_goal=SETTINGS.time_goal, memory=True),
        Contest("PGD-10 attack", HAND, by_hand, others, rounds=5, memory=True),
    ]
    return contests, versions


def measure(output: Path, scale: float) -> None:
    """Every comparison; `scale` multiplies the number of rounds."""
    start = time.perf_counter()
    torch.set_num_threads(SETTINGS.threads)
    torch.manual_seed(SETTINGS.seed)
    shape = torch.Size(SETTINGS.shape)
    network, small = cnn(shape, SETTINGS.classes), linear(shape, SETTINGS.classes)
    residual = resnet(shape, SETTINGS.classes)
    unit = torch.rand(SETTINGS.batch, *shape)  # in [0, 1]
    x, y = 2 * unit - 1, torch.randint(SETTINGS.classes, (SETTINGS.batch,))

    attacks, peers = attack_contests(network.eval(), unit, y)
    network.train()
    contests = [
        *training_contests(network, x, y),
        *batch_norm_contests(residual, x, y),
        *small_contests(small, x, y),
        *attacks,
        *inner_contests(network, x, y),
    ]
    contests = [replace(each, rounds=max(2, round(scale * each.rounds)) if each.rounds else 0) for each in contests]
    timed = [row for contest in contests if contest.rounds for row in timings(contest)]
    peaks = [row for contest in contests if contest.memory for row in memories(contest)]
    report = {
        "settings": asdict(SETTINGS),
        "environment": {
            **environment("cpu"),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "clock": "time.process_time",
            "peers": peers,
            "wall_seconds": round(time.perf_counter() - start),
        },
        "time": [asdict(row) for row in timed],
        "memory": [asdict(row) for row in peaks],
    }
    write_json(output, report)


# The tables.


def verdict(row: dict[str, Any]) -> str:
    """The goal and whether it is met."""
    if row["goal"] is None:
        return ""
    return f"<= {row['goal']}: {'met' if row['ratio'] <= row['goal'] else 'missed'}"


def time_table(report: dict[str, Any]) -> list[list[str]]:
    """Header and rows of the times."""
    header = ["what", "measured", "over", "time ratio", "middle half", "milliseconds", "goal", "same answer", "rounds"]
    rows = [
        [
            row["what"],
            row["measured"],
            row["over"],
            f"{row['ratio']:.3f}",
            f"{row['quartiles'][0]:.3f} to {row['quartiles'][1]:.3f}",
            f"{1e3 * row['seconds']:.4g} over {1e3 * row['over_seconds']:.4g}",
            verdict(row),
            "" if row["agreement"] is None else f"{100 * row['agreement']:.2f} %",
            str(row["rounds"]),
        ]
        for row in report["time"]
    ]
    return [header, *rows]


def memory_table(report: dict[str, Any]) -> list[list[str]]:
    """Header and rows of the peaks of memory."""
    header = ["what", "measured", "over", "memory ratio", "peak, MiB", "goal"]
    rows = [
        [
            row["what"],
            row["measured"],
            row["over"],
            f"{row['ratio']:.3f}",
            f"{row['bytes'] / 2**20:.2f}",
            verdict(row),
        ]
        for row in report["memory"]
    ]
    return [header, *rows]


def conditions(report: dict[str, Any]) -> str:
    """One sentence on where and how the numbers arose."""
    place, settings = report["environment"], report["settings"]
    peers = "; ".join(f"{name} {state}" for name, state in place["peers"].items())
    return (
        f"{place['date']}, {place['device']}, {place['threads']} thread, Python {place['python']}, "
        f"torch {place['torch']}, batch {settings['batch']}, seed {settings['seed']}. Peers: {peers}."
    )


def price_of_a_gradient(report: dict[str, Any]) -> str:
    """One sentence: what one more ascent gradient adds to a training step."""
    (over_erm,) = (row["ratio"] for row in report["time"] if (row["measured"], row["over"]) == (TEN, ERM))
    return f"One ascent gradient costs {(over_erm - 1) / 10:.2f} of an ERM step."


def markdown(report: dict[str, Any]) -> str:
    """The report as docs/benchmarks.md shows it."""
    tables = []
    for header, *rows in (time_table(report), memory_table(report)):
        lines = [header, ["---"] * len(header), *rows]
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join([conditions(report), *tables, price_of_a_gradient(report)])


TABLES = {"report": markdown}

if __name__ == "__main__":
    command(__doc__, RESULTS, measure, TABLES, options={"scale": (1.0, "multiplies the number of rounds")})
