"""Evaluations of regressions: exact answers for linear models, the laws of an attack, and checks that speak up."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.attacks.attack import ATTACKS
from rhobust.attacks.raise_loss import raise_loss, raises_loss
from rhobust.box import Box
from rhobust.errors import ConfigError, DataError, Refused
from rhobust.evaluation.evaluation import Evaluation
from rhobust.evaluation.intervals import mean_interval
from rhobust.evaluation.regression_evaluation import RegressionEvaluation
from rhobust.losses import PerSampleLoss, absolute_error, quantile, squared_error
from tests.problems import generator, linear_model, normal

NAMES = [name for name in ATTACKS if raises_loss(name)]


def problem(features: int = 4, noise: float = 0.5) -> tuple[nn.Linear, Tensor, Tensor]:
    """A linear model, x, and y near what the model says."""
    draws = generator(0)
    theta, x = normal(draws, features), normal(draws, 60, features)
    return linear_model(theta), x, x @ theta + noise * normal(draws, 60)


def evaluated(model: nn.Module, x: Tensor, y: Tensor, **asked: Any) -> RegressionEvaluation:
    found = rhobust.evaluate(model, (x, y), **({"loss": squared_error} | asked))
    assert isinstance(found, RegressionEvaluation)
    return found


@pytest.mark.parametrize("of_y", ["(B,)", "(B, 1)"])
@pytest.mark.parametrize("name", NAMES)
def test_a_linear_model_is_raised_to_its_worst_case(name: str, of_y: str) -> None:
    model, x, y = problem()
    weight = model.weight.detach()[0]
    reach = float(weight.norm() if name.endswith("-l2") else weight.abs().sum())
    found = evaluated(
        model, x, y if of_y == "(B,)" else y[:, None], attacks=[name], epsilons=[0, 0.1, 0.4], checks=False
    )
    away = (x @ weight - y).abs()
    for epsilon, cell in found.grid[name].items():
        worst = away + epsilon * reach
        assert cell.residuals.rmse == pytest.approx(float(worst.square().mean().sqrt()), rel=1e-6)
        assert cell.residuals.mae == pytest.approx(float(worst.mean()), rel=1e-6)
        total = float((y - y.mean()).square().sum())
        assert cell.residuals.r2 == pytest.approx(1 - float(worst.square().sum()) / total, rel=1e-6)
        assert cell.residuals.loss == pytest.approx(float(worst.square().mean()), rel=1e-6)
    assert found.clean == pytest.approx(float(away.square().mean().sqrt()), rel=1e-9)


def test_several_numbers_a_sample_count_alike() -> None:
    draws = generator(1)
    model, x = linear_model(normal(draws, 2, 3)), normal(draws, 40, 3)
    y = model(x).detach() + normal(draws, 40, 2)
    found = evaluated(model, x, y, attacks=["fgsm"], epsilons=[0.0], checks=False).residuals
    away = (model(x) - y).detach()
    assert found.rmse == pytest.approx(float(away.square().mean().sqrt()))
    assert found.mae == pytest.approx(float(away.abs().mean()))
    total = float((y - y.mean(0)).square().sum())  # as sklearn's variance-weighted R^2
    assert found.r2 == pytest.approx(1 - float(away.square().sum()) / total)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


def test_an_attack_never_loses_what_it_has_seen_and_stays_inside() -> None:
    model, draws = network(), torch.Generator().manual_seed(1)
    x, y = 2 * torch.rand(50, 3, generator=draws) - 1, torch.randn(50, generator=draws)
    with torch.no_grad():
        clean = squared_error(model(x), y)
    fixed = torch.tensor([False, True, False])
    for name in NAMES:
        torch.manual_seed(0)
        found = raise_loss(
            model, x, y, ATTACKS[name](0.3), loss=squared_error, bounds=Box(-1.0, 1.0, fixed), restarts=2
        )
        with torch.no_grad():
            torch.testing.assert_close(squared_error(model(found.zeta), y), found.loss)
        assert bool((found.loss >= clean).all())
        assert float(found.zeta.abs().max()) <= 1
        assert torch.equal(found.zeta[:, 1], x[:, 1])
        away = (found.zeta - x).norm(dim=1) if name.endswith("-l2") else (found.zeta - x).abs().amax(1)
        assert float(away.max()) <= 0.3 * (1 + 1e-5)


def test_the_worst_of_several_attacks_is_that_of_each_sample_and_never_falls() -> None:
    model, draws = network(), torch.Generator().manual_seed(1)
    x, y = torch.randn(50, 3, generator=draws), torch.randn(50, generator=draws)
    found = evaluated(model, x, y, attacks=["fgsm", "pgd"], epsilons=[0.1, 0.5, 2.0], checks=False)
    losses = [cell.residuals.loss for cell in found.grid["worst"].values()]
    assert losses == sorted(losses)
    for epsilon, worst in found.grid["worst"].items():
        assert worst.residuals.loss >= max(found.grid[name][epsilon].residuals.loss for name in ("fgsm", "pgd"))


def test_a_wasserstein_attack_reaches_the_worst_case_of_a_linear_model() -> None:
    model, x, y = problem()
    found = evaluated(model, x, y, epsilons=[], budgets=[0.05], checks=False)
    cell = found.grid["wasserstein"][0.05]
    exact = float((x @ model.weight.detach()[0] - y).square().mean().sqrt() + 0.05**0.5 * model.weight.detach().norm())
    assert cell.mean_cost is not None
    assert cell.mean_cost <= 0.05 * (1 + 1e-9)
    assert 0.98 * exact < cell.residuals.rmse <= exact * (1 + 1e-9)


@pytest.mark.parametrize("heavy", [False, True])
def test_the_intervals_cover_the_truth_as_often_as_they_say(heavy: bool) -> None:
    """Of residuals that are normal, or Laplace's: their RMSE and MAE are known."""
    draws = torch.Generator().manual_seed(0)
    normals = torch.randn(4000, 200, generator=draws, dtype=torch.float64)
    shares = torch.rand(4000, 200, generator=draws, dtype=torch.float64) - 0.5
    sample = -shares.sign() * torch.log1p(-2 * shares.abs()) if heavy else normals
    rms, mean = (2**0.5, 1.0) if heavy else (1.0, (2 / math.pi) ** 0.5)
    ends = [mean_interval(row.square()) for row in sample]
    of_rms = [math.sqrt(low) <= rms <= math.sqrt(high) for low, high in ends]
    of_mean = [low <= mean <= high for low, high in (mean_interval(row.abs()) for row in sample)]
    assert 0.91 < sum(of_rms) / 4000 < 0.965  # of fourth moments from 200 Laplace samples a little less is known
    assert 0.935 < sum(of_mean) / 4000 < 0.965


