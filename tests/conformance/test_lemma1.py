"""Lemma 1 of the paper: zeta* and the gradient of the surrogate are Lipschitz in (theta, gamma).

    ||zeta*_1 - zeta*_2||     <= (L_zt ||theta_1 - theta_2|| + L_c |gamma_1 - gamma_2|) / lambda
    ||grad psi_1 - grad psi_2|| <= L_tt ||theta_1 - theta_2|| + (L_tz + L_c) times the bound above

with psi lambda-strongly concave in zeta. The box makes L_c, the Lipschitz constant of c(z, .), finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rhobust import RobustObjective
from rhobust.ascent import Oracle
from tests.problems import (
    NORMS,
    Norm,
    generator,
    known,
    length,
    linear_loss,
    linear_model,
    logistic_loss,
    normal,
    squared_error,
    uniform,
)

FEATURES = 3
BOUNDS = (-1.0, 1.0)
SMOOTH = [norm for norm in NORMS if norm.cost.strong_convexity > 0]


@dataclass(frozen=True)
class Loss:
    """A loss of theta.x with its constants in l2 while ||theta|| <= `reach` and x is in the box."""

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]
    reach: float
    tt: float
    tz: float  # also zt: a mixed derivative is symmetric
    zz: float


SIZE = math.sqrt(FEATURES)  # the largest ||x|| in the box
LOSSES = [
    # grad_theta = x, grad_x = theta: the bounds are attained where the box does not bind.
    Loss("linear", linear_loss, reach=2.0, tt=0.0, tz=1.0, zz=0.0),
    # sigmoid' <= 1/4: hessians sigmoid' x x', sigmoid' theta theta', and sigmoid I + sigmoid' x theta'.
    Loss("logistic", logistic_loss, reach=2.0, tt=SIZE**2 / 4, tz=1 + 2.0 * SIZE / 4, zz=2.0**2 / 4),
    # With |y| <= 1: hessians 2 x x', 2 theta theta', and 2 (theta.x - y) I + 2 x theta'.
    Loss("squared", squared_error, reach=0.7, tt=2 * SIZE**2, tz=2 * (0.7 * SIZE + 1) + 2 * 0.7 * SIZE, zz=2 * 0.7**2),
]


@dataclass(frozen=True)
class Solution:
    """zeta* and the gradient of the surrogate of one sample at one (theta, gamma)."""

    theta: Tensor
    gamma: float
    zeta: Tensor
    slope: Tensor  # in (theta, gamma)


def solve(loss: Loss, norm: Norm, z: Tensor, y: Tensor, theta: Tensor, gamma: float) -> Solution:
    model = linear_model(theta)
    objective = RobustObjective(
        model,
        loss.loss,
        radius=0.5,
        cost=norm.cost,
        maximizer=Oracle(accuracy=0.0, max_steps=45),
        gamma=gamma,
        bounds=BOUNDS,
    )
    surrogate = objective(z, y)
    surrogate.value.backward()
    slope = torch.cat([known(model.weight.grad)[0], known(objective.gamma.grad)[None]])
    return Solution(theta, gamma, surrogate.zeta[0], slope)


def ratios(loss: Loss, norm: Norm, seed: int) -> tuple[float, float]:
    """Both left sides over their bounds, for a random sample and a random pair of (theta, gamma)."""
    draws = generator(seed)
    z, y = uniform(draws, *BOUNDS, 1, FEATURES), uniform(draws, -1.0, 1.0, 1).sign()
    cheapest = 2.0 + 2 * loss.zz / norm.cost.strong_convexity
    far = 10.0 ** -int(3 * torch.rand((), generator=draws))  # pairs at several distances
    first = 0.6 * loss.reach * torch.nn.functional.normalize(normal(draws, FEATURES), dim=0)
    second = first + 0.4 * loss.reach * far * torch.nn.functional.normalize(normal(draws, FEATURES), dim=0)
    gamma = cheapest + float(uniform(draws, 0.0, 1.0, 1))
    one = solve(loss, norm, z, y, first, gamma)
    two = solve(loss, norm, z, y, second, gamma + far * float(uniform(draws, -1.0, 1.0, 1)) * (seed % 2))

    # l2 constants hold in (l_p, l_q) too, ||.||_q <= ||.||_2 <= ||.||_p; grad ||d||_p^2 has dual norm 2 ||d||_p.
    strong = norm.cost.strong_convexity * min(one.gamma, two.gamma) - loss.zz
    steepest = 2 * float(length(torch.full((FEATURES,), BOUNDS[1] - BOUNDS[0], dtype=torch.float64), norm.p))
    apart, priced = float((one.theta - two.theta).norm()), abs(one.gamma - two.gamma)
    moved = (loss.tz * apart + steepest * priced) / strong
    turned = loss.tt * apart + (loss.tz + steepest) * moved
    return float(length(one.zeta - two.zeta, norm.p)) / moved, float((one.slope - two.slope).norm()) / turned


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("norm", SMOOTH, ids=str)
def test_maximizer_and_gradient_are_lipschitz(loss: Loss, norm: Norm) -> None:
    for seed in range(20):
        moved, turned = ratios(loss, norm, seed)
        assert moved <= 1 + 1e-9, f"seed {seed}: zeta* moved {moved:.3g} times the bound"
        assert turned <= 1 + 1e-9, f"seed {seed}: the gradient turned {turned:.3g} times the bound"


def test_bound_on_the_maximizer_is_attained() -> None:
    # zeta* = z + theta / (2 gamma) for a linear loss: with gamma fixed the bound holds with equality inside the box.
    linear = LOSSES[0]
    assert max(ratios(linear, NORMS[0], seed)[0] for seed in range(0, 20, 2)) == pytest.approx(1.0, abs=1e-9)
