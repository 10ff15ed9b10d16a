"""The cascade and the targeted attacks: exact answers, errors that untargeted attacks miss, and what stages may do."""

import math
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import rhobust
from rhobust.attacks.attack import ATTACKS, attack, errs, rivals_of
from rhobust.attacks.cascade import CASCADES, STAGES, Cascade
from rhobust.attacks.decaying_steps import DecayingSteps
from rhobust.box import pair
from rhobust.data import digits
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError
from rhobust.evaluation.evaluate import evaluate
from rhobust.evaluation.evaluation import Evaluation
from rhobust.losses import targeted_margin
from rhobust.models.catalog import build_model

LOSS = partial(cross_entropy, reduction="none")


@cache
def honest() -> nn.Module:
    data = digits()
    torch.manual_seed(0)
    model = build_model("mlp", data.train.x.shape[1:], 10)
    rhobust.fit(model, (data.train.x, data.train.y), method="ifgsm", epochs=8, seed=0, bounds=data.bounds)
    return model.eval()


class Decoy(nn.Module):
    """Class 1 draws every untargeted attack toward it and is never ahead; class 2 is ahead at the far end."""

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1)
        return torch.stack([torch.zeros_like(u), -0.5 + 0.49 * u, -8 - 8.2 * u], 1)


@pytest.mark.parametrize("name", ["fgsm", "ifgsm", "pgd", "pgd-margin", "apgd", "apgd-margin"])
def test_untargeted_attacks_miss_what_targeted_ones_find(name: str) -> None:
    x, y = torch.zeros(20, 50), torch.zeros(20, dtype=torch.long)
    torch.manual_seed(0)
    assert not attack(Decoy(), x, y, ATTACKS[name](1.0), loss=LOSS, restarts=3).fooled.any()
    assert attack(Decoy(), x, y, ATTACKS["pgd-t"](1.0), loss=LOSS).fooled.all()
    assert attack(Decoy(), x, y, ATTACKS["apgd-t"](1.0), loss=LOSS).fooled.all()
    found = evaluate(Decoy(), (x, y), epsilons=[0.5, 1.0])
    assert isinstance(found, Evaluation)
    assert (found.error("cascade", 0.5), found.error("cascade", 1.0)) == (0.0, 1.0)
    assert found.grid["cascade"][1.0].stages["untargeted"] == 0.0


@pytest.mark.parametrize(("name", "norm"), [*CASCADES.items(), ("pgd-t", math.inf), ("pgd-t-l2", 2.0)])
def test_linear_models_are_attacked_exactly(name: str, norm: float) -> None:
    """A sample falls if some other class is nearer than epsilon times the dual norm of the difference of weights."""
    torch.manual_seed(0)
    model, epsilons = nn.Linear(8, 5), [0.1, 0.3, 0.6]
    x = torch.randn(200, 8)
    with torch.no_grad():
        output = model(x)
        y = output.argmax(1)
        apart = model.weight[None] - model.weight[y][:, None]  # (B, classes, features)
        size = apart.abs().sum(2) if norm == math.inf else apart.norm(dim=2)
        behind = output[torch.arange(200), y][:, None] - output
        needed = (behind / size).nan_to_num(nan=math.inf).scatter(1, y[:, None], math.inf).amin(1)  # (B,)
    found = evaluate(model, (x, y), attacks=[name], epsilons=epsilons)
    for epsilon in epsilons:
        exact = float((needed < epsilon).double().mean())
        near = float(((needed / epsilon - 1).abs() < 1e-3).double().mean())  # rounding decides
        assert found.error(name, epsilon) == pytest.approx(exact, abs=near + 1e-9)
        assert 0 < exact < 1


def test_linear_models_in_a_box_are_attacked_exactly() -> None:
    torch.manual_seed(0)
    model, epsilon = nn.Linear(6, 3), 0.4
    x = torch.rand(300, 6) * 2 - 1
    with torch.no_grad():
        y = model(x).argmax(1)
        worst = []
        for rival in range(3):
            apart = model.weight[rival] - model.weight[y]  # (B, features)
            zeta = (x + epsilon * apart.sign()).clamp(-1, 1)
            ahead = (zeta * apart).sum(1) + model.bias[rival] - model.bias[y]
            worst.append(torch.where(y == rival, -math.inf, ahead))
        exact = float((torch.stack(worst).amax(0) > 0).double().mean())
    assert evaluate(model, (x, y), bounds=(-1, 1), epsilons=[epsilon]).error("cascade", epsilon) == exact > 0.1


@pytest.mark.parametrize("name", CASCADES)
def test_points_lie_in_ball_and_box_and_stages_only_add(name: str) -> None:
    data, epsilons = digits(), [0.0, 0.3, 0.1, 0.2] if name == "cascade" else [0.0, 1.5, 0.5, 1.0]
    test = data.test[:150]
    found = evaluate(honest(), test, bounds=data.bounds, attacks=[name], epsilons=epsilons, keep=True, checks=False)
    assert isinstance(found, Evaluation)
    errors = []
    for epsilon in sorted(epsilons):
        cell = found.grid[name][epsilon]
        errors.append(cell.error)
        if not epsilon:
            assert cell.error == found.clean
            continue
        zeta = found.examples[name][epsilon]
        away = (zeta - test.x).flatten(1)
        size = away.abs().amax(1) if name == "cascade" else away.norm(dim=1)
        assert (size <= epsilon * (1 + 1e-5)).all()
        lower, upper = pair(data.bounds)
        assert ((zeta >= lower) & (zeta <= upper)).all()
        assert float(errs(honest(), zeta, test.y).double().mean()) == cell.error
        assert list(cell.stages) == list(STAGES)
        assert list(cell.stages.values()) == sorted(cell.stages.values())
        assert (cell.stages["clean"], cell.stages["restarted"]) == (found.clean, cell.error)
    assert errors == sorted(errors)
    assert 0 < errors[0] < errors[-1] < 1
    assert found.forwarded > 1000


