"""Losses of a regression: their values, the shapes that go together, and those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust import RobustObjective
from rhobust.ascent import Oracle, PenalizedAscent
from rhobust.errors import DataError, Refused
from rhobust.losses import absolute_error, huber, is_regression, losses_of, quantile, squared_error
from rhobust.method import find_method
from tests.problems import generator, normal

Scalar = Callable[[float], float]

OURS: dict[str, tuple[Any, Scalar]] = {
    "squared": (squared_error, lambda r: r * r),
    "absolute": (absolute_error, abs),
    "huber": (huber(0.7), lambda r: r * r / 2 if abs(r) <= 0.7 else 0.7 * (abs(r) - 0.35)),
    "quantile": (quantile(0.9), lambda r: 0.1 * r if r > 0 else -0.9 * r),
}
TORCH = {
    "squared": nn.MSELoss(reduction="none"),
    "absolute": nn.L1Loss(reduction="none"),
    "huber": nn.HuberLoss(reduction="none", delta=0.7),
}
MATCHING = [((5,), (5,)), ((5, 1), (5,)), ((5,), (5, 1)), ((5, 1), (5, 1)), ((5, 3), (5, 3)), ((5, 2, 3), (5, 2, 3))]


@pytest.mark.parametrize(("of_output", "of_y"), MATCHING)
@pytest.mark.parametrize("name", OURS)
def test_a_loss_is_the_mean_over_the_numbers_of_a_sample(
    name: str, of_output: tuple[int, ...], of_y: tuple[int, ...]
) -> None:
    loss, scalar = OURS[name]
    output, y = normal(generator(0), *of_output), normal(generator(1), *of_y)
    away = (output.reshape(5, -1) - y.reshape(5, -1)).tolist()
    expected = [np.mean([scalar(one) for one in row]) for row in away]
    torch.testing.assert_close(losses_of(loss, output, y), torch.tensor(expected, dtype=torch.float64))
    if name in TORCH:
        torch.testing.assert_close(losses_of(TORCH[name], output, y), loss(output, y))


@pytest.mark.parametrize("loss", [*(loss for loss, _ in OURS.values()), *TORCH.values()])
@pytest.mark.parametrize(
    ("of_output", "of_y", "message"),
    [
        ((5, 2), (5,), "has 2 outputs for one number a sample: give its last layer one output"),
        ((5, 1), (5, 2), "they must match"),
        ((5,), (5, 2), "they must match"),
        ((5, 2), (5, 3), "they must match"),
        ((4, 1), (5,), "they must match"),
    ],
)
def test_shapes_that_leave_open_what_goes_with_what_are_refused(
    loss: Any, of_output: tuple[int, ...], of_y: tuple[int, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        losses_of(loss, torch.zeros(of_output), torch.zeros(of_y))


def test_whole_numbers_are_numbers_too() -> None:
    assert squared_error(torch.tensor([[0.5], [2.0]]), torch.tensor([1, 4])).tolist() == [0.25, 4.0]


def test_what_is_no_tensor_is_refused_with_the_way_out() -> None:
    with pytest.raises(Refused, match=r"returned a tuple.*squared_error\(output\[0\], y\)"):
        squared_error((torch.zeros(2),), torch.zeros(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0, -1, float("inf"), float("nan"), "1"])
def test_a_delta_that_is_none(delta: Any) -> None:
    with pytest.raises(Refused, match="delta must be"):
        huber(delta)


@pytest.mark.parametrize("tau", [0, 1, -0.5, float("nan"), "0.5"])
def test_a_tau_that_is_none(tau: Any) -> None:
    with pytest.raises(Refused, match="tau must lie between 0 and 1"):
        quantile(tau)


@pytest.mark.parametrize("of_y", [(20,), (20, 1)])
@pytest.mark.parametrize("name", TORCH)
def test_the_objective_is_the_same_with_torch_s_loss_and_ours(name: str, of_y: tuple[int, ...]) -> None:
    x, y = normal(generator(0), 20, 3), normal(generator(1), *of_y)
    model = nn.Linear(3, 1).double()
    values = [
        RobustObjective(model, loss, radius=0.2, maximizer=PenalizedAscent(steps=3))(x, y)
        for loss in (OURS[name][0], TORCH[name])
    ]
    torch.testing.assert_close(values[0].value, values[1].value)
    torch.testing.assert_close(values[0].zeta, values[1].zeta)


def test_a_linear_model_is_fitted_to_the_robust_solution() -> None:
    """Of (sqrt(M) + sqrt(rho) |theta|)^2 the minimum, which gradient descent of that formula finds too."""
    draws = generator(0)
    x = normal(draws, 64, 2)
    y = (x @ torch.tensor([1.0, -2.0], dtype=torch.float64) + 0.3 * normal(draws, 64))[:, None]
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    literal = torch.optim.LBFGS([theta], max_iter=200, line_search_fn="strong_wolfe")

    def worst() -> Tensor:
        literal.zero_grad()
        value = ((y[:, 0] - x @ theta).square().mean().sqrt() + 0.1**0.5 * theta.norm()).square()
        value.backward()
        return value

    with torch.no_grad():
        theta.fill_(0.1)
    literal.step(worst)
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    rhobust.fit(
        model,
        (x, y),
        loss=nn.MSELoss(reduction="none"),
        radius=0.1,
        epochs=800,
        batch_size=64,
        optimizer=optimizer,
        schedule="cosine",
        accuracy=1e-6,
        max_steps=100,
    )
    torch.testing.assert_close(model.weight.detach()[0], theta.detach(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("method", ["spgda", "spgda-margin"])
@pytest.mark.parametrize("y", [torch.tensor([0.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0.3, 7.0])])
def test_an_ascent_on_the_margin_is_for_classes(method: str, y: Tensor) -> None:
    objective = RobustObjective(nn.Linear(3, 1), squared_error, radius=1.0, maximizer=find_method(method).maximizer)
    with pytest.raises(Refused, match="for regression take method 'spgda-loss'"):
        objective(torch.zeros(2, 3), y)


def test_two_outputs_of_a_regression_are_no_classes() -> None:
    objective = RobustObjective(nn.Linear(3, 2), squared_error, radius=1.0, maximizer=Oracle())
    objective(torch.zeros(2, 3), torch.tensor([[5, 9], [-3, 2]]))
    assert not objective.classifies


def test_which_losses_are_for_numbers() -> None:
    assert all(is_regression(loss) for loss in (*TORCH.values(), *(loss for loss, _ in OURS.values())))
    assert not is_regression(nn.CrossEntropyLoss())
