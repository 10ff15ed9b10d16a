"""What is told of inputs whose scale makes the radius mean nothing, from tensors, Datasets and loaders alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rhobust
from rhobust.box import Box
from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp, Weighted
from rhobust.training.observers import Silent
from rhobust.training.spread import InputSpread, deviations, per_feature, price_of

DRAWS = torch.Generator().manual_seed(0)
X, Y = torch.randn(300, 3, generator=DRAWS), torch.arange(300) % 2
SOURCES: dict[str, Callable[[Tensor], Any]] = {
    "tensors": lambda x: (x, Y),
    "a Dataset": lambda x: TensorDataset(x, Y),
    "a DataLoader": lambda x: DataLoader(TensorDataset(x, Y), batch_size=32),
}
each_source = pytest.mark.parametrize("source", SOURCES)


class Told(Silent):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warned(self, message: str) -> None:
        self.said.append(message)


def told(source: str, x: Tensor, **asked: Any) -> list[str]:
    """The remarks on the inputs."""
    observer = Told()
    settings: dict[str, Any] = {"method": "spgda-loss", "radius": 0.1, "epochs": 2, **asked}
    rhobust.fit(nn.Linear(x[0].numel(), 2), SOURCES[source](x), observer=observer, **settings)
    return [one for one in observer.said if "not scaled" in one or "same point" in one]


@each_source
@pytest.mark.parametrize("scale", [(1.0, 1.0, 670_687.0), (1e-3, 1e-3, 1.0), (500.0, 500.0, 500.0)])
def test_inputs_that_are_not_scaled_are_told_once_with_the_fix(source: str, scale: Sequence[float]) -> None:
    (said,) = told(source, X * torch.tensor(scale))
    assert "Standardize each feature, (x - mean) / deviation, or scale it to bounds" in said
    sigma = (X * torch.tensor(scale)).std(0, correction=0)
    assert f"run from {float(sigma.min()):.2g} to {float(sigma.max()):.2g}" in said


@each_source
def test_scaled_inputs_and_methods_that_move_nothing_are_left_in_peace(source: str) -> None:
    assert told(source, X) == []
    assert told(source, X * torch.tensor([0.1, 1.0, 30.0])) == []
    assert told(source, 1000 * X, method="erm", radius=None) == []


@each_source
def test_a_radius_for_one_point_is_told_and_not_of_inputs_that_are_one(source: str) -> None:
    assert ["same point" in one for one in told(source, X, radius=10.0)] == [True]
    assert told(source, X, radius=2.0) == []
    assert told(source, torch.ones(300, 3), radius=10.0) == []


def test_pixels_of_which_some_hardly_differ_are_no_table() -> None:
    images = torch.zeros(300, 2, 2)
    images[:, 0] = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    images[0, 1, 1] = 1e-4
    observer = Told()
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    rhobust.fit(model, (images, Y), method="spgda-loss", radius=0.1, epochs=1, observer=observer)
    assert not any("not scaled" in one for one in observer.said)


def test_a_loader_of_inputs_of_no_common_shape_keeps_its_own_error() -> None:
    batches: Any = DataLoader([(X[:4], Y[:4]), (X[:4, :2], Y[:4])], batch_size=None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        rhobust.fit(nn.Linear(3, 2), batches, method="erm", epochs=1, observer=Silent())


@pytest.mark.parametrize("cost", [SquaredL2(), SquaredLp(1.5), SquaredLinf()])
@pytest.mark.parametrize("size", [300, 64, 7])
def test_what_is_counted_batch_by_batch_is_what_all_would_give(size: int, cost: Cost) -> None:
    x = 3 * X + torch.tensor([100.0, -5.0, 0.0])
    found = InputSpread(cost)
    for part in torch.split(x, size):
        found.add(part)
    torch.testing.assert_close(found.deviations, x.double().std(0, correction=0), rtol=1e-9, atol=0)
    points = x.mean(0), (x.amin(0) + x.amax(0)) / 2
    whole = min(float(cost(x, point.expand_as(x)).mean()) for point in points)
    assert found.to_one_point == pytest.approx(whole, rel=1e-6 if size == 300 else 0.1)


@pytest.mark.parametrize("cost", [SquaredL2(), SquaredLp(1.5), SquaredLinf()])
def test_a_move_by_as_many_deviations_costs_the_radius(cost: Cost) -> None:
    x = X * torch.tensor([1.0, 4.0, 0.1])
    sigma = deviations(x, cost)
    size = per_feature(0.3, price_of(sigma, cost))
    assert size is not None
    assert float(cost(x, x + size * sigma).mean()) == pytest.approx(0.3, rel=1e-5)
    if isinstance(cost, SquaredL2):
        assert size == pytest.approx(math.sqrt(0.3 / float(x.var(0, correction=0).sum())), rel=1e-5)


def test_features_that_stay_do_not_count() -> None:
    fixed = torch.tensor([False, True, False])
    without = price_of(deviations(X[:, [0, 2]], SquaredL2()), SquaredL2())
    assert price_of(deviations(X, SquaredL2(), Box(fixed=fixed)), SquaredL2()) == pytest.approx(without)
    weighted = Weighted(SquaredL2(), torch.tensor([1.0, math.inf, 1.0]))
    assert price_of(deviations(X, weighted), weighted) == pytest.approx(without)


def test_of_equal_inputs_there_is_no_typical_move() -> None:
    assert per_feature(1.0, price_of(deviations(torch.ones(9, 3), SquaredL2()), SquaredL2())) is None


def test_a_training_shows_its_radius_in_deviations() -> None:
    shown: Callable[[Any], str] = lambda data: str(  # noqa: E731
        rhobust.fit(nn.Linear(3, 2), data, method="spgda-loss", radius=0.25, epochs=1, observer=Silent())
    )
    size = math.sqrt(0.25 / float(X.var(0, correction=0).sum()))
    assert f"{size:.2g} deviations" in shown((X, Y))
    assert "deviations" not in shown(DataLoader(TensorDataset(X, Y), batch_size=32))
