"""Attacks: presets, verification, and the Wasserstein budget."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rhobust.ascent import Ball, Point, Problem, Step
from rhobust.attacks.attack import ATTACKS, Attack, attack, errs, find_attack, norm_of, only_weak
from rhobust.attacks.square import random_squares
from rhobust.attacks.wasserstein import wasserstein
from rhobust.certificates.certify import certify
from rhobust.costs import SquaredL2
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, DataError, Refused
from rhobust.evaluation.evaluate import BatchedAttacks, evaluate
from rhobust.losses import margin

LOSS = partial(cross_entropy, reduction="none")
BOUNDS = (-1.0, 1.0)


def problem(seed: int = 0, count: int = 200) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A net that is right on most samples, so that there is something to attack."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3)).eval()
    x = torch.rand(count, 6, generator=generator) * 2 - 1
    with torch.no_grad():
        y = model(x).argmax(1)
    y[:5] = (y[:5] + 1) % 3  # and wrong on five
    return model, x, y


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("epsilon", [0.05, 0.3])
def test_results_stay_in_ball_and_box_and_fooled_means_fooled(name: str, epsilon: float) -> None:
    model, x, y = problem()
    way = ATTACKS[name](epsilon)
    torch.manual_seed(0)
    result = attack(model, x, y, way, loss=LOSS, bounds=BOUNDS, restarts=2)
    away = (result.zeta - x).abs()
    size = away.amax(1) if way.ball.norm == math.inf else (away**2).sum(1).sqrt()
    assert (size <= epsilon * (1 + 1e-5)).all()
    assert (result.zeta >= -1).all()
    assert (result.zeta <= 1).all()
    assert result.discarded == 0
    assert torch.equal(result.fooled, errs(model, result.zeta, y))
    assert result.fooled[:5].all()  # x is in the ball: what is wrong unattacked stays wrong


def test_fgsm_is_exact_for_a_linear_model_in_the_box() -> None:
    """The worst margin over the ball and the box, in closed form: every coordinate goes as far as it can."""
    torch.manual_seed(0)
    model = nn.Linear(6, 2).double()
    x = torch.rand(300, 6, dtype=torch.double) * 2 - 1
    with torch.no_grad():
        y = model(x).argmax(1)
        weight = model.weight[1] - model.weight[0]
        sign = torch.where(y == 1, 1.0, -1.0).double()[:, None]
        lowest = (x - 0.2 * (weight * sign).sign()).clamp(-1, 1)
        worst = sign[:, 0] * (lowest @ weight + model.bias[1] - model.bias[0])
    result = attack(model, x, y, ATTACKS["fgsm"](0.2), loss=LOSS, bounds=BOUNDS)
    assert torch.equal(result.fooled, worst < 0)


class Counted(nn.Module):
    """Counts the samples that pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        output: Tensor = self.model(x)
        return output


@pytest.mark.parametrize("name", ["ifgsm", "pgd-paper", "pgd-margin", "ifgsm-l2"])
def test_an_attack_is_the_plain_loop_stopped_where_the_model_first_errs(name: str) -> None:
    """The reference never stops, and looks at every step: a sample is fooled if the model erred at any of them."""
    model, x, y = problem()
    way = ATTACKS[name](0.15)
    torch.manual_seed(3)
    result = attack(model, x, y, way, loss=LOSS, bounds=BOUNDS)

    torch.manual_seed(3)
    right = ~errs(model, x, y)
    loss = margin if name == "pgd-margin" else LOSS
    task = Problem(x[right], lambda zeta: loss(model(zeta), y[right]), torch.tensor(0.0), SquaredL2(), BOUNDS)
    zeta = way.ball.start(task)
    erred, first = errs(model, zeta, y[right]), zeta.clone()
    for t in range(way.ball.gradients):
        zeta = way.ball.move(task, task.at(zeta), t, Step(zeta, zeta)).zeta
        first[~erred] = zeta[~erred]
        erred |= errs(model, zeta, y[right])
    assert torch.equal(result.fooled[right], erred)
    assert torch.allclose(result.zeta[right], first, atol=1e-6)
    assert 0 < int(erred.sum()) < len(erred)


def test_who_is_fooled_is_left_alone() -> None:
    """Samples that pass the model: all three times (checks, before, after), and only those still right in between."""
    model, x, y = problem()
    counted = Counted(model)
    result = attack(counted, x, y, ATTACKS["fgsm"](0.15), loss=LOSS, bounds=BOUNDS, restarts=2)
    wrong, once = 5, int(result.fooled.sum())
    assert counted.seen == 2 * 200 + 2 * (200 - wrong) + 2 * (200 - once)


