"""The sup of a loss of one score against a search over every length, and worst cases of linear regressions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from rhobust.certificates.certify import certify
from rhobust.certificates.exact import curvature_bound
from rhobust.certificates.profiles import profile_of
from rhobust.losses import PerSampleLoss, absolute_error, huber, quantile, squared_error
from tests.problems import NORMS, Norm, generator, known, length, linear_model, normal

LOSSES: dict[str, Any] = {
    "squared": squared_error,
    "absolute": absolute_error,
    "quantile": quantile(0.8),
    "huber": huber(0.6),
}


def regression(seed: int = 0) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A linear model with one output, x, y of shape (N, 1) and the model's residuals."""
    draws = generator(seed)
    theta, x = normal(draws, 4), normal(draws, 30, 4)
    residual = normal(draws, 30)
    return linear_model(theta), x, (x @ theta + residual)[:, None], residual


RATE = 0.65


@pytest.mark.parametrize(
    ("name", "gamma"),
    [
        (name, gamma)
        for name in LOSSES
        for gamma in (0.05, 0.2, 0.3, 1.0, 10.0)
        if gamma > known(profile_of(LOSSES[name], 1)).floor(RATE)  # the sup is infinite below
    ],
)
def test_no_length_is_worth_more(name: str, gamma: float) -> None:
    loss = LOSSES[name]
    profile, rate, y = known(profile_of(loss, 1)), RATE, 0.4
    score = torch.linspace(-3, 3, 61, dtype=torch.float64)
    numbers = torch.full_like(score, y)
    found, upper = profile.best(
        score, numbers, *(torch.tensor(value, dtype=torch.float64) for value in ([rate], gamma))
    )
    reached = loss(score + rate * found, numbers) - gamma * found.square()
    torch.testing.assert_close(reached, upper, rtol=1e-12, atol=1e-12)
    lengths = torch.linspace(-30, 30, 60_001, dtype=torch.float64)
    for start, best in zip(score.tolist(), upper.tolist(), strict=True):
        values = loss(start + rate * lengths, torch.full_like(lengths, y)) - gamma * lengths.square()
        assert float(values.max()) <= best + 1e-12
        assert float(values.max()) >= best - 1e-4 * (1 + gamma)


def huber_sup(residual: float, rate: float, gamma: float, delta: float) -> float:
    """By a solver that knows no formula: the best of both directions, from a grid, refined."""

    def worth(t: float) -> float:
        size = abs(abs(residual) + rate * t)
        return (size**2 / 2 if size <= delta else delta * (size - delta / 2)) - gamma * t * t

    grid = np.linspace(0, 2 * delta * rate / (2 * gamma) + 1e-9, 2001)
    best = grid[int(np.argmax([worth(t) for t in grid]))]
    step = grid[1] - grid[0]
    found = minimize_scalar(lambda t: -worth(t), bounds=(max(0, best - step), best + step), method="bounded")
    return max(-float(found.fun), worth(0.0))


def worst(name: str, residual: Tensor, rate: float, rho: float) -> float:
    """The worst expected loss in the ball, from a formula or from the scalar dual."""
    size, root = residual.abs(), math.sqrt(rho)
    if name == "squared":
        return float((size.square().mean().sqrt() + root * rate) ** 2)
    if name == "absolute":
        return float(size.mean()) + root * rate

    def dual(log_gamma: float) -> float:
        gamma = math.exp(log_gamma)
        if name == "huber":
            sups = [huber_sup(r, rate, gamma, 0.6) for r in residual.tolist()]
        else:  # residual is y - score: tau above, 1 - tau below
            sups = [max(a * r + (a * rate) ** 2 / (4 * gamma) for a in (0.8, -0.2)) for r in residual.tolist()]
        return gamma * rho + float(np.mean(sups))

    return float(minimize_scalar(dual, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10}).fun)


@pytest.mark.parametrize(
    ("name", "norm"),
    # The reference of huber is slow, and its profile does not see the norm.
    [(name, norm) for name in LOSSES for norm in (NORMS[:1] if name == "huber" else NORMS)],
    ids=str,
)
@pytest.mark.parametrize("rho", [0.01, 0.3, 2.0])
def test_the_certificate_of_a_linear_regression_is_its_worst_case(name: str, rho: float, norm: Norm) -> None:
    model, x, y, residual = regression()
    rate = float(length(model.weight.detach()[0], norm.q))
    (found,) = certify(model, (x, y), loss=LOSSES[name], radii=[rho], cost=norm.cost)
    assert found.status == "proved"
    assert found.bound == pytest.approx(worst(name, residual, rate, rho), rel=1e-7)
    assert found.attained == pytest.approx(found.bound, rel=1e-6)
    assert found.spent <= rho


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (nn.MSELoss(reduction="none"), squared_error),
        (nn.L1Loss(reduction="none"), absolute_error),
        (nn.HuberLoss(reduction="none", delta=0.6), huber(0.6)),
    ],
)
def test_torch_s_losses_are_certified_as_ours(theirs: PerSampleLoss, ours: PerSampleLoss) -> None:
    model, x, y, _ = regression(1)
    first, second = (certify(model, (x, y[:, 0]), loss=loss, radii=[0.1]) for loss in (theirs, ours))
    assert first[0].status == second[0].status == "proved"
    assert first[0].bound == pytest.approx(second[0].bound, rel=1e-12)


@pytest.mark.parametrize("name", ["squared", "huber"])
def test_the_curvature_of_several_outputs_is_reached_or_bounded(name: str) -> None:
    draws = generator(0)
    model, y = linear_model(normal(draws, 3, 4)), torch.zeros(3, dtype=torch.float64)
    bound = known(curvature_bound(model, LOSSES[name]))

    def one(z: Tensor) -> Tensor:
        value: Tensor = LOSSES[name](model(z[None]), y[None])[0]
        return value

    points = [0.01 * normal(draws, 4), *normal(draws, 20, 4)]
    tops = [float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(one, z))[-1]) for z in points]
    assert max(tops) <= bound * (1 + 1e-9)
    assert tops[0] == pytest.approx(bound, rel=1e-9)  # no residual is beyond delta


def test_several_outputs_of_a_linear_regression_are_proved_where_the_radius_is_small() -> None:
    draws = generator(0)
    model, x = linear_model(normal(draws, 3, 4)), normal(draws, 30, 4)
    y = model(x).detach() + 0.5 * normal(draws, 30, 3)
    (found,) = certify(model, (x, y), loss=squared_error, radii=[0.001])
    assert found.status == "proved"
    clean = float(squared_error(model(x), y).detach().mean())
    assert clean < found.attained <= found.bound < 1.2 * clean
