"""An external audit: independent attacks (ART) on the same model, beside the library's own.

The four attacks of AutoAttack (Croce and Hein, 2020) as the Adversarial Robustness Toolbox has them: APGD on the
cross-entropy, APGD on the ratio of differences of logits, DeepFool, and Square. Its code is imported here and nowhere
else (`pip install 'rhobust[audit]'`); its results are verified like our own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from rhobust.ascent.steps import Ball
from rhobust.attacks.attack import errs, verified
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, Refused
from rhobust.evaluation.evaluate import WORST, evaluate
from rhobust.evaluation.trust import Flag
from rhobust.losses import PerSampleLoss
from rhobust.support.probing import probing

OURS = ("pgd", "pgd-margin", "square")
RESTARTS = 5
SQUARE = "square"
"""The referee's attack that is for images alone."""
TOLERANCE = 0.01
"""How much more than ours the referee's error may be before that is flagged."""

_ITERATIONS = 100  # of APGD and DeepFool, as AutoAttack has it
_QUERIES = 1000  # of Square, where AutoAttack has 5000: a fifth of the time, and it comes last
_BATCH = 256


@dataclass(frozen=True)
class Audit:
    """Errors at one epsilon, in l_inf, on the same samples."""

    epsilon: float
    samples: int
    clean: float
    ours: float
    """The worst of our attacks (`OURS`)."""
    referee: float
    """The worst of the referee's."""
    attacks: dict[str, float]
    """The referee's error after each of its attacks; each meets only those that the ones before it did not fool."""
    flags: list[Flag] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def audit(
    model: nn.Module,
    samples: Samples,
    *,
    epsilon: float,
    loss: PerSampleLoss,
    bounds: tuple[float, float],
    seed: int = 0,
    done: Callable[[str], None] | None = None,
) -> Audit:
    """Attack the same samples with ours and with the referee's, and flag it where the referee finds notably more."""
    if not 0 < epsilon < float("inf"):
        raise ConfigError([f"epsilon must be finite and > 0, not {epsilon}"])
    _import()
    own = evaluate(
        model, samples, loss=loss, bounds=bounds, attacks=OURS, epsilons=[epsilon], restarts=RESTARTS, seed=seed
    )
    if done:
        done("our attacks")
    fooled = errs(model, samples.x, samples.y)
    errors = {}
    with _seeded(seed), probing(model):
        for name, generate in _attacks(model, samples, epsilon, bounds).items():
            right = (~fooled).nonzero()[:, 0]
            if len(right):
                x, y = samples.x[right], samples.y[right]
                found = torch.from_numpy(generate(x.cpu().numpy(), y.cpu().numpy())).to(x)
                fooled[right] = errs(model, verified(x, found, Ball(epsilon), bounds)[0], y)
            errors[name] = float(fooled.double().mean())
            if done:
                done(name)
    ours, referee = own.error(WORST[float("inf")], epsilon), float(fooled.double().mean())
    flags = list(own.flags)
    if referee - ours > TOLERANCE:
        numbers = f"the referee finds {100 * referee:.1f} % at epsilon {epsilon:g}, ours only {100 * ours:.1f} %"
        flags.append(Flag("referee", f"{numbers}: report the referee's error"))
    return Audit(epsilon, len(samples), own.clean, ours, referee, errors, flags)


def _import() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import art.attacks.evasion
            import art.estimators.classification
    except ImportError as problem:
        raise Refused(f"the audit needs its referee: pip install 'rhobust[audit]' ({problem})") from None
    return art


def _attacks(
    model: nn.Module, samples: Samples, epsilon: float, bounds: tuple[float, float]
) -> dict[str, Callable[[Any, Any], Any]]:
    """Name -> (x, y) -> x attacked, as arrays."""
    art = _import()
    with torch.no_grad():
        classes = int(model(samples.x[:1]).shape[1])
    judged = art.estimators.classification.PyTorchClassifier(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(samples.x.shape[1:]),
        nb_classes=classes,
        clip_values=bounds,
        device_type="gpu" if samples.x.is_cuda else "cpu",
    )
    shared: dict[str, Any] = {"batch_size": _BATCH, "verbose": False}
    kind = art.attacks.evasion

    def apgd(loss: str) -> Any:
        steps = {"eps": epsilon, "eps_step": epsilon / 4, "max_iter": _ITERATIONS, "nb_random_init": 1}
        return kind.AutoProjectedGradientDescent(judged, loss_type=loss, **steps, **shared)

    found = {"apgd-ce": apgd("cross_entropy")}
    if classes > 2:  # the ratio is of three logits
        found["apgd-dlr"] = apgd("difference_logits_ratio")
    found["deepfool"] = kind.DeepFool(judged, max_iter=_ITERATIONS, epsilon=1e-3, nb_grads=min(classes, 10), **shared)
    if samples.x.ndim == 4:  # the referee's squares are for images
        found[SQUARE] = kind.SquareAttack(judged, eps=epsilon, max_iter=_QUERIES, **shared)
    return {name: one.generate for name, one in found.items()}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The referee draws from numpy's and torch's global generators, and warns of what is no concern of the user's."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)  # it takes no more bits
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            yield
    finally:
        np.random.set_state(state)
