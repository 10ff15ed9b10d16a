"""One gradient, as robust as ten? Every variant that was tried, with what it costs.

RHOBUST_DATA=... python benchmarks/one_gradient.py [--only PREFIX] [--workers 12]   trains what the file lacks
RHOBUST_DATA=... python benchmarks/one_gradient.py --confirm                          the chosen and their rivals, anew
RHOBUST_DATA=... python benchmarks/one_gradient.py --clock                            times steps, nothing beside them
python benchmarks/one_gradient.py --markdown TABLE                                    prints a table
python benchmarks/one_gradient.py --figure docs/images/one-gradient.png               draws what there is

Attacked is the worst of PGD (40 steps, 5 restarts), Auto-PGD on the loss and on the margin, and random squares, on the
first 1,000 test images, averaged over epsilon 0.1, 0.2, 0.3 and 0.4 in pixels in [-1, 1]. What is chosen by these is
confirmed with other seeds on the next 1,000, which nothing was chosen by.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
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
from rhobust.environment import environment
from rhobust.evaluate import WORST, evaluate
from rhobust.files import write_json
from rhobust.losses import cross_entropy
from rhobust.objective import RobustObjective
from rhobust.observer import Observer
from rhobust.reproduction.mps import shared_card
from rhobust.runner import engine_of
from rhobust.runs import rho_eff
from rhobust.trainer import Trainer, seeded
from rhobust.undisturbed import undisturbed

RESULTS = Path(__file__).parents[1] / "results" / "one-gradient.json"
DATA, SEEDS, EPOCHS = ("mnist", "fashion-mnist"), (0, 1, 2), 30
ABLATED = ("fashion-mnist", 0)
SAMPLES, EPSILONS = 1000, (0.1, 0.2, 0.3, 0.4)
FRESH_SEEDS, FRESH = (3, 4, 5), slice(SAMPLES, 2 * SAMPLES)  # what nothing was chosen by
LOOK = 500  # test images, not among those that are attacked, that the promise of a step is checked on
AVERAGE = 0.999


def turns(shallow: int, last: int) -> list[int]:
    """So many steps with one gradient, then one that is deeper."""
    return [1] * shallow + [last]


TURNS = turns(4, 3)  # the default; 1.4 gradients on average
RARE3, RARE5 = turns(9, 3), turns(9, 5)  # 1.2 and 1.4
SMALL, SMALLER = "squared-l2:1e-4", "squared-l2:3e-5"
# On Fashion-MNIST: the strongest that begins every ascent anew and descends cross-entropy, and the strongest.
FORGETFUL = {"radius": 0.085, "cap": 0.3, "noise": 0.2, "steps": TURNS, "regularizer": SMALLER}
REMEMBERING = {"radius": 0.095, "cap": 0.32, "noise": 0.15, "steps": TURNS, "regularizer": SMALLER, "memory": 1.0}
STRONGEST = REMEMBERING | {"steps": turns(6, 3), "temper": 0.4}
WAYS: dict[str, tuple[dict[str, Any], ...]] = {  # what is swept of ours, with what differs from `_own`
    "mnist": (
        {"radius": 0.02, "cap": 0.4},
        {"radius": 0.085, "cap": 0.5, "noise": 0.4, "steps": RARE5},
        {"radius": 0.085, "cap": 0.5, "steps": RARE3, "regularizer": SMALL},
    ),
    "fashion-mnist": (
        {"radius": 0.007, "cap": 0.2, "noise": 0.2},
        {"radius": 0.007, "cap": 0.18},
        *({"radius": radius, "cap": 0.3} for radius in (0.0315, 0.05, 0.0585, 0.07)),
        FORGETFUL,
        STRONGEST,
    ),
}
DEEP = {  # with five gradients
    "mnist": {"radius": 0.1, "cap": 0.5, "steps": 5, "regularizer": SMALL},
    "fashion-mnist": STRONGEST | {"steps": 5},
}
TRIED: dict[str, tuple[tuple[dict[str, Any], tuple[int, ...]], ...]] = {  # on the way there, with these seeds
    "mnist": (
        ({"radius": 0.04, "cap": 0.4}, (0, 1, 2)),
        ({"radius": 0.04, "cap": 0.4, "noise": 0.4}, (0,)),
        ({"radius": 0.04, "cap": 0.4, "noise": 0.5}, (0,)),
        ({"radius": 0.04, "cap": 0.4, "average": 0.9995}, (0,)),
        ({"radius": 0.1, "cap": 0.5}, (0, 1, 2)),
        ({"radius": 0.1, "cap": 0.5, "noise": 0.4}, (0,)),
        ({"radius": 0.1, "cap": 0.5, "noise": 0.5}, (0,)),
        ({"radius": 0.1, "cap": 0.5, "noise": 0.4, "average": 0.9997}, (0,)),
        ({"radius": 0.1, "cap": 0.5, "noise": 0.4, "steps": turns(5, 4)}, (0,)),
        ({"radius": 0.085, "cap": 0.5, "noise": 0.4, "steps": turns(5, 4)}, (0, 1, 2)),
        ({"radius": 0.085, "cap": 0.5, "noise": 0.4, "steps": turns(7, 4)}, (0, 1, 2)),
        ({"radius": 0.085, "cap": 0.5, "noise": 0.4, "steps": turns(11, 6)}, (0, 1, 2)),
        ({"radius": 0.085, "cap": 0.5, "noise": 0.5, "steps": turns(7, 4)}, (0, 1)),
        ({"radius": 0.022, "cap": 0.4, "steps": RARE5}, (0, 1, 2)),
        ({"radius": 0.06, "cap": 0.5, "steps": RARE5}, (0, 1, 2)),
        ({"radius": 0.12, "cap": 0.6, "noise": 0.4, "steps": RARE5}, (0, 1, 2)),
        ({"method": "spgda-margin", "radius": 0.1, "cap": 0.45, "noise": 0.4, "steps": TURNS}, (0,)),
        *(
            ({"radius": 0.085, "cap": 0.5, "noise": 0.4, "steps": RARE5, "regularizer": regularizer}, seeds)
            for regularizer, seeds in (
                *((SMALLER, (0, 1)), (SMALL, (0, 1, 2))),
                *(("squared-l2:3e-4", (0, 1)), ("squared-l2:1e-3", (0,))),
            )
        ),
        ({"radius": 0.1, "cap": 0.5, "noise": 0.4, "steps": RARE5, "regularizer": SMALL}, (0, 1)),
        ({"radius": 0.06, "cap": 0.5, "noise": 0.4, "steps": RARE5, "regularizer": SMALL}, (0, 1)),
        ({"radius": 0.06, "cap": 0.5, "steps": RARE5, "regularizer": SMALL}, (0,)),
        ({"radius": 0.12, "cap": 0.55, "noise": 0.4, "steps": RARE5, "regularizer": SMALL}, (0, 1)),
        ({"radius": 0.085, "cap": 0.5, "noise": 0.5, "steps": RARE5, "regularizer": SMALL}, (0, 1)),
        ({"radius": 0.085, "cap": 0.5, "noise": 0.4, "steps": TURNS, "regularizer": SMALL}, (0, 1)),
        ({"radius": 0.085, "cap": 0.5, "steps": TURNS, "regularizer": SMALL}, (0,)),
        *(
            ({"radius": 0.085, "cap": 0.5, "steps": steps, "regularizer": SMALL}, (0, 1, 2))
            for steps in (turns(9, 2), turns(9, 4), RARE5)
        ),
        ({"radius": 0.085, "cap": 0.5, "noise": 0.2, "steps": RARE3, "regularizer": SMALL}, (0,)),
        ({"radius": 0.1, "cap": 0.5, "steps": 5}, (0, 1, 2)),
        ({"radius": 0.075, "cap": 0.5, "steps": 5}, (0, 1, 2)),
        ({"radius": 0.085, "cap": 0.5, "steps": RARE3, "regularizer": SMALL, "memory": 1.0, "temper": 0.3}, (0,)),
    ),
    "fashion-mnist": (
        ({"radius": 0.003, "cap": 0.12}, (0,)),
        ({"radius": 0.004, "cap": 0.15}, (1,)),
        ({"radius": 0.005, "cap": 0.15}, (0, 1, 2)),
        ({"radius": 0.005, "cap": 0.15, "noise": 0.2}, (0,)),
        ({"radius": 0.007, "cap": 0.2, "noise": 0.2, "steps": RARE5}, (0,)),
        ({"radius": 0.0315, "cap": 0.3, "steps": RARE5}, (0,)),
        ({"radius": 0.05, "cap": 0.3, "steps": RARE5}, (0, 1)),
        ({"radius": 0.07, "cap": 0.3, "steps": RARE5}, (0, 1)),
        ({"radius": 0.07, "cap": 0.3, "steps": turns(7, 4)}, (0, 1)),
        *(
            ({"radius": 0.07, "cap": 0.3, "regularizer": regularizer}, (0,))
            for regularizer in ("squared-l2:3e-4", "squared-l2:1e-3")
        ),
        ({"radius": 0.085, "cap": 0.35, "noise": 0.25, "regularizer": SMALLER}, (0,)),
        ({"radius": 0.1, "cap": 0.4, "regularizer": SMALLER}, (0,)),
        ({"radius": 0.06, "cap": 0.5, "steps": 5, "regularizer": SMALLER}, (0,)),
        ({"radius": 0.09, "cap": 0.5, "steps": 5, "regularizer": SMALLER}, (0,)),
        ({"radius": 0.06, "cap": 0.5, "steps": 5}, (0, 1, 2)),
        *(
            (FORGETFUL | way, seeds)
            for way, seeds in (
                ({"radius": 0.04, "cap": 0.25}, (0,)),
                ({"radius": 0.0585}, (0, 1, 2)),
                ({"gamma_min": 1e-6}, (0, 1, 2)),
                ({"noise": 0.15}, (0,)),
                ({"regularizer": SMALL}, (0,)),
                ({"steps": RARE3}, (0, 1, 2)),
                ({"radius": 0.1, "cap": 0.35}, (0,)),
                ({"radius": 0.1, "cap": 0.4, "noise": 0.3, "regularizer": SMALL, "epochs": 90}, (0,)),
                ({"radius": 0.06, "cap": 0.5, "steps": 5}, (0,)),
                ({"cap": 0.5, "steps": 5}, (0,)),
                ({"radius": 0.09, "cap": 0.5, "noise": 0.3, "steps": 5, "epochs": 60}, (0,)),
                ({"method": "spgda-margin"}, (0, 1, 2)),
                ({"method": "spgda-margin", "radius": 0.07}, (0,)),
                ({"method": "spgda-margin", "steps": RARE3}, (0, 1, 2)),
                ({"method": "spgda-margin", "epochs": 90}, (0,)),
                ({"method": "spgda-margin", "radius": 0.1, "cap": 0.35}, (0,)),
                ({"method": "spgda-margin", "radius": 0.13, "cap": 0.4, "epochs": 60}, (0,)),
                *(({"temper": temper}, (0,)) for temper in (0.3, 0.7, 1.0)),
                ({"steps": 5, "temper": 0.5}, (0,)),
                ({"radius": 0.0585, "temper": 0.7}, (0,)),
                ({"method": "spgda-margin", "temper": 0.7}, (0,)),
                *(({"memory": memory}, seeds) for memory, seeds in ((1.0, (0, 1, 2)), (0.9, (0,)), (0.5, (0,)))),
                ({"memory": 0.5, "temper": 0.7}, (0,)),
                ({"radius": 0.11, "cap": 0.35, "memory": 0.5, "temper": 0.7}, (0,)),
                *(({"memory": 1.0, "temper": temper}, seeds) for temper, seeds in ((0.2, (0,)), (0.4, (0,)))),
                ({"memory": 1.0, "temper": 0.3}, (0, 1, 2)),
            )
        ),
        *(
            (FORGETFUL | {"memory": 1.0} | way, (0,))
            for way in (
                *({"steps": steps} for steps in (1, RARE3)),
                *({"noise": noise} for noise in (0.1, 0.3)),
                {"radius": 0.115, "cap": 0.35},
                {"regularizer": SMALL},
                *({"method": "spgda-margin", "steps": steps} for steps in (RARE3, TURNS)),
            )
        ),
        *(
            (FORGETFUL | {"memory": 1.0, "temper": 0.3} | way, (0,))
            for way in (
                *({"steps": steps} for steps in (1, RARE3)),
                {"noise": 0.15},
                {"radius": 0.115, "cap": 0.35},
                {"radius": 0.095, "cap": 0.32},
                *({"regularizer": regularizer} for regularizer in ("squared-l2:1e-5", SMALL)),
                {"method": "spgda-margin"},
                {"average": 0.9995},
            )
        ),
        *(
            (REMEMBERING | {"steps": steps, "temper": temper}, seeds)
            for steps, temper, seeds in (
                *((TURNS, temper, (0, 1, 2)) for temper in (0.3, 0.4, 0.5)),
                *((RARE3, temper, (0, 1, 2)) for temper in (0.3, 0.4, 0.5)),
                *((1, temper, seeds) for temper, seeds in ((0.3, (0, 1, 2)), (0.5, (0,)))),
            )
        ),
        *(
            (way, (0,))
            for way in (
                REMEMBERING,
                {key: value for key, value in REMEMBERING.items() if key != "memory"} | {"temper": 0.3},
                REMEMBERING | {"temper": 0.3, "method": "spgda-margin", "steps": RARE3},
                *(REMEMBERING | {"temper": 0.3, "radius": 0.115, "cap": 0.35, "noise": noise} for noise in (0.1, 0.15)),
                REMEMBERING | {"temper": 0.4, "noise": 0.12, "steps": RARE3},
                STRONGEST | {"radius": 0.13, "cap": 0.4, "noise": 0.2},
                STRONGEST | {"steps": 3},
                *(STRONGEST | {"epochs": epochs} for epochs in (60, 90)),
                STRONGEST | {"epochs": 60, "regularizer": SMALL},
                *(STRONGEST | {"learning_rate": rate} for rate in (0.0005, 0.002, 0.003)),
                *(
                    STRONGEST | {"learning_rate": 0.002} | more
                    for more in (
                        *({"epochs": 60}, {"regularizer": SMALL}, {"average": 0.9995}),
                        *({"temper": 0.3}, {"batch_size": 256}),
                    )
                ),
                *(
                    {"radius": radius, "cap": cap, "noise": noise, "steps": STRONGEST["steps"], "memory": 1.0}
                    for radius, cap, noise in (
                        *((0.007, 0.18, 0.3), (0.0315, 0.3, 0.3)),
                        *((0.0315, 0.25, 0.2), (0.05, 0.3, 0.2)),
                    )
                ),
            )
        ),
        (FORGETFUL | {"steps": 5}, (0, 1, 2)),
    ),
}
GIVEN: dict[str, tuple[tuple[dict[str, Any], tuple[int, ...]], ...]] = {  # the others with what ours has
    "mnist": (
        ({"method": "nfgsm", "epsilon": 0.3, "noise": 0.6, "average": AVERAGE}, (0, 1, 2)),
        ({"method": "nfgsm", "epsilon": 0.3, "noise": 0.6, "average": AVERAGE, "regularizer": SMALL}, (0, 1, 2)),
    ),
    "fashion-mnist": (
        ({"method": "nfgsm", "epsilon": 0.3, "noise": 0.4, "average": AVERAGE, "regularizer": SMALLER}, (0,)),
        ({"method": "ifgsm", "epsilon": 0.4, "average": AVERAGE}, (0, 1, 2)),
        ({"method": "ifgsm", "epsilon": 0.4, "average": AVERAGE, "regularizer": SMALLER}, (0, 1, 2)),
        *(
            (way | {"average": AVERAGE, "regularizer": SMALLER, "temper": 0.4} | more, seeds)
            for way, more, seeds in (
                ({"method": "nfgsm", "epsilon": 0.3, "noise": 0.4}, {}, (0,)),
                ({"method": "nfgsm", "epsilon": 0.3, "noise": 0.4}, {"memory": 1.0}, (0,)),
                ({"method": "ifgsm", "epsilon": 0.4}, {}, (0, 1, 2)),
                ({"method": "ifgsm", "epsilon": 0.4}, {"memory": 1.0}, (0,)),
                ({"method": "ifgsm", "epsilon": 0.4}, {"learning_rate": 0.002}, (0,)),
            )
        ),
    ),
}
RIVALS: dict[str, tuple[dict[str, Any], ...]] = {  # the strongest of the others, with which the chosen are confirmed
    "mnist": (
        {"method": "nfgsm", "epsilon": 0.3, "noise": 0.6},
        {"method": "ifgsm", "epsilon": 0.4},
    ),
    "fashion-mnist": (
        {"method": "nfgsm", "epsilon": 0.3, "noise": 0.4},
        {"method": "ifgsm", "epsilon": 0.4},
        {"method": "ifgsm", "epsilon": 0.4, "average": AVERAGE, "regularizer": SMALLER},
    ),
}
TUNED = {  # knobs of the baselines as docs/reproduction.md has tuned them
    "mnist": {"fgsm": 0.4, "ifgsm": 0.3, "wrm": 0.03},
    "fashion-mnist": {"fgsm": 0.2, "ifgsm": 0.4, "wrm": 0.01},
}
OURS = ("spgda", "spgda-margin")  # with the cost ||.||_inf^2: the attacks are measured so
BEHIND = {"nfgsm": 2.0, "ifgsm": 5.0}  # points that each is to be behind ours, at every clean error that it reaches
BEHIND_DEEP = 2.0  # points that the tuned ones are to be behind ours with five gradients
COLLAPSED = 0.5  # a clean error above it: the model gives nearly every image the same answer
ATTACKS, RESTARTS = ("pgd", "apgd", "apgd-margin", "square"), 5
WINDOWS = 7


def named(method: str, **settings: float | str | list[int]) -> tuple[str, dict[str, Any]]:
    """A way to train, by a name that says its settings."""
    said = [f"{key} {_said(value)}" for key, value in settings.items()]
    more = {"cost": "linf"} if method in OURS else {}
    return ", ".join([method, *said]), {"method": method, **more, **settings}


def _said(value: float | str | list[int]) -> str:
    if isinstance(value, str):
        return value
    return " ".join(map(str, value)) if isinstance(value, list) else f"{value:g}"


def tuned(data: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What others do, at their best on held-out data after a few epochs."""
    yield named("erm")
    yield named("fgsm", epsilon=TUNED[data]["fgsm"])
    yield named("wrm", gamma=TUNED[data]["wrm"])
    yield named("ifgsm", epsilon=TUNED[data]["ifgsm"])


