"""Auto-PGD beside a slow, literal reference, exact answers, PGD, and somebody else's Auto-PGD."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from rhobust.ascent import Ball, Step, maximize
from rhobust.ascent.inner_problem import Problem
from rhobust.attacks.attack import ATTACKS, Attack, attack, errs
from rhobust.attacks.auto_pgd import AutoPGD, AutoStep, checkpoints
from rhobust.costs import SquaredL2
from rhobust.data import digits
from rhobust.data.samples import Samples
from rhobust.evaluation.evaluate import evaluate
from rhobust.evaluation.referee import attack_by, find_suite
from rhobust.losses import margin, scaled_margin
from rhobust.models.catalog import mlp

LOSS = partial(cross_entropy, reduction="none")
BOUNDS = (-1.0, 1.0)


def climb(loss: Callable[[Tensor], Tensor], z: Tensor, bounds: tuple[float, float] | None = BOUNDS) -> Problem:
    return Problem(z, loss, torch.tensor(0.0), SquaredL2(), bounds)


def wavy(seed: int = 0, count: int = 40) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A loss that is easy to climb for some samples and jagged for others, and where they are."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(count, 5, generator=generator, dtype=torch.double)
    pitch = torch.logspace(-1, 1.5, count, dtype=torch.double)[:, None]
    z = torch.rand(count, 5, generator=generator, dtype=torch.double) * 2 - 1
    return lambda zeta: ((pitch * zeta).sin() * weight + 0.05 * weight * zeta).sum(1), z


class Reference:
    """Algorithm 1 for one sample and the l_inf ball, a line of the paper at a time, in plain floats and lists."""

    def __init__(self, f: Callable[[Tensor], Tensor], z: Tensor, start: Tensor, way: AutoPGD) -> None:
        self.f, self.low, self.high = f, (z - way.epsilon).clamp_min(-1), (z + way.epsilon).clamp_max(1)
        eta, steps, w = way.step_size or 2 * way.epsilon, way.count, self.marks(way.count)
        self.x = [start]
        self.values = [self.value(start)]
        self.etas = [eta]  # the one that leads away from x[k]
        best = [self.values[0]]  # f_max once x[k] is known
        self.top = start
        for k in range(steps + 1):
            x = self.x[k]
            if k > 0:
                self.values.append(self.value(x))
                best.append(max(best[-1], self.values[k]))
                if self.values[k] > best[-2]:
                    self.top = x
                self.etas.append(eta)
            if k == steps:
                break
            z_next = self.project(x + eta * self.slope(x).sign())  # line 7
            ahead = z_next  # line 2
            if k > 0:
                ahead = self.project(x + 0.75 * (z_next - x) + 0.25 * (x - self.x[k - 1]))  # line 8
            if k in w[1:]:  # line 13
                since = w[w.index(k) - 1]
                rises = sum(self.values[i + 1] > self.values[i] for i in range(since, k))
                if rises < 0.75 * (k - since) or (self.etas[since] == self.etas[k] and best[since] == best[k]):
                    eta, ahead = eta / 2, self.top
            self.x.append(ahead)

    @staticmethod
    def marks(steps: int) -> list[int]:
        p = [0.0, 0.22]
        while p[-1] <= 1:
            p.append(p[-1] + max(p[-1] - p[-2] - 0.03, 0.06))
        return [math.ceil(round(part * steps, 6)) for part in p[:-1]]

    def project(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, self.low), self.high)

    def value(self, x: Tensor) -> float:
        return float(self.f(x))

    def slope(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_(True)
        return torch.autograd.grad(self.f(x), x)[0]


def walked(task: Problem, way: AutoPGD, start: Tensor) -> list[AutoStep]:
    """What is remembered after every step."""
    step, steps = Step(start, start), []
    for t in range(way.gradients):
        step = way.move(task, task.at(step.zeta), t, step)
        assert isinstance(step, AutoStep)
        steps.append(step)
    return steps


@pytest.mark.parametrize("steps", [25, 50, 100])
@pytest.mark.parametrize("first", [None, 0.02])  # with short steps the samples differ more
def test_every_sample_walks_and_halves_as_the_literal_reference_does(steps: int, first: float | None) -> None:
    loss, z = wavy()
    way = AutoPGD(0.7, steps=steps, step_size=first, random_start=True)
    torch.manual_seed(1)
    task = climb(loss, z)
    start = way.start(task)
    found = walked(task, way, start)
    sizes = torch.stack([step.size for step in found])  # (steps + 1, B)
    patterns = set()
    for i in range(len(z)):

        def alone(x: Tensor, i: int = i) -> Tensor:
            return loss(x.expand(len(z), -1))[i]

        slow = Reference(alone, z[i], start[i], way)
        # What a step leaves behind is the eta of the next one, and where that one sets out from.
        torch.testing.assert_close(torch.stack([step.zeta[i] for step in found[:-1]]), torch.stack(slow.x[1:]))
        assert sizes[:-1, i].tolist() == pytest.approx(slow.etas[1:], rel=1e-15)
        torch.testing.assert_close(found[-1].answer[i], slow.top)
        patterns.add(tuple(t for t in range(1, steps) if sizes[t, i] < sizes[t - 1, i]))
    assert set().union(*patterns) <= set(checkpoints(steps))
    assert len(patterns) > (2 if first is None else 6)  # the samples did decide for themselves


def test_the_step_is_halved_only_where_it_does_not_pay() -> None:
    """By hand: a line is climbed for as long as there is room, and a constant never rises."""
    z = torch.zeros(3, 1, dtype=torch.double)
    # Up without end (a step of 1e-3 never comes near the border); flat; up to the border at once, then stuck there.
    slope = torch.tensor([1.0, 0.0, 1.0], dtype=torch.double)
    task = climb(lambda zeta: slope * zeta[:, 0], z, None)
    small = walked(task, AutoPGD(10.0, steps=100, step_size=1e-3), z)
    large = walked(task, AutoPGD(10.0, steps=100), z)
    halvings = [[round(math.log2(a[0].size[i] / a[-1].size[i])) for a in (small, large)] for i in range(3)]
    assert halvings == [[0, 8], [8, 8], [0, 8]]
    assert large[-1].answer.tolist() == [[10.0], [0.0], [10.0]]


def test_neither_a_new_best_nor_a_new_step_since_the_last_checkpoint_halves_it() -> None:
    """Condition 2 alone: the loss falls at once and then climbs without ever coming back to where it began."""
    z = torch.zeros(1, 1, dtype=torch.double)

    def loss(zeta: Tensor) -> Tensor:
        return torch.where(zeta[:, 0] == 0, 100 + zeta[:, 0], zeta[:, 0])

    found = walked(climb(loss, z, None), AutoPGD(10.0, steps=100, step_size=1e-3), z)
    halved = [t for t in range(1, 101) if found[t].size < found[t - 1].size]
    assert int(found[21].rises) == 20  # enough of them
    # Halved, and back at the start; the next checkpoint may not hold that against it, the one after may.
    assert halved[:2] == [22, 57]
    assert float(found[-1].answer) == 0.0


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 40, 101])
def test_checkpoints_are_the_paper_s_and_few_steps_have_fewer(steps: int) -> None:
    assert checkpoints(steps) == sorted(set(Reference.marks(steps)))


@pytest.mark.parametrize("norm", [math.inf, 2])
@pytest.mark.parametrize("steps", [1, 3, 30])
def test_a_linear_model_meets_its_exact_worst_case(steps: int, norm: float) -> None:
    """Two classes: the margin less epsilon times the dual norm of the weights' difference."""
    torch.manual_seed(0)
    model = nn.Linear(6, 2).double()
    x = torch.rand(200, 6, dtype=torch.double) - 0.5
    with torch.no_grad():
        y = model(x).argmax(1)
        weight = model.weight[1] - model.weight[0]
        worst = -margin(model(x), y) - 0.1 * weight.norm(p=1 if norm == math.inf else 2)
    for climbs in (LOSS, scaled_margin):
        way = AutoPGD(0.1, norm, steps=steps, random_start=True)
        found = maximize(climb(lambda zeta, climbs=climbs: climbs(model(zeta), y), x, None), way).zeta  # type: ignore[misc]
        with torch.no_grad():
            reached = -margin(model(found), y)
        # In l_inf the first step, across the ball, ends in the worst corner; in l_2 on the border, a bit beside it.
        exact = 1e-12 if norm == math.inf else {1: 0.05, 3: 1e-2, 30: 1e-6}[steps]
        assert (reached >= worst - 1e-12).all()
        assert (reached <= worst + exact).all()
        result = attack(model, x, y, Attack(way, climbs), loss=LOSS)
        if norm == math.inf:
            assert torch.equal(result.fooled, worst < 0)
        assert 20 < int(result.fooled.sum()) < 180


