"""Independent attacks on a model: the standard AutoAttack, or, where that does not apply, ART's attacks.

AutoAttack (Croce and Hein, 2020) is APGD on the cross-entropy, targeted APGD, targeted FAB and Square with 5,000
queries, by the package `pyautoattack`. It takes images of four classes or more in a bounded box. For all else there are
those attacks of the Adversarial Robustness Toolbox (ART) that apply. Both packages are imported here and nowhere else
(`pip install 'rhobust[audit]'`); their results are verified like our own.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import project
from rhobust.ascent.steps import Ball
from rhobust.attacks.attack import errs, verified
from rhobust.box import Bounds, limits
from rhobust.data.samples import Samples
from rhobust.errors import Refused
from rhobust.support.probing import probing

_FEWEST_CLASSES = 4  # of the targeted loss of AutoAttack, which compares the three largest logits with a fourth
_MOST_TARGETS = 9  # AutoAttack's
_ART_ITERATIONS = 100  # of APGD and DeepFool, as AutoAttack has it
_ART_QUERIES = 1000  # of Square, where AutoAttack has 5000: a fifth of the time, and it comes last
_BATCH = 250  # AutoAttack's


@dataclass(frozen=True)
class Suite:
    """Attacks by name: (x, y) -> x attacked. Each is meant for the samples that the ones before it did not fool."""

    name: str
    attacks: dict[str, Callable[[Tensor, Tensor], Tensor]]
    reason: str = ""
    """Why it is not AutoAttack, where it is not."""


def find_suite(model: nn.Module, samples: Samples, ball: Ball, bounds: Bounds, seed: int = 0) -> Suite:
    """AutoAttack where it applies, else ART's attacks."""
    with torch.no_grad(), probing(model):
        classes = int(model(samples.x[:1]).shape[1])
    if samples.x.ndim != 4:
        reason = "AutoAttack takes images (channels, height, width)"
    elif classes < _FEWEST_CLASSES:
        reason = f"AutoAttack takes {_FEWEST_CLASSES} classes or more, and this model has {classes}"
    elif not isinstance(bounds, tuple) or not math.isfinite(bounds[1] - bounds[0]):
        reason = "AutoAttack takes inputs in a bounded box, of the same bounds for all features"
    else:
        return Suite("AutoAttack", _autoattack(model, samples, classes, ball, bounds, seed))
    with _seeded(seed):
        return Suite("ART", _art(model, samples, classes, ball, bounds), reason)


def attack_by(
    suite: Suite,
    model: nn.Module,
    samples: Samples,
    ball: Ball,
    bounds: Bounds,
    seed: int = 0,
    done: Callable[[str], None] | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The samples that the suite fools, (N,), and the error after each of its attacks. x itself is in the ball."""
    fooled = errs(model, samples.x, samples.y)
    errors = {}
    with _seeded(seed), probing(model):
        for name, generate in suite.attacks.items():
            right = (~fooled).nonzero()[:, 0]
            if len(right):
                x, y = samples.x[right], samples.y[right]
                found = ball.nearest(x, generate(x, y).to(x))  # as far as the referee's rounding goes
                found = project(x, found, *limits(bounds, x))
                fooled[right] = errs(model, verified(x, found, ball, bounds)[0], y)
            errors[name] = float(fooled.double().mean())
            if done:
                done(name)
    return fooled, errors


class _UnitBox(nn.Module):
    """A model whose inputs live in [0, 1], the one box that AutoAttack knows."""

    def __init__(self, model: nn.Module, bounds: tuple[float, float]) -> None:
        super().__init__()
        self.model, (self.lower, self.upper) = model, bounds

    def forward(self, unit: Tensor) -> Any:
        return self.model(self.lower + (self.upper - self.lower) * unit)


def _autoattack(
    model: nn.Module, samples: Samples, classes: int, ball: Ball, bounds: tuple[float, float], seed: int
) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    kind = _import("pyautoattack").AutoAttack
    lower, width = bounds[0], bounds[1] - bounds[0]
    norm = "Linf" if ball.norm == math.inf else "L2"
    where = str(samples.x.device)
    standard = kind(_UnitBox(model, bounds), norm=norm, eps=ball.epsilon / width, seed=seed, device=where)
    standard.verbose = False
    names = list(standard.attacks_to_run)
    standard.apgd_targeted.n_target_classes = standard.fab.n_target_classes = min(_MOST_TARGETS, classes - 1)

    def one(name: str) -> Callable[[Tensor, Tensor], Tensor]:
        def generate(x: Tensor, y: Tensor) -> Tensor:
            standard.attacks_to_run = [name]
            unit = ((x - lower) / width).clamp(0, 1)
            found: Tensor = standard.run_standard_evaluation(unit, y.long(), batch_size=_BATCH)[0]
            return lower + width * found

        return generate

    return {name: one(name) for name in names}


def _art(
    model: nn.Module, samples: Samples, classes: int, ball: Ball, bounds: Bounds
) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    art, kind = _import("art.estimators.classification"), _import("art.attacks.evasion")
    judged = art.PyTorchClassifier(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(samples.x.shape[1:]),
        nb_classes=classes,
        clip_values=bounds if isinstance(bounds, tuple) else None,
        device_type="gpu" if samples.x.is_cuda else "cpu",
    )
    shared: dict[str, Any] = {"batch_size": _BATCH, "verbose": False}
    norm = np.inf if ball.norm == math.inf else 2

    def apgd(loss: str) -> Any:
        steps = {"eps": ball.epsilon, "eps_step": ball.epsilon / 4, "max_iter": _ART_ITERATIONS, "nb_random_init": 1}
        return kind.AutoProjectedGradientDescent(judged, norm=norm, loss_type=loss, **steps, **shared)

    def as_arrays(one: Any) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, y: torch.from_numpy(one.generate(x.cpu().numpy(), y.cpu().numpy()))

    found = {"apgd-ce": apgd("cross_entropy")}
    if classes > 2:  # the ratio is of three logits
        found["apgd-dlr"] = apgd("difference_logits_ratio")
    found["deepfool"] = kind.DeepFool(
        judged, max_iter=_ART_ITERATIONS, epsilon=1e-3, nb_grads=min(classes, 10), **shared
    )
    if samples.x.ndim == 4 and isinstance(bounds, tuple):  # its squares are for images in a box
        found["square"] = kind.SquareAttack(judged, norm=norm, eps=ball.epsilon, max_iter=_ART_QUERIES, **shared)
    return {name: as_arrays(one) for name, one in found.items()}


def _import(name: str) -> Any:
    from importlib import import_module

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module(name)
    except ImportError as problem:
        raise Refused(f"the audit needs independent attacks: pip install 'rhobust[audit]' ({problem})") from None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """They draw from numpy's and torch's global generators, and warn of what is no concern of the user's."""
    state, log = np.random.get_state(), logging.getLogger("auto-attack")
    silent = log.disabled
    np.random.seed(seed % 2**32)  # it takes no more bits
    try:
        log.disabled = True
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            yield
    finally:
        log.disabled = silent
        np.random.set_state(state)