def baselines(data: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same, and the strongest of them over their own knobs."""
    yield from tuned(data)
    for epsilon in (0.1, 0.2, 0.3, 0.4):
        yield named("ifgsm", epsilon=epsilon)
    for epsilon, noise in ((0.1, 0.2), (0.1, 0.4), (0.15, 0.3), (0.2, 0.4), (0.3, 0.4), (0.3, 0.6), (0.4, 0.8)):
        yield named("nfgsm", epsilon=epsilon, noise=noise)


def ours(data: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """One gradient in most steps, from little robustness to much."""
    for way in WAYS[data]:
        yield _own(data, way)


def chosen(data: str) -> list[tuple[str, dict[str, Any]]]:
    """The most robust of these; on Fashion-MNIST that with one gradient in every step too."""
    single = (_own(data, REMEMBERING | {"steps": 1, "temper": 0.3}),) if data == "fashion-mnist" else ()
    return [_own(data, WAYS[data][-1]), *single, deep(data)]


def deep(data: str) -> tuple[str, dict[str, Any]]:
    """With five gradients in every step."""
    return _own(data, DEEP[data])


def tried(data: str, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """More of ours, which was not chosen."""
    for way, seeds in TRIED[data]:
        if seed in seeds:
            yield _own(data, way)


def given(data: str, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The strongest of the others with averaged weights, and with a regularizer."""
    for way, seeds in GIVEN[data]:
        if seed in seeds:
            yield named(**way)


def _own(data: str, way: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """One of ours, with what it has in common with the others."""
    # Radius and cap are always given; here they have their place in the name.
    usual: dict[str, Any] = {"method": "spgda", "radius": 0.0, "cap": 0.0, "noise": 0.3, "average": AVERAGE}
    if data == "mnist":  # there an adversary after errors leaves much of a large rho unspent, and gamma goes low
        usual["gamma_min"] = 1e-6
    return named(**usual | dict(way))


def ablation() -> list[tuple[str, tuple[str, dict[str, Any]]]]:
    """What each idea is worth to ours, and what those that others can have are worth to them."""
    own, averaged = {"radius": 0.0585, "cap": 0.3, "noise": 0.3}, {"average": AVERAGE}

    def forgetful(**otherwise: Any) -> tuple[str, dict[str, Any]]:
        return _own("fashion-mnist", FORGETFUL | otherwise)

    def remembering(**otherwise: Any) -> tuple[str, dict[str, Any]]:
        return _own("fashion-mnist", REMEMBERING | {"temper": 0.3} | otherwise)

    return [
        ("spgda, rho 0.0585, cap 0.3, noise 0.3, averaged, in turns", named("spgda", **own, **averaged)),
        ("... not averaged", named("spgda", **own)),
        ("... always one gradient", named("spgda", **own, steps=1, **averaged)),
        ("... no noise", named("spgda", **own | {"noise": 0.0}, **averaged)),
        ("... climbing the margin, not the chance of an error", named("spgda-margin", **own, steps=TURNS, **averaged)),
        (
            "spgda, rho 0.07, cap 0.3, noise 0.3, averaged, in turns",
            _own("fashion-mnist", {"radius": 0.07, "cap": 0.3}),
        ),
        *(
            (f"... regularizer {weak}", _own("fashion-mnist", {"radius": 0.07, "cap": 0.3, "regularizer": weak}))
            for weak in (SMALLER, SMALL)
        ),
        ("spgda, rho 0.085, cap 0.3, noise 0.2, averaged, in turns, regularizer squared-l2:3e-5", forgetful()),
        ("... no regularizer", _own("fashion-mnist", {k: v for k, v in FORGETFUL.items() if k != "regularizer"})),
        ("... every tenth step deep, not every fifth", forgetful(steps=RARE3)),
        ("... climbing the margin, not the chance of an error", forgetful(method="spgda-margin")),
        ("... always five gradients", forgetful(steps=5)),
        ("... tempered, 0.3", forgetful(temper=0.3)),
        ("... with a memory", forgetful(memory=1.0)),
        ("... with a memory, tempered, 0.3", forgetful(memory=1.0, temper=0.3)),
        (
            "spgda, rho 0.095, cap 0.32, noise 0.15, averaged, in turns, regularizer squared-l2:3e-5, with a memory, "
            "tempered, 0.3",
            remembering(),
        ),
        ("... not tempered", _own("fashion-mnist", REMEMBERING)),
        *((f"... tempered, {temper}", remembering(temper=temper)) for temper in (0.4, 0.5)),
        ("... every seventh step deep, tempered, 0.4", _own("fashion-mnist", STRONGEST)),
        ("... every tenth step deep", remembering(steps=RARE3)),
        ("... always one gradient", remembering(steps=1)),
        ("nfgsm, epsilon 0.2, noise 0.4", named("nfgsm", epsilon=0.2, noise=0.4)),
        ("... averaged", named("nfgsm", epsilon=0.2, noise=0.4, **averaged)),
        ("nfgsm, epsilon 0.3, noise 0.4", named("nfgsm", epsilon=0.3, noise=0.4)),
        ("... averaged", named("nfgsm", epsilon=0.3, noise=0.4, **averaged)),
        ("... averaged, noise 0.3, in turns", named("nfgsm", epsilon=0.3, noise=0.3, steps=TURNS, **averaged)),
        ("ifgsm, epsilon 0.3", named("ifgsm", epsilon=0.3)),
        ("... averaged", named("ifgsm", epsilon=0.3, **averaged)),
        *((f"... {steps} gradients", named("ifgsm", epsilon=0.3, steps=steps)) for steps in (5, 3, 2)),
        ("ifgsm, epsilon 0.4", named("ifgsm", epsilon=0.4)),
        ("... averaged", named("ifgsm", epsilon=0.4, **averaged)),
    ]


def clocked() -> Iterator[tuple[str, dict[str, Any]]]:
    """Whose steps are timed; a step takes as long with any radius, and with all data of these shapes."""
    own, averaged = {"radius": 0.0585, "cap": 0.3, "noise": 0.3}, {"average": AVERAGE}
    yield named("erm")
    yield named("fgsm", epsilon=0.2)
    yield named("nfgsm", epsilon=0.2, noise=0.4)
    yield named("ifgsm", epsilon=0.2)
    yield named("spgda", **own, steps=1, **averaged)
    yield named("spgda", **own, **averaged)
    yield named("erm", regularizer=SMALL)
    yield named("spgda", **own, **averaged, regularizer=SMALL)
    yield named("spgda", **own, steps=RARE3, **averaged, regularizer=SMALL)
    yield named("spgda-margin", **own, steps=TURNS, **averaged, regularizer=SMALL)
    for steps in (1, RARE3, STRONGEST["steps"], TURNS):
        yield named("spgda", **own, steps=steps, **averaged, regularizer=SMALL, memory=1.0, temper=0.3)


def early() -> Iterator[tuple[str, dict[str, Any]]]:
    """Tried before there were turns."""
    for epsilon in (0.1, 0.3):
        yield named("fgsm", epsilon=epsilon)
    yield named("nfgsm", epsilon=0.3, noise=0.6, average=AVERAGE)
    yield named("nfgsm", epsilon=0.2, noise=0.4, average=AVERAGE, memory=0.9)
    yield named("spgda", radius=0.04, cap=0.4, noise=0.5, steps=1)


SHARED = {"epochs": EPOCHS, "batch_size": 128, "log_every": 25, "checkpoint_every": 10**9}


def jobs(seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Settings of every training by its name, data/variant/seed."""
    return {
        f"{data}/{name}/{seed}": SHARED | {"data": data, "seed": seed} | settings
        for seed in seeds
        for data in DATA
        for name, settings in (
            *baselines(data),
            *ours(data),
            deep(data),
            *tried(data, seed),
            *given(data, seed),
            *((*early(), *(way for _, way in ablation())) if (data, seed) == ABLATED else ()),
        )
    }


def confirmations() -> dict[str, dict[str, Any]]:
    """The same of what was chosen, and of the strongest others."""
    return {
        f"{data}/{name}/{seed}": SHARED | {"data": data, "seed": seed} | settings
        for seed in FRESH_SEEDS
        for data in DATA
        for name, settings in (*chosen(data), *(named(**way) for way in RIVALS[data]))
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


def measure(name: str, settings: Mapping[str, Any], images: slice) -> tuple[str, dict[str, Any]]:
    """One training, and its errors on these test images."""
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
    found = evaluate(model, test[images], attacks=ATTACKS, epsilons=EPSILONS, restarts=RESTARTS, **how)  # type: ignore[arg-type]
    # Training images under one of the attacks: what is left there, the network cannot learn or the training did not.
    train = Samples(data.train.x[:SAMPLES].to(device), data.train.y[:SAMPLES].to(device))
    seen = evaluate(model, train, attacks=["apgd"], epsilons=EPSILONS, restarts=RESTARTS, **how)  # type: ignore[arg-type]
    errors = {
        attack: [found.error(attack, epsilon) for epsilon in EPSILONS] for attack in (*ATTACKS, WORST[float("inf")])
    }
    return name, {
        "settings": dict(settings),
        "precision": config.precision,
        "clean": clean,
        "errors": errors,
        "errors_in_training": {"apgd": [seen.error("apgd", epsilon) for epsilon in EPSILONS]},
        "foresight": looks.found,
        "rho_eff": rho_eff(records),
        "gamma": records[-1]["gamma"],
        "gradients": engine.objective.maximizer.mean_gradients,
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
        turns = self.trainer.engine.objective.maximizer.turns  # a window has whole rounds of them
        self.window = turns * math.ceil((300 if self.device.type == "cuda" else 6) / turns)

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
    clocks = {name: Clock(settings | {"data": "mnist"}) for name, settings in clocked()}
    windows: dict[str, list[float]] = {name: [] for name in clocks}
    for number in range(WINDOWS + 1):
        for name, one in clocks.items():
            spent = one.milliseconds()
            if number:  # the first compiles
                windows[name].append(spent)
    device = clocks["erm"].device.type
    middle = {name: statistics.median(values) for name, values in windows.items()}
    rows = {name: {"ms": ms, "over_erm": ms / middle["erm"]} for name, ms in middle.items()}
    times, before = found.setdefault("times", {}), found.setdefault("times_before", {})
    if device in times:
        before.setdefault(device, []).append(times[device])
    times[device] = {"steps": rows, "environment": environment(device)}
    write_json(output, found)
    for name, row in rows.items():
        print(f"{device}: {name}: {row['ms']:.3f} ms, {row['over_erm']:.2f} of erm")


def read(output: Path) -> dict[str, Any]:
    """What is there."""
    empty = {"epsilons": EPSILONS, "samples": SAMPLES, "restarts": RESTARTS, "runs": {}}
    found: dict[str, Any] = json.loads(output.read_text()) if output.exists() else empty
    return found


def train(
    output: Path, part: str, wanted: Mapping[str, dict[str, Any]], images: slice, workers: int, only: str
) -> None:
    """What this part of the file lacks."""
    found = read(output)
    done = found.setdefault(part, {})
    left = {
        name: settings
        for name, settings in wanted.items()
        if name.startswith(only) and done.get(name, {}).get("settings") != settings
    }
    context = multiprocessing.get_context("spawn")
    with shared_card(print), ProcessPoolExecutor(workers, mp_context=context) as pool:
        for future in as_completed([pool.submit(measure, name, settings, images) for name, settings in left.items()]):
            name, made = future.result()
            done[name] = made
            write_json(output, found)
            print(f"{len(done)} of {len(wanted)}: {name}: {100 * made['clean']:.1f} {_average(made):.1f}", flush=True)


def _average(run: Mapping[str, Any]) -> float:
    return 100 * statistics.fmean(run["errors"]["worst"])


@dataclass(frozen=True)
class Variant:
    """A way to train on one data set, and what it came to: means over the seeds that there are.

    Seeds that collapsed are counted and left out, where there are others.
    """

    name: str
    every: list[Mapping[str, Any]]

    @property
    def runs(self) -> list[Mapping[str, Any]]:
        return [run for run in self.every if run["clean"] < COLLAPSED] or self.every

    @property
    def collapsed(self) -> bool:
        """Whether all did."""
        return self.clean >= 100 * COLLAPSED

    @property
    def seeds(self) -> str:
        held = 0 if self.collapsed else len(self.runs)
        return str(held) if held == len(self.every) else f"{held} of {len(self.every)}"

    @property
    def method(self) -> str:
        return str(self.runs[0]["settings"]["method"])

    @property
    def gradients(self) -> float:
        return float(self.runs[0]["gradients"])

    @property
    def clean(self) -> float:
        return 100 * statistics.fmean(run["clean"] for run in self.runs)

    @property
    def spent(self) -> float:
        """E[c]."""
        return statistics.fmean(run["rho_eff"] for run in self.runs)

    @property
    def worst(self) -> list[float]:
        """The referee's error at each epsilon."""
        return [100 * statistics.fmean(run["errors"]["worst"][i] for run in self.runs) for i in range(len(EPSILONS))]

    @property
    def attacked(self) -> float:
        """Their average."""
        return statistics.fmean(self.worst)

    @property
    def spread(self) -> str:
        """The average, ± half of what lies between the highest and the lowest seed."""
        each = [_average(run) for run in self.runs]
        return f"{self.attacked:.1f}" + (f" ± {(max(each) - min(each)) / 2:.1f}" if len(each) > 1 else "")


def variants(found: Mapping[str, Any], data: str) -> list[Variant]:
    """What was trained on these data, the most robust first."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for key, run in found["runs"].items():
        where, name, _ = key.split("/")
        if where == data:
            by_name.setdefault(name, []).append(run)
    return sorted((Variant(name, runs) for name, runs in by_name.items()), key=lambda variant: variant.attacked)


def runs_table(found: Mapping[str, Any]) -> str:
    """Every variant."""
    head = ["data", "variant", "seeds", "gradients", "E[c]", "clean", *(f"worst {e:g}" for e in EPSILONS), "average"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for data in DATA:
        for one in variants(found, data):
            start = [data, one.name, one.seeds, f"{one.gradients:.3g}", f"{one.spent:.3g}"]
            cells = [f"{value:.1f}" for value in (one.clean, *one.worst)]
            lines.append(f"| {' | '.join([*start, *cells, one.spread])} |")
    return "\n".join(lines)


def goals_table(found: Mapping[str, Any]) -> str:
    """For each baseline: the best way of our sweep that is no worse on clean data, and whether the goal is met."""
    rows = []
    for data in DATA:
        made = variants(found, data)
        names, swept = {name for name, _ in ours(data)}, {name for name, _ in baselines(data)}
        for other in sorted((one for one in made if one.name in swept), key=lambda one: one.clean):
            if other.method in BEHIND and not other.collapsed:
                best = next((one for one in made if one.name in names and one.clean <= other.clean), None)
                rows.append(_compared(data, other, best, BEHIND[other.method]))
    return _comparison(rows)


def deep_table(found: Mapping[str, Any]) -> str:
    """For each tuned baseline: ours with five gradients, and whether the goal is met."""
    rows = []
    for data in DATA:
        made = {one.name: one for one in variants(found, data)}
        best = made[deep(data)[0]]
        rows += [_compared(data, made[name], best, BEHIND_DEEP) for name, _ in tuned(data) if name in made]
    return _comparison(rows)


def _comparison(rows: Sequence[Sequence[str]]) -> str:
    head = ["data", "baseline", "seeds", "clean", "attacked", "ours", "clean", "attacked", "ahead by", "goal"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def _compared(data: str, other: Variant, best: Variant | None, goal: float) -> list[str]:
    cells = [data, other.name, other.seeds, f"{other.clean:.2f}", other.spread]
    if best is None:
        return [*cells, "none as good on clean data", "", "", "", "missed"]
    ahead = other.attacked - best.attacked
    cells += [best.name, f"{best.clean:.2f}", best.spread, f"{ahead:.1f}"]
    return [*cells, f">= {goal:g}: {'met' if ahead >= goal else 'missed'}"]


def ablation_table(found: Mapping[str, Any]) -> str:
    """One seed."""
    data, seed = ABLATED
    lines = [f"| variant | gradients | clean | {' | '.join(f'worst {e:g}' for e in EPSILONS)} | average |"]
    lines.append("|---|---|---|" + "---|" * (len(EPSILONS) + 1))
    for label, (name, _) in ablation():
        one = Variant(name, [found["runs"][f"{data}/{name}/{seed}"]])
        cells = [f"{value:.1f}" for value in (one.clean, *one.worst, one.attacked)]
        lines.append(f"| {label} | {one.gradients:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gap_table(found: Mapping[str, Any]) -> str:
    """Auto-PGD on as many images that the model was trained on: what is compared, where that was measured."""
    lines = ["| data | variant | seeds | test images | training images |", "|---|---|---|---|---|"]
    for data in DATA:
        shown = {name for name, _ in (*ours(data), deep(data), *(way for seed in SEEDS for way in given(data, seed)))}
        for one in variants(found, data):
            runs = [run for run in one.runs if "errors_in_training" in run]
            if runs and one.name in shown:
                means = [
                    100 * statistics.fmean(statistics.fmean(run[where]["apgd"]) for run in runs)
                    for where in ("errors", "errors_in_training")
                ]
                lines.append(f"| {data} | {one.name} | {len(runs)} | {means[0]:.1f} | {means[1]:.1f} |")
    return "\n".join(lines)


def times_table(found: Mapping[str, Any]) -> str:
    """Milliseconds a step, and over ERM's in the same run; the same over ERM's in the runs before, the last first."""
    lines = ["| device | variant | ms a step | over ERM | in earlier runs |", "|---|---|---|---|---|"]
    for device, times in found["times"].items():
        runs = [run["steps"] for run in reversed(found.get("times_before", {}).get(device, []))]
        for name, row in times["steps"].items():
            earlier = ", ".join(f"{run[name]['over_erm']:.2f}" for run in runs if name in run)
            lines.append(f"| {device} | {name} | {row['ms']:.4g} | {row['over_erm']:.2f} | {earlier} |")
    return "\n".join(lines)


def confirmed_table(found: Mapping[str, Any]) -> str:
    """Every variant of those that were made anew."""
    return runs_table({"runs": found["confirmed"]})


TABLES = {
    **{"runs": runs_table, "goals": goals_table, "confirmed": confirmed_table, "deep": deep_table},
    **{"ablation": ablation_table, "gap": gap_table, "times": times_table},
}


PROMISES = {  # trainings that hold, and some whose model learns to resist one gradient and no other, as they are drawn
    "mnist": {
        "nfgsm, epsilon 0.2, noise 0.4": named("nfgsm", epsilon=0.2, noise=0.4),
        "nfgsm, epsilon 0.3, noise 0.6": named("nfgsm", epsilon=0.3, noise=0.6),
        "spgda, rho 0.02, in turns": _own("mnist", {"radius": 0.02, "cap": 0.4}),
    },
    "fashion-mnist": {
        "nfgsm, epsilon 0.2, noise 0.4": named("nfgsm", epsilon=0.2, noise=0.4),
        "nfgsm, epsilon 0.4, noise 0.8": named("nfgsm", epsilon=0.4, noise=0.8),
        "spgda, rho 0.0585, in turns": _own("fashion-mnist", {"radius": 0.0585, "cap": 0.3}),
        "spgda, rho 0.0585, always one gradient": named(
            "spgda", radius=0.0585, cap=0.3, noise=0.3, steps=1, average=AVERAGE
        ),
        "spgda, rho 0.095, always one gradient, memory": _own(
            "fashion-mnist", REMEMBERING | {"steps": 1, "temper": 0.3}
        ),
    },
}
PROMISED = {"mnist": 0.7, "fashion-mnist": 3.8}  # the largest loss that is drawn
TICKS = {"mnist": (2, 3, 5, 10, 20, 50), "fashion-mnist": (25, 30, 40, 50, 60, 80, 100)}


def frontier(made: Sequence[Variant]) -> list[Variant]:
    """Those that no other is ahead of in both errors, the least clean error first."""
    edge: list[Variant] = []
    for one in sorted(made, key=lambda one: (one.clean, one.attacked)):
        if not edge or one.attacked < edge[-1].attacked:
            edge.append(one)
    return edge


def figure(found: Mapping[str, Any]) -> Figure:
    """For each data set: clean against attacked error, gradients against attacked error, promised and kept losses."""
    made_on = {data: made for data in DATA if (made := variants(found, data))}
    drawn, axes = figures.new_figure(3, len(made_on), 15, 4.4 * len(made_on))
    for (left, middle, right), (data, made) in zip(axes, made_on.items(), strict=True):
        swept, own = {name for name, _ in (*baselines(data), *ours(data))}, deep(data)[0]
        held = [one for one in made if not one.collapsed]
        for method in dict.fromkeys(one.method for one in held):
            look = figures.style(method)
            dots = {"color": look["color"], "marker": look["marker"]}
            those = [one for one in held if one.method == method]
            main = [one for one in those if one.name in swept]
            rest = [one for one in those if one.name not in swept and one.name != own]
            left.scatter([one.clean for one in main], [one.attacked for one in main], label=method, **dots)
            left.scatter([one.clean for one in rest], [one.attacked for one in rest], s=18, alpha=0.35, **dots)
            edge = frontier(main)
            left.plot([one.clean for one in edge], [one.attacked for one in edge], linewidth=1, color=look["color"])
            least: dict[float, float] = {}  # the most robust with so many gradients
            for one in those:
                least.setdefault(one.gradients, one.attacked)
            middle.scatter(list(least), list(least.values()), label=method, **dots)
        for one in held:
            if one.name == own:
                ring = {"s": 80, "facecolors": "none", "edgecolors": figures.style(one.method)["color"]}
                left.scatter([one.clean], [one.attacked], label="spgda, five gradients", **ring)
        for label, (name, _) in PROMISES[data].items():
            run = found["runs"].get(f"{data}/{name}/0")
            if run:
                promised, kept = zip(*run["foresight"], strict=True)
                (line_,) = right.plot(promised, label=label)
                right.plot(kept, color=line_.get_color(), linestyle="--")
        left.set_ylabel(f"{data}: attacked error, %, average over epsilon")
        left.legend(frameon=False, fontsize="small")
        right.legend(frameon=False, fontsize="x-small")
        right.set_ylim(0, PROMISED[data])
        labels = (
            "clean error, %; pale: other variants",
            "ascent gradients a sample, the best of each",
            "epoch; loss promised, and kept (dashed)",
        )
        for axis, name in zip((left, middle, right), labels, strict=True):
            axis.set_xlabel(name)
            axis.grid(alpha=0.25)
        for axis in (left, middle):
            axis.set_yscale("log")
            axis.set_yticks(TICKS[data], [f"{tick:g}" for tick in TICKS[data]])
            axis.minorticks_off()
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--only", default="", help="names that start so")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--confirm", action="store_true", help="the chosen and their rivals, other seeds and images")
    parser.add_argument("--clock", action="store_true", help="times alone, on the device that is there")
    parser.add_argument("--markdown", choices=TABLES)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.markdown:
        print(TABLES[options.markdown](json.loads(options.output.read_text())))
    elif options.clock:
        clock(options.output)
    elif options.figure:
        figures.save(figure(json.loads(options.output.read_text())), options.figure)
    elif options.confirm:
        train(options.output, "confirmed", confirmations(), FRESH, options.workers, options.only)
    else:
        wanted = jobs(SEEDS[: options.seeds])
        train(options.output, "runs", wanted, slice(SAMPLES), options.workers, options.only)


if __name__ == "__main__":
    main()