def test_the_margin_leads_where_cross_entropy_has_no_slope_left() -> None:
    model, x, y = problem()
    sure = nn.Sequential(model, Scaled(1e4))
    lost = attack(sure, x, y, ATTACKS["ifgsm"](0.2), loss=LOSS, bounds=BOUNDS).fooled.sum()
    torch.manual_seed(0)
    found = attack(sure, x, y, ATTACKS["pgd-margin"](0.2), loss=LOSS, bounds=BOUNDS).fooled.sum()
    assert lost < 40 < 60 < found


class Scaled(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return self.by * x


def test_random_squares_find_most_of_what_gradients_find() -> None:
    model, x, y = problem()
    torch.manual_seed(0)
    blind = attack(model, x, y, ATTACKS["square"](0.2), loss=LOSS, bounds=BOUNDS).fooled.sum()
    seeing = attack(model, x, y, ATTACKS["pgd"](0.2), loss=LOSS, bounds=BOUNDS).fooled.sum()
    assert blind >= 0.85 * seeing


def test_random_squares_solve_a_linear_problem_exactly() -> None:
    """The worst corner of the ball is known, and single pixels come last in the search: enough queries find it."""
    torch.manual_seed(0)
    weight = torch.randn(4, 1, 3, 3)
    x = torch.zeros(4, 1, 3, 3)
    zeta = random_squares(lambda zeta, chosen: (zeta * weight[chosen]).flatten(1).sum(1) - 1e3, x, 0.5, 400)
    assert torch.equal(zeta, 0.5 * weight.sign())


def test_restarts_only_help() -> None:
    model, x, y = problem()
    few = attack(model, x, y, ATTACKS["pgd"](0.1), loss=LOSS, bounds=BOUNDS)
    torch.manual_seed(1)
    many = attack(model, x, y, ATTACKS["pgd"](0.1), loss=LOSS, bounds=BOUNDS, restarts=5)
    assert many.fooled.sum() >= few.fooled.sum()


def test_the_paper_s_pgd_stays_in_the_ball_around_x_though_its_steps_are_larger() -> None:
    model, x, y = problem()
    result = attack(model, x, y, ATTACKS["pgd-paper"](0.1), loss=LOSS, bounds=BOUNDS)
    assert (result.zeta - x).abs().max() <= 0.1 + 1e-6


def test_a_result_outside_its_ball_or_box_does_not_count() -> None:
    class Cheat(Ball):
        def move(self, problem: Problem, point: Point, t: int, last: Step) -> Step:
            far = point.zeta.clone()
            far[:50] += 10.0  # out of the ball
            far[50:60] = math.nan
            return Step(far, far)

    model, x, y = problem()
    before = errs(model, x, y)
    result = attack(model, x, y, Attack(Cheat(0.1)), loss=LOSS, bounds=None)
    assert result.discarded == 60
    assert torch.equal(result.fooled, before)
    assert torch.equal(result.zeta[:60], x[:60])


def test_attacks_leave_the_model_as_it_was() -> None:
    model, x, y = problem()
    model.train()
    attack(model, x, y, ATTACKS["ifgsm"](0.1), loss=LOSS, bounds=BOUNDS)
    assert model.training
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("budget", [0.01, 0.1, 0.5])
def test_the_wasserstein_attack_spends_its_budget_and_never_more(budget: float) -> None:
    model, x, y = problem()
    moved = wasserstein(model, x, y, loss=LOSS, budget=budget, bounds=BOUNDS)
    spent = float(((moved.zeta - x) ** 2).sum(1).mean())
    assert spent == pytest.approx(moved.mean_cost)
    assert 0.95 * budget <= spent <= budget * (1 + 1e-6)
    assert moved.zeta.abs().max() <= 1


def test_the_wasserstein_attack_at_a_price_matches_the_closed_form_of_a_linear_loss() -> None:
    """sup of g.d - gamma ||d||^2 is attained at d = g / (2 gamma)."""
    slope = torch.tensor([[3.0, -1.0], [1.0, 2.0]])
    model, y = nn.Identity(), torch.tensor([0, 1])
    moved = wasserstein(
        model, torch.zeros(2, 2), y, loss=lambda out, label: (out * slope[label]).sum(1), gamma=2.0, max_steps=5
    )
    assert torch.allclose(moved.zeta, slope / 4)


@pytest.mark.parametrize("scale", [1.0, 8.0])  # the larger makes the net so sure that its loss hardly has a slope
@pytest.mark.parametrize("budget", [0.1, 1.0])
def test_the_wasserstein_attack_comes_near_the_worst_distribution_that_is_known(scale: float, budget: float) -> None:
    """Certificates mix distributions of two prices and search longer; one price alone should lose little to them."""
    model, x, y = problem()
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(scale)
    moved = wasserstein(model, x, y, loss=LOSS, budget=budget, bounds=BOUNDS, batch_size=77)
    (known,) = certify(model, Samples(x, y), loss=LOSS, radii=[budget], bounds=BOUNDS)
    with torch.no_grad():
        assert float(LOSS(model(moved.zeta), y).mean()) >= 0.9 * known.attained


def test_wrong_requests_are_refused() -> None:
    model, x, y = problem()
    with pytest.raises(ConfigError, match=r"in a ball 'pdg' \(did you mean 'pgd'\?\); known: fgsm.*budgets"):
        find_attack("pdg")
    with pytest.raises(Refused, match="and not both"):
        wasserstein(model, x, y, loss=LOSS)
    with pytest.raises(Refused, match="not both"):
        wasserstein(model, x, y, loss=LOSS, gamma=1.0, budget=1.0)
    with pytest.raises(Refused, match="finite and > 0"):
        wasserstein(model, x, y, loss=LOSS, budget=-1.0)


def test_evaluation_counts_what_attack_counts_whatever_the_batch_size_or_the_company() -> None:
    model, x, y = problem()
    alone = evaluate(model, Samples(x, y), loss=LOSS, bounds=BOUNDS, attacks=["ifgsm"], epsilons=[0.1])
    grid = evaluate(
        model, Samples(x, y), loss=LOSS, bounds=BOUNDS, attacks=["fgsm", "ifgsm"], epsilons=[0, 0.1], batch_size=33
    )
    expected = float(attack(model, x, y, ATTACKS["ifgsm"](0.1), loss=LOSS, bounds=BOUNDS).fooled.double().mean())
    assert grid.error("ifgsm", 0.1) == alone.error("ifgsm", 0.1) == expected
    assert grid.clean == grid.error("fgsm", 0) == 5 / 200


def test_evaluation_is_repeatable_and_leaves_the_generator_alone() -> None:
    model, x, y = problem()
    state = torch.get_rng_state()
    results = [
        evaluate(model, Samples(x, y), loss=LOSS, bounds=BOUNDS, attacks=["pgd"], epsilons=[0.05]) for _ in range(2)
    ]
    assert results[0] == results[1]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_batch_that_does_not_fit_is_halved_and_the_numbers_stay() -> None:
    class Small(nn.Module):
        """A device that takes thirty samples at a time."""

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 30:
                raise torch.OutOfMemoryError("too many")
            output: Tensor = model(x)
            return output

    model, x, y = problem()
    whole = evaluate(model, Samples(x, y), loss=LOSS, bounds=BOUNDS, attacks=["ifgsm"], epsilons=[0, 0.1])
    small = BatchedAttacks(Small(), LOSS, BOUNDS, 1, 0, 128).run(Samples(x, y), [None, ATTACKS["ifgsm"](0.1)])
    assert [float(one.fooled.double().mean()) for one in small] == [whole.clean, whole.error("ifgsm", 0.1)]


def test_an_output_that_is_not_a_number_is_no_right_answer() -> None:
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.bias.fill_(math.nan)
    x, y = torch.zeros(4, 6), torch.tensor([0, 0, 1, 2])  # argmax of NaN is 0
    assert errs(model, x, y).all()
    assert evaluate(model, Samples(x, y), loss=LOSS, attacks=["fgsm"], epsilons=[0.1], checks=False).clean == 1


@pytest.mark.parametrize("budget", [1e-6, 1e-4, 1e-3])
def test_the_wasserstein_attack_keeps_to_a_budget_that_the_dearest_price_overspends(budget: float) -> None:
    draws = torch.Generator().manual_seed(0)
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.copy_(3000 * torch.randn(3, 6, generator=draws))
    x, y = torch.rand(50, 6, generator=draws) * 2 - 1, torch.randint(3, (50,), generator=draws)
    moved = wasserstein(model, x, y, loss=LOSS, budget=budget, bounds=BOUNDS)
    assert 0 < moved.mean_cost <= budget * (1 + 1e-3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"restarts": 0}, "restarts must be a whole number, at least 1"), ({"batch_size": -1}, "batch_size must be")],
)
def test_an_evaluation_of_nothing_is_refused(wrong: dict[str, Any], said: str) -> None:
    model, x, y = problem()
    with pytest.raises(ConfigError, match=said):
        evaluate(model, Samples(x, y), loss=LOSS, attacks=["pgd"], epsilons=[0.1], **wrong)
    with pytest.raises(DataError, match="no samples"):
        evaluate(model, Samples(x[:0], y[:0]), loss=LOSS, attacks=["pgd"], epsilons=[0.1])


