"""Settings of a training run: from defaults, a TOML file, options and key=value overrides, all checked at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rhobust.checks import decay_problem, seed_problems
from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp
from rhobust.data import DATA, data_problem
from rhobust.errors import ConfigError, Refused, unknown
from rhobust.federation import Federation, unfolded
from rhobust.gamma_rules import AdamGamma, FixedGamma, GammaRule, Multiplicative, ProjectedGradient
from rhobust.methods import FEDERATED, Method, find_method, methods
from rhobust.models import MODELS
from rhobust.regularizers import L1, Box, ElasticNet, GroupL2, NoRegularizer, Regularizer, SquaredL1
from rhobust.regularizers import SquaredL2 as SquaredL2Regularizer
from rhobust.specs import from_spec
from rhobust.toml import read_toml, to_toml
from rhobust.validator import check_settings

COSTS: dict[str, tuple[int, Callable[..., Cost]]] = {
    "l2": (0, SquaredL2),
    "lp": (1, SquaredLp),
    "linf": (0, SquaredLinf),
}
REGULARIZERS: dict[str, tuple[int, Callable[..., Regularizer]]] = {
    "none": (0, NoRegularizer),
    "l1": (1, L1),
    "squared-l1": (1, SquaredL1),
    "squared-l2": (1, SquaredL2Regularizer),
    "elastic-net": (2, ElasticNet),
    "group-l2": (1, GroupL2),
    "box": (2, Box),
}
GAMMA_RULES: dict[str, tuple[int, Callable[..., GammaRule]]] = {
    "multiplicative": (1, Multiplicative),
    "projected": (1, ProjectedGradient),
    "adam": (1, AdamGamma),
    "fixed": (0, FixedGamma),
}
OPTIMIZERS = ("adam", "sgd")
_PAPER_DATA = ("mnist", "fashion-mnist")
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""In which the model's passes are computed; weights, zeta, gamma and sums are float32 in both."""
_MOST_THREADS = 4096  # far beyond any machine; torch refuses much larger numbers in words of its own


