"""An external audit: our evaluation of a model beside that of independent attacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from rhobust.ascent.steps import Ball
from rhobust.attacks.cascade import CASCADES
from rhobust.box import Bounds
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, Refused
from rhobust.evaluation.evaluate import evaluate
from rhobust.evaluation.intervals import interval
from rhobust.evaluation.referee import attack_by, find_suite
from rhobust.evaluation.trust import Flag
from rhobust.losses import PerSampleLoss, is_regression

TOLERANCE = 0.01
"""How much more than ours the independent attacks' error may be before that is flagged."""

NORMS = {"inf": math.inf, "2": 2.0}
"""The norms of the ball by name."""


@dataclass(frozen=True)
class Audit:
    """Errors at one epsilon on the same samples."""

    epsilon: float
    samples: int
    clean: float
    ours: float
    """By our cascade."""
    referee: float
    """By the independent attacks together."""
    attacks: dict[str, float]
    """The error after each of the independent attacks; each meets only those that the ones before it did not fool."""
    flags: list[Flag] = field(default_factory=list)
    norm: str = "inf"
    suite: str = "ART"
    """Whose attacks: AutoAttack or ART."""
    reason: str = ""
    """Why AutoAttack does not apply, where it does not."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; the two errors with their 95 % intervals."""
        ends = {f"{name}_interval": list(interval(getattr(self, name), self.samples)) for name in ("ours", "referee")}
        return asdict(self) | ends


def audit(
    model: nn.Module,
    samples: Samples,
    *,
    epsilon: float,
    loss: PerSampleLoss,
    bounds: Bounds,
    norm: str = "inf",
    seed: int = 0,
    done: Callable[[str], None] | None = None,
) -> Audit:
    """Attack the same samples by our cascade and by independent attacks, and flag it where those find notably more."""
    wrong = [] if 0 < epsilon < math.inf else [f"epsilon must be finite and > 0, not {epsilon}"]
    wrong += [] if norm in NORMS else [f"norm must be one of {', '.join(NORMS)}, not {norm!r}"]
    if wrong:
        raise ConfigError(wrong)
    if is_regression(loss):
        raise Refused(
            "an audit counts the errors of a classifier, and a regression makes none; `rhobust evaluate` has RMSE"
        )
    ball, tell = Ball(epsilon, NORMS[norm]), done or (lambda message: None)
    suite = find_suite(model, samples, ball, bounds, seed)
    (name,) = (name for name, of in CASCADES.items() if of == ball.norm)
    own = evaluate(model, samples, loss=loss, bounds=bounds, attacks=[name], epsilons=[epsilon], seed=seed, done=done)
    _, errors = attack_by(suite, model, samples, ball, bounds, seed, lambda attack: tell(f"{attack} done"))
    ours, referee = own.error(name, epsilon), list(errors.values())[-1]
    flags = list(own.flags)
    if referee - ours > TOLERANCE:
        numbers = f"{suite.name} finds {100 * referee:.1f} % errors at epsilon {epsilon:g}, ours {100 * ours:.1f} %"
        flags.append(Flag("referee", f"{numbers}. Report the larger number"))
    return Audit(epsilon, len(samples), own.clean, ours, referee, errors, flags, norm, suite.name, suite.reason)
