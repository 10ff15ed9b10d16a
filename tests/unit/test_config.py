"""Settings: layers, knobs, and every problem at once."""

import math
from pathlib import Path

import pytest

from rhobust.config import Config
from rhobust.costs import SquaredLp
from rhobust.errors import ConfigError
from rhobust.gamma_rules import AdamGamma
from rhobust.methods import methods
from rhobust.regularizers import ElasticNet
from rhobust.toml import parse_overrides


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
        {"radius": 1, "cost": "lp:1.5", "kappa": 3, "regularizer": "elastic-net:0.1,0.2", "gamma_rule": "adam:0.5"}
    )
    assert config.make_cost() == SquaredLp(1.5, kappa=3.0)
    assert config.make_regularizer() == ElasticNet(0.1, 0.2)
    assert config.make_gamma_rule() == AdamGamma(0.5)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.resolve(
            {
                "data": "moon",
                "model": "resnet",
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
        "unknown model 'resnet'",
        "radius must be finite and > 0, not -1",
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
        ({"method": "fgsm", "kappa": 3}, "Ball does not price transport"),
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
    assert caught.value.problems == ["radius must be finite and > 0, not -2.0"]


def test_where_the_data_lie_is_kept_from_the_root_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert Config.resolve({"method": "erm", "data_dir": "here"}).data_dir == str(tmp_path / "here")