@dataclass(frozen=True)
class Config:
    """Every setting of a run. `knobs` are the method's own (`rhobust methods` lists them)."""

    data: str = "digits"
    data_dir: str | None = None
    limit: int | None = None
    model: str = "mlp"
    method: str = "spgd"
    radius: float | None = None
    epochs: int = 30
    batch_size: int = 128
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    cost: str = "l2"
    kappa: float = math.inf
    regularizer: str = "none"
    gamma_min: float = 1e-3
    gamma_rule: str | None = None
    seed: int = 0
    device: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    log_every: int = 1
    checkpoint_every: int | None = None
    momentum: float = 0.0
    average: float | None = None
    memory: float | None = None
    knobs: dict[str, Any] = field(default_factory=dict)
    federation: Federation | None = None

    @staticmethod
    def known() -> list[str]:
        """The keys that belong to every method."""
        return [key.name for key in dataclasses.fields(Config) if key.name not in ("knobs", "federation")]

    @property
    def name(self) -> str:
        """The method's name, the federated one where there is a federation."""
        return self.method if self.federation is None else self.federation.method_name(self.method)

    @classmethod
    def resolve(cls, *layers: Mapping[str, Any], here: bool = True) -> Config:
        """Settings from layers, later ones winning; one error lists every problem. `here`: data and device are needed.

        >>> Config.resolve({"method": "spgd", "radius": 1, "max_steps": 5}).knobs["max_steps"]
        5
        """
        merged: dict[str, Any] = {}
        for layer in layers:
            merged.update({key.replace("-", "_"): value for key, value in layer.items()})
        problems: list[str] = []
        merged = unfolded(merged)
        name = merged.get("method", cls.method)
        chosen = methods().get(name) if isinstance(name, str) else None
        knobs = dict(chosen.knobs) if chosen else {}
        settings: dict[str, Any] = {}
        federated: dict[str, Any] = {}
        for key, value in merged.items():
            try:
                if key in knobs:
                    knobs[key] = _turns(value) if key == "steps" else _converted(key, value, _knob_kind(key))
                elif key in cls.known():
                    settings[key] = _converted(key, value, _KINDS[key])
                elif key in Federation.known():
                    federated[key] = _converted(key, value, Federation.KINDS[key])
                elif chosen:
                    problems.append(chosen.not_a_knob("key", key, [*cls.known(), *Federation.known()]))
            except ConfigError as problem:
                problems += problem.problems
        if federated and settings.pop("epochs", None) is not None:
            problems.append("a federation trains in rounds, not in epochs: drop epochs, set rounds")
        if here and settings.get("data", "digits") not in DATA and Path(settings["data"]).exists():
            settings["data"] = str(Path(settings["data"]).absolute())  # a run may be looked at from anywhere
        if here and settings.get("data_dir") and Path(settings["data_dir"]).exists():
            settings["data_dir"] = str(Path(settings["data_dir"]).absolute())
        if settings.get("data") in _PAPER_DATA:
            settings.setdefault("model", "cnn")  # the paper's, on the paper's data
        if settings.get("device", "auto") == "auto":
            settings["device"] = "cuda" if torch.cuda.is_available() else "cpu"
        if settings.get("precision", "auto") == "auto":
            fast = settings["device"] == "cuda" and not federated
            settings["precision"] = "bfloat16" if fast else "float32"
        settings.setdefault("threads", torch.get_num_threads())  # sums depend on it, so a resumed run must keep it
        if chosen and chosen.robust:
            settings.setdefault("gamma_rule", _spec_of(chosen.gamma_rule))
        federation = Federation(**federated) if federated else None
        config = cls(**settings, knobs=knobs, federation=federation)
        problems += config._problems(chosen, here)
        if problems:
            raise ConfigError(dict.fromkeys(problems))
        return config

    def _problems(self, chosen: Method | None, here: bool) -> list[str]:
        found: list[str] = []
        for kind, name, names in (
            ("model", self.model, MODELS),
            ("method", self.method, [*methods(), *FEDERATED]),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("device", self.device, DEVICES),
            ("precision", self.precision, ["auto", *PRECISIONS]),
        ):
            if name is not None and name not in names:
                found.append(unknown(kind, name, names))
        if here and (problem := data_problem(self.data)):
            found.append(problem)
        if chosen and (problem := chosen.radius_problem(self.radius)):
            found.append(problem.replace(f"'{chosen.name}'", f"'{self.name}'"))  # as the user calls it
        if chosen and not chosen.robust and self.gamma_rule is not None:
            found.append(chosen.no_gamma_rule)
        counts = [key for key, kind in _KINDS.items() if kind is int and key != "seed"]
        for key in (*counts, "learning_rate", "gamma_min"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                found.append(f"{key} must be > 0{', and finite' if value == math.inf else ''}, not {value}")
        if self.threads is not None and self.threads > _MOST_THREADS:
            found.append(f"threads must be at most {_MOST_THREADS}, not {self.threads}")
        if here and self.device == "cuda" and not torch.cuda.is_available():
            found.append("device 'cuda' was asked for, but torch sees no CUDA device here")
        if not 0 <= self.momentum < 1:
            found.append(f"momentum must be at least 0 and below 1, not {self.momentum}")
        if self.momentum and self.optimizer != "sgd":
            found.append(f"momentum belongs to the optimizer sgd; {self.optimizer} has its own")
        if here and chosen and not chosen.maximizer.penalized and self.gamma_min != Config.gamma_min:
            found.append(f"method '{self.method}' has no gamma: drop gamma_min")
        if self.average is not None and not 0 <= self.average < 1:
            found.append(
                f"average, the decay of the averaged weights, must be at least 0 and below 1, not {self.average}"
            )
        if self.memory is not None and (wrong := decay_problem(self.memory)):
            found.append(wrong)
        if self.federation and self.average is not None:
            found.append("a federation keeps no average of its weights: drop average")
        if self.federation and self.memory is not None:
            found.append("the workers of a federation keep no memory of their ascents: drop memory")
        elif chosen and self.memory is not None and not chosen.maximizer.gradients:
            found.append(f"method '{self.method}' does not move the samples: drop memory")
        elif self.memory is not None and self.knobs.get("random_start"):
            found.append("memory and random_start both say where an ascent begins: drop one of them")
        if self.federation and self.precision != "float32":
            found.append(f"a federation computes in float32, not {self.precision}: its workers may have no GPU")
        if self.federation:
            found += self.federation.problems()
            if here and self.federation.rate_idles:
                found.append("local_rate is for workers who take several steps: set local_steps above 1, or drop it")
            own = [
                key for key in ("optimizer", "learning_rate", "momentum") if getattr(self, key) != getattr(Config, key)
            ]
            if self.federation.server == "average" and own:
                found.append(f"a server that averages takes no step of its own: drop {', '.join(own)}, set local_rate")
        found += seed_problems(self.seed)
        wild = self.radius is not None and not (self.radius > 0 and math.isfinite(self.radius))
        if wild:
            found.append(f"radius must be finite and > 0, not {self.radius}")
        theory = [self._check_theory] if chosen and not wild else []
        for build in (self.make_cost, self.make_regularizer, self.make_gamma_rule, *theory):
            try:
                build()
            except ConfigError as error:
                found += error.problems
            except Refused as error:
                found.append(str(error))
        return found

    def _check_theory(self) -> None:
        """What `RobustObjective` would refuse, found before a run directory exists."""
        cost, method = self.make_cost(), self.make_method()
        check_settings(
            self.radius or 0.0, cost, method.maximizer, method.gamma, self.gamma_min, None, method.noise, method.temper
        )

    def make_method(self) -> Method:
        """The method with this run's knobs."""
        return find_method(self.method).tuned(**self.knobs)

    def make_cost(self) -> Cost:
        """The transport cost: l2, lp:P or linf, with kappa for labels."""
        return dataclasses.replace(from_spec("cost", self.cost, COSTS), kappa=self.kappa)  # type: ignore[type-var]

    def make_regularizer(self) -> Regularizer:
        """The regularizer: none, l1:W, squared-l1:W, squared-l2:W, elastic-net:L1,L2, group-l2:W or box:LO,HI."""
        return from_spec("regularizer", self.regularizer, REGULARIZERS)

    def make_gamma_rule(self) -> GammaRule | None:
        """The rule for gamma: multiplicative:LR, projected:LR, adam:LR or fixed; none means the method's own."""
        return None if self.gamma_rule is None else from_spec("gamma_rule", self.gamma_rule, GAMMA_RULES)

    def settings(self) -> dict[str, Any]:
        """Every setting by its key, the method's knobs among them; a federation's instead of epochs."""
        own = {key: getattr(self, key) for key in self.known()} | self.knobs
        if self.federation:
            del own["epochs"]
            own |= dataclasses.asdict(self.federation)
        return own

    def to_toml(self) -> str:
        """The settings as TOML, flat; what is unset is left out."""
        return "".join(f"{key} = {to_toml(value)}\n" for key, value in self.settings().items() if value is not None)

    @classmethod
    def from_toml(cls, path: Path, *layers: Mapping[str, Any]) -> Config:
        """Settings of a run, with layers on top; its data and device need not be here any more."""
        return cls.resolve(read_toml(path), *layers, here=False)


_KINDS: dict[str, type] = {
    **dict.fromkeys(("data", "data_dir", "model", "method", "optimizer", "cost", "regularizer", "gamma_rule"), str),
    **dict.fromkeys(("device", "precision"), str),
    **dict.fromkeys(("epochs", "batch_size", "limit", "seed", "threads", "log_every", "checkpoint_every"), int),
    **dict.fromkeys(("radius", "learning_rate", "kappa", "gamma_min", "momentum", "average", "memory"), float),
}


def _knob_kind(knob: str) -> type:
    if knob == "max_steps":
        return int
    return bool if knob == "random_start" else float


def _turns(value: object) -> int | tuple[int, ...]:
    """Steps of an ascent: one number, or several that take turns, as a list or, in a shell, with commas."""
    several: Any = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    counts = [int(count) if isinstance(count, str) and count.strip().isdecimal() else count for count in several]
    if not counts or any(type(count) is not int for count in counts):
        raise ConfigError([f"steps must be a whole number, or several that take turns, like 1,1,1,1,3, not {value!r}"])
    return tuple(counts) if len(counts) > 1 else counts[0]


def _converted(key: str, value: object, kind: type) -> Any:
    """The value as `kind`; nothing is rounded, cut or guessed."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**63 else math.copysign(math.inf, value)
    if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    name = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
    raise ConfigError([f"{key} must be {name}, not {value!r}"])


def _spec_of(rule: GammaRule) -> str:
    """The text that names a rule, as GAMMA_RULES reads it."""
    (name,) = [name for name, (_, kind) in GAMMA_RULES.items() if kind is type(rule)]
    return f"{name}:{rule.lr:g}"
