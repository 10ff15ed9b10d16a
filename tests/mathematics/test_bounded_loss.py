"""Tempered losses: theta descends (1 - e^(-q l)) / q, between the loss and the chance of an error."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import rhobust
from rhobust.ascent import Ball, ErrorAscent, Identity, MarginAscent, Maximizer, Oracle, PenalizedAscent
from rhobust.costs import SquaredL2, SquaredLinf
from rhobust.errors import ConfigError, Refused
from rhobust.losses import cross_entropy, tempered
from rhobust.objective import RobustObjective
from rhobust.runs.config import Config
from rhobust.training.observers import Silent
from tests.federations import Setting
from tests.problems import known

DRAWS = torch.Generator().manual_seed(0)
X = torch.randn(12, 3, generator=DRAWS, dtype=torch.float64)
Y = torch.randint(3, (12,), generator=DRAWS)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def objective(maximizer: Maximizer, temper: float, **settings: Any) -> RobustObjective:
    return RobustObjective(
        network(), cross_entropy, radius=0.3, gamma=0.7, maximizer=maximizer, temper=temper, **settings
    )


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 3e-5), (torch.float64, 1e-13)])
@given(st.floats(0, 80), st.floats(1e-3, 1))
def test_it_lies_between_and_its_slope_is_the_probability_to_the_power(
    dtype: torch.dtype, near: float, loss: float, temper: float
) -> None:
    at = torch.tensor(loss, dtype=dtype, requires_grad=True)
    value = tempered(at, temper)
    value.backward()
    reached = float(value.detach())
    assert -math.expm1(-loss) <= reached * (1 + near) + 1e-30  # the chance of an error
    assert reached <= min(loss, 1 / temper) * (1 + near) + 1e-30
    assert float(known(at.grad)) == pytest.approx(math.exp(-temper * loss), rel=near, abs=0)


def test_its_ends_are_the_loss_and_the_chance_of_an_error() -> None:
    output = network()(X).detach()
    loss = cross_entropy(output, Y)
    assert tempered(loss, 0.0) is loss
    torch.testing.assert_close(tempered(loss, 1e-9), loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(tempered(loss, 1.0), 1 - output.softmax(1).gather(1, Y[:, None])[:, 0])


@pytest.mark.parametrize(
    "maximizer",
    [Identity(), Ball(0.2), PenalizedAscent(steps=3), Oracle(), MarginAscent(), ErrorAscent(steps=2)],
    ids=lambda maximizer: type(maximizer).__name__,
)
def test_theta_descends_it_and_gamma_its_price(maximizer: Maximizer) -> None:
    made = objective(maximizer, 0.4)
    found = made(X, Y)
    found.value.backward()
    loss = cross_entropy(made.model(found.zeta), Y)
    torch.testing.assert_close(found.loss, loss.detach())  # as it is: comparable from run to run
    value = (-torch.expm1(-0.4 * loss) / 0.4).mean()
    expected = torch.autograd.grad(value, list(made.model.parameters()))
    for weight, slope in zip(made.model.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, slope)
    if maximizer.penalized:
        value = value + made.gamma * (0.3 - found.cost.mean())
        torch.testing.assert_close(made.gamma.grad, 0.3 - found.cost.mean())
    torch.testing.assert_close(found.value, value)


@pytest.mark.parametrize(
    "maximizer", [PenalizedAscent(steps=3), Oracle()], ids=lambda maximizer: type(maximizer).__name__
)
def test_who_climbs_psi_climbs_the_one_that_theta_descends(maximizer: Maximizer) -> None:
    """The same zeta as where the caller's own loss is the tempered one."""

    def own(output: Tensor, y: Tensor) -> Tensor:
        return tempered(cross_entropy(output, y), 0.6)

    other = RobustObjective(network(), own, radius=0.3, gamma=0.7, maximizer=maximizer)
    found = objective(maximizer, 0.6)(X, Y)
    torch.testing.assert_close(found.zeta, other(X, Y).zeta)
    assert not torch.allclose(found.zeta, objective(maximizer, 0.0)(X, Y).zeta)


@pytest.mark.parametrize("scale", [1.0, 200.0])  # with the second, samples are lost: their tempered loss is flat
@pytest.mark.parametrize(
    "maximizer",
    [Ball(0.2, steps=3), Ball(0.2, norm=2), MarginAscent(steps=2), ErrorAscent()],
    ids=lambda maximizer: type(maximizer).__name__,
)
def test_a_ball_s_and_a_margin_s_zeta_do_not_depend_on_it(maximizer: Maximizer, scale: float) -> None:
    tempers = []
    for temper in (0.6, 0.0):
        made = objective(maximizer, temper)
        with torch.no_grad():
            made.model.get_parameter("2.weight").mul_(scale)
        tempers.append(made(X, Y))
    found, plain = tempers
    assert torch.equal(found.zeta, plain.zeta)
    assert found.value < plain.value
    assert plain.loss.max() > 0.5 * scale