@cache
def model_of_digits(seed: int, epsilon: float) -> tuple[nn.Module, Samples]:
    """A small net trained on the digits, with signed steps of epsilon."""
    data = digits()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = mlp(data.train.x.shape[1:], 10)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for _ in range(15):
            for part in torch.randperm(len(data.train)).split(128):
                x, y = data.train.x[part].requires_grad_(True), data.train.y[part]
                (slope,) = torch.autograd.grad(cross_entropy(model(x), y), x)
                optimizer.zero_grad()
                cross_entropy(model((x.detach() + epsilon * slope.sign()).clamp(*BOUNDS)), y).backward()
                optimizer.step()
    return model.eval(), data.test


def error(model: nn.Module, samples: Samples, way: Attack, seed: int = 0) -> float:
    torch.manual_seed(seed)
    return float(attack(model, samples.x, samples.y, way, loss=LOSS, bounds=BOUNDS).fooled.double().mean())


MODELS = [(0, 0.0, 0.15), (0, 0.2, 0.3), (1, 0.0, 0.2), (1, 0.2, 0.4)]
"""Seed, epsilon trained with, epsilon attacked with."""


@pytest.mark.parametrize(("seed", "trained", "epsilon"), MODELS)
def test_it_finds_at_least_what_pgd_finds_with_as_many_gradients(seed: int, trained: float, epsilon: float) -> None:
    """Two of the 360 samples is the slack: starts are random."""
    model, test = model_of_digits(seed, trained)
    auto, steps = ATTACKS["apgd"](epsilon), 101
    assert auto.ball.gradients == steps
    plain = Attack(Ball(epsilon, steps=steps, step_size=2.5 * epsilon / steps, random_start=True))
    found, known = error(model, test, auto), error(model, test, plain)
    assert 0.1 < known < 0.9
    assert found >= known - 2 / len(test)


