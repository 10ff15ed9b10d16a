"""The table of methods: each is a maximizer of zeta with a start and a rule for gamma."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from rhobust.ascent.margin import ErrorAscent, MarginAscent
from rhobust.ascent.maximizer import Maximizer
from rhobust.ascent.oracle import Oracle
from rhobust.ascent.steps import Ball, Identity, PenalizedAscent
from rhobust.errors import ConfigError, unknown
from rhobust.gamma_rules import AdamGamma, FixedGamma, GammaRule, Multiplicative
from rhobust.support.setting import kind_of


@dataclass(frozen=True)
class Method:
    """A named composition. Its knobs: the fields of its maximizer, gamma where it prices transport, noise, temper."""

    name: str
    summary: str
    maximizer: Maximizer
    gamma: float = 1.0
    gamma_rule: GammaRule = field(default_factory=FixedGamma)
    noise: float = 0.0
    temper: float = 0.0

    @property
    def robust(self) -> bool:
        """Whether it has a radius: gamma is learned so that E c meets rho."""
        return not isinstance(self.gamma_rule, FixedGamma)

    @property
    def knobs(self) -> dict[str, Any]:
        """What can be set, with the values in force."""
        fields = {knob.name: getattr(self.maximizer, knob.name) for knob in dataclasses.fields(self.maximizer)}  # type: ignore[arg-type]
        gamma = {"gamma": self.gamma} if self.maximizer.penalized else {}
        return fields | gamma | {"noise": self.noise, "temper": self.temper}

    @property
    def knob_kinds(self) -> dict[str, type]:
        """The kind of every knob, from the annotations of the maximizer and of the method."""
        annotations = get_type_hints(Method) | get_type_hints(type(self.maximizer))
        return {knob: kind_of(annotations[knob]) for knob in self.knobs}

    def radius_problem(self, radius: float | None) -> str | None:
        """What is wrong with this radius for this method, if anything."""
        if self.robust and radius is None:
            return (
                f"method '{self.name}' needs a radius, the bound rho on E c: such as radius=2, or 0.04 with cost=linf"
            )
        if not self.robust and radius is not None:
            return f"method '{self.name}' takes no radius; its knobs: {', '.join(self.knobs) or 'none'}"
        return None

    @property
    def no_gamma_rule(self) -> str:
        """The one sentence for a method that is not `robust` and is given a rule."""
        return f"method '{self.name}' does not learn gamma, so it takes no gamma_rule"

    def not_a_knob(self, kind: str, name: str, others: Iterable[str] = ()) -> str:
        """The one sentence for a name that is no knob of this method; `others`: what else would have been understood.

        >>> find_method("spgda-loss").not_a_knob("knob", "cap")
        "cap is a knob of spgda and spgda-margin; this method's own: steps, eta, gamma, noise, temper"
        """
        owners = [method.name for method in _TABLE if name in method.knobs]
        if not owners:
            return unknown(kind, name, [*others, *self.knobs])
        listed = " and ".join([", ".join(owners[:-1]), owners[-1]] if len(owners) > 1 else owners)
        return f"{name} is a knob of {listed}; this method's own: {', '.join(self.knobs)}"

    def tuned(self, others: Iterable[str] = (), /, **knobs: Any) -> Method:
        """The same method with other knobs; an unknown knob is an error that lists the known ones, and `others`: what
        else the caller would have understood."""
        kind = "keyword" if others else f"knob of method '{self.name}'"
        if wrong := [self.not_a_knob(kind, knob, others) for knob in knobs if knob not in self.knobs]:
            raise ConfigError(wrong)
        own = {name: knobs.pop(name, getattr(self, name)) for name in ("gamma", "noise", "temper")}
        return dataclasses.replace(self, maximizer=dataclasses.replace(self.maximizer, **knobs), **own)  # type: ignore[type-var]


# The paper's settings: epsilon 0.1 and 10 iterations in training, gamma = 1 for WRM, eta = 0.02. Where the default
# departs (the curvature-aware step, the multiplicative rule) a literal twin stands beside it.
_TABLE = (
    Method("erm", "empirical risk: no transport", Identity()),
    Method("fgsm", "adversarial training, one signed step in an l_inf ball", Ball(epsilon=0.1)),
    Method("ifgsm", "adversarial training, ten signed steps in an l_inf ball", Ball(epsilon=0.1, steps=10)),
    Method("nfgsm", "as fgsm, from a sample with noise (N-FGSM)", Ball(epsilon=0.1), noise=0.2),
    Method("wrm", "Wasserstein risk with gamma fixed, ten ascent steps", PenalizedAscent(steps=10)),
    Method("spgd", "gamma learned, inner sup by an oracle (Alg. 1)", Oracle(), gamma_rule=Multiplicative()),
    Method(
        "spgda",
        "gamma learned, one ascent step on the margin, after errors, and three now and then (ours; cross-entropy only)",
        ErrorAscent(steps=(1, 1, 1, 1, 3)),
        gamma_rule=Multiplicative(),
    ),
    Method(
        "spgda-margin",
        "gamma learned, one ascent step on the margin, after losses (ours; cross-entropy only)",
        MarginAscent(),
        gamma_rule=Multiplicative(),
    ),
    Method(
        "spgda-loss",
        "gamma learned, one ascent step on the loss (Alg. 2; any loss)",
        PenalizedAscent(),
        gamma_rule=Multiplicative(),
    ),
    Method(
        "spgd-literal",
        "Alg. 1 as in the paper's experiments: ten steps of eta = 0.02, Adam on gamma",
        PenalizedAscent(steps=10, eta=0.02),
        gamma_rule=AdamGamma(),
    ),
    Method(
        "spgda-literal",
        "Alg. 2 as in the paper's experiments: one step of eta = 0.02, Adam on gamma",
        PenalizedAscent(steps=1, eta=0.02),
        gamma_rule=AdamGamma(),
    ),
)

FEDERATED = {
    "drfl": "spgda",
    "drfl-spgd": "spgd",
    "drfl-loss": "spgda-loss",
    "drfl-margin": "spgda-margin",
    "drfl-literal": "spgda-literal",
    "fedavg": "erm",
}
"""Federated methods, and what each of their workers does: the composition of a central method."""


def methods() -> dict[str, Method]:
    """Every method by name, each with its one-line summary.

    >>> print(methods()["spgd"].summary)
    gamma learned, inner sup by an oracle (Alg. 1)
    """
    return {method.name: method for method in _TABLE}


def find_method(name: str) -> Method:
    """One method by name."""
    if name in FEDERATED:
        raise ConfigError([f"method '{name}' is for data that many hold: `rhobust federate --method {name}`"])
    if name not in methods():
        raise ConfigError([unknown("method", name, methods())])
    return methods()[name]
