"""The table of methods: complete, with the paper's settings, and honest about what it does not know."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.ascent import Ball, ErrorAscent, Identity, MarginAscent, Oracle, PenalizedAscent
from rhobust.errors import ConfigError, Refused
from rhobust.method import Method, find_method, methods

NAMES = ["erm", "fgsm", "ifgsm", "nfgsm", "wrm", "spgd", "spgda", "spgda-margin", "spgda-loss"]
NAMES += ["spgd-literal", "spgda-literal"]


def test_the_table_holds_every_method_under_its_own_name() -> None:
    assert list(methods()) == NAMES
    for name, method in methods().items():
        assert method.name == name
        assert find_method(name) == method
        assert method.summary
        assert "\n" not in method.summary
    assert len({method.summary for method in methods().values()}) == len(NAMES)


@pytest.mark.parametrize(
    ("name", "maximizer", "rule"),
    [
        ("erm", Identity(), rhobust.FixedGamma()),
        ("fgsm", Ball(epsilon=0.1, norm=math.inf, steps=1), rhobust.FixedGamma()),
        ("ifgsm", Ball(epsilon=0.1, norm=math.inf, steps=10), rhobust.FixedGamma()),
        ("nfgsm", Ball(epsilon=0.1, norm=math.inf, steps=1), rhobust.FixedGamma()),
        ("wrm", PenalizedAscent(steps=10), rhobust.FixedGamma()),
        ("spgd", Oracle(max_steps=10), rhobust.Multiplicative()),
        ("spgda", ErrorAscent(steps=(1, 1, 1, 1, 3)), rhobust.Multiplicative()),
        ("spgda-margin", MarginAscent(steps=1), rhobust.Multiplicative()),
        ("spgda-loss", PenalizedAscent(steps=1), rhobust.Multiplicative()),
        ("spgd-literal", PenalizedAscent(steps=10, eta=0.02), rhobust.AdamGamma()),
        ("spgda-literal", PenalizedAscent(steps=1, eta=0.02), rhobust.AdamGamma()),
    ],
)
def test_the_papers_settings_are_the_defaults(name: str, maximizer: Any, rule: Any) -> None:
    # Epsilon 0.1, ten steps, gamma = 1, eta = 0.02.
    method = find_method(name)
    assert (method.maximizer, method.gamma, method.gamma_rule) == (maximizer, 1.0, rule)


def test_exactly_the_methods_that_learn_gamma_have_a_radius() -> None:
    learned = {name for name, method in methods().items() if method.robust}
    assert learned == {"spgd", "spgda", "spgda-margin", "spgda-loss", "spgd-literal", "spgda-literal"}
    for name, method in methods().items():
        missing, given = method.radius_problem(None), method.radius_problem(2.0)
        assert (missing is not None, given is not None) == (name in learned, name not in learned)
        assert name in (missing or given or "")


@pytest.mark.parametrize("asked", ["spgdaa", "SPGD", "wmr", "fgms", "trades"])
def test_an_unknown_method_is_answered_with_the_known_ones_and_the_nearest(asked: str) -> None:
    nearest = {"spgdaa": "spgda", "SPGD": "spgd", "wmr": "wrm", "fgms": "fgsm"}.get(asked)
    with pytest.raises(ConfigError) as caught:
        find_method(asked)
    message = str(caught.value)
    assert f"unknown method '{asked}'" in message
    assert message.endswith(f"known: {', '.join(NAMES)}")
    assert ("did you mean" in message) == (nearest is not None)
    assert nearest is None or f"did you mean '{nearest}'?" in message


def test_unknown_knobs_are_all_answered_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        find_method("wrm").tuned(step=3, color="red", eta=0.1)
    assert len(caught.value.problems) == 2
    assert caught.value.problems[0].startswith("unknown knob of method 'wrm' 'step' (did you mean 'steps'?)")
    assert "'color'" in caught.value.problems[1]
    assert all(problem.endswith("known: steps, eta, gamma, noise, temper") for problem in caught.value.problems)


@pytest.mark.parametrize("name", ["erm", "fgsm", "ifgsm"])
def test_gamma_is_no_knob_where_it_prices_nothing(name: str) -> None:
    assert "gamma" not in find_method(name).knobs
    with pytest.raises(ConfigError, match=r"gamma is a knob of wrm, spgd, .* and spgda-literal; this method's own: "):
        find_method(name).tuned(gamma=2.0)


OTHER: dict[str, Any] = {
    "epsilon": 0.25, "norm": 2, "steps": 7, "step_size": 0.5, "random_start": True, "gamma": 3.0, "eta": 0.3,
    "accuracy": 0.5, "max_steps": 4, "curvature": 1e-4, "cap": 2.0, "noise": 0.7, "temper": 0.4,
}  # fmt: skip


@pytest.mark.parametrize(("name", "knob"), [(name, knob) for name in NAMES for knob in find_method(name).knobs])
def test_tuning_changes_exactly_the_knob_asked(name: str, knob: str) -> None:
    method = find_method(name)
    tuned = method.tuned(**{knob: OTHER[knob]})
    assert tuned.knobs == {**method.knobs, knob: OTHER[knob]}
    assert tuned.knobs != method.knobs
    own = ("maximizer", "gamma", "noise", "temper")
    kept = [field.name for field in dataclasses.fields(Method) if field.name not in own]
    assert all(getattr(tuned, field) == getattr(method, field) for field in kept)
    assert type(tuned.maximizer) is type(method.maximizer)
    assert find_method(name) == method  # the table itself stays


def test_tuning_nothing_is_the_method_itself() -> None:
    assert all(method.tuned() == method for method in methods().values())


def test_a_known_knob_with_an_impossible_value_is_refused() -> None:
    with pytest.raises(Refused, match="steps must be a whole number, at least 1"):
        find_method("wrm").tuned(steps=0)


# ---------------------------------------------------------------------------------------------------------------------
# DESIGN 5.1: one constant step from z does not see gamma, since grad c vanishes at zeta = z.


def theta_path(name: str, radius: float, gamma: float) -> tuple[Tensor, float]:
    """All weights after each of five steps, and the last gamma."""
    torch.manual_seed(0)
    method = find_method(name).tuned(gamma=gamma)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    objective = rhobust.RobustObjective(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        radius=radius,
        maximizer=method.maximizer,
        gamma=method.gamma,
    )
    optimizer = rhobust.ProximalOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.05), objective, gamma_rule=method.gamma_rule
    )
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    path = []
    for _ in range(5):
        optimizer.zero_grad()
        objective(x, y).value.backward()
        optimizer.step()
        path.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    return torch.stack(path), objective.gamma.item()


@pytest.mark.parametrize(("radius", "gamma"), [(25.0, 1.0), (1e-6, 1.0), (0.5, 0.05), (0.5, 50.0)])
def test_the_literal_spgda_learns_the_same_theta_whatever_radius_and_gamma(radius: float, gamma: float) -> None:
    theta, _ = theta_path("spgda-literal", 0.5, 1.0)
    other, last_gamma = theta_path("spgda-literal", radius, gamma)
    assert torch.equal(theta, other)
    assert last_gamma != pytest.approx(gamma)  # gamma is learned all the same; nobody listens to it


@pytest.mark.parametrize("name", ["spgda", "spgda-margin", "spgda-loss", "spgd-literal", "spgd"])
def test_theta_depends_on_gamma_where_the_ascent_sees_it(name: str) -> None:
    assert not torch.equal(theta_path(name, 0.5, 0.05)[0], theta_path(name, 0.5, 1.0)[0])


def test_the_default_spgda_learns_another_theta_for_another_radius() -> None:
    # From the second step on, when gamma has answered to rho.
    small, large = theta_path("spgda", 1e-6, 0.2)[0], theta_path("spgda", 25.0, 0.2)[0]
    assert torch.equal(small[0], large[0])
    assert not torch.equal(small[1], large[1])