def test_with_temper_one_error_ascent_has_danskin_s_gradient() -> None:
    """Then the adversary and theta are after the same: for a linear binary model the gradient is that of the sup."""
    torch.manual_seed(0)
    model, y, gamma, rho = nn.Linear(3, 2).double(), Y % 2, 0.4, 0.3
    made = RobustObjective(
        model, cross_entropy, radius=rho, gamma=gamma, cost=SquaredLinf(), maximizer=ErrorAscent(), temper=1.0
    )
    made(X, y).value.backward()

    def sup(weight: Tensor) -> Tensor:
        """E max over t of sigmoid(-m + s t) + gamma (rho - t^2), on a grid."""
        wrong = weight[1 - y] - weight[y]
        away = (X * wrong).sum(1) + model.bias.detach()[1 - y] - model.bias.detach()[y]
        t = torch.linspace(0, 3, 30001, dtype=torch.float64)[:, None]
        return (torch.sigmoid(away + wrong.abs().sum(1) * t) + gamma * (rho - t.square())).amax(0).mean()

    weight, step = model.weight.detach(), 1e-3
    gradient = known(model.weight.grad)
    for row in range(2):
        for column in range(3):
            nudge = torch.zeros_like(weight)
            nudge[row, column] = step
            slope = (sup(weight + nudge) - sup(weight - nudge)) / (2 * step)
            assert float(slope) == pytest.approx(float(gradient[row, column]), abs=1e-4)
    torch.testing.assert_close(made(X, y).value.detach(), sup(weight), rtol=1e-6, atol=0)


def test_labels_flip_where_the_tempered_loss_pays_for_it() -> None:
    """A loss of 5 pays for a flip at 3, tempered to less than 1 / 0.5 it does not."""

    def scores(x: Tensor) -> Tensor:
        return torch.stack([5.0 + 0 * x[:, 0], 0 * x[:, 0]], 1)

    model = nn.Module()
    model.forward = scores
    x, y = torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)
    flipped = []
    for temper in (0.0, 0.5):
        cost, ascent = SquaredL2(kappa=3.0), PenalizedAscent()
        made = RobustObjective(model, cross_entropy, radius=1.0, cost=cost, maximizer=ascent, gamma=1.0, temper=temper)
        flipped.append(bool((made(x, y).labels == 1).all()))
    assert flipped == [True, False]


@pytest.mark.parametrize("temper", [-0.1, 1.1, float("nan"), "much", True])
def test_what_is_none_is_refused(temper: Any) -> None:
    with pytest.raises(Refused, match="temper must"):
        objective(ErrorAscent(), temper)
    with pytest.raises(ConfigError, match="temper"):
        Config.resolve({"method": "spgda", "radius": 2.0, "temper": temper})


def test_a_loss_below_zero_is_refused() -> None:
    with pytest.raises(Refused, match=r"temper is for losses >= 0, and this one falls to -5"):
        RobustObjective(network(), lambda output, y: 0 * output[:, 0] - 5, radius=1.0, temper=0.4)(X, Y)


def test_a_loss_that_is_infinite_is_noticed() -> None:
    """Tempered it is not, and its slope is none."""
    x, y = X.float(), Y.clone()
    with pytest.raises(rhobust.errors.Diverged, match="nothing was updated"):
        rhobust.fit(
            network().float(),
            (x, y),
            method="erm",
            temper=0.5,
            epochs=1,
            loss=lambda output, y: output.sum(1) + math.inf,
        )


def test_fit_the_command_and_workers_have_it() -> None:
    found = []
    for temper in (0.0, 0.4):
        model = network().float()
        rhobust.fit(model, (X.float(), Y), method="spgda", radius=0.1, epochs=3, temper=temper, observer=Silent())
        found.append(model.get_parameter("0.weight").detach())
    assert not torch.equal(*found)
    assert Config.resolve({"method": "spgda", "radius": 2.0, "temper": 0.4}).make_method().temper == 0.4
    assert "temper=0.4" in repr(objective(ErrorAscent(), 0.4))
    assert Setting(method="spgda", knobs={"temper": 0.4}).engine().objective.temper == 0.4


def test_a_loss_that_falls_below_zero_later_is_refused_too() -> None:
    made = RobustObjective(nn.Linear(1, 1), lambda out, y: out[:, 0] - y, radius=0.1, temper=1.0)
    with torch.no_grad():
        made.model.get_parameter("weight").fill_(1.0)
        made.model.get_parameter("bias").fill_(0.0)
    made(torch.full((2, 1), 5.0), torch.zeros(2))
    with pytest.raises(Refused, match="temper is for losses >= 0"):
        made(torch.full((2, 1), 5.0), torch.full((2,), 60.0))