def test_of_one_sample_there_is_no_interval_and_no_judgement() -> None:
    model, x, y = problem()
    found = evaluated(model, x[:1], y[:1], attacks=["fgsm"], epsilons=[0.1])
    assert found.residuals.rmse_interval == [0.0, math.inf]
    assert found.residuals.r2 is None
    assert "learned" not in found.checked
    assert "not checked: 1 samples do not tell" in str(found)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["residuals"]["rmse_interval"] == [0.0, None]


def test_an_honest_model_passes_every_check() -> None:
    found = evaluated(*problem(), epsilons=[0, 0.1, 0.2])
    assert found.flags == []
    assert found.checked == ["learned", "grows", "inside", "many-steps", "one-step", "gradients"]


@pytest.mark.parametrize("loss", [squared_error, absolute_error, quantile(0.9)])
def test_the_best_constant_answer_has_learned_nothing(loss: PerSampleLoss) -> None:
    _, x, y = problem()
    model = nn.Linear(4, 1).double()
    tau = getattr(loss, "tau", 0.5)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(float(y.mean() if loss is squared_error else y.quantile(tau)))
    found = evaluated(model, x, y, loss=loss, attacks=["fgsm"], epsilons=[0.1], checks=False)
    assert [flag.check for flag in found.flags] == ["learned"]
    assert "is not clearly below" in found.flags[0].message


class Misled(nn.Module):
    """The sum of x, with a slope of the wrong sign at whole numbers, or everywhere else."""

    def __init__(self, at_whole_numbers: bool) -> None:
        super().__init__()
        self.at_whole_numbers = at_whole_numbers

    def forward(self, x: Tensor) -> Tensor:
        whole = (x == x.round()).all(1)
        slope = torch.where(whole == self.at_whole_numbers, -1.0, 1.0) * x.sum(1)
        return slope + (x.sum(1) - slope).detach()


