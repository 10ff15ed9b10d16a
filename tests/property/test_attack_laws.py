"""Laws of attacks: nothing leaves its ball or box, the worst is at least each, curves of the worst never fall."""

import math
from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rhobust.ascent import Ball, Problem, maximize
from rhobust.attacks.attack import ATTACKS, Attack, attack, errs
from rhobust.attacks.auto_pgd import AutoPGD
from rhobust.attacks.square import random_squares
from rhobust.costs import SquaredL2
from rhobust.data.samples import Samples
from rhobust.evaluation.evaluate import evaluate

LOSS = partial(cross_entropy, reduction="none")
law = settings(deadline=None, derandomize=True, max_examples=30)


@st.composite
def problems(draw: st.DrawFn) -> tuple[nn.Sequential, Tensor, Tensor, tuple[float, float]]:
    """A small random net on images or vectors in a random box, labeled mostly by itself."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    shape = draw(st.sampled_from([(5,), (1, 4, 4), (3, 2, 5)]))
    low = draw(st.floats(-3, 3))
    bounds = (low, low + draw(st.floats(0.1, 4)))
    scale = draw(st.sampled_from([0.1, 1.0, 50.0]))
    features = math.prod(shape)
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        model.get_parameter("3.weight").mul_(scale)
        x = bounds[0] + (bounds[1] - bounds[0]) * torch.rand(12, *shape)
        x = x.clamp(*bounds)
        y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 3
    return model, x, y, bounds


@law
@given(problems(), st.sampled_from(sorted(ATTACKS)), st.floats(1e-3, 2), st.integers(1, 3))
def test_no_result_leaves_its_ball_or_box(
    problem: tuple[nn.Module, Tensor, Tensor, tuple[float, float]], name: str, epsilon: float, restarts: int
) -> None:
    model, x, y, bounds = problem
    result = attack(model, x, y, ATTACKS[name](epsilon), loss=LOSS, bounds=bounds, restarts=restarts)
    away = (result.zeta - x).flatten(1)
    size = away.norm(dim=1) if name.endswith("-l2") else away.abs().amax(1)
    assert (size <= epsilon + 1e-5).all()
    assert ((result.zeta >= bounds[0]) & (result.zeta <= bounds[1])).all()
    assert torch.equal(result.fooled, errs(model, result.zeta, y))
    assert result.discarded == 0


@law
@given(problems(), st.lists(st.sampled_from(sorted(ATTACKS)), min_size=1, max_size=4, unique=True), st.data())
def test_the_worst_is_at_least_each_and_never_falls(
    problem: tuple[nn.Module, Tensor, Tensor, tuple[float, float]], names: list[str], data: st.DataObject
) -> None:
    model, x, y, bounds = problem
    grid = data.draw(st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0]), min_size=1, max_size=4, unique=True))
    found = evaluate(model, Samples(x, y), loss=LOSS, bounds=bounds, attacks=names, epsilons=grid)
    for worst, alike in (
        ("worst", [name for name in names if not name.endswith("-l2")]),
        ("worst-l2", [name for name in names if name.endswith("-l2")]),
    ):
        if not alike:
            continue
        curve = [found.error(worst, epsilon) for epsilon in sorted(grid)]
        assert curve == sorted(curve)
        assert curve[0] >= found.clean
        for name in alike:
            assert all(found.error(worst, epsilon) >= found.error(name, epsilon) for epsilon in grid)


@law
@given(problems(), st.floats(1e-3, 1), st.integers(1, 30))
def test_random_search_stays_in_ball_and_box_and_never_does_less_harm_than_its_start(
    problem: tuple[nn.Module, Tensor, Tensor, tuple[float, float]], epsilon: float, queries: int
) -> None:
    model, x, _, bounds = problem
    seen: list[Tensor] = []

    def harm(zeta: Tensor, chosen: Tensor) -> Tensor:
        with torch.no_grad():
            found = model(zeta)[:, 0] - 100  # never above zero, so nobody stops early
        assert torch.equal(chosen, torch.arange(len(x)))
        seen.append(found)
        return found

    zeta = random_squares(harm, x, epsilon, queries, bounds)
    assert len(seen) == queries
    with torch.no_grad():
        assert torch.allclose(model(zeta)[:, 0] - 100, torch.stack(seen).amax(0), atol=1e-4)
    assert (zeta - x).abs().max() <= epsilon + 1e-6
    assert ((zeta >= bounds[0]) & (zeta <= bounds[1])).all()


@law
@given(problems(), st.floats(1e-3, 1), st.integers(1, 30), st.sampled_from([2, math.inf]))
def test_auto_pgd_answers_with_the_best_point_it_saw_and_none_it_saw_left_ball_or_box(
    problem: tuple[nn.Module, Tensor, Tensor, tuple[float, float]], epsilon: float, steps: int, norm: float
) -> None:
    model, x, y, bounds = problem
    seen: list[tuple[Tensor, Tensor]] = []

    def loss(zeta: Tensor) -> Tensor:
        found = LOSS(model(zeta), y)
        seen.append((zeta.detach(), found.detach()))
        return found

    way = AutoPGD(epsilon, norm, steps=steps, random_start=True)
    found = maximize(Problem(x, loss, torch.tensor(0.0), SquaredL2(), bounds), way)
    points, losses = (torch.stack(part) for part in zip(*seen, strict=True))  # (steps + 1, B, ...), (steps + 1, B)
    assert found.gradients == len(seen) == steps + 1
    assert torch.equal(found.zeta, points[losses.argmax(0), torch.arange(len(x))])
    away = (points - x).flatten(2)
    size = away.norm(dim=2) if norm == 2 else away.abs().amax(2)
    assert (size <= epsilon + 1e-5).all()
    assert ((points >= bounds[0]) & (points <= bounds[1])).all()


@law
@given(problems(), st.floats(1e-2, 1), st.integers(-8, 8), st.integers(0, 100))
def test_up_the_scaled_margin_the_scale_of_the_logits_changes_nothing(
    problem: tuple[nn.Sequential, Tensor, Tensor, tuple[float, float]], epsilon: float, power: int, seed: int
) -> None:
    """To the bit, for powers of two."""
    model, x, y, bounds = problem
    found = []
    for scale in (1.0, 2.0**power):
        with torch.no_grad():
            for weight in model[-1].parameters():
                weight.mul_(scale)
        torch.manual_seed(seed)
        found.append(attack(model, x, y, ATTACKS["apgd-margin"](epsilon), loss=LOSS, bounds=bounds))
    assert torch.equal(found[0].zeta, found[1].zeta)
    assert torch.equal(found[0].fooled, found[1].fooled)


@law
@given(problems(), st.sampled_from([Ball, AutoPGD]), st.integers(2, 4))
def test_every_restart_begins_somewhere_else(
    problem: tuple[nn.Module, Tensor, Tensor, tuple[float, float]], kind: type[Ball], restarts: int
) -> None:
    model, x, y, _ = problem
    starts = []

    class Seen(kind):  # type: ignore[valid-type, misc]
        def start(self, problem: Problem) -> Tensor:
            starts.append(super().start(problem))
            return starts[-1]

    before = torch.get_rng_state()
    attack(model, x, y, Attack(Seen(1e-4, random_start=True)), loss=LOSS, restarts=restarts)
    assert torch.equal(torch.get_rng_state(), before)
    assert len({tuple(start.flatten().tolist()) for start in starts}) == len(starts)
