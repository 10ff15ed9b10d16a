"""The settings of a run: read from layers, filled in, and checked all at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rhobust.costs import COSTS
from rhobust.data.samples import REGRESSION
from rhobust.data.table_settings import TableSettings
from rhobust.errors import ConfigError
from rhobust.federation.settings import Federation
from rhobust.method import Method
from rhobust.models.catalog import model_problems
from rhobust.models.source import FORM, Source, is_own
from rhobust.runs.defaults import filled_in
from rhobust.runs.here import missing_here
from rhobust.runs.layers import is_federated, method_called, read
from rhobust.runs.settings import Settings
from rhobust.support.renamed import with_new_names
from rhobust.support.setting import problems_by_key, refusals, settings_of
from rhobust.support.spec import parse_spec
from rhobust.support.toml import read_toml
from rhobust.training.stopping_rule import schedule_problem
from rhobust.validator import check_settings


@dataclass(frozen=True)
class Config(Settings):
    """Settings that were read, filled in and checked."""

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

    @classmethod
    def from_toml(cls, path: Path, *layers: Mapping[str, Any], here: bool = False) -> Config:
        """Settings of a run, with layers on top. An old run's may have old names; its data and device may be gone."""
        return cls.resolve(with_new_names(read_toml(path)), *layers, here=here)


# Fill in: what was not given.


def _built(given: Mapping[str, Any], here: bool) -> Config:
    method, federated = method_called(given.get("method", Config.method)), is_federated(given)
    found = filled_in(given, method, federated, here)
    groups = (Config, Federation, TableSettings)
    own, shared, columns = ({key: found[key] for key in settings_of(of) if key in found} for of in groups)
    knobs = {knob: found.get(knob, value) for knob, value in method.knobs.items()} if method else {}
    federation, table = Federation(**shared) if federated else None, TableSettings(**columns) if columns else None
    return Config(**own, knobs=knobs, federation=federation, table=table)


# Check: settings that do not go together. `wrong` holds the keys of those that are wrong by themselves.


def _of_method(config: Config, wrong: AbstractSet[str]) -> Iterator[str]:
    method = method_called(config.method)
    if method is None or "method" in wrong:
        return
    if config.radius_per_feature is not None:
        yield from _of_radius_per_feature(config, method)
    elif (problem := method.radius_problem(config.radius)) and (config.radius is not None or "radius" not in wrong):
        yield problem.replace(f"'{method.name}'", f"'{config.name}'")  # as the user calls it
    if math.isfinite(config.label_cost) and not method.maximizer.penalized:
        yield f"method '{config.name}' does not price transport: drop label_cost"
    if not method.robust and config.gamma_rule is not None:
        yield method.no_gamma_rule
    yield from refusals(config.make_method)
    if not wrong & {"radius", "cost", "gamma_min"}:
        yield from refusals(_check_theory, config)


def _of_radius_per_feature(config: Config, method: Method) -> Iterator[str]:
    if config.radius is not None:
        yield "radius and radius_per_feature both say how far samples may move: drop one of them"
    elif not method.robust:
        yield f"method '{config.name}' takes no radius, and so no radius_per_feature"
    if config.federation and config.federation.partition == "sites":
        yield "radius_per_feature needs the training data, which stay at their sites: set radius"


def _check_theory(config: Config) -> None:
    """What `RobustObjective` would refuse, found before data are loaded and with all the rest."""
    cost, method = parse_spec("cost", config.cost, COSTS), config.make_method()
    check_settings(
        config.radius or 0.0, cost, method.maximizer, method.gamma, config.gamma_min, None, method.noise, method.temper
    )


def _of_task(config: Config, wrong: AbstractSet[str]) -> Iterator[str]:
    if config.task != REGRESSION:
        if config.loss is not None and not wrong & {"task", "loss"}:
            yield f"loss {config.loss} is for numbers: set task=regression, or drop loss"
        return
    method, federation = method_called(config.method), config.federation
    if method and method.maximizer.classifies:
        loss, oracle = ("drfl-loss", "drfl-spgd") if federation else ("spgda-loss", "spgd")
        yield f"method '{config.name}' climbs a margin between classes: for regression take '{loss}' or '{oracle}'"
    if math.isfinite(config.label_cost):
        yield "label_cost is the cost of changing a class, and task regression has none: drop label_cost"
    if federation and federation.byzantine and federation.byzantine_attack.startswith("label-flip"):
        yield "byzantine_attack 'label-flip' swaps classes, and task regression has none: take another"


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


_TOGETHER = (_of_method, _of_task, _of_model, _of_optimizer, _of_memory, _of_federation)


def _of_new_run(config: Config) -> Iterator[str]:
    """A run that is there is read although its data or device are gone, or a setting has no effect."""
    method, federation = method_called(config.method), config.federation
    yield from missing_here(config.data, config.task, config.device, config.table)
    if is_own(config.model) and not model_problems("model", config.model):
        yield from refusals(Source.parse(config.model).checked, config.model_digest)
    if method and not method.maximizer.penalized and config.gamma_min != Config.gamma_min:
        yield f"method '{config.method}' has no gamma: drop gamma_min"
    if federation and federation.rate_idles:
        yield "local_learning_rate is for workers who take several steps: set local_steps above 1, or drop it"