@pytest.mark.parametrize(("seed", "trained", "epsilon"), MODELS[:2])
@pytest.mark.parametrize(("name", "theirs"), [("apgd", "apgd-ce"), ("apgd-t", "apgd-t")])
def test_it_finds_what_somebody_else_s_finds(seed: int, trained: float, epsilon: float, name: str, theirs: str) -> None:
    """Within a point, on the average of three random starts: one alone is off by up to a point by itself."""
    model, test = model_of_digits(seed, trained)

    def referee(seed: int) -> float:
        suite = find_suite(model, test, Ball(epsilon), BOUNDS)
        alone = replace(suite, attacks={theirs: suite.attacks[theirs]})
        return attack_by(alone, model, test, Ball(epsilon), BOUNDS, seed)[1][theirs]

    known = fmean(referee(seed) for seed in range(3))
    assert 0.1 < known < 0.9
    assert fmean(error(model, test, ATTACKS[name](epsilon), seed) for seed in range(3)) >= known - 0.01


@pytest.mark.parametrize("name", ["apgd", "apgd-margin", "apgd-l2"])
def test_a_sample_stays_where_the_model_first_errs_and_else_where_the_loss_was_highest(name: str) -> None:
    """The reference never stops, for nobody, and looks at every point."""
    model, test = model_of_digits(0, 0.2)
    right = ~errs(model, test.x, test.y)
    x, y = test.x[right], test.y[right]
    way = ATTACKS[name](2.0 if name == "apgd-l2" else 0.2)
    torch.manual_seed(3)
    result = attack(model, x, y, way, loss=LOSS, bounds=BOUNDS)
    torch.manual_seed(3)
    task = climb(lambda zeta: (way.climbs or LOSS)(model(zeta), y), x)
    start = way.ball.start(task)
    steps = walked(task, way.ball, start)  # type: ignore[arg-type]
    seen = torch.stack([start] + [step.zeta for step in steps[:-1]])  # (T, B, ...)
    with torch.no_grad():
        wrong = torch.stack([errs(model, zeta, y) for zeta in seen])
        losses = torch.stack([task.loss(zeta) for zeta in seen])
    torch.testing.assert_close(steps[-1].best, losses.amax(0), rtol=1e-4, atol=1e-5)
    fooled = wrong.any(0)
    assert 0 < int(fooled.sum()) < len(x)
    chosen = torch.where(fooled, wrong.int().argmax(0), losses.argmax(0))  # the first that is wrong; the best
    assert torch.equal(result.fooled, fooled)
    expected = seen[chosen, torch.arange(len(x))]
    # Batches of another size round otherwise, and a rounded sign is another way: nearly all walk the same.
    same = ((result.zeta - expected).abs().flatten(1).amax(1) < 1e-5).double().mean()
    assert same >= 0.97


