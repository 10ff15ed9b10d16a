"""Errors per group: each group's are those of its samples alone."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.data.groups import groups_of
from rhobust.errors import DataError
from rhobust.evaluation.evaluation import AttackedError, Evaluation
from rhobust.evaluation.group_errors import GroupedCell, GroupError, GroupErrors, of_squares
from rhobust.evaluation.intervals import interval
from rhobust.evaluation.regression_evaluation import RegressionEvaluation
from rhobust.losses import squared_error
from rhobust.runs.measurements import _decoded
from tests.problems import generator, linear_model, normal

SITES = ["north"] * 20 + ["south"] * 19 + ["west"]


def classifier() -> tuple[nn.Module, Tensor, Tensor]:
    """A linear classifier that is nearly always right in the north and often wrong in the south."""
    model = linear_model(torch.tensor([[1.0, 0.2], [-1.0, 0.1]]).double())
    x = normal(generator(0), 40, 2)
    y = (x[:, 0] < 0).long()
    y[20:30] = 1 - y[20:30]
    return model, x, y


def with_groups(**asked: Any) -> Evaluation:
    model, x, y = classifier()
    found = rhobust.evaluate(model, (x, y), groups=SITES, checks=False, **asked)
    assert isinstance(found, Evaluation)
    return found


def test_a_group_has_the_error_of_its_samples_alone() -> None:
    found = with_groups(attacks=["cascade", "fgsm", "pgd"], epsilons=[0, 0.1, 0.3], budgets=[0.1])
    assert found.groups is not None
    model, x, y = classifier()
    for name, part in (("north", slice(20)), ("south", slice(20, 39)), ("west", slice(39, 40))):
        alone = rhobust.evaluate(
            model, (x[part], y[part]), attacks=["cascade", "fgsm"], epsilons=[0, 0.1, 0.3], checks=False
        )
        one = found.groups.at()[name]
        assert (one.samples, one.error) == (len(y[part]), alone.clean)
        for attack in ("cascade", "fgsm"):
            for epsilon in (0, 0.1, 0.3):
                one = found.groups.at(attack, epsilon)[name]
                assert one.error == pytest.approx(alone.error(attack, epsilon))
                assert one.interval == list(interval(one.error, len(y[part])))
    for cell in found.attacked:  # groups add up to all
        own = found.groups.at(cell.attack, cell.epsilon).values()
        assert sum(one.error * one.samples for one in own) / 40 == pytest.approx(cell.error)
    assert found.groups.worst().group == "south"
    assert len(found.groups.attacked) == len(found.attacked)


def test_an_evaluation_without_groups_is_as_before_and_with_them_has_the_same_numbers() -> None:
    asked: dict[str, Any] = {"attacks": ["pgd"], "epsilons": [0.1]}
    model, x, y = classifier()
    plain, grouped = rhobust.evaluate(model, (x, y), checks=False, **asked), with_groups(**asked)
    assert "groups" not in plain.to_json()
    assert {key: value for key, value in grouped.to_json().items() if key != "groups"} == plain.to_json()


def test_groups_go_to_json_and_back() -> None:
    found = with_groups(attacks=["fgsm"], epsilons=[0.1])
    back = _decoded(Evaluation, json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert back == found
    assert back.groups == found.groups is not None


FOUND = GroupErrors(
    [GroupError("a", 1, 0.0, [0.0, 0.79]), GroupError("b", 50, 0.1, [0.04, 0.21])],
    [
        GroupedCell("fgsm", 0.0, [GroupError("a", 1, 0.0, [0.0, 0.79]), GroupError("b", 50, 0.1, [0.04, 0.21])]),
        GroupedCell("fgsm", 0.2, [GroupError("a", 1, 1.0, [0.21, 1.0]), GroupError("b", 50, 0.3, [0.19, 0.44])]),
    ],
)
TABLE = """\
fgsm by group: error in percent, and its 95 % interval
group        samples     clean         0.2
-----------  -------  --------  ----------
a                  1      0.00      100.00
                      0.0-79.0  21.0-100.0
b                 50     10.00       30.00
                      4.0-21.0   19.0-44.0
worst group                  b           a"""


def test_text_of_groups() -> None:
    text = str(Evaluation(51, 0.1, [AttackedError("fgsm", 0.2, 0.3)], groups=FOUND))
    assert TABLE in text


def test_of_many_groups_the_worst_are_listed() -> None:
    errors = [GroupError(str(number), 10, number / 100, [0.0, 1.0]) for number in range(30)]
    (table,) = GroupErrors(errors, [GroupedCell("pgd", 0.1, errors[::-1])]).tables("error", lambda one: ("", ""))
    assert table.caption.endswith("of 30 groups the 20 worst in the last column")
    assert [row[0] for row in table.rows if row[0]] == [*map(str, range(20)), "worst group"]


def test_a_regression_has_the_rmse_of_every_group() -> None:
    draws = generator(0)
    theta, x = normal(draws, 3), normal(draws, 40, 3)
    y, model = x @ theta + 0.5 * normal(draws, 40), linear_model(theta)
    asked: dict[str, Any] = {"loss": squared_error, "attacks": ["fgsm", "pgd"], "epsilons": [0, 0.2], "checks": False}
    found = rhobust.evaluate(model, (x, y), groups=SITES, budgets=[0.1], **asked)
    assert isinstance(found, RegressionEvaluation)
    assert found.groups is not None
    for name, part in (("north", slice(20)), ("south", slice(20, 39)), ("west", slice(39, 40))):
        alone = rhobust.evaluate(model, (x[part], y[part]), **asked)
        assert isinstance(alone, RegressionEvaluation)
        one = found.groups.at()[name]
        assert one.error == pytest.approx(alone.clean)
        assert one.interval == pytest.approx(alone.residuals.rmse_interval)
        assert found.groups.at("fgsm", 0.2)[name].error == pytest.approx(alone.error("fgsm", 0.2))
    assert found.groups.at()["west"].interval == [0.0, math.inf]
    for cell in found.attacked:
        own = found.groups.at(cell.attack, cell.epsilon).values()
        assert sum(one.error**2 * one.samples for one in own) / 40 == pytest.approx(cell.error**2)
    back = _decoded(RegressionEvaluation, json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert back.groups == found.groups
    assert "pgd by group: RMSE, and its 95 % interval" in str(found)
    assert rhobust.evaluate(model, (x, y), budgets=[0.1], **asked).residuals == found.residuals  # type: ignore[union-attr]


def test_an_rmse_of_a_group_by_hand() -> None:
    (low, high) = of_squares(groups_of(["b", "a", "b"]), torch.tensor([9.0, 4.0, 16.0]))
    assert (low.group, low.error, low.samples) == ("a", 2.0, 1)
    assert (high.group, high.samples) == ("b", 2)
    assert high.error == pytest.approx(math.sqrt(12.5))


def test_groups_are_checked_before_anything_is_attacked() -> None:
    class Untouched(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            raise AssertionError

    with pytest.raises(DataError, match="there are 40 samples and 39 groups"):
        rhobust.evaluate(Untouched(2, 2), classifier()[1:], groups=SITES[1:])