@pytest.mark.parametrize("budget", [0.18, 2.0, 2.5, 360.0])
def test_the_wasserstein_attack_loses_nothing_to_rounding_at_the_ends_of_an_odd_box(budget: float) -> None:
    # x + (zeta - x) may round past a bound that is not a binary number, and such a result would not count.
    torch.manual_seed(0)
    low, high = 0.1, 0.7
    x = (low + (high - low) * torch.rand(200, 20)).clamp(low, high)
    y, model = torch.randint(3, (200,)), nn.Linear(20, 3)
    moved = wasserstein(model, x, y, loss=LOSS, budget=budget, bounds=(low, high))
    free = wasserstein(model, x, y, loss=LOSS, gamma=1e-4, bounds=(low, high))
    assert moved.discarded == free.discarded == 0
    assert moved.mean_cost <= budget * (1 + 1e-6)
    if budget > free.mean_cost:
        assert torch.equal(moved.fooled, free.fooled)
    else:
        assert moved.mean_cost > 0.9 * budget


@pytest.mark.parametrize(
    ("outputs", "labels"),
    [(1, torch.ones(200, dtype=torch.long)), (3, torch.zeros(200, 3)), (3, torch.zeros(200))],
    ids=["one output", "soft labels", "real labels"],
)
def test_errors_that_cannot_be_counted_are_refused(outputs: int, labels: Tensor) -> None:
    _, x, _ = problem()
    samples = Samples(x, labels)
    with pytest.raises(Refused, match=r"errors are counted for classifiers: outputs \(B, classes\)"):
        evaluate(nn.Linear(6, outputs), samples, loss=lambda out, _: out[:, 0], epsilons=[0.1])


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16])
def test_labels_of_any_whole_kind_are_counted(kind: torch.dtype) -> None:
    model, x, y = problem()
    settings: dict[str, Any] = {"loss": LOSS, "attacks": ["pgd-margin"], "epsilons": [0.1], "checks": False}
    assert evaluate(model, Samples(x, y.to(kind)), **settings) == evaluate(model, Samples(x, y), **settings)


