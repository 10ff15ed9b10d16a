"""Trends: curves whose end is known, and trainings that stop far from their optimum or at it."""

import warnings
from typing import Any

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import rhobust
from rhobust.training.trend import Trend, trend, trends, unsettled


def noise(count: int, seed: int = 0) -> list[float]:
    return list(torch.randn(count, generator=torch.Generator().manual_seed(seed)).double().tolist())


def curve(values: list[float], steps: int = 3) -> list[dict[str, Any]]:
    """Metrics with `steps` equal steps an epoch."""
    return [{"epoch": epoch, "value": v, "stationarity": v} for epoch, v in enumerate(values) for _ in range(steps)]


def test_a_line_falls_by_its_slope_without_noise() -> None:
    found = trend([40.0 - i for i in range(40)])
    assert found.fall == pytest.approx(9)
    assert found.noise == pytest.approx(0, abs=1e-9)
    assert found.whole == 39
    assert found.share == pytest.approx(9 / 39)
    assert found.falls


def test_noise_alone_seldom_looks_like_a_fall() -> None:
    """A one-sided test at two standard errors, of curves that have fallen by ten deviations before."""
    flagged = [trend([10.0, *noise(39, seed)]).falls for seed in range(400)]
    assert sum(flagged) / len(flagged) < 0.08


def test_a_fall_too_small_to_matter_is_none() -> None:
    assert not trend([2.3, *(0.01 - 1e-4 * i for i in range(39))]).falls  # ten times its noise, and .05 % of the way
    assert Trend(fall=1.0, noise=0.4, deviation=1.0, whole=10.0).falls
    assert not Trend(fall=1.0, noise=0.6, deviation=1.0, whole=10.0).falls
    assert not Trend(fall=-1.0, noise=0.1, deviation=1.0, whole=10.0).falls


def test_a_curve_is_flat_where_noise_hides_no_fall_that_matters() -> None:
    assert Trend(fall=0.02, noise=0.015, deviation=0.0, whole=10.0).flat  # .02 + 2 * .015 is half a percent of 10
    assert not Trend(fall=0.021, noise=0.015, deviation=0.0, whole=10.0).flat
    assert Trend(fall=0.4, noise=0.3, deviation=1.0, whole=10.0).flat  # .4 + 2 * .3 is a single deviation
    assert not Trend(fall=0.41, noise=0.3, deviation=1.0, whole=10.0).flat
    assert not Trend(fall=0.4, noise=0.1, deviation=1.0, whole=10.0).flat  # it falls: four standard errors, 4 %
    assert Trend(fall=-5.0, noise=0.5, deviation=1.0, whole=10.0).flat
    assert not Trend(fall=-5.0, noise=0.51, deviation=1.0, whole=10.0).flat  # a rise outweighs no noise


def test_what_cannot_be_shown_to_fall_is_not_yet_flat() -> None:
    """Four points on a slow fall: noise hides it, and hides as well that it goes on."""
    few = trend([10.0 - 0.2 * i + 0.5 * shift for i, shift in enumerate(noise(12))])
    assert not few.falls
    assert not few.flat


def test_epochs_are_averaged_and_few_epochs_are_cut_into_blocks() -> None:
    falling = [1 - 0.05 * i for i in range(16)]
    many, single = trends(curve(falling)), trends(curve(falling, steps=1))
    assert many is not None
    assert single is not None
    assert many.value.fall == pytest.approx(single.value.fall)
    one_epoch = [{"epoch": 0, "value": v, "stationarity": 1.0} for v in (2 - 0.01 * i for i in range(150))]
    found = trends(one_epoch)
    assert found is not None
    assert found.value.falls
    assert not found.stationarity.falls
    assert trends(one_epoch[:90]) is None


def test_a_rate_that_falls_to_zero_lets_no_curve_tell() -> None:
    falling = curve([1 - 0.05 * i for i in range(16)])
    assert "the objective still falls" in str(unsettled(falling))
    assert unsettled(falling, "cosine") is None


def test_a_training_far_from_its_optimum_says_so_and_one_at_it_does_not() -> None:
    """Breast cancer, a linear model, E||d||^2 <= .05: the optimum is .1613, the defaults stop near .25."""
    data = load_breast_cancer()
    x = torch.tensor((data.data - data.data.mean(0)) / data.data.std(0), dtype=torch.float32)
    y = torch.tensor(data.target)

    def fitted(epochs: int, lr: float) -> tuple[float, list[str]]:
        torch.manual_seed(0)
        model = nn.Linear(30, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            made = rhobust.fit(model, (x, y), method="spgd", radius=0.05, epochs=epochs, optimizer=optimizer)
        return sum(record.value for record in made.history[-5:]) / 5, [str(one.message) for one in said]

    short, warned = fitted(30, 1e-3)
    assert short > 1.4 * 0.1613
    assert len(warned) == 1
    assert "the objective still falls" in warned[0]
    assert "Train longer (epochs), or raise the learning rate" in warned[0]
    long, silent = fitted(100, 1e-2)
    assert long < 1.05 * 0.1613
    assert silent == []