def test_it_finds_at_least_what_five_attacks_with_restarts_find() -> None:
    data = digits()
    names = ["pgd", "pgd-margin", "apgd", "apgd-margin", "pgd-t"]
    known: dict[str, Any] = {"bounds": data.bounds, "epsilons": [0.1, 0.2, 0.3], "checks": False}
    ours, alone = evaluate(honest(), data.test, **known), evaluate(honest(), data.test, attacks=names, **known)
    for epsilon in known["epsilons"]:
        assert ours.error("cascade", epsilon) >= alone.error("worst", epsilon) - 1 / len(data.test)
    assert ours.forwarded < alone.forwarded / 4


def test_a_sample_is_counted_at_every_epsilon_above_the_one_at_which_it_fell() -> None:
    data = digits()
    torch.manual_seed(0)
    found = Cascade(honest(), data.test.x[:80], data.test.y[:80], [0.2, 0.1], bounds=data.bounds)
    found.run()
    assert found.epsilons == [0.1, 0.2]
    assert (found.fell(0) <= found.fell(1)).all()
    assert int(found.fell(0).sum()) < int(found.fell(1).sum())
    assert torch.equal(found.at(0.1)[~found.fell(0)], data.test.x[:80][~found.fell(0)])


def test_it_says_what_it_does_and_how_many_samples_stand() -> None:
    data, told = digits(), list[str]()
    evaluate(honest(), data.test[:60], bounds=data.bounds, epsilons=[0.1, 0.2], checks=False, done=told.append)
    assert told[0].startswith("cascade: untargeted at epsilon 0.2, ")
    assert " of 60 samples stand" in told[0]
    assert any("targeted at epsilon 0.1" in message for message in told)


def test_it_is_repeatable_whatever_is_asked_beside_it_and_leaves_the_generator_alone() -> None:
    data, state = digits(), torch.get_rng_state()
    asked: dict[str, Any] = {"bounds": data.bounds, "epsilons": [0.2], "checks": False}
    first = evaluate(honest(), data.test[:100], **asked)
    second = evaluate(honest(), data.test[:100], attacks=["pgd", "cascade"], **asked)
    assert first.grid["cascade"] == second.grid["cascade"]
    assert torch.equal(torch.get_rng_state(), state)


def test_batches_that_do_not_fit_are_halved() -> None:
    class Small(nn.Module):
        def forward(self, x: Tensor) -> Any:
            if len(x) > 30:
                raise torch.OutOfMemoryError("too many")
            return honest()(x)

    data = digits()
    found = evaluate(Small(), data.test[:100], bounds=data.bounds, epsilons=[0.2], checks=False, batch_size=64)
    assert found.error("cascade", 0.2) > found.clean


def test_rivals_are_the_other_classes_in_the_order_of_their_logits() -> None:
    model = nn.Linear(1, 4)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 3.0, 1.0, 2.0]))
    assert rivals_of(model, torch.zeros(2, 1), torch.tensor([1, 3])).tolist() == [[3, 2, 0], [1, 2, 0]]


def test_two_classes_have_one_rival() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(50, 3)
    y = model(x).argmax(1)
    assert evaluate(model, Samples(x, y), epsilons=[1.0]).error("cascade", 1.0) > 0


def test_steps_shorten_to_nothing_and_the_best_point_is_the_answer() -> None:
    """From 0 toward 0.3 in steps of 1, 0.75, 0.5, 0.25: the path overshoots, the answer does not."""
    from rhobust.ascent import Problem, Step
    from rhobust.costs import SquaredL2

    task = Problem(torch.zeros(1, 1), lambda z: -(z[:, 0] - 0.3).abs(), torch.tensor(0.0), SquaredL2())
    ball, step, seen = DecayingSteps(0.5, steps=4), Step(task.z, task.z), []
    for t in range(ball.gradients):
        seen.append(round(float(step.zeta), 4))
        step = ball.move(task, task.at(step.zeta), t, step)
    assert seen == [0.0, 0.5, -0.25, 0.25, 0.5]
    assert float(step.answer) == 0.25


def test_the_targeted_margin_has_the_slope_of_two_logits() -> None:
    output = torch.tensor([[1.0, 4.0, 2.0]], requires_grad=True)
    targeted_margin(output, torch.tensor([1]), torch.tensor([2])).sum().backward()
    assert output.grad is not None
    assert output.grad.tolist() == [[0.0, -1.0, 1.0]]


def test_an_unknown_name_is_answered_with_the_cascades_too() -> None:
    with pytest.raises(ConfigError, match=r"unknown attack in a ball 'cascde' \(did you mean 'cascade'\?\)"):
        evaluate(Decoy(), (torch.zeros(2, 50), torch.zeros(2, dtype=torch.long)), attacks=["cascde"])