def test_the_scaled_margin_is_that_of_the_paper_and_falls_back_for_two_classes() -> None:
    torch.manual_seed(0)
    logits, y = torch.randn(50, 7, dtype=torch.double), torch.randint(7, (50,))
    for row, label, found in zip(logits.tolist(), y.tolist(), scaled_margin(logits, y).tolist(), strict=True):
        ranked = sorted(row, reverse=True)
        other = max(value for place, value in enumerate(row) if place != label)
        assert found == pytest.approx((other - row[label]) / (ranked[0] - ranked[2]))
    three, two, label = logits[:, :3], logits[:, :2], y % 2
    assert torch.equal(scaled_margin(two, label), margin(two, label))
    spread = three.amax(1) - three.amin(1)
    assert torch.equal(scaled_margin(three, label), margin(three, label) / spread)
    level = torch.zeros(1, 5, requires_grad=True)
    scaled_margin(level, torch.tensor([1])).sum().backward()
    assert level.grad is not None
    assert level.grad[0, 1] == -1  # three equal logits: no division by nothing


def test_it_is_repeatable_and_counts_among_the_worst() -> None:
    model, test = model_of_digits(0, 0.2)
    some = test[:100]
    names = ["ifgsm", "apgd", "apgd-margin"]
    first, again = (
        evaluate(model, some, loss=LOSS, bounds=BOUNDS, attacks=names, epsilons=[0.3], seed=5, checks=False)
        for _ in range(2)
    )
    assert first == again
    assert first.error("worst", 0.3) >= max(first.error(name, 0.3) for name in names)
    torch.manual_seed(5)
    one = attack(model, some.x, some.y, ATTACKS["apgd"](0.3), loss=LOSS, bounds=BOUNDS)
    torch.manual_seed(6)
    other = attack(model, some.x, some.y, ATTACKS["apgd"](0.3), loss=LOSS, bounds=BOUNDS)
    assert float(one.fooled.double().mean()) == first.error("apgd", 0.3)
    assert not torch.equal(one.zeta, other.zeta)


class ReadBack(TorchDispatchMode):
    """Counts what would make a device wait: values read back, and shapes that depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name.startswith("index") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool
            for part in args[1:2]
            for index in (part if isinstance(part, list | tuple) else [])
        )
        self.count += masked or name in ("nonzero", "_local_scalar_dense", "masked_select", "equal")
        return func(*args, **(kwargs or {}))


def test_a_step_reads_back_no_more_than_one_of_pgd() -> None:
    model, test = model_of_digits(0, 0.2)
    some = test[:50]
    right = ~errs(model, some.x, some.y)
    counts = {}
    for name, ball in (("pgd", Ball), ("apgd", AutoPGD)):
        for gradients in (11, 31):
            way = Attack(ball(1e-3, steps=gradients - (ball is AutoPGD)))  # too small a ball to fool anybody
            with ReadBack() as read:
                attack(model, some.x[right], some.y[right], way, loss=LOSS, bounds=BOUNDS)
            counts[name, gradients] = read.count
    assert counts["apgd", 31] - counts["apgd", 11] == counts["pgd", 31] - counts["pgd", 11] == 20
