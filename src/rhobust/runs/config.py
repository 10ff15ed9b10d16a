"""The settings of a run: read from layers, filled in, and checked all at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from rhobust import batch_norm
from rhobust.checks import decay_problem, seed_problems
from rhobust.costs import COSTS, Cost
from rhobust.data.catalog import DATA
from rhobust.errors import ConfigError
from rhobust.federation.settings import Federation
from rhobust.gamma_rules import GAMMA_RULES, GammaRule
from rhobust.method import FEDERATED, Method, find_method, methods
from rhobust.models.catalog import MODELS, build_model, model_problems
from rhobust.models.source import FORM, Source, digest_problems, is_own
from rhobust.optim import OPTIMIZERS
from rhobust.regularizers import REGULARIZERS, Regularizer
from rhobust.runs.defaults import filled_in
from rhobust.runs.here import missing_here
from rhobust.runs.layers import is_federated, method_called, read
from rhobust.support.renamed import with_new_names
from rhobust.support.setting import (
    accepted_by,
    auto_or,
    below_one,
    keyword_arguments,
    not_negative,
    one_of,
    positive,
    problems_by_key,
    refusals,
    setting,
    settings_of,
    thread_count,
)
from rhobust.support.spec import parse_spec
from rhobust.support.toml import read_toml, to_toml
from rhobust.training.schedule import SCHEDULES
from rhobust.training.step import PRECISIONS
from rhobust.training.stopping_rule import schedule_problem
from rhobust.validator import check_settings


@dataclass(frozen=True)
class Config:
    """Every setting of a run. `knobs` are the method's own (`rhobust methods` lists them)."""

    data: str = setting("digits", f"Data set: {', '.join(DATA)}, or the path of an .npz file or a folder of images.")
    data_dir: str | None = setting(
        None, "Folder with mnist/ and fashion-mnist/, searched first.", usual="the variable RHOBUST_DATA"
    )
    train_samples: int | None = setting(None, "Number of training samples, the first ones.", positive, usual="all")
    model: str = setting(
        "mlp",
        f"Model to train: {', '.join(MODELS)}; or one of your own, {FORM}.",
        model_problems,
        usual="mlp; cnn for mnist and fashion-mnist",
    )
    model_args: dict[str, Any] | None = setting(  # noqa: RUF009 (it is a field)
        None,
        "Keyword arguments of the factory of a model of your own: a table such as {width = 64}.",
        keyword_arguments,
    )
    model_digest: str | None = setting(
        None,
        "SHA-256 of the source of a model of your own. A source with another digest is refused.",
        digest_problems,
        usual="that of the file",
    )
    method: str = setting("spgd", "Training method; `rhobust methods` lists them.", one_of([*methods(), *FEDERATED]))
    radius: float | None = setting(
        None,
        "Radius rho, the bound on the average transport cost. Methods that learn gamma require it, others refuse it.",
        positive,
    )
    epochs: int | Literal["auto"] = setting(
        30, "Number of passes over the training data, or auto: until the objective has settled.", auto_or(positive)
    )
    batch_size: int = setting(128, "Number of samples per step; in a federation, per step of each worker.", positive)
    optimizer: str = setting("adam", "Optimizer of the weights: adam or sgd.", one_of(OPTIMIZERS))
    learning_rate: float = setting(1e-3, "Learning rate alpha of the weights.", positive)
    cost: str = setting(
        "l2",
        "Transport cost, a squared norm: l2, lp:P with 1 < P <= 2, or linf.",
        accepted_by(partial(parse_spec, "cost", table=COSTS)),
    )
    label_cost: float = setting(math.inf, "Cost of changing a label; inf never changes labels.", not_negative)
    regularizer: str = setting(
        "none",
        "Regularizer of the weights: none, l1:W, squared-l1:W, squared-l2:W, elastic-net:L1,L2, group-l2:W or "
        "box:LOWER,UPPER.",
        accepted_by(partial(parse_spec, "regularizer", table=REGULARIZERS)),
    )
    gamma_min: float = setting(1e-3, "Lower bound of the dual variable gamma.", positive)
    gamma_rule: str | None = setting(
        None,
        "Update rule of gamma: multiplicative:LR, projected:LR, adam:LR or fixed.",
        accepted_by(partial(parse_spec, "gamma_rule", table=GAMMA_RULES)),
        usual="the method's",
    )
    seed: int = setting(
        0, "Seed of the weights, the order of the data and every random draw.", lambda _, seed: seed_problems(seed)
    )
    device: str = setting(
        "auto", "Device: cpu, cuda, or auto (cuda where there is one).", one_of(("auto", "cpu", "cuda"))
    )
    precision: str = setting(
        "auto",
        "Precision of the model's passes: float32, bfloat16, or auto (bfloat16 on a GPU, float32 otherwise and in "
        "federations).",
        one_of(("auto", *PRECISIONS)),
    )
    threads: int | None = setting(None, "Number of CPU threads.", thread_count, usual="PyTorch's")
    log_every: int = setting(1, "Number of training steps between two lines of metrics.jsonl.", positive)
    checkpoint_every: int | None = setting(
        None, "Number of training steps between two checkpoints.", positive, usual="one epoch"
    )
    schedule: str = setting(
        "constant", f"Schedule of the learning rate of the weights: {', '.join(SCHEDULES)}.", one_of(SCHEDULES)
    )
    momentum: float = setting(0.0, "Momentum of the optimizer sgd, in [0, 1).", below_one)
    ema: float | None = setting(
        None, "Decay of the moving average of the weights (EMA), in [0, 1).", below_one, usual="off"
    )
    memory: float | None = setting(
        None,
        "Warm start: fraction, in (0, 1], of last epoch's perturbation from which the ascent of a sample starts.",
        lambda _, decay: filter(None, [decay_problem(decay)]),
        usual="off",
    )
    batch_norm: str = setting("ascent-eval", batch_norm.HELP, one_of(batch_norm.WAYS))
    knobs: dict[str, Any] = field(default_factory=dict)
    federation: Federation | None = None

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
        given, unread = read(layers, settings_of(Config))
        config = _built(given, here)
        if problems := [*chain(*unread.values()), *config.problems(here, unread.keys())]:
            raise ConfigError(dict.fromkeys(problems))
        return config

    def problems(self, here: bool, unread: AbstractSet[str] = frozenset()) -> list[str]:
        """Everything that is wrong with the settings, each by itself and together; `unread` have defaults here."""
        wrong = problems_by_key(self)
        together = chain.from_iterable(check(self, wrong.keys() | unread) for check in _TOGETHER)
        return [*chain(*wrong.values()), *together, *(_of_new_run(self) if here else ())]

    def make_model(self, shape: torch.Size, classes: int) -> nn.Module:
        """A fresh model on the CPU. Of a model of the user's own this runs the source, if it has its digest."""
        return build_model(self.model, shape, classes, self.model_args, self.model_digest)

    def make_method(self) -> Method:
        """The method with this run's knobs."""
        return find_method(self.method).tuned(**self.knobs)

    def make_cost(self) -> Cost:
        """The transport cost, with the cost of changing a label."""
        return dataclasses.replace(parse_spec("cost", self.cost, COSTS), kappa=self.label_cost)  # type: ignore[type-var]

    def make_regularizer(self) -> Regularizer:
        """The regularizer of the weights."""
        return parse_spec("regularizer", self.regularizer, REGULARIZERS)

    def make_gamma_rule(self) -> GammaRule | None:
        """The rule for gamma; none means the method's own."""
        return None if self.gamma_rule is None else parse_spec("gamma_rule", self.gamma_rule, GAMMA_RULES)

    def settings(self) -> dict[str, Any]:
        """Every setting by its key, the method's knobs among them; a federation's instead of epochs."""
        own = {key: getattr(self, key) for key in settings_of(Config)} | self.knobs
        if self.federation:
            del own["epochs"]
            own |= dataclasses.asdict(self.federation)
        return own

    def to_toml(self) -> str:
        """The settings as TOML, flat; what is unset is left out."""
        return "".join(f"{key} = {to_toml(value)}\n" for key, value in self.settings().items() if value is not None)

    @classmethod
    def from_toml(cls, path: Path, *layers: Mapping[str, Any], here: bool = False) -> Config:
        """Settings of a run, with layers on top. An old run's may have old names; its data and device may be gone."""
        return cls.resolve(with_new_names(read_toml(path)), *layers, here=here)


