"""The one step: a prox in the optimizer's own metric, the rules for gamma, and what PyTorch expects of an optimizer."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, OneCycleLR, StepLR
from torch.optim.swa_utils import SWALR

import rhobust
from rhobust.ascent import Ball, Identity, PenalizedAscent
from rhobust.errors import Refused
from rhobust.gamma_rules import GammaRule, Rate
from rhobust.optim import METRICS
from rhobust.regularizers import Box, ElasticNet, GroupL2, NoRegularizer, Regularizer, SquaredL1
from tests.problems import known

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
RULES: list[GammaRule] = [
    rhobust.FixedGamma(),
    rhobust.ProjectedGradient(lr=0.3),
    rhobust.AdamGamma(lr=0.3),
    rhobust.Multiplicative(lr=0.3),
]


class Vector(nn.Module):
    """theta and nothing else, for objectives whose gradient is written by hand."""

    def __init__(self, values: Iterable[float], dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(list(values), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.theta[:, None]


def wrap(
    model: Vector, optimizer: Optimizer, regularizer: Regularizer | None = None, radius: float = 1.0, **options: Any
) -> rhobust.ProximalOptimizer:
    objective = rhobust.RobustObjective(
        model, lambda output, y: output[:, 0] - y, radius=radius, gamma=2.0, gamma_min=0.5
    )
    return rhobust.ProximalOptimizer(optimizer, objective, regularizer=regularizer, **options)


def steer(optimizer: rhobust.ProximalOptimizer, gradients: Iterable[float]) -> list[float]:
    """The path of gamma under the given gradients rho - E c."""
    gamma, path = optimizer.objective.gamma, []
    for gradient in gradients:
        gamma.grad = torch.full_like(gamma, gradient)
        optimizer.step()
        path.append(gamma.item())
    return path


def small_classifier(seed: int = 0, **options: Any) -> tuple[rhobust.RobustObjective, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.1, maximizer=PenalizedAscent(), **options)
    return objective, torch.randn(20, 8, 4), torch.randint(3, (20, 8))


def train(objective: rhobust.RobustObjective, optimizer: Optimizer, x: Tensor, y: Tensor) -> list[Tensor]:
    """One step for each batch; every zeta on the way, which shows theta and gamma both."""
    path = []
    for batch, labels in zip(x, y, strict=True):
        optimizer.zero_grad()
        surrogate = objective(batch, labels)
        surrogate.value.backward()
        optimizer.step()
        path.append(surrogate.zeta)
    return path


# ---------------------------------------------------------------------------------------------------------------------
# The prox is taken in the optimizer's metric: the fixed point is the minimizer of f + r, whoever steps.
#
#     min over theta of  sum_i curvature_i (theta_i - center_i)^2 / 2 + weight |theta_i|
#
# has the solution soft(center_i, weight / curvature_i); the curvatures differ, so the coordinates are badly scaled.

CURVATURE = torch.tensor([0.3, 1.0, 6.0, 2.0, 0.5], dtype=torch.float64)
CENTER = torch.tensor([10.0, -4.0, 1.0, 0.4, -1.0], dtype=torch.float64)
WEIGHT = 1.5
SOLUTION = CENTER.sign() * (CENTER.abs() - WEIGHT / CURVATURE).clamp_min(0)

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda theta: SGD(theta, lr=0.1),
    "SGD, momentum": lambda theta: SGD(theta, lr=0.02, momentum=0.8),
    "SGD, momentum and dampening": lambda theta: SGD(theta, lr=0.05, momentum=0.8, dampening=0.5),
    "SGD, Nesterov": lambda theta: SGD(theta, lr=0.02, momentum=0.8, nesterov=True),
    "SGD, dampening without momentum": lambda theta: SGD(theta, lr=0.1, dampening=0.5),  # which torch ignores
    "RMSprop": lambda theta: RMSprop(theta, lr=0.05),
    "RMSprop, momentum": lambda theta: RMSprop(theta, lr=0.015, momentum=0.7),
    # The centered variance of a gradient without noise decays to 0: eps bounds the step, and long before the variance
    # is of the size of rounding (where torch's own square root may fail) the steps end.
    "RMSprop, centered": lambda theta: RMSprop(theta, lr=0.02, centered=True, eps=0.2),
    "Adagrad": lambda theta: Adagrad(theta, lr=1.0),
    "Adagrad, decay": lambda theta: Adagrad(theta, lr=2.0, lr_decay=1e-3),
    "Adam": lambda theta: Adam(theta, lr=0.05),
    "Adam, amsgrad": lambda theta: Adam(theta, lr=0.05, amsgrad=True),
    "AdamW": lambda theta: AdamW(theta, lr=0.05, weight_decay=0.0),
}


def descend(optimizer: rhobust.ProximalOptimizer, theta: Tensor, steps: int = 2500) -> Tensor:
    for _ in range(steps):
        theta.grad = CURVATURE * (theta.detach() - CENTER)
        optimizer.step()
    return theta.detach()


def test_the_toy_has_coordinates_that_stay_and_coordinates_that_vanish() -> None:
    assert SOLUTION.tolist() == pytest.approx([5.0, -2.5, 0.75, 0.0, 0.0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_fixed_point_is_the_minimizer_of_the_loss_plus_r(name: str) -> None:
    model = Vector([3.0, 3.0, 3.0, 3.0, 3.0])
    found = descend(wrap(model, OPTIMIZERS[name]([model.theta]), rhobust.L1(WEIGHT)), model.theta)
    torch.testing.assert_close(found, SOLUTION, rtol=1e-6, atol=1e-6)


def test_with_adam_a_euclidean_prox_goes_to_another_point() -> None:
    # The mistake that the metric avoids (a threshold of lr * weight for every coordinate), made on purpose.
    model = Vector([3.0, 3.0, 3.0, 3.0, 3.0])
    euclidean = wrap(
        model,
        Adam([model.theta], lr=0.02),
        rhobust.L1(WEIGHT),
        metric=lambda state, group, theta: torch.full_like(theta, group["lr"]),
    )
    assert (descend(euclidean, model.theta) - SOLUTION).abs().max() > 1


def test_the_minimizer_is_the_same_for_a_regularizer_that_couples_all_coordinates() -> None:
    # KKT of f + w ||theta||_1^2: the gradient is -2 w ||theta||_1 sign(theta_i) where theta_i != 0, and at most that
    # large elsewhere.
    model = Vector([3.0, 3.0, 3.0, 3.0, 3.0])
    found = descend(wrap(model, Adam([model.theta], lr=0.02), SquaredL1(0.2)), model.theta)
    gradient, pull = CURVATURE * (found - CENTER), 0.4 * found.abs().sum()
    kept = found != 0
    assert 0 < kept.sum() < len(found)
    torch.testing.assert_close(gradient[kept], -pull * found[kept].sign(), rtol=1e-5, atol=1e-5)
    assert (gradient[~kept].abs() <= pull).all()


def test_the_step_size_of_the_prox_has_the_precision_of_theta() -> None:
    # A threshold rounded to float32 would be off by 1e-9 here, and with it every step in float64.
    model = Vector([1.0])
    optimizer = wrap(model, SGD([model.theta], lr=0.1), rhobust.L1(0.3))
    model.theta.grad = torch.zeros(1, dtype=torch.float64)
    optimizer.step()
    assert model.theta.item() == pytest.approx(1 - 0.1 * 0.3, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_metric_of_adam_survives_low_precision(dtype: torch.dtype) -> None:
    # In bfloat16 0.999 is 1, so that a bias correction computed there is 1 - 1 = 0.
    model = Vector([1.0, -1.0, 1.0], dtype)
    optimizer = wrap(model, Adam([model.theta], lr=0.125, eps=1e-4), rhobust.L1(1.0))
    model.theta.grad = torch.tensor([2.0, 0.5, 0.0], dtype=dtype)
    optimizer.step()
    # The first step of Adam is lr sign(g), and its prox has the threshold lr / |g|, without bound where g = 0.
    expected = torch.tensor([1 - 0.125 - 0.125 / 2, -1 - 0.125 + 0.125 / 0.5, 0.0], dtype=dtype)
    torch.testing.assert_close(model.theta.detach(), expected, rtol=0.02, atol=0)


def test_only_tensors_that_have_a_gradient_are_stepped_and_shrunk() -> None:
    moved, frozen = Vector([3.0]), nn.Parameter(torch.tensor([3.0]))
    optimizer = wrap(moved, SGD([moved.theta, frozen], lr=0.1), rhobust.L1(1.0))
    moved.theta.grad = torch.zeros(1, dtype=torch.float64)
    optimizer.step()
    assert moved.theta.item() == pytest.approx(2.9)
    assert frozen.item() == 3.0


def test_each_parameter_group_has_the_prox_of_its_own_step_size() -> None:
    model, other = Vector([3.0]), nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    groups = [{"params": [model.theta], "lr": 0.1}, {"params": [other], "lr": 0.5}]
    optimizer = wrap(model, SGD(groups, lr=1.0), rhobust.L1(1.0))
    model.theta.grad, other.grad = torch.zeros_like(model.theta), torch.zeros_like(other)
    optimizer.step()
    assert [model.theta.item(), other.item()] == pytest.approx([2.9, 2.5])


@pytest.mark.parametrize(
    "regularizer", [rhobust.L1(0.1), SquaredL1(0.1), GroupL2(0.1), ElasticNet(0.1, 0.1)], ids=lambda r: type(r).__name__
)
def test_a_step_of_size_zero_changes_nothing(regularizer: Regularizer) -> None:
    # The first step of a warm-up.
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [-2.0, 0.5]]))
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=1.0)
    optimizer = rhobust.ProximalOptimizer(SGD(model.parameters(), lr=0.0), objective, regularizer=regularizer)
    model.weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert model.weight.tolist() == [[1.0, 0.0], [-2.0, 0.5]]


@pytest.mark.parametrize(
    "regularizer", [None, rhobust.L1(0.1), SquaredL1(0.1), GroupL2(0.1), Box(-1.0, 1.0)], ids=lambda r: type(r).__name__
)
def test_where_nothing_has_a_gradient_gamma_steps_alone(regularizer: Regularizer | None) -> None:
    model = Vector([3.0])
    optimizer = wrap(model, SGD([model.theta], lr=0.1), regularizer, gamma_rule=rhobust.ProjectedGradient(lr=0.3))
    assert optimizer.stationarity() == 0
    assert steer(optimizer, [1.0]) == pytest.approx([1.7])
    assert model.theta.item() == 3.0


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("regularizer", [rhobust.L1(0.1), Box(-1.0, 1.0)], ids=lambda r: type(r).__name__)
def test_a_gradient_that_is_not_finite_does_not_hide_behind_the_prox(wrong: float, regularizer: Regularizer) -> None:
    model = Vector([0.5, 0.5])
    optimizer = wrap(model, SGD([model.theta], lr=0.1), regularizer)
    model.theta.grad = torch.tensor([0.1, wrong], dtype=torch.float64)
    assert not optimizer.stationarity().isfinite()


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


def test_an_optimizer_of_unknown_metric_is_refused_with_the_list_of_the_known() -> None:
    model = Vector([1.0])
    with pytest.raises(Refused, match=r"Adamax .*metric=.*SGD, Adam, AdamW, RMSprop, Adagrad"):
        wrap(model, Adamax([model.theta]), rhobust.L1(0.1))
    assert [kind.__name__ for kind in METRICS] == ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"]


def test_without_a_regularizer_any_optimizer_steps_as_it_always_does() -> None:
    model, plain = Vector([1.0, -2.0]), Vector([1.0, -2.0])
    wrapped, bare = wrap(model, Adamax([model.theta]), NoRegularizer()), Adamax([plain.theta])
    for optimizer, vector in ((wrapped, model), (bare, plain)):
        vector.theta.grad = torch.tensor([0.3, 4.0], dtype=torch.float64)
        optimizer.step()
    assert torch.equal(model.theta, plain.theta)
    assert not torch.equal(plain.theta.detach(), torch.tensor([1.0, -2.0], dtype=torch.float64))


def test_a_metric_given_by_hand_is_the_one_used() -> None:
    model = Vector([3.0])
    optimizer = wrap(
        model, Adamax([model.theta], lr=1e-9), rhobust.L1(1.0), metric=lambda state, group, theta: torch.tensor(0.25)
    )
    model.theta.grad = torch.ones(1, dtype=torch.float64)
    optimizer.step()
    assert model.theta.item() == pytest.approx(2.75)


def test_a_subclass_of_a_known_optimizer_has_its_metric() -> None:
    class Mine(SGD):
        pass

    model = Vector([3.0])
    optimizer = wrap(model, Mine([model.theta], lr=0.1), rhobust.L1(1.0))
    model.theta.grad = torch.zeros(1, dtype=torch.float64)
    optimizer.step()
    assert model.theta.item() == pytest.approx(2.9)


def test_gamma_inside_the_wrapped_optimizer_is_refused() -> None:
    objective, _, _ = small_classifier()
    with pytest.raises(Refused, match=r"also steps gamma.*model\.parameters\(\)"):
        rhobust.ProximalOptimizer(Adam(objective.parameters()), objective)


def test_radius_zero_is_refused_by_the_multiplicative_rule_only() -> None:
    model = Vector([1.0])
    with pytest.raises(Refused, match=r"radius 0.*positive radius"):
        wrap(model, SGD([model.theta], lr=0.1), radius=0.0)
    path = steer(wrap(model, SGD([model.theta], lr=0.1), radius=0.0, gamma_rule=rhobust.ProjectedGradient(0.1)), [-1.0])
    assert path == pytest.approx([2.1])


def test_without_transport_gamma_is_fixed_by_default_and_radius_zero_is_welcome() -> None:
    model = nn.Linear(2, 2)
    for maximizer in (Identity(), Ball(0.1)):
        objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.0, maximizer=maximizer)
        assert rhobust.ProximalOptimizer(SGD(model.parameters(), lr=0.1), objective).gamma_rule == rhobust.FixedGamma()


# ---------------------------------------------------------------------------------------------------------------------
# Rules for gamma


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@settings(max_examples=25, deadline=None)
@given(gradients=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), lr=st.floats(0, 10, exclude_min=True))
def test_gamma_never_falls_below_its_floor(rule: GammaRule, gradients: list[float], lr: float) -> None:
    model = Vector([1.0])
    optimizer = wrap(model, SGD([model.theta], lr=0.1), gamma_rule=replace(rule, lr=lr))  # type: ignore[type-var]
    path = steer(optimizer, gradients)
    assert all(math.isfinite(gamma) for gamma in path)
    assert min(path) >= 0.5


@pytest.mark.parametrize("rule", RULES[1:], ids=lambda rule: type(rule).__name__)
def test_gamma_comes_to_its_floor_when_transport_is_too_cheap_and_leaves_it_when_too_dear(rule: GammaRule) -> None:
    model = Vector([1.0])
    optimizer = wrap(model, SGD([model.theta], lr=0.1), gamma_rule=rule)
    assert steer(optimizer, [0.8] * 40)[-1] == 0.5
    assert steer(optimizer, [-5.0] * 40)[-1] > 2.0


def test_a_fixed_gamma_stays_whatever_its_gradient() -> None:
    model = Vector([1.0])
    assert steer(wrap(model, SGD([model.theta], lr=0.1), gamma_rule=rhobust.FixedGamma()), [3.0, -4.0]) == [2.0, 2.0]


@pytest.mark.parametrize("mean_cost", [0.0, 0.4, 0.999, 1.0, 1.001, 3.0, 80.0])
def test_the_multiplicative_rule_rests_where_the_mean_cost_is_rho_and_nowhere_else(mean_cost: float) -> None:
    model = Vector([1.0])
    optimizer = wrap(model, SGD([model.theta], lr=0.1), gamma_rule=rhobust.Multiplicative(0.1))  # rho = 1
    (after,) = steer(optimizer, [1.0 - mean_cost])
    assert (after > 2.0, after < 2.0) == (mean_cost > 1.0, mean_cost < 1.0)
    assert abs(math.log(after / 2)) <= 0.1 + 1e-12  # never by more than a factor e^lr in one step


@settings(max_examples=50, deadline=None)
@given(
    costs=st.lists(st.floats(0, 50), min_size=1, max_size=10), scale=st.sampled_from([2.0**-20, 0.125, 4.0, 2.0**30])
)
def test_the_multiplicative_rule_does_not_see_the_scale_of_rho_and_c(costs: list[float], scale: float) -> None:
    # Powers of two, so that scaling is exact: the paths must be equal to the last bit.
    paths = []
    for factor in (1.0, scale):
        model = Vector([1.0])
        optimizer = wrap(model, SGD([model.theta], lr=0.1), radius=6.0 * factor)
        paths.append(steer(optimizer, [factor * 6.0 - factor * cost for cost in costs]))
    assert paths[0] == paths[1]


def test_adam_on_gamma_is_torchs_adam() -> None:
    gradients = [0.7, -0.2, 3.0, 0.0, -1.5, 0.01]
    model = Vector([1.0])
    path = steer(wrap(model, SGD([model.theta], lr=0.1), gamma_rule=rhobust.AdamGamma(lr=0.05)), gradients)
    gamma = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    adam, expected = Adam([gamma], lr=0.05), []
    for gradient in gradients:
        gamma.grad = torch.tensor(gradient, dtype=torch.float64)
        adam.step()
        expected.append(gamma.item())
    assert path == pytest.approx(expected, rel=1e-12)


def test_huge_gradients_do_not_poison_adam_on_gamma() -> None:
    # 1e20 squared is infinite in float32; torch's Adam then stands still, and so must this one.
    model = Vector([1.0], torch.float32)
    path = steer(wrap(model, SGD([model.theta], lr=0.1), gamma_rule=rhobust.AdamGamma(lr=0.05)), [-1e20, -1e20, 0.5])
    assert all(math.isfinite(gamma) for gamma in path)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_r_never_touches_gamma(rule: GammaRule) -> None:
    paths = []
    for regularizer in (None, rhobust.L1(100.0), SquaredL1(100.0)):
        model = Vector([1.0, 2.0])
        optimizer = wrap(model, Adam([model.theta], lr=0.1), regularizer, gamma_rule=rule)
        model.theta.grad = torch.ones_like(model.theta)
        paths.append(steer(optimizer, [0.3, -0.4, -2.0]))
        assert bool(model.theta.abs().max() < 0.01) == (regularizer is not None)
    assert paths[0] == paths[1] == paths[2]


# ---------------------------------------------------------------------------------------------------------------------
# Stationarity


def test_without_a_regularizer_stationarity_is_the_norm_of_the_gradient() -> None:
    objective, x, y = small_classifier()
    optimizer = rhobust.ProximalOptimizer(Adam(objective.model.parameters(), lr=0.01), objective)
    objective(x[0], y[0]).value.backward()
    gradients = torch.cat([known(weight.grad).flatten() for weight in objective.model.parameters()])
    torch.testing.assert_close(optimizer.stationarity(), gradients.norm(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("lr", [1e-3, 0.2])
def test_stationarity_is_the_length_of_the_proximal_step_over_alpha(lr: float) -> None:
    model = Vector([3.0, -0.1, 0.0, 1.0])
    optimizer = wrap(model, SGD([model.theta], lr=lr, momentum=0.9), rhobust.L1(0.5))
    model.theta.grad = gradient = torch.tensor([1.0, -2.0, 0.4, -0.5], dtype=torch.float64)
    theta = model.theta.detach().clone()
    stepped = theta - lr * gradient
    shrunk = stepped.sign() * (stepped.abs() - lr * 0.5).clamp_min(0)
    assert optimizer.stationarity().item() == pytest.approx(((theta - shrunk) / lr).norm().item(), rel=1e-12)
    assert torch.equal(model.theta, theta)  # it looks and does not step


def test_tensors_that_rest_have_no_part_in_stationarity() -> None:
    model = Vector([3.0, -0.1])
    resting = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    base = SGD([{"params": [model.theta], "lr": 0.1}, {"params": [resting], "lr": 0.0}])
    optimizer = wrap(model, base, rhobust.L1(0.5))
    model.theta.grad = torch.tensor([1.0, -2.0], dtype=torch.float64)
    alone = optimizer.stationarity().item()
    resting.grad = torch.ones(1, dtype=torch.float64)
    assert optimizer.stationarity().item() == alone > 0


def test_stationarity_vanishes_at_the_solution_and_only_there() -> None:
    model = Vector(SOLUTION.tolist())
    optimizer = wrap(model, SGD([model.theta], lr=0.1), rhobust.L1(WEIGHT))
    model.theta.grad = CURVATURE * (model.theta.detach() - CENTER)
    assert optimizer.stationarity() < 1e-12
    with torch.no_grad():
        model.theta.add_(0.01)
    model.theta.grad = CURVATURE * (model.theta.detach() - CENTER)
    assert optimizer.stationarity() > 1e-3


# ---------------------------------------------------------------------------------------------------------------------
# It is an optimizer


def adam_with_adam(objective: rhobust.RobustObjective) -> rhobust.ProximalOptimizer:
    base = Adam(objective.model.parameters(), lr=0.05)
    return rhobust.ProximalOptimizer(
        base, objective, regularizer=rhobust.L1(0.01), gamma_rule=rhobust.AdamGamma(lr=0.05)
    )


def test_training_continues_bit_for_bit_from_a_checkpoint() -> None:
    objective, x, y = small_classifier()
    optimizer = adam_with_adam(objective)
    train(objective, optimizer, x[:10], y[:10])
    file = io.BytesIO()
    torch.save({"objective": objective.state_dict(), "optimizer": optimizer.state_dict()}, file)
    rest = train(objective, optimizer, x[10:], y[10:])

    file.seek(0)
    saved = torch.load(file)
    resumed, _, _ = small_classifier(seed=99)
    continued = adam_with_adam(resumed)
    continued.param_groups[-1]["lr"] = continued.param_groups[0]["lr"] = 123.0  # the checkpoint's are to win
    resumed.load_state_dict(saved["objective"])
    continued.load_state_dict(saved["optimizer"])
    assert all(map(torch.equal, train(resumed, continued, x[10:], y[10:]), rest))
    for name, tensor in objective.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name
    for key, value in optimizer.state[objective.gamma].items():
        assert torch.equal(continued.state[resumed.gamma][key], value), key


def test_a_rule_may_keep_what_is_no_tensor() -> None:
    class Counting(GammaRule):
        lr = 1.0

        def update(self, gamma: Tensor, gradient: Tensor, radius: float, lr: Rate, state: dict[str, Any]) -> Tensor:
            state["count"] = state.get("count", 0) + 1
            return gamma + state["count"]

    model = Vector([1.0])
    optimizer = wrap(model, SGD([model.theta], lr=0.1), gamma_rule=Counting())
    assert steer(optimizer, [0.0, 0.0]) == [3, 5]
    optimizer.load_state_dict(optimizer.state_dict())
    assert steer(optimizer, [0.0]) == [8]


def test_the_groups_are_the_wrapped_optimizers_and_gammas_last() -> None:
    objective, x, y = small_classifier()
    optimizer = adam_with_adam(objective)
    for _ in range(2):
        *groups, last = optimizer.param_groups
        assert [id(group) for group in groups] == [id(group) for group in optimizer.base.param_groups]
        assert last["params"] == [objective.gamma]
        optimizer.load_state_dict(optimizer.state_dict())  # where the wrapped optimizer makes new groups

    objective(x[0], y[0]).value.backward()
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in objective.parameters())


def test_a_group_added_later_is_stepped_and_gamma_keeps_its_rule() -> None:
    model, later = Vector([1.0]), nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = wrap(model, SGD([model.theta], lr=0.1), gamma_rule=rhobust.ProjectedGradient(lr=0.25))
    optimizer.add_param_group({"params": [later], "lr": 0.5})
    later.grad = torch.ones_like(later)
    assert steer(optimizer, [-1.0]) == [2.25]
    assert later.item() == pytest.approx(0.5)


def test_a_scheduled_learning_rate_is_the_one_that_theta_feels_and_gamma_does_not() -> None:
    model = Vector([1.0])
    optimizer = wrap(model, SGD([model.theta], lr=1.0), gamma_rule=rhobust.ProjectedGradient(lr=0.5))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    places = []
    for _ in range(3):
        model.theta.grad = torch.ones_like(model.theta)
        places.append((*steer(optimizer, [-1.0]), model.theta.item()))
        scheduler.step()
    assert places == [pytest.approx(place) for place in [(2.5, 0.0), (3.0, -0.5), (3.5, -0.5 - 1 / 3)]]


def test_a_scheduler_follows_through_a_checkpoint() -> None:
    objective, x, y = small_classifier()
    optimizer = adam_with_adam(objective)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    train(objective, optimizer, x[:1], y[:1])
    scheduler.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(objective, optimizer, x[1:2], y[1:2])
    scheduler.step()
    assert [group["lr"] for group in optimizer.base.param_groups] == [0.0125]


def test_a_gradient_scaler_unscales_theta_and_gamma_alike() -> None:
    paths = []
    for scale in (1.0, 1024.0):  # a power of two: scaling is exact
        objective, x, y = small_classifier()
        optimizer = adam_with_adam(objective)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for batch, labels in zip(x[:5], y[:5], strict=True):
            optimizer.zero_grad()
            scaler.scale(objective(batch, labels).value).backward()
            scaler.step(optimizer)
            scaler.update()
        paths.append([parameter.detach().clone() for parameter in objective.parameters()])
    for plain, scaled in zip(*paths, strict=True):
        assert torch.equal(plain, scaled)


def test_a_gradient_scaler_skips_the_whole_step_when_gammas_gradient_overflows() -> None:
    objective, x, y = small_classifier()
    optimizer = adam_with_adam(objective)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = copy.deepcopy(dict(objective.named_parameters()))
    scaler.scale(objective(x[0], y[0]).value).backward()
    known(objective.gamma.grad).fill_(math.inf)
    scaler.step(optimizer)
    assert all(torch.equal(tensor, before[name]) for name, tensor in objective.named_parameters())


def test_a_closure_is_evaluated_with_gradients_and_its_value_returned() -> None:
    objective, x, y = small_classifier()
    optimizer = adam_with_adam(objective)
    before = objective.gamma.item()

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective(x[0], y[0]).value
        value.backward()
        return value

    expected = objective(x[0], y[0]).value
    assert torch.equal(optimizer.step(closure), expected)
    assert objective.gamma.item() != before


def test_a_deep_copy_of_objective_and_optimizer_goes_on_as_the_original_does() -> None:
    objective, x, y = small_classifier()
    optimizer = adam_with_adam(objective)
    train(objective, optimizer, x[:3], y[:3])
    twin, its_optimizer = copy.deepcopy((objective, optimizer))
    assert all(map(torch.equal, train(twin, its_optimizer, x[3:], y[3:]), train(objective, optimizer, x[3:], y[3:])))


def test_an_optimizer_of_another_model_is_refused() -> None:
    objective = rhobust.RobustObjective(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), radius=1.0)
    with pytest.raises(Refused, match="none of the parameters of the objective's model: nothing would be trained"):
        rhobust.ProximalOptimizer(torch.optim.Adam(nn.Linear(2, 2).parameters()), objective)
    with pytest.raises(Refused, match="a torch optimizer over model"):
        rhobust.ProximalOptimizer(objective, torch.optim.Adam(objective.model.parameters()))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Adam, partial(SGD, momentum=0.9)], ids=["betas", "momentum"])
@pytest.mark.parametrize(
    "schedule",
    [
        partial(OneCycleLR, max_lr=0.01, total_steps=12),
        partial(OneCycleLR, max_lr=1.25, total_steps=12),  # begins with 1.25 / 25, gamma's own rate
        partial(OneCycleLR, max_lr=[0.01, 0.05], total_steps=12),
        partial(CyclicLR, base_lr=1e-3, max_lr=0.01, step_size_up=4),
        partial(CyclicLR, base_lr=0.05, max_lr=0.5, step_size_up=5),
        partial(LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
        partial(StepLR, step_size=1, gamma=0.5),
        partial(SWALR, swa_lr=0.02),
    ],
    ids=[
        "one cycle",
        "one cycle from gamma's",
        "a rate for each",
        "cyclic",
        "cyclic from gamma's",
        "lambda",
        "step",
        "swa",
    ],
)
def test_a_schedule_sets_the_rate_of_theta_and_leaves_gamma_its_own(kind: Any, schedule: Any) -> None:
    rule = rhobust.Multiplicative(lr=0.05)

    def trained(scheduled: bool) -> tuple[list[float], list[float]]:
        model = Vector([1.0])
        optimizer = wrap(model, kind([model.theta], lr=0.002), gamma_rule=rule)
        scheduler = schedule(optimizer) if scheduled else None
        gammas, rates = [], []
        for step in range(10):
            optimizer.objective.gamma.grad = torch.full_like(optimizer.objective.gamma, (-1.0) ** step - 0.3)
            model.theta.grad = torch.ones_like(model.theta)
            optimizer.step()
            if scheduler:
                scheduler.step()
            gammas.append(optimizer.objective.gamma.item())
            rates.append(optimizer.base.param_groups[0]["lr"])
        return gammas, rates

    (gammas, rates), (alone, constant) = trained(scheduled=True), trained(scheduled=False)
    assert gammas == alone
    assert len(set(rates)) >= 5
    assert set(constant) == {0.002}


def test_a_schedule_of_one_cycle_cycles_the_momentum_of_theta_as_it_does_without_gamma() -> None:
    model, bare = Vector([1.0]), Vector([1.0])
    optimizer, plain = wrap(model, Adam([model.theta], lr=0.002)), Adam([bare.theta], lr=0.002)
    schedulers = [OneCycleLR(one, max_lr=0.1, total_steps=12) for one in (optimizer, plain)]
    for step in range(10):
        for one, theta, scheduler in zip((optimizer, plain), (model.theta, bare.theta), schedulers, strict=True):
            theta.grad = torch.full_like(theta, math.sin(step))
            one.step()
            scheduler.step()
        assert optimizer.base.param_groups[0]["betas"] == plain.param_groups[0]["betas"]
        assert torch.equal(model.theta, bare.theta)
    assert plain.param_groups[0]["betas"][0] != 0.9


@pytest.mark.parametrize("defaults", [{}, {"lr": None}], ids=str)
def test_an_optimizer_without_a_rate_of_its_own_steps_where_there_is_no_prox(defaults: dict[str, Any]) -> None:
    class Own(Optimizer):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for theta in group["params"]:
                    theta.data -= theta.grad

    model = Vector([1.0])
    optimizer = wrap(model, Own([model.theta], defaults))
    model.theta.grad = torch.full((1,), 0.25, dtype=torch.float64)
    assert optimizer.stationarity() == 0.25
    assert steer(optimizer, [0.0]) == [2.0]
    assert model.theta.item() == 0.75


def test_a_rate_that_is_a_tensor_is_not_read_back() -> None:
    model = Vector([1.0])
    optimizer = wrap(model, SGD([model.theta], lr=torch.tensor(0.1)), rhobust.L1(0.1))
    model.theta.grad = torch.zeros(1, dtype=torch.float64)
    assert steer(optimizer, [0.0]) == [2.0]
    assert model.theta.item() == pytest.approx(0.99)


def test_an_optimizer_that_asks_for_the_loss_again_is_refused() -> None:
    model = Vector([1.0])
    with pytest.raises(Refused, match="LBFGS asks for the loss several times in a step"):
        wrap(model, torch.optim.LBFGS([model.theta]))
