"""Traps in a user's own loop: each is told once, with the fix, and what is right stays silent."""

from __future__ import annotations

import copy
import gc
import linecache
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import optimizer as optimizers

import rhobust
from rhobust.ascent import Ball, PenalizedAscent
from rhobust.training.observers import Silent

CLIP = r"gamma was clipped .*Clip objective\.model\.parameters\(\) instead of objective\.parameters\(\)"
STEP = r"steps gamma as if it were a weight.*model\.parameters\(\) .*rhobust\.ProximalOptimizer\((Adam|SGD)\("
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
Draw = Callable[[], tuple[Tensor, Tensor]]


def draw() -> Draw:
    generator = torch.Generator().manual_seed(0)

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 4, generator=generator)
        return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

    return batch


def build(**how: Any) -> rhobust.RobustObjective:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    return rhobust.RobustObjective(model, CROSS_ENTROPY, **{"radius": 0.5, "maximizer": PenalizedAscent(), **how})


def gradient(theta: Tensor) -> Tensor:
    assert theta.grad is not None
    return theta.grad


def proximal(objective: rhobust.RobustObjective) -> rhobust.ProximalOptimizer:
    return rhobust.ProximalOptimizer(torch.optim.Adam(objective.model.parameters(), lr=0.01), objective)


def loop(
    objective: rhobust.RobustObjective,
    optimizer: torch.optim.Optimizer,
    between: Callable[[], object] = lambda: None,
    steps: int = 60,
    accumulated: int = 1,
) -> float:
    """Gamma at the end."""
    batch = draw()
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulated):
            (objective(*batch()).value / accumulated).backward()
        between()
        optimizer.step()
    return float(objective.gamma.detach())


def plain(steps: int = 60) -> float:
    objective = build()
    return loop(objective, proximal(objective), steps=steps)


# ---------------------------------------------------------------------------------------------------------------------
# Clipping


def test_clipping_gamma_with_the_weights_delays_it_and_is_told_once_at_the_step() -> None:
    objective = build()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        delayed = loop(objective, proximal(objective), lambda: clip_grad_norm_(objective.parameters(), 0.1))
    (one,) = said
    with pytest.warns(UserWarning, match=CLIP):
        warnings.warn_explicit(one.message, UserWarning, one.filename, one.lineno)
    assert linecache.getline(one.filename, one.lineno).strip() == "optimizer.step()"
    assert delayed > 1.5 * plain()


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("highest", [0.03, 1e-3])
def test_clipping_is_told_however_it_is_computed(highest: float, foreach: bool) -> None:
    objective = build()
    with pytest.warns(UserWarning, match=CLIP):
        loop(
            objective, proximal(objective), lambda: clip_grad_norm_(objective.parameters(), highest, foreach=foreach), 5
        )


def test_clipping_is_told_under_a_scaled_loss_and_with_accumulation() -> None:
    objective, batch = build(), draw()
    optimizer, scaler = proximal(objective), torch.amp.GradScaler("cpu")

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            for _ in range(2):
                scaler.scale(objective(*batch()).value / 2).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(objective.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()

    with pytest.warns(UserWarning, match=CLIP):
        steps(5)


def test_the_fix_of_clipping_is_silent_and_gamma_learns_as_without() -> None:
    objective = build()
    fixed = loop(objective, proximal(objective), lambda: clip_grad_norm_(objective.model.parameters(), 0.1))
    assert fixed == pytest.approx(plain(), rel=0.1)


def average(objective: rhobust.RobustObjective, count: int) -> None:
    """A mean of the user's own, as over the parts of a batch."""
    for theta in objective.parameters():
        gradient(theta).div_(count)


SILENT: dict[str, Callable[[rhobust.RobustObjective], object]] = {
    "nothing": lambda objective: None,
    "a norm that is never reached": lambda objective: clip_grad_norm_(objective.parameters(), 1e6),
    "a mean over three parts": lambda objective: average(objective, 3),
    "a mean over another number in each step": lambda objective: average(objective, 2 + objective.turn % 5),
    "gradients read": lambda objective: [float(gradient(theta).norm()) for theta in objective.parameters()],
    "noise on theta": lambda objective: [gradient(theta).add_(0.01) for theta in objective.model.parameters()],
    "gamma's gradient gone": lambda objective: setattr(objective.gamma, "grad", None),
}


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("case", SILENT)
def test_what_does_not_clip_gamma_is_silent(case: str, accumulated: int) -> None:
    objective = build()
    loop(objective, proximal(objective), lambda: SILENT[case](objective), accumulated=accumulated)


@pytest.mark.parametrize("scale", [2.0**16, 1000.0])
def test_a_gradient_scaler_is_silent_and_gamma_is_that_of_the_loop_without(scale: float) -> None:
    objective, batch = build(), draw()
    optimizer, scaler = proximal(objective), torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=7)
    for _ in range(60):
        optimizer.zero_grad()
        scaler.scale(objective(*batch()).value).backward()
        scaler.step(optimizer)
        scaler.update()
    assert float(objective.gamma.detach()) == pytest.approx(plain(), rel=1e-4)


