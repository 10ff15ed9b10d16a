"""`fit` with weights of samples, from data in memory and from batches that bring their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rhobust
from rhobust.ascent import Oracle
from rhobust.data.batches import Batch
from rhobust.losses import cross_entropy
from rhobust.optim import adam
from rhobust.training.fit import Fit
from rhobust.training.step import gradient
from tests.problems import known

DRAWS = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=DRAWS)
Y = (X[:, 0] + 0.5 * torch.randn(40, generator=DRAWS) > 0).long()
WEIGHTS = torch.rand(40, generator=DRAWS) + 0.1


class Quiet(rhobust.Observer):
    """These trainings are too short to learn anything, which they would say."""

    def warned(self, message: str) -> None:
        pass


def fitted(data: object, **options: Any) -> Fit:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    settings: dict[str, Any] = {"method": "spgda", "radius": 0.1, "epochs": 3, "seed": 1, "observer": Quiet()}
    if not isinstance(data, DataLoader):
        settings["batch_size"] = 16
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return rhobust.fit(model, data, optimizer=optimizer, **settings | options)


def assert_same(one: Fit, other: Fit) -> None:
    assert one.history == other.history
    for a, b in zip(one.objective.parameters(), other.objective.parameters(), strict=True):
        assert torch.equal(a, b)


def test_equal_weights_train_like_none() -> None:
    assert_same(fitted((X, Y), weights=torch.full((40,), 0.3)), fitted((X, Y)))


def test_samples_of_weight_zero_are_left_out() -> None:
    kept = WEIGHTS > 0.5
    one = fitted((X, Y), weights=WEIGHTS * kept, memory=1.0)
    assert_same(one, fitted((X[kept], Y[kept]), weights=WEIGHTS[kept], memory=1.0))
    assert len(one.history) == 3 * -(-int(kept.sum()) // 16)
    assert_same(fitted((X, Y), weights=kept), fitted((X[kept], Y[kept])))


def test_weights_stay_with_their_samples_wherever_they_come_from() -> None:
    relative = WEIGHTS / WEIGHTS.max()
    expected = fitted((X, Y), weights=WEIGHTS)
    assert expected.history != fitted((X, Y)).history
    assert_same(expected, fitted((X.numpy(), Y.numpy()), weights=WEIGHTS.double().numpy()))
    assert_same(expected, fitted((X, Y), weights=WEIGHTS.tolist()))
    assert_same(expected, fitted(TensorDataset(X, Y, relative)))
    triples = [(x.numpy(), int(y), float(w)) for x, y, w in zip(X, Y, relative, strict=True)]
    assert_same(
        fitted(DataLoader(triples, 40)),  # type: ignore[arg-type]
        fitted(DataLoader(TensorDataset(X, Y, WEIGHTS.double() / WEIGHTS.max()), 40)),
    )


def test_parts_that_move_are_weighted_too() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, values: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(values + shift)
            return out

    def trained(x: dict[str, torch.Tensor], y: torch.Tensor, weights: object) -> Fit:
        torch.manual_seed(0)
        settings: dict[str, Any] = {
            "method": "spgda",
            "radius": 0.1,
            "epochs": 2,
            "perturb": "values",
            "observer": Quiet(),
        }
        return rhobust.fit(Sum(), (x, y), weights=weights, batch_size=16, **settings)

    kept, zero = WEIGHTS > 0.5, torch.zeros_like(X)
    one = trained({"values": X, "shift": zero}, Y, WEIGHTS * kept)
    assert_same(one, trained({"values": X[kept], "shift": zero[kept]}, Y[kept], WEIGHTS[kept]))
    assert one.history != trained({"values": X[kept], "shift": zero[kept]}, Y[kept], None).history


def test_records_are_weighted_means() -> None:
    counts = torch.arange(40) % 4
    one = fitted((X.double(), Y), weights=counts, batch_size=1000, epochs=1).history[0]
    other = fitted((X.repeat_interleave(counts, 0), Y.repeat_interleave(counts)), batch_size=1000, epochs=1).history[0]
    for name in ("loss", "value", "rho_eff", "stationarity"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-5), name


def test_an_ascent_that_does_not_count_is_not_measured() -> None:
    """The accuracy of a record is that of the samples that count."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    objective = rhobust.RobustObjective(model, cross_entropy, radius=0.1, maximizer=Oracle(1e-9, max_steps=3))
    gap = known(objective(X, Y).accuracy).gap
    counts = torch.ones(40)
    counts[gap.argmax()] = 0
    numbers = gradient(objective, rhobust.ProximalOptimizer(adam(model), objective), Batch(X, Y, None, counts), 0, 0)
    second = float(gap.sort().values[-2])
    assert numbers.read(numbers.values.tolist()).accuracy == pytest.approx(second, rel=1e-5)
    assert second < 0.99 * float(gap.max())


def test_a_later_batch_whose_weights_are_all_zero_is_an_error() -> None:
    weights = np.repeat([1.0, 0.0], 20)
    with pytest.raises(rhobust.errors.DataError, match="all 20 weights of samples are 0"):
        fitted(DataLoader(TensorDataset(X, Y, torch.from_numpy(weights)), 20))