@pytest.mark.parametrize(("at_whole_numbers", "check"), [(False, "many-steps"), (True, "one-step")])
def test_attacks_that_should_not_differ_so_are_flagged(at_whole_numbers: bool, check: str) -> None:
    x = torch.randint(-3, 4, (60, 3), generator=torch.Generator().manual_seed(0)).float()
    found = evaluated(Misled(at_whole_numbers), x, x.sum(1) - 1, attacks=["apgd"], epsilons=[0.1])
    assert [flag.check for flag in found.flags] == [check]


class Flat(nn.Module):
    """A step: right, and without a slope."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sign().sum(1) + 0 * x.sum(1)


def test_a_loss_without_a_slope_is_flagged() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = x.sign().sum(1) + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(1))
    found = evaluated(Flat(), x, y, attacks=["pgd"], epsilons=[0.1])
    assert [flag.check for flag in found.flags] == ["gradients"]


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ({"attacks": ["pgd-margin", "pgd-t"]}, ConfigError, "pgd-margin and pgd-t cannot attack a regression, which"),
        (
            {"attacks": ["cascade"]},
            ConfigError,
            "cascade cannot attack a regression, .* take of fgsm, ifgsm, pgd, apgd",
        ),
        ({"attacks": ["pdg"]}, ConfigError, "unknown attack in a ball 'pdg'"),
        ({"task": "ranking"}, ConfigError, "unknown task 'ranking'"),
        ({"restarts": 0}, ConfigError, "restarts"),
        ({"attacks": [], "budgets": []}, ConfigError, "nothing to evaluate"),
        ({"task": "classification"}, Refused, "errors are counted for classifiers.*or task='regression'"),
    ],
)
def test_what_cannot_be_asked_of_a_regression_is_refused(
    asked: dict[str, Any], kind: type[Exception], message: str
) -> None:
    model, x, y = problem()
    with pytest.raises(kind, match=message):
        rhobust.evaluate(model, (x, y), **({"loss": squared_error} | asked))


def test_outputs_that_are_no_numbers_are_named() -> None:
    _, x, y = problem()
    broken = nn.Linear(4, 1).double()
    with torch.no_grad():
        broken.bias.fill_(math.nan)
    with pytest.raises(DataError, match="output is not finite at sample 0"):
        evaluated(broken, x, y, attacks=["fgsm"], epsilons=[0.1])


def test_whole_numbers_are_a_regression_where_the_loss_says_so() -> None:
    model, x, _ = problem()
    y = torch.randint(0, 5, (60,), generator=torch.Generator().manual_seed(0))
    assert isinstance(rhobust.evaluate(model, (x, y), loss=nn.MSELoss(reduction="none")), RegressionEvaluation)
    own = rhobust.evaluate(
        model, (x, y), loss=lambda output, y: (output[:, 0] - y) ** 2, task="regression", attacks=["fgsm"]
    )
    assert isinstance(own, RegressionEvaluation)
    two = linear_model(torch.eye(2, 4, dtype=torch.float64))
    assert isinstance(rhobust.evaluate(two, (x, (y > 2).long()), attacks=["fgsm"]), Evaluation)


def test_the_same_seed_gives_the_same_numbers_in_batches_of_any_size() -> None:
    model, x, y = problem()
    asked: dict[str, Any] = {"attacks": ["fgsm", "ifgsm-l2"], "epsilons": [0.0, 0.2], "keep": True, "checks": False}
    first, second = (evaluated(model, x, y, batch_size=size, **asked) for size in (60, 7))
    for one, other in zip(first.attacked, second.attacked, strict=True):
        assert one.error == pytest.approx(other.error, rel=1e-12)
    torch.testing.assert_close(first.examples["fgsm"][0.2], second.examples["fgsm"][0.2])
    assert evaluated(model, x, y, **(asked | {"attacks": ["apgd"]})) == evaluated(
        model, x, y, **(asked | {"attacks": ["apgd"]})
    )


def test_it_shows_itself() -> None:
    found = evaluated(*problem(), attacks=["fgsm"], epsilons=[0, 0.1], budgets=[0.1])
    text = str(found)
    assert text.startswith(f"clean RMSE {found.clean:.4g} (95 % interval")
    assert "only weak attacks were run (fgsm): stronger ones, such as apgd, find more" in text
    assert "wasserstein attack" in text
    assert found._repr_html_().count("<table>") == 2
    axes = found.plot()
    assert axes.get_ylabel() == "RMSE"
    drawn = {line.get_label(): line for line in axes.lines}
    assert [*np.asarray(drawn["fgsm"].get_ydata())] == [found.error("fgsm", epsilon) for epsilon in (0, 0.1)]
    assert axes.get_ylim()[0] == 0