def test_gradients_that_are_kept_as_zeros_are_silent() -> None:
    objective, batch = build(), draw()
    optimizer = proximal(objective)
    for _ in range(5):
        optimizer.zero_grad(set_to_none=False)
        objective(*batch()).value.backward()
        optimizer.step()


def test_a_look_at_gradients_ends_after_a_while() -> None:
    """Each one waits for a device."""
    objective, batch = build(), draw()
    optimizer = proximal(objective)
    for _ in range(150):
        optimizer.zero_grad()
        objective(*batch()).value.backward()
        gradient(objective.gamma).mul_(1.0)
        optimizer.step()
    assert objective.own_loop._looks == 100


# ---------------------------------------------------------------------------------------------------------------------
# Another optimizer's step


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_plain_optimizer_over_gamma_moves_it_by_another_rule_and_is_told_once(kind: Any) -> None:
    objective = build()
    with pytest.warns(UserWarning, match=STEP) as said:
        wrong = loop(objective, kind(objective.parameters(), lr=0.01))
    assert len(said) == 1
    assert linecache.getline(said[0].filename, said[0].lineno).strip() == "optimizer.step()"
    assert abs(wrong - plain()) > 0.2


@pytest.mark.parametrize("which", ["the weights", "idle gamma", "another model"])
def test_a_plain_optimizer_that_does_not_move_gamma_is_silent(which: str) -> None:
    objective = build(maximizer=Ball(0.1)) if which == "idle gamma" else build()
    held = {"the weights": objective.model, "idle gamma": objective, "another model": nn.Linear(1, 1)}[which]
    assert loop(objective, torch.optim.SGD(held.parameters(), lr=0.1)) == 1.0


def test_what_else_sets_gamma_is_silent() -> None:
    objective = build()
    optimizer = proximal(objective)
    loop(objective, optimizer, steps=2)
    kept = copy.deepcopy(objective.state_dict()), copy.deepcopy(optimizer.state_dict())
    loop(objective, optimizer, steps=2)
    objective.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    loop(objective, optimizer, steps=2)
    with torch.no_grad():
        objective.gamma.fill_(2.0)
    objective.double().float()
    loop(objective, optimizer, steps=2)


def test_an_objective_that_is_gone_is_no_longer_watched() -> None:
    before = len(optimizers._global_optimizer_post_hooks)
    objective = build()
    loop(objective, proximal(objective), steps=2)
    assert len(optimizers._global_optimizer_post_hooks) == before + 1
    del objective
    gc.collect()
    assert len(optimizers._global_optimizer_post_hooks) == before


def test_a_copy_is_watched_by_itself() -> None:
    objective = build()
    loop(objective, proximal(objective), steps=2)
    twin = copy.deepcopy(objective)
    loop(objective, proximal(objective), steps=2)
    with pytest.warns(UserWarning, match=STEP):
        loop(twin, torch.optim.SGD(twin.parameters(), lr=0.01), steps=2)


def test_a_training_of_the_library_watches_nothing() -> None:
    before = len(optimizers._global_optimizer_post_hooks)
    data, optimizer = draw()(), torch.optim.Adam((model := build().model).parameters(), lr=0.1)
    trained = rhobust.fit(model, data, method="spgda-loss", radius=0.1, optimizer=optimizer, observer=Silent())
    assert len(optimizers._global_optimizer_post_hooks) == before
    assert trained.objective.gamma._post_accumulate_grad_hooks is None
