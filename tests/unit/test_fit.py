"""`fit`: what it refuses before the first step."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rhobust
from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp
from rhobust.errors import ConfigError, DataError, Refused

X = torch.linspace(-1, 1, 24).reshape(8, 3)
Y = torch.arange(8) % 2


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"radius": None}, ConfigError, "method 'spgd' needs a radius"),
        ({"method": "erm"}, ConfigError, "method 'erm' takes no radius"),
        ({"method": "drfl"}, ConfigError, "is for data that many hold: `rhobust federate --method drfl`"),
        ({"method": "spdg"}, ConfigError, r"did you mean 'spgd'\?"),
        (
            {"steps": 3},
            ConfigError,
            "steps is a knob of fgsm, .* and spgda-literal; this method's own: accuracy, max_steps",
        ),
        ({"memori": 0.9}, ConfigError, r"unknown keyword 'memori' \(did you mean 'memory'\?\); known: .*, max_steps"),
        ({"radius": "2"}, Refused, "radius must be a number, not '2'"),
        ({"epochs": 0}, ConfigError, "epochs must be a whole number, at least 1, not 0"),
        ({"epochs": 1.5}, ConfigError, "epochs must be a whole number, at least 1, not 1.5"),
        ({"batch_size": 1.5}, DataError, "batch_size must be a whole number, at least 1, not 1.5"),
        ({"regularizer": "l1:0.1"}, Refused, r"regularizer must be a Regularizer such as rhobust\.L1\(0\.1\), not 'l1"),
        ({"gamma_rule": "adam:0.1"}, Refused, "gamma_rule must be a GammaRule such as"),
        ({"model": nn.Linear(3, 2).requires_grad_(False)}, Refused, "all parameters of Linear are frozen"),
        ({"bounds": 1}, Refused, r"bounds must be \(lower, upper\)"),
        (
            {"cost": "linf"},
            Refused,
            r"cost must be a Cost, SquaredL2\(\), SquaredLp\(p\) or SquaredLinf\(\) of rhobust\.costs, not 'linf'",
        ),
        ({"loss": "mse"}, Refused, "a per-sample loss, a function"),
        ({"model": nn.Flatten()}, Refused, "Flatten has no parameters: there is nothing to train"),
        ({"data": (X, Y.float())}, DataError, "for regression pass another loss="),
        ({"data": (X, Y[:5])}, DataError, "x has 8 samples and y has 5"),
        ({"data": DataLoader(TensorDataset(X, Y)), "batch_size": 4}, DataError, "brings its own batches"),
        ({"data": DataLoader(TensorDataset(X))}, DataError, r"pairs \(x, y\)"),
        (
            {"data": DataLoader(TensorDataset(X, Y), batch_size=9, drop_last=True)},
            DataError,
            "gives no batch in epoch 0: nothing to learn from. With drop_last=True",
        ),
        (
            {"method": "wrm", "radius": None, "gamma_rule": rhobust.ProjectedGradient(1.0)},
            ConfigError,
            "method 'wrm' does not learn gamma, so it takes no gamma_rule",
        ),
        (
            {"method": "ifgsm", "radius": None, "epsilon": 0.1, "random_start": True, "memory": 0.9},
            Refused,
            "memory and random_start both say where an ascent begins",
        ),
        ({"data": (X, (Y + 5).to(torch.uint8))}, DataError, "labels run from 5 to 6, but the model has 2 classes"),
    ],
)
def test_a_wrong_request_is_refused_and_the_model_left_alone(
    changed: dict[str, Any], kind: type[Exception], message: str
) -> None:
    request: dict[str, Any] = {"model": nn.Linear(3, 2), "data": (X, Y), "method": "spgd", "radius": 0.1, **changed}
    before = [weight.detach().clone() for weight in request["model"].parameters()]
    with pytest.raises(kind, match=message):
        rhobust.fit(**request)
    assert all(torch.equal(a, b) for a, b in zip(before, request["model"].parameters(), strict=True))


def test_the_global_generator_is_left_as_it_was_and_the_seed_decides() -> None:
    weights = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2))
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(0.1)
        state = torch.get_rng_state()
        rhobust.fit(model, (X, Y), method="spgda", radius=0.1, epochs=3, seed=7)
        assert torch.equal(torch.get_rng_state(), state)
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("cost", [SquaredL2(), SquaredLp(1.5), SquaredLinf()])
def test_a_radius_that_leaves_nothing_to_learn_is_warned_of(cost: Cost) -> None:
    x = torch.cat([torch.ones(4, 3), -torch.ones(4, 3)])  # all may meet in 0
    enough = float(cost(x[:1], torch.zeros(1, 3)))
    for radius, warns in ((0.99 * enough, False), (1.01 * enough, True)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            rhobust.fit(nn.Linear(3, 2), (x, Y), method="spgda", cost=cost, radius=radius, epochs=1)
        assert ["one and the same point" in str(one.message) for one in said] == [True] * warns
        assert all(one.filename == __file__ for one in said)  # points at the caller


def test_data_that_are_sorted_are_not_taken_for_their_first_part() -> None:
    x = torch.cat([torch.zeros(1500, 3), torch.ones(1500, 3)])
    for order in (torch.arange(3000), torch.arange(3000).reshape(2, 1500).T.flatten()):  # and every other one
        y = order // 1500
        rhobust.fit(
            nn.Linear(3, 2), (x[order], y), method="spgda", radius=0.5, epochs=np.int64(1), batch_size=np.int64(500)
        )


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_are_whole_numbers_of_any_kind(kind: torch.dtype) -> None:
    cost = SquaredL2(kappa=1.0)
    trained = rhobust.fit(nn.Linear(3, 2), (X, Y.to(kind)), method="spgda", cost=cost, radius=0.1, epochs=1)
    assert trained.history


@pytest.mark.parametrize("radius", [np.int64(1), np.float32(0.5)])
def test_numbers_of_numpy_are_numbers(radius: Any) -> None:
    trained = rhobust.fit(nn.Linear(3, 2), (10 * X, Y), method="spgda", radius=radius, epochs=1)
    assert trained.objective.radius == radius


def test_fit_says_what_the_command_would() -> None:
    with pytest.warns(UserWarning, match="looks back over 1000 steps, and there are 2"):
        rhobust.fit(nn.Linear(3, 2), (X, Y), method="spgda", radius=0.1, epochs=2, average=0.999)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_arrays_are_taken_in_the_model_s_precision(precision: torch.dtype) -> None:
    found = []
    for x in (X.double().numpy(), X.numpy().tolist(), X.to(precision)):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(precision)
        rhobust.fit(model, (x, Y), radius=0.1, epochs=1)
        found.append(model.weight)
    assert found[0].dtype == precision
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[2])