# Fill in: what was not given.


def _built(given: Mapping[str, Any], here: bool) -> Config:
    method, federated = method_called(given.get("method", Config.method)), is_federated(given)
    found = filled_in(given, method, federated, here)
    own, shared = ({key: found[key] for key in settings_of(of) if key in found} for of in (Config, Federation))
    knobs = {knob: found.get(knob, value) for knob, value in method.knobs.items()} if method else {}
    return Config(**own, knobs=knobs, federation=Federation(**shared) if federated else None)


# Check: settings that do not go together. `wrong` holds the keys of those that are wrong by themselves.


def _of_method(config: Config, wrong: AbstractSet[str]) -> Iterator[str]:
    method = method_called(config.method)
    if method is None or "method" in wrong:
        return
    if (problem := method.radius_problem(config.radius)) and (config.radius is not None or "radius" not in wrong):
        yield problem.replace(f"'{method.name}'", f"'{config.name}'")  # as the user calls it
    if math.isfinite(config.label_cost) and not method.maximizer.penalized:
        yield f"method '{config.name}' does not price transport: drop label_cost"
    if not method.robust and config.gamma_rule is not None:
        yield method.no_gamma_rule
    yield from refusals(config.make_method)
    if not wrong & {"radius", "cost", "gamma_min"}:
        yield from refusals(_check_theory, config)