def test_the_wasserstein_attack_keeps_to_the_batch_size() -> None:
    model, x, y = problem()
    seen: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    settings: dict[str, Any] = {"attacks": [], "budgets": [0.1], "checks": False}
    evaluate(model, Samples(x, y), loss=LOSS, batch_size=16, **settings)
    assert max(seen) == 16


def test_a_wasserstein_attack_that_does_not_fit_into_memory_is_halved() -> None:
    model, x, y = problem()

    def scarce(output: Tensor, y: Tensor) -> Tensor:
        if len(output) > 50:
            raise torch.OutOfMemoryError
        return LOSS(output, y)

    settings: dict[str, Any] = {"attacks": [], "budgets": [0.1], "checks": False}
    found = evaluate(model, Samples(x, y), loss=scarce, **settings)
    assert found == evaluate(model, Samples(x, y), loss=LOSS, batch_size=32, **settings)


def test_a_loss_without_gradients_is_said_to_have_none() -> None:
    model, x, y = problem()
    with pytest.raises(Refused, match="no gradient in the inputs"), torch.inference_mode():
        attack(model, x, y, ATTACKS["fgsm"](0.1), loss=LOSS)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"attacks": "pgd"}, r"attacks are a list of names, such as \['pgd'\]"),
        ({"epsilons": 0.1}, r"epsilons are a list of numbers, such as \[0\.1\]"),
        ({"budgets": 1.0}, "budgets are a list of numbers"),
    ],
)
def test_one_where_a_list_is_wanted_is_named(wrong: dict[str, Any], said: str) -> None:
    model, x, y = problem()
    with pytest.raises(ConfigError, match=said):
        evaluate(model, (x, y), **wrong)
    with pytest.raises(ConfigError, match="radii are a list of numbers"):
        certify(model, (x, y), radii=0.1)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"samples are a pair \(x, y\)"):
        evaluate(model, x)  # type: ignore[arg-type]


def test_the_norm_and_the_strength_of_an_attack_are_its_own() -> None:
    l2 = ["fgsm-l2", "ifgsm-l2", "pgd-l2", "pgd-margin-l2", "apgd-l2", "apgd-margin-l2", "pgd-t-l2", "apgd-t-l2"]
    assert [name for name in ATTACKS if norm_of(name) == 2] == l2
    weak = ["fgsm", "ifgsm", "pgd-paper", "square", "fgsm-l2", "ifgsm-l2"]
    assert [name for name in ATTACKS if only_weak([name])] == weak
    assert only_weak(weak)
    assert not only_weak([*weak, "pgd"])
    with pytest.raises(ConfigError, match="unknown attack in a ball 'pdg'"):
        only_weak(["pdg"])
