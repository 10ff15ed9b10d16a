"""A training as text and as a figure."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from torch import nn

from rhobust.ascent import Identity, Maximizer
from rhobust.ascent.steps import PenalizedAscent
from rhobust.gamma_rules import FixedGamma, GammaRule
from rhobust.losses import cross_entropy
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer, adam
from rhobust.training.fit import Fit
from rhobust.training.record import Record
from tests.drawn import legend, points

STEP = Record(
    step=0, epoch=0, loss=2.0, value=2.0, gamma=0.5, rho_eff=0.0, stationarity=0.0, accuracy=None, gradients=1
)
HISTORY = [
    STEP,
    replace(STEP, step=1, loss=1.0, rho_eff=1.0),
    replace(STEP, step=2, epoch=1, loss=0.75, rho_eff=1.5),
    replace(STEP, step=3, epoch=1, loss=0.25, rho_eff=2.25),
]
HEAD = "training of Linear; loss and cost are means of the last epoch"


def trained(
    history: list[Record],
    radius: float,
    maximizer: Maximizer = PenalizedAscent(steps=2),  # noqa: B008 (frozen)
    rule: GammaRule | None = None,
) -> Fit:
    model = nn.Linear(3, 2)
    objective = RobustObjective(model, cross_entropy, radius=radius, gamma=0.5, maximizer=maximizer)
    return Fit(objective, ProximalOptimizer(adam(model), objective, gamma_rule=rule), history)


def test_text_of_a_training_that_meets_the_radius() -> None:
    assert str(trained(HISTORY, 2.0)).splitlines() == [
        HEAD,
        "steps  epochs  loss  average transport cost  radius  gamma",
        "-----  ------  ----  ----------------------  ------  -----",
        "4           2   0.5                   1.875       2    0.5",
    ]


def test_a_cost_far_from_the_radius_is_remarked_on() -> None:
    said = str(trained(HISTORY, 6.0)).splitlines()[-1]
    assert said == "average transport cost 1.875 of radius 6: gamma has not settled. Train longer"
    assert len(str(trained(HISTORY, 6.0, rule=FixedGamma())).splitlines()) == 4  # nothing was to be met


def test_what_a_method_does_not_have_is_not_told() -> None:
    assert str(trained(HISTORY, 0.0, Identity())).splitlines()[1] == "steps  epochs  loss  average transport cost"
    assert str(trained([], 2.0)) == "no step was taken"


def test_lines_are_the_steps_the_means_of_epochs_and_the_radius() -> None:
    figure = Figure()
    axes = figure.subplots()
    assert trained(HISTORY, 2.0).plot(axes) is axes
    assert figure.gca() is axes
    right = figure.axes[1]
    steps, epochs = axes.get_lines()
    assert points(steps) == [[1, 2.0], [2, 1.0], [3, 0.75], [4, 0.25]]
    assert points(epochs) == [[2, 1.5], [4, 0.5]]
    steps, epochs, radius = right.get_lines()
    assert points(steps) == [[1, 0.0], [2, 1.0], [3, 1.5], [4, 2.25]]
    assert points(epochs) == [[2, 0.5], [4, 1.875]]
    assert radius.get_ydata() == pytest.approx([2, 2])
    assert legend(right) == ["loss", "average transport cost", "radius 2"]


def test_a_training_without_a_radius_has_no_line_for_it() -> None:
    figure = Figure()
    trained(HISTORY, 0.0, Identity()).plot(figure.subplots())
    assert len(figure.axes[1].get_lines()) == 2


def test_a_radius_far_above_the_cost_is_seen() -> None:
    figure = Figure()
    trained(HISTORY, 50.0).plot(figure.subplots())
    low, high = figure.axes[1].get_ylim()
    assert low == 0
    assert high > 50