def _check_theory(config: Config) -> None:
    """What `RobustObjective` would refuse, found before data are loaded and with all the rest."""
    cost, method = parse_spec("cost", config.cost, COSTS), config.make_method()
    check_settings(
        config.radius or 0.0, cost, method.maximizer, method.gamma, config.gamma_min, None, method.noise, method.temper
    )


def _of_model(config: Config, wrong: AbstractSet[str]) -> Iterator[str]:
    own = [key for key in ("model_args", "model_digest") if getattr(config, key)]
    if own and not is_own(config.model) and "model" not in wrong:
        yield f"model '{config.model}' takes no {' and no '.join(own)}: they are for a model of your own, {FORM}"


def _of_optimizer(config: Config, wrong: AbstractSet[str]) -> Iterator[str]:
    if config.momentum and config.optimizer != "sgd" and "optimizer" not in wrong:
        yield f"momentum belongs to the optimizer sgd; {config.optimizer} has its own"
    if "schedule" not in wrong and (problem := schedule_problem(config.epochs, config.schedule)):
        yield problem


def _of_memory(config: Config, wrong: AbstractSet[str]) -> Iterator[str]:
    method = method_called(config.method)
    if config.memory is None:
        return
    if config.federation:
        yield "the workers of a federation keep no memory of their ascents: drop memory"
    elif method and not method.maximizer.gradients:
        yield f"method '{config.method}' does not move the samples: drop memory"
    elif config.knobs.get("random_start"):
        yield "memory and random_start both say where an ascent begins: drop one of them"


def _of_federation(config: Config, wrong: AbstractSet[str]) -> Iterator[str]:
    federation = config.federation
    if federation is None:
        return
    yield from federation.problems()
    if config.ema is not None:
        yield "a federation keeps no average of its weights: drop ema"
    if config.schedule != "constant" and "schedule" not in wrong:
        yield "a federation keeps its learning rate: drop schedule"
    if config.precision != "float32" and "precision" not in wrong:
        yield f"a federation computes in float32, not {config.precision}: its workers may have no GPU"
    own = [key for key in ("optimizer", "learning_rate", "momentum") if getattr(config, key) != getattr(Config, key)]
    if federation.server_update == "average" and own:
        yield f"a server that averages takes no step of its own: drop {', '.join(own)}, set local_learning_rate"


_TOGETHER = (_of_method, _of_model, _of_optimizer, _of_memory, _of_federation)


def _of_new_run(config: Config) -> Iterator[str]:
    """A run that is there is read although its data or device are gone, or a setting has no effect."""
    method, federation = method_called(config.method), config.federation
    yield from missing_here(config.data, config.device)
    if is_own(config.model) and not model_problems("model", config.model):
        yield from refusals(Source.parse(config.model).checked, config.model_digest)
    if method and not method.maximizer.penalized and config.gamma_min != Config.gamma_min:
        yield f"method '{config.method}' has no gamma: drop gamma_min"
    if federation and federation.rate_idles:
        yield "local_learning_rate is for workers who take several steps: set local_steps above 1, or drop it"
