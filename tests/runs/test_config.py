"""Settings: layers, knobs, and every problem at once."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhobust.costs import COSTS, SquaredLp
from rhobust.data.catalog import DATA
from rhobust.data.partitions import PARTITIONS
from rhobust.data.samples import TASKS
from rhobust.data.table_settings import TableSettings
from rhobust.errors import ConfigError
from rhobust.federation.aggregators import AGGREGATORS
from rhobust.federation.byzantine import BYZANTINE_ATTACKS
from rhobust.federation.settings import Federation
from rhobust.gamma_rules import GAMMA_RULES, AdamGamma
from rhobust.losses import LOSSES, Huber, Quantile, absolute_error, squared_error
from rhobust.method import methods
from rhobust.models.catalog import MODELS
from rhobust.optim import OPTIMIZERS
from rhobust.regularizers import REGULARIZERS, ElasticNet
from rhobust.runs.config import Config
from rhobust.support.setting import settings_of
from rhobust.support.toml import parse_overrides
from rhobust.training.step import PRECISIONS

MACHINE = {"device": "cpu", "threads": 1}
EVERY: dict[str, Any] = {
    **MACHINE,
    **{"data": "digits", "data_dir": None, "train_samples": None, "model": "mlp", "radius": None, "batch_size": 128},
    **{"radius_per_feature": None},
    **{"optimizer": "adam", "learning_rate": 0.001, "cost": "l2", "label_cost": math.inf, "regularizer": "none"},
    **{"gamma_min": 0.001, "gamma_rule": None, "seed": 0, "precision": "float32", "log_every": 1},
    **{"schedule": "constant", "batch_norm": "ascent-eval", "model_args": None, "model_digest": None},
    **{"task": "classification", "loss": None},
    **{"checkpoint_every": None, "momentum": 0.0, "ema": None, "memory": None, "noise": 0.0, "temper": 0.0},
}
CENTRAL = EVERY | {"epochs": 30}
FEDERATED = EVERY | {
    **{"rounds": 300, "workers": 10, "partition": "iid", "participation": 1.0, "local_steps": 1},
    **{"local_learning_rate": 0.1, "server_update": "gradient", "aggregator": "mean", "weights": "equal", "quorum": 1},
    **{"byzantine": 0, "byzantine_attack": "sign-flip", "evaluate_every": None},
}
LEARNED = {"gamma_rule": "multiplicative:0.05", "gamma": 1.0}
ORACLE = LEARNED | {"accuracy": 0.001, "max_steps": 10, "curvature": None}


@pytest.mark.parametrize(
    ("layers", "name", "expected"),
    [
        ([{"radius": 1}], "spgd", CENTRAL | ORACLE | {"method": "spgd", "radius": 1.0}),
        (
            [{"method": "spgda", "radius": 2.5, "steps": "1,1,3", "cap": 1}],
            "spgda",
            CENTRAL | LEARNED | {"method": "spgda", "radius": 2.5, "steps": (1, 1, 3), "cap": 1.0},
        ),
        (
            [{"method": "spgda-loss", "radius": 2}, {"radius": 3, "gamma_rule": "projected:0.1"}],
            "spgda-loss",
            CENTRAL
            | {"method": "spgda-loss", "radius": 3.0, "gamma_rule": "projected:0.1"}
            | {"steps": 1, "eta": None, "gamma": 1.0},
        ),
        (
            [{"method": "spgda-literal", "radius": 25, "data": "mnist", "train_samples": 1000}],
            "spgda-literal",
            CENTRAL
            | {"data": "mnist", "train_samples": 1000, "model": "cnn", "method": "spgda-literal", "radius": 25.0}
            | {"gamma_rule": "adam:0.001", "steps": 1, "eta": 0.02, "gamma": 1.0},
        ),
        (
            [{"method": "wrm", "gamma": 2, "model": "linear", "regularizer": "l1:0.1"}],
            "wrm",
            CENTRAL
            | {"method": "wrm", "model": "linear", "regularizer": "l1:0.1", "steps": 10, "eta": None, "gamma": 2.0},
        ),
        (
            [{"method": "erm", "data": "fashion-mnist", "model": "mlp", "optimizer": "sgd"}, {"momentum": 0.9}],
            "erm",
            CENTRAL | {"method": "erm", "data": "fashion-mnist", "optimizer": "sgd", "momentum": 0.9},
        ),
        (
            [{"method": "nfgsm", "epsilon": 0.2, "norm": 2, "random_start": True, "ema": 0.999}],
            "nfgsm",
            CENTRAL
            | {"method": "nfgsm", "ema": 0.999, "noise": 0.2}
            | {"steps": 1, "epsilon": 0.2, "norm": 2.0, "step_size": None, "random_start": True},
        ),
        (
            [{"method": "ifgsm", "cost": "linf", "seed": 7, "log-every": 5, "checkpoint_every": 50}],
            "ifgsm",
            CENTRAL
            | {"method": "ifgsm", "cost": "linf", "seed": 7, "log_every": 5, "checkpoint_every": 50}
            | {"steps": 10, "epsilon": 0.1, "norm": math.inf, "step_size": None, "random_start": False},
        ),
        (
            [{"method": "spgda", "radius": 0.04, "cost": "linf", "memory": 1, "noise": 0.3, "precision": "bfloat16"}],
            "spgda",
            CENTRAL
            | LEARNED
            | {"method": "spgda", "radius": 0.04, "cost": "linf", "memory": 1.0, "noise": 0.3, "precision": "bfloat16"}
            | {"steps": (1, 1, 1, 1, 3), "cap": math.inf},
        ),
        (
            [{"method": "drfl", "radius": 1}],
            "drfl",
            FEDERATED | LEARNED | {"method": "spgda", "radius": 1.0, "steps": (1, 1, 1, 1, 3), "cap": math.inf},
        ),
        (
            [{"method": "fedavg", "local_learning_rate": 0.05, "participation": 1, "weights": "samples"}],
            "fedavg",
            FEDERATED
            | {"method": "erm", "local_learning_rate": 0.05, "local_steps": 5}
            | {"server_update": "average", "weights": "samples"},
        ),
        (
            [
                {"method": "drfl-spgd", "radius": 1, "max_steps": 4, "workers": 20},
                {"byzantine": 3, "byzantine_attack": "noise"},
            ],
            "drfl-spgd",
            FEDERATED
            | ORACLE
            | {"method": "spgd", "radius": 1.0, "max_steps": 4, "workers": 20}
            | {"byzantine": 3, "byzantine_attack": "noise"},
        ),
        (
            [{"method": "spgd", "radius": 1, "rounds": 50, "server_update": "average", "evaluate_every": 10}],
            "fedavg of spgd",
            FEDERATED
            | ORACLE
            | {"method": "spgd", "radius": 1.0, "rounds": 50, "server_update": "average", "evaluate_every": 10},
        ),
    ],
)
def test_layers_resolve_to_these_settings(layers: list[dict[str, Any]], name: str, expected: dict[str, Any]) -> None:
    config = Config.resolve(MACHINE, *layers)
    assert config.settings() == expected
    assert {key: type(value) for key, value in config.settings().items()} == {
        key: type(value) for key, value in expected.items()
    }
    assert config.name == name


OF_A_RUN = """\
data = "digits"
task = "classification"
train_samples = 500
model = "mlp"
method = "spgda"
radius = 0.04
batch_size = 64
optimizer = "adam"
learning_rate = 0.001
cost = "linf"
label_cost = inf
regularizer = "none"
gamma_min = 0.001
gamma_rule = "multiplicative:0.05"
seed = 3
device = "cpu"
precision = "float32"
threads = 2
log_every = 1
schedule = "constant"
momentum = 0.0
batch_norm = "ascent-eval"
steps = [1, 1, 1, 1, 3]
cap = inf
gamma = 1.0
noise = 0.3
temper = 0.0
rounds = 300
workers = 10
partition = "dirichlet:0.3"
participation = 0.5
local_steps = 1
local_learning_rate = 0.1
server_update = "gradient"
aggregator = "trimmed-mean:1"
weights = "equal"
quorum = 1
byzantine = 1
byzantine_attack = "noise:3"
"""


def test_the_settings_file_of_a_run_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(OF_A_RUN)
    config = Config.from_toml(tmp_path / "config.toml")
    assert config.to_toml() == OF_A_RUN
    assert config.name == "drfl"


def test_every_setting_has_a_help_that_is_whole() -> None:
    tables: dict[str, Any] = {
        **{"data": DATA, "model": MODELS, "optimizer": OPTIMIZERS, "cost": COSTS, "regularizer": REGULARIZERS},
        **{"task": TASKS, "loss": LOSSES, "gamma_rule": GAMMA_RULES, "precision": PRECISIONS, "partition": PARTITIONS},
        "byzantine_attack": BYZANTINE_ATTACKS,
        "aggregator": [name for name in AGGREGATORS if not name.startswith("clipped-")],
    }
    owners = (Config, Federation, TableSettings)
    settings = {key: one for owner in owners for key, one in settings_of(owner).items()}
    fields = {field.name for owner in owners for field in dataclasses.fields(owner)}
    assert {*settings} == fields - {"knobs", "federation", "table"}
    for key, one in settings.items():
        words = f"{one.help} Default: {one.default}.".split()
        assert 4 <= len(words) <= 25, key
        assert one.help[0].isupper(), key
        assert one.help.endswith("."), key
        assert all(name in one.help for name in tables.get(key, ())), key


@pytest.mark.parametrize("name", methods())
def test_the_kind_of_a_knob_is_that_of_its_value(name: str) -> None:
    method = methods()[name]
    assert method.knob_kinds.keys() == method.knobs.keys()
    for knob, value in method.knobs.items():
        assert value is None or isinstance(value, method.knob_kinds[knob] if knob != "steps" else int | tuple)
        with pytest.raises(ConfigError, match=f"{knob} must be (a number|a whole number|true or false)"):
            Config.resolve({"method": name, "radius": 1, knob: "much"})


def test_later_layers_win_and_dashes_are_underscores() -> None:
    config = Config.resolve({"radius": 1, "batch-size": 32}, {"radius": 2.5})
    assert (config.radius, config.batch_size) == (2.5, 32)


def test_resolved_settings_hold_the_knobs_and_the_rule_in_force() -> None:
    config = Config.resolve({"method": "spgda-literal", "radius": 25})
    assert config.knobs == {"steps": 1, "eta": 0.02, "gamma": 1.0, "noise": 0.0, "temper": 0.0}
    assert config.gamma_rule == "adam:0.001"


@pytest.mark.parametrize("name", methods())
def test_toml_round_trip(name: str, tmp_path: Path) -> None:
    radius = {"radius": 0.1 + 0.2} if methods()[name].robust else {}  # a float that needs all its digits
    config = Config.resolve({"method": name, "cost": "lp:1.5", "regularizer": "elastic-net:1e-4,1e-05"}, radius)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert Config.from_toml(path) == config


def test_specs_build_what_they_name() -> None:
    config = Config.resolve(
        {"radius": 1, "cost": "lp:1.5", "label_cost": 3, "regularizer": "elastic-net:0.1,0.2", "gamma_rule": "adam:0.5"}
    )
    assert config.make_cost() == SquaredLp(1.5, kappa=3.0)
    assert config.make_regularizer() == ElasticNet(0.1, 0.2)
    assert config.make_gamma_rule() == AdamGamma(0.5)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.resolve(
            {
                "data": "moon",
                "model": "resnext",
                "radius": -1,
                "epochs": 0,
                "batch_size": 1.5,
                "learning_rate": "fast",
                "cost": "lp:3",
                "regularizer": "l1",
                "method": "spgda",
                "step": 3,
            }
        )
    text = "\n".join(caught.value.problems)
    for fragment in (
        "unknown data set 'moon'; known: digits",
        "unknown model 'resnext'",
        "radius must be > 0, not -1",
        "epochs must be > 0, not 0",
        "batch_size must be a whole number, not 1.5",
        "learning_rate must be a number, not 'fast'",
        "1 < p <= 2",
        "regularizer 'l1' should read l1:NUMBER",
        "unknown key 'step' (did you mean 'steps'?)",
    ):
        assert fragment in text
    assert len(caught.value.problems) == 9


def test_a_radius_is_needed_by_robust_methods_and_refused_by_others() -> None:
    with pytest.raises(ConfigError, match="method 'spgd' needs a radius"):
        Config.resolve({"method": "spgd"})
    with pytest.raises(ConfigError, match="method 'wrm' takes no radius; its knobs: steps, eta, gamma"):
        Config.resolve({"method": "wrm", "radius": 2})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "wrm", "gamma": 1e-4}, r"gamma must start finite and at or above its floor gamma_min = 0\.001"),
        ({"method": "fgsm", "label_cost": 3}, "'fgsm' does not price transport: drop label_cost"),
        ({"method": "spgd", "radius": 1, "curvature": 5.0}, r"gamma_min > curvature / mu = 2\.5"),
        ({"method": "spgd", "radius": 1, "max_steps": 0}, "max_steps must be a whole number, at least 1"),
    ],
)
def test_what_the_objective_would_refuse_is_refused_before_there_is_a_run(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.resolve(settings)


@pytest.mark.parametrize("value", [True, "true", 1.0, None])
def test_nothing_is_rounded_cut_or_guessed(value: object) -> None:
    with pytest.raises(ConfigError, match="epochs must be a whole number"):
        Config.resolve({"radius": 1, "epochs": value})


def test_overrides_read_values_as_toml_does() -> None:
    assert parse_overrides(["a=.5", "b=-1.", "c=.1e-3", "d=.", "e=1.2.3"]) == {
        "a": 0.5, "b": -1.0, "c": 1e-4, "d": ".", "e": "1.2.3",
    }  # fmt: skip
    assert parse_overrides(["a=1", "b=1e-3", "c=inf", "d=l1:0.1", "e=false", "f=x=y"]) == {
        "a": 1,
        "b": 1e-3,
        "c": math.inf,
        "d": "l1:0.1",
        "e": False,
        "f": "x=y",
    }
    with pytest.raises(ConfigError, match="'radius' is not key=value"):
        parse_overrides(["radius"])


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    with pytest.raises(ConfigError, match=r"broken\.toml does not exist"):
        Config.from_toml(path)
    path.write_text("radius = = 2")
    with pytest.raises(ConfigError, match=r"broken\.toml cannot be read"):
        Config.from_toml(path)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"method": "spgda-loss", "radius": 2.0, "cap": 1.0},
            "cap is a knob of spgda and spgda-margin; this method's own: steps, eta, gamma, noise, temper",
        ),
        (
            {"method": "erm", "accuracy": 0.1},
            "accuracy is a knob of spgd; this method's own: noise, temper",
        ),
        (
            {"method": "wrm", "epsilon": 0.1},
            "epsilon is a knob of fgsm, ifgsm and nfgsm; this method's own: steps, eta, gamma, noise, temper",
        ),
    ],
)
def test_a_knob_of_other_methods_is_told_whose_it_is(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.resolve(settings)
    assert caught.value.problems == [problem]


def test_a_wild_radius_is_told_of_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.resolve({"method": "spgd", "radius": -2.0})
    assert caught.value.problems == ["radius must be > 0, not -2.0"]


def test_a_problem_of_one_setting_hides_no_other() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.resolve({"method": "spgd", "radius": 1, "cost": "lp:3", "max_steps": 0, "data": "a" * 300})
    for part in ("1 < p <= 2", "max_steps must be a whole number", "cannot be looked for: File name too long"):
        assert sum(part in problem for problem in caught.value.problems) == 1
    assert len(caught.value.problems) == 3


def test_what_is_wrong_by_itself_is_told_of_once() -> None:
    for wrong, problem in (
        ({"gamma_min": -1}, "gamma_min must be > 0, not -1.0"),
        ({"optimizer": "adamw", "momentum": 0.5}, "unknown optimizer 'adamw' (did you mean 'adam'?); known: adam, sgd"),
        ({"radius": "two"}, "radius must be a number, not 'two'"),
        ({"label_cost": -1}, "label_cost must be at least 0, not -1.0"),
        ({"rounds": 3, "precision": "half"}, "unknown precision 'half'; known: auto, float32, bfloat16"),
    ):
        with pytest.raises(ConfigError) as caught:
            Config.resolve({"method": "spgd", "radius": 1}, wrong)
        assert caught.value.problems == [problem]
    with pytest.raises(ConfigError) as caught:
        Config.resolve({"method": 3})  # and no radius, which some methods need
    assert caught.value.problems == ["method must be text, not 3"]


def test_where_the_data_lie_is_kept_from_the_root_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert Config.resolve({"method": "erm", "data_dir": "here"}).data_dir == str(tmp_path / "here")


def of_regression(tmp_path: Path, **settings: Any) -> Config:
    """The settings of a regression on a file that is there."""
    np.savez(tmp_path / "reg.npz", x=np.eye(4), y=np.arange(4.0))
    given = {"data": str(tmp_path / "reg.npz"), "task": "regression", "method": "spgd", "radius": 1}
    return Config.resolve(MACHINE, {key: value for key, value in (given | settings).items() if value is not None})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, squared_error),
        ({"loss": "absolute"}, absolute_error),
        ({"loss": "huber:2"}, Huber(2.0)),
        ({"loss": "quantile:0.9", "method": "spgda-loss"}, Quantile(0.9)),
    ],
)
def test_a_regression_has_its_loss(tmp_path: Path, settings: dict[str, Any], expected: Any) -> None:
    config = of_regression(tmp_path, **settings)
    assert config.make_loss() == expected
    config_path = tmp_path / "config.toml"
    config_path.write_text(config.to_toml())
    assert Config.from_toml(config_path) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "ranking"}, "unknown task 'ranking'"),
        ({"loss": "hinge"}, "unknown loss 'hinge'"),
        ({"loss": "huber"}, "loss 'huber' should read huber:NUMBER"),
        ({"loss": "huber:-1"}, "delta must be finite and > 0, not -1.0"),
        ({"loss": "quantile:1"}, "tau must lie between 0 and 1, not be 1.0"),
        ({"task": None, "loss": "squared"}, "loss squared is for numbers: set task=regression, or drop loss"),
        ({"method": "spgda"}, "'spgda' climbs a margin .*: for regression take 'spgda-loss' or 'spgd'"),
        ({"method": "drfl"}, "'drfl' climbs a margin .*: for regression take 'drfl-loss' or 'drfl-spgd'"),
        ({"label_cost": 1}, "label_cost is the cost of changing a class"),
        ({"method": "drfl-loss", "byzantine": 1, "byzantine_attack": "label-flip"}, "'label-flip' swaps classes"),
        ({"data": "digits"}, "data 'digits' has classes, and task regression takes numbers: an .npz file"),
    ],
)
def test_what_does_not_go_with_a_regression_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        of_regression(tmp_path, **settings)
    assert len(caught.value.problems) == 1
