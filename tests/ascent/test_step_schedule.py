"""Ascents of several depths that take turns: a training step has the depth of its number, whoever counts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.ascent import Ball, ErrorAscent, Identity, MarginAscent, Maximizer, Oracle, PenalizedAscent
from rhobust.data.batches import Batch, SampleBatches
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, Refused
from rhobust.gamma_rules import Multiplicative
from rhobust.losses import cross_entropy
from rhobust.method import find_method
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer
from rhobust.runs.config import Config
from rhobust.support.toml import parse_overrides
from rhobust.training.eager import EagerEngine
from rhobust.training.kernel_fusion import _FusedMaximizer
from rhobust.training.loop import Every, train
from rhobust.training.observers import Silent

DEPTHS = (1, 1, 1, 3)
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (X[:, 0] > 0).long()
ALL = Batch(X, Y)


def engine(maximizer: Maximizer, epochs: int = 1) -> EagerEngine:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    objective = RobustObjective(model, cross_entropy, radius=0.1, maximizer=maximizer)
    rule = Multiplicative() if maximizer.penalized else None
    optimizer = ProximalOptimizer(torch.optim.Adam(model.parameters()), objective, gamma_rule=rule)
    return EagerEngine(objective, optimizer, SampleBatches(Samples(X, Y), 8, 0, X.device), epochs)


def theta(trained: EagerEngine) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in trained.objective.parameters()])


CLIMBS: list[Maximizer] = [kind(steps=DEPTHS) for kind in (ErrorAscent, MarginAscent, PenalizedAscent)]


@pytest.mark.parametrize("maximizer", [*CLIMBS, Ball(0.2, steps=DEPTHS)])
def test_it_is_one_maximizer_after_another(maximizer: Maximizer) -> None:
    """Written out: every step with a maximizer of one depth put in place by hand."""
    turning, by_hand = engine(maximizer), engine(maximizer)
    for step in range(10):
        record = turning.take(ALL, step, 0)
        by_hand.objective.maximizer = maximizer.on(0) if step % 4 < 3 else maximizer.on(3)
        assert by_hand.objective.maximizer.gradients == (1 if step % 4 < 3 else 3)
        by_hand.take(ALL, 0, 0)
        assert record.gradients == (1, 1, 1, 3)[step % 4]
    assert torch.equal(theta(turning), theta(by_hand))


def test_a_loop_of_one_s_own_need_not_count() -> None:
    objective = engine(ErrorAscent(steps=DEPTHS)).objective
    assert [objective(X, Y).gradients for _ in range(6)] == [1, 1, 1, 3, 1, 1]


def test_an_interrupted_training_goes_on_with_the_depth_it_stopped_at() -> None:
    straight, first, second = (engine(ErrorAscent(steps=DEPTHS), epochs) for epochs in (3, 1, 3))
    counted = [record.gradients for record in train(straight)]
    done = len(train(first))
    assert done % len(DEPTHS)  # it did stop between two deep ones
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, start=done)
    assert torch.equal(theta(second), theta(straight))
    assert counted == [(1, 1, 1, 3)[step % 4] for step in range(3 * done)]


def test_outside_of_training_the_deepest_counts() -> None:
    turning, deep = engine(Ball(0.2, steps=DEPTHS)).objective, engine(Ball(0.2, steps=3)).objective
    found, expected = turning.maximum(X, Y), deep.maximum(X, Y)
    assert found.gradients == 3
    assert torch.equal(found.zeta, expected.zeta)


@pytest.mark.parametrize(
    ("maximizer", "mean"),
    [(Identity(), 0), (Oracle(max_steps=7), 7), (Ball(0.1, steps=4), 4), (ErrorAscent(steps=DEPTHS), 1.5)],
)
def test_gradients_are_counted_on_average(maximizer: Maximizer, mean: float) -> None:
    assert maximizer.mean_gradients == mean


def test_steps_that_are_alike_share_a_turn() -> None:
    assert [ErrorAscent(steps=(1, 3, 1, 3, 2)).turn(step) for step in range(7)] == [0, 1, 0, 1, 4, 0, 1]


@pytest.mark.parametrize("steps", [(), [], [1, "3"], (1, 0), (1, 2.0), "3", True])
def test_what_is_no_number_of_steps_is_refused(steps: object) -> None:
    with pytest.raises(Refused, match="steps"):
        ErrorAscent(steps=steps)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["steps=1,1,1,3", "steps=[1, 1, 1, 3]", "steps=1, 1,1,3"])
def test_the_command_takes_several_and_a_run_keeps_them(word: str) -> None:
    config = Config.resolve({"method": "spgda", "radius": 1.0}, parse_overrides([word]))
    assert config.make_method().maximizer == ErrorAscent(steps=DEPTHS)
    assert "steps = [1, 1, 1, 3]\n" in config.to_toml()


@pytest.mark.parametrize("word", ["steps=1,x", "steps=", "steps=[]", "steps=1,,3", "steps=[1, true]", "steps=1.5"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="steps must be a whole number, or several that take turns, like 1,1,1,1,3"):
        Config.resolve({"method": "spgda", "radius": 1.0}, parse_overrides([word]))


def test_fit_takes_them() -> None:
    assert find_method("spgda-margin").tuned(steps=list(DEPTHS)).maximizer == MarginAscent(steps=DEPTHS)
    trained = rhobust.fit(
        nn.Linear(3, 2), (X.float(), Y), method="spgda", radius=0.1, epochs=8, steps=DEPTHS, observer=Silent()
    )
    assert [record.gradients for record in trained.history] == [1, 1, 1, 3, 1, 1, 1, 3]


def test_fused_moves_take_the_same_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each depth is compiled once, and steps that are alike share it."""
    monkeypatch.setattr(torch, "compile", lambda move: move)  # who compiles is not the question
    fused = _FusedMaximizer(ErrorAscent(steps=DEPTHS))
    found = [fused.on(step) for step in range(8)]
    assert [one.gradients for one in found] == [1, 1, 1, 3, 1, 1, 1, 3]
    assert len({id(one) for one in found}) == 2
    assert found[0] is found[6]
    assert all(one.classifies for one in found)
    alone = _FusedMaximizer(Oracle())
    assert alone.on(3) is alone


@pytest.mark.parametrize(("every", "looks"), [(1, 10), (3, 10), (4, 10), (5, 8), (8, 5), (10, 4)])
def test_metrics_have_every_turn_equally_often(every: int, looks: int) -> None:
    """Every fourth or eighth step alone would have met the same turn each time."""
    logged = train(engine(ErrorAscent(steps=DEPTHS), 8), every=Every(log=every))  # forty steps
    assert len(logged) == 4 * looks
    assert sorted(record.gradients for record in logged) == sorted(looks * DEPTHS)


def test_a_state_says_whose_turn_it_is() -> None:
    def made() -> rhobust.RobustObjective:
        torch.manual_seed(0)
        return rhobust.RobustObjective(nn.Linear(3, 2), cross_entropy, radius=0.1, maximizer=ErrorAscent(steps=DEPTHS))

    first, second = made(), made()
    x = X.float()
    for _ in range(3):
        first(x, Y)
    second.load_state_dict(first.state_dict())
    assert second(x, Y).gradients == 3
    old = {key: value for key, value in first.state_dict().items() if key != "_extra_state"}
    second.load_state_dict(old)  # of a version that did not keep it
    assert second(x, Y).gradients == 1
