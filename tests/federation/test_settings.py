"""Settings of a federation: what the names stand for, every problem at once, and the way there and back."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rhobust.data.catalog import load_data
from rhobust.data.partitions import PARTITIONS
from rhobust.errors import ConfigError
from rhobust.federation.aggregators import AGGREGATORS
from rhobust.federation.byzantine import BYZANTINE_ATTACKS
from rhobust.federation.settings import Federation
from rhobust.method import FEDERATED, methods
from rhobust.runs.build import federation_of, server_of, work_of
from rhobust.runs.config import Config
from rhobust.runs.start import train_run


def problems(*layers: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config.resolve({"method": "drfl", "radius": 1}, *layers)
    return caught.value.problems


@pytest.mark.parametrize(("name", "central"), FEDERATED.items())
def test_a_federated_method_is_a_central_one_on_each_worker(name: str, central: str) -> None:
    config = Config.resolve({"method": name}, {} if name == "fedavg" else {"radius": 1})
    assert config.method == central
    assert config.name == name
    assert config.federation is not None
    assert config.federation.rounds == 300
    average = name == "fedavg"
    expected = ("average", 5) if average else ("gradient", 1)
    assert (config.federation.server_update, config.federation.local_steps) == expected


def test_any_central_method_can_be_federated() -> None:
    assert Config.resolve({"method": "ifgsm", "rounds": 5}).name == "federated ifgsm"
    assert Config.resolve({"method": "spgda", "radius": 1, "workers": 5}).name == "drfl"
    assert Config.resolve({"method": "ifgsm", "server_update": "average"}).name == "fedavg of ifgsm"
    assert Config.resolve({"method": "fedavg", "server_update": "gradient"}).name == "federated erm"  # as asked
    assert Config.resolve({"method": "ifgsm"}).federation is None


@pytest.mark.parametrize(
    ("workers", "participation", "asked"),
    [
        (10, 1.0, 10),
        (10, 0.5, 5),
        (10, 0.51, 6),
        (10, 1e-9, 1),
        (1000, 0.01, 10),
        (10, 0.3, 3),
        (100, 0.07, 7),
        (3, 0.1, 1),
        (7, 1, 7),
    ],
)
def test_how_many_are_asked(workers: int, participation: float, asked: int) -> None:
    """The share, rounded up; what is whole but for rounding (0.07 * 100 is 7.000000000000001) stays whole."""
    assert Federation(workers=workers, participation=participation).asked == asked


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"rounds": 0}, "rounds must be > 0, not 0"),
        ({"workers": -1}, "workers must be > 0, not -1"),
        ({"workers": 2.5}, "workers must be a whole number, not 2.5"),
        ({"participation": 0}, "participation must be above 0 and at most 1, not 0.0"),
        ({"participation": 1.01}, "participation must be above 0 and at most 1, not 1.01"),
        ({"participation": float("nan")}, "participation must be above 0 and at most 1, not nan"),
        ({"participation": True}, "participation must be a number, not True"),
        ({"local_steps": 0}, "local_steps must be > 0, not 0"),
        ({"local_learning_rate": 0}, "local_learning_rate must be > 0, not 0.0"),
        ({"local_learning_rate": float("inf")}, "local_learning_rate must be > 0, and finite, not inf"),
        (
            {"local_learning_rate": 0.5},
            "local_learning_rate is for workers who take several steps: set local_steps above 1, or drop it",
        ),
        ({"quorum": 0}, "quorum must be > 0, not 0"),
        ({"quorum": 6, "participation": 0.5}, "quorum is 6, but only 5 workers are asked in a round"),
        ({"evaluate_every": 0}, "evaluate_every must be > 0, not 0"),
        ({"byzantine": 10}, "byzantine must be at least 0 and fewer than the 10 workers, not 10"),
        ({"byzantine": -1}, "byzantine must be at least 0 and fewer than the 10 workers, not -1"),
        (
            {"byzantine_attack": "sign-flop"},
            f"unknown byzantine_attack 'sign-flop' (did you mean 'sign-flip'?); known: {', '.join(BYZANTINE_ATTACKS)}",
        ),
        ({"byzantine_attack": "noise:-1"}, "byzantine_attack 'noise:-1': the strength must be a finite number > 0"),
        ({"aggregator": "mode"}, f"unknown aggregator 'mode'; known: {', '.join(AGGREGATORS)}"),
        ({"aggregator": "trimmed-mean:1.5"}, "the number of Byzantine workers must be a whole number, not 1.5"),
        (
            {"aggregator": "multi-krum:4"},
            "aggregator 'multi-krum:4' needs 11 uploads, but only 10 workers are asked",
        ),
        (
            {"aggregator": "clipped-trimmed-mean:3", "participation": 0.6},
            "aggregator 'clipped-trimmed-mean:3' needs 7 uploads, but only 6 workers are asked",
        ),
        ({"partition": "two-class"}, f"known: {', '.join(PARTITIONS)}"),
        ({"partition": "dirichlet:0"}, "partition 'dirichlet:0': ALPHA must be a finite number > 0"),
        ({"server_update": "mean"}, "unknown server_update 'mean'; known: gradient, average"),
        ({"weights": "size"}, "unknown weights 'size'"),
        ({"momentum": 0.9}, "momentum belongs to the optimizer sgd; adam has its own"),
        ({"momentum": 1, "optimizer": "sgd"}, "momentum must be at least 0 and below 1, not 1.0"),
        ({"epochs": 5}, "a federation trains in rounds, not in epochs: drop epochs, set rounds"),
        ({"epochs": 30}, "drop epochs"),  # the default, given: it has no more meaning than another
        ({"epochs": 0}, "drop epochs"),
        ({"wrokers": 3}, "unknown key 'wrokers' (did you mean 'workers'?)"),
    ],
)
def test_a_wrong_setting_is_one_problem_that_says_so(wrong: dict[str, Any], problem: str) -> None:
    (found,) = problems(wrong)
    assert problem in found


def test_what_lies_just_inside_is_taken() -> None:
    right = {
        "quorum": 5,
        "participation": 0.5,
        "aggregator": "multi-krum:1",
        "byzantine": 9,
        "local_learning_rate": 1e-9,
        "local_steps": 2,
    }
    assert Config.resolve({"method": "drfl", "radius": 1}, right).federation is not None


def test_every_problem_at_once() -> None:
    wrong = {
        "wrokers": 3,
        "rounds": -1,
        "participation": 0.5,
        "quorum": 6,
        "aggregator": "multi-krum:3",
        "partition": "moon",
        "byzantine_attack": "white",
        "byzantine": 10,
        "weights": "heavy",
        "server_update": "nobody",
        "local_steps": "many",
        "momentum": 0.5,
    }
    found = "\n".join(problems(wrong))
    for part in (
        "'wrokers'",
        "rounds must be",
        "quorum is 6",
        "needs 9 uploads, but only 5",
        "'moon'",
        "'white'",
        "not 10",
        "'heavy'",
        "'nobody'",
        "local_steps must be a whole number",
        "momentum belongs",
    ):
        assert part in found
    assert len(problems(wrong)) == 11


def test_a_method_that_is_no_name_is_a_problem_and_not_a_crash() -> None:
    for method in ([1], {"a": 1}, 3, None):
        with pytest.raises(ConfigError, match="method must be text"):
            Config.resolve({"method": method, "radius": 1})


@pytest.mark.parametrize("name", [*FEDERATED, *methods()])
def test_settings_written_and_read_are_the_same(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "method": name,
        "rounds": 7,
        "workers": 12,
        "participation": 0.1 + 0.2,
        "aggregator": "trimmed-mean:1",
        "partition": "dirichlet:0.3",
        "byzantine_attack": "noise:3",
        "byzantine": 2,
        "evaluate_every": 3,
    }
    robust = methods()[FEDERATED.get(name, name)].robust
    config = Config.resolve(given, {"radius": 0.7} if robust else {})
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert Config.from_toml(path) == config
    assert config.federation is not None
    assert "epochs" not in path.read_text()


def test_more_workers_than_samples_is_found_before_a_directory_is_made(tmp_path: Path) -> None:
    config = Config.resolve({"method": "drfl", "radius": 1, "workers": 30, "train_samples": 20})
    with pytest.raises(ConfigError, match="30 workers cannot share 20 samples: each needs one at least"):
        train_run(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_a_central_run_has_no_server() -> None:
    with pytest.raises(ConfigError, match="this is not a federated run"):
        federation_of(Config.resolve({"method": "spgda", "radius": 1}))


@pytest.mark.parametrize(
    ("given", "kind", "rate"),
    [
        ({"method": "drfl", "radius": 1}, torch.optim.Adam, 0.001),
        (
            {"method": "drfl", "radius": 1, "optimizer": "sgd", "learning_rate": 0.3, "momentum": 0.9},
            torch.optim.SGD,
            0.3,
        ),
        ({"method": "fedavg", "local_steps": 4, "local_learning_rate": 0.25}, torch.optim.SGD, 1.0),  # 4 steps of 0.25
    ],
)
def test_server_and_work_are_what_the_settings_say(given: dict[str, Any], kind: type, rate: float) -> None:
    more = {"quorum": 3, "weights": "samples", "seed": 5, "batch_size": 9}
    config = Config.resolve(given, more)
    server = server_of(config, load_data("digits"), torch.device("cpu"))
    base = server.optimizer.base
    assert type(base) is kind
    assert base.param_groups[0]["lr"] == rate
    assert base.param_groups[0].get("momentum", 0) == given.get("momentum", 0)
    assert (server.quorum, server.weighted, type(server.aggregator).__name__) == (3, True, "Mean")
    work = work_of(config)
    assert (work.batch_size, work.seed) == (9, 5)
    assert (work.steps, work.rate) == ((4, 0.25) if given["method"] == "fedavg" else (1, 0.1))


def test_an_attack_without_byzantine_workers_is_an_error() -> None:
    assert problems({"byzantine_attack": "alie"}) == [
        "byzantine_attack is 'alie', but byzantine is 0: set byzantine to the number of Byzantine workers"
    ]
    assert Config.resolve({"method": "drfl", "radius": 1, "byzantine_attack": "alie", "byzantine": 1}).name == "drfl"


def test_weights_that_a_byzantine_worker_could_choose_are_refused() -> None:
    for aggregator in ("median", "geometric-median", "trimmed-mean:1", "multi-krum:1", "clipped-mean"):
        with pytest.raises(ConfigError, match=f"defeats the robust aggregator '{aggregator}'. Set weights to equal"):
            Config.resolve({"method": "drfl", "radius": 1, "weights": "samples", "aggregator": aggregator})
