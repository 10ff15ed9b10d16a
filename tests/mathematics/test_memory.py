"""Memory: the ascents of descent-ascent go on from where they were left."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rhobust
from rhobust.ascent import Ball, Identity, MarginAscent, Maximizer, Oracle, PenalizedAscent, maximize
from rhobust.costs import SquaredL2
from rhobust.data.batches import Batches, LoaderBatches, SampleBatches
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, Refused
from rhobust.gamma_rules import FixedGamma
from rhobust.losses import cross_entropy
from rhobust.memory import Memory
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer
from rhobust.runs.config import Config
from rhobust.training.compose import central_engine
from rhobust.training.eager import EagerEngine
from rhobust.training.loop import train

DRAWS = torch.Generator().manual_seed(0)
X = torch.randn(10, 3, generator=DRAWS)
Y = X @ torch.tensor([1.0, -0.5, 0.2]) + 0.3 * torch.randn(10, generator=DRAWS)
CPU = torch.device("cpu")
ETA, GAMMA, RATE = 0.05, 2.0, 0.1
ASCENT = PenalizedAscent(eta=ETA)


def squared(output: Tensor, y: Tensor) -> Tensor:
    return (output[:, 0] - y).square()


def engine(
    epochs: int,
    memory: float | None,
    maximizer: Maximizer = ASCENT,
    batches: Batches | None = None,
    *,
    rate: float = RATE,
    gamma: float = GAMMA,
) -> EagerEngine:
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 0.4)
    objective = RobustObjective(model, squared, radius=0.5, maximizer=maximizer, gamma=gamma)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    proximal = ProximalOptimizer(optimizer, objective, gamma_rule=FixedGamma())
    batches = batches or SampleBatches(Samples(X, Y), 4, 0, CPU)
    made = central_engine(objective, proximal, batches, epochs, memory=memory)
    assert isinstance(made, EagerEngine)
    return made


def weight(made: EagerEngine) -> Tensor:
    return made.objective.model.get_parameter("weight").detach()


def literally(epochs: int, decay: float) -> tuple[Tensor, Tensor]:
    """Descent-ascent with a zeta of its own for every sample, written out."""
    theta, moves = torch.full((3,), 0.4), torch.zeros(10, 3)
    for epoch in range(epochs):
        for x, y, at, _ in SampleBatches(Samples(X, Y), 4, 0, CPU).epoch(epoch):
            assert at is not None
            move = decay * moves[at]
            away = (x + move) @ theta - y
            move = move + ETA * (2 * away[:, None] * theta - 2 * GAMMA * move)
            away = (x + move) @ theta - y
            theta = theta - RATE * (2 * away[:, None] * (x + move)).mean(0)
            moves[at] = move.half().float()  # as it is kept
    return theta, moves


@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_it_is_descent_ascent_written_out(decay: float) -> None:
    made = engine(7, decay)
    train(made)
    theta, moves = literally(7, decay)
    assert made.memory is not None
    torch.testing.assert_close(weight(made)[0], theta, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(made.memory.moves.float(), moves, rtol=2e-3, atol=1e-5)


def test_with_theta_at_rest_one_step_an_epoch_arrives_at_the_sup() -> None:
    """sup over d of (a + theta.d)^2 - gamma ||d||^2 is at d = a theta / (gamma - ||theta||^2)."""
    made = engine(200, 1.0, rate=0.0)
    train(made)
    theta = torch.full((3,), 0.4)
    exact = (X @ theta - Y)[:, None] * theta / (GAMMA - theta.square().sum())
    assert made.memory is not None
    torch.testing.assert_close(made.memory.moves.float(), exact, rtol=5e-3, atol=1e-3)
    alone = train(engine(200, None, rate=0.0))
    reached = 2 * ETA * (X @ theta - Y)[:, None] * theta  # one step from z, however often it is taken
    assert alone[-1].rho_eff < 0.1 * float(exact.square().sum(1).mean())
    assert reached.norm() < 0.5 * exact.norm()


@pytest.mark.parametrize(("memory", "sees"), [(None, False), (1.0, True)])
def test_with_memory_the_printed_step_sees_gamma(memory: float | None, sees: bool) -> None:
    """grad c vanishes at zeta = z, where an ascent without memory always is."""
    paths = []
    for gamma in (1.0, 4.0):
        made = engine(3, memory, gamma=gamma)
        train(made)
        paths.append(weight(made).clone())
    assert torch.equal(*paths) != sees


def test_a_checkpoint_keeps_the_memory_to_the_bit() -> None:
    straight, first, second = engine(6, 0.9), engine(2, 0.9), engine(6, 0.9)
    train(straight)
    train(first)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, start=2 * 3)
    assert torch.equal(weight(second), weight(straight))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_ascent_that_goes_on_goes_less_far(steps: int) -> None:
    """A linear loss has one target, g / (2 gamma) away from z: steps go 1/2, 1/sqrt(5), ... of the way there."""
    model = nn.Linear(3, 1)
    objective = RobustObjective(
        model, lambda output, y: output[:, 0], radius=0.5, maximizer=PenalizedAscent(steps=steps), gamma=GAMMA
    )
    target = model.weight.detach() / (2 * GAMMA)
    move = torch.linspace(-1, 1, X.numel()).reshape(X.shape)
    found = objective(X, Y, move)
    for t in range(steps):
        move = move + (target - move) / (4 + t) ** 0.5
    torch.testing.assert_close(found.zeta - X, move, rtol=1e-5, atol=1e-6)
    anew = objective(X, Y).zeta - X  # its first step goes the whole way
    torch.testing.assert_close(anew, target.expand_as(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("maximizer", [Ball(0.2, steps=3), Oracle(max_steps=4)], ids=lambda made: type(made).__name__)
def test_who_has_other_steps_takes_those_from_there(maximizer: Maximizer) -> None:
    """A ball has steps of one length, and an oracle searches its own."""
    objective = RobustObjective(nn.Linear(3, 1), squared, radius=0.5, maximizer=maximizer, gamma=GAMMA)
    begun = torch.linspace(-0.1, 0.1, X.numel()).reshape(X.shape)
    found = maximize(objective.problem(X, Y), maximizer, X + begun)
    assert torch.equal(objective(X, Y, begun).zeta, found.zeta)


def test_one_step_an_epoch_that_goes_half_the_way_arrives_where_many_do() -> None:
    """With theta at rest, margin ascent with a memory has the exact sup of a linear binary model, as it is kept."""
    torch.manual_seed(0)
    model, y = nn.Linear(3, 2), (Y > 0).long()
    objective = RobustObjective(model, cross_entropy, radius=0.5, maximizer=MarginAscent(), gamma=0.3)
    memory, every = Memory(X, 1.0), torch.arange(len(X))
    for _ in range(15):
        found = objective(X, y, memory.recall(every))
        memory.keep(every, found.center, found.zeta)
    torch.testing.assert_close(memory.recall(every), objective(X, y).zeta - X, rtol=3e-3, atol=1e-3)


def test_where_an_ascent_begins_is_in_the_box_and_the_margin_is_extended_back() -> None:
    """For a linear model the target of a margin step does not depend on where it begins."""
    torch.manual_seed(0)
    objective = RobustObjective(
        nn.Linear(3, 2), cross_entropy, radius=0.5, maximizer=MarginAscent(), gamma=0.1, bounds=(-3.0, 3.0)
    )
    y = (Y > 0).long()
    one, other = objective(X.clamp(-3, 3), y), objective(X.clamp(-3, 3), y, torch.full_like(X, 9.0))
    assert other.zeta.abs().max() <= 3
    assert torch.equal(other.center, X.clamp(-3, 3))
    begun = (X.clamp(-3, 3) + 9.0).clamp(-3, 3)
    torch.testing.assert_close((one.zeta + begun) / 2, other.zeta, rtol=1e-3, atol=1e-3)


def test_where_labels_may_flip_every_label_begins_there() -> None:
    """A linear model has the same slope everywhere, and the printed step adds it to where it begins."""
    torch.manual_seed(0)
    model, y = nn.Linear(3, 2), (Y > 0).long()

    def margin(output: Tensor, labels: Tensor) -> Tensor:
        return (output * (1 - 2 * nn.functional.one_hot(labels, 2))).sum(1)

    objective = RobustObjective(
        model, margin, radius=0.5, cost=SquaredL2(kappa=0.1), maximizer=PenalizedAscent(eta=ETA), gamma=GAMMA
    )
    start = torch.full_like(X, 0.3)
    one, other = objective(X, y), objective(X, y, start)
    same = one.labels == other.labels
    assert same.any()
    expected = one.zeta - X + start * (1 - 2 * ETA * GAMMA)
    torch.testing.assert_close((other.zeta - X)[same], expected[same], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 1.1, float("nan")])
def test_a_decay_that_is_none_is_refused(decay: float) -> None:
    with pytest.raises(Refused, match="memory, the decay of remembered ascents, must be above 0 and at most 1"):
        Memory(X, decay)
    with pytest.raises(ConfigError, match="memory, the decay of remembered ascents, must be above 0 and at most 1"):
        Config.resolve({"method": "spgda", "radius": 2.0, "memory": decay})


def test_who_cannot_remember_says_so() -> None:
    loader = LoaderBatches(DataLoader(TensorDataset(X, Y), 4), CPU)
    with pytest.raises(Refused, match="loaders and Datasets do not say which samples come"):
        engine(1, 0.9, batches=loader)
    with pytest.raises(Refused, match="does not move the samples"):
        engine(1, 0.9, Identity())
    with pytest.raises(ConfigError, match="keep no memory of their ascents"):
        Config.resolve({"method": "drfl", "radius": 2.0, "rounds": 5, "memory": 0.9})
    with pytest.raises(ConfigError) as caught:
        Config.resolve({"method": "erm", "memory": 0.9})
    assert caught.value.problems == ["method 'erm' does not move the samples: drop memory"]
    with pytest.raises(ConfigError, match="memory and random_start both say where an ascent begins"):
        Config.resolve({"method": "ifgsm", "epsilon": 0.1, "random_start": True, "memory": 0.9})


@pytest.mark.parametrize("start", [torch.zeros(9, 3), Memory(X, 1.0), 0.1])
def test_a_start_that_is_not_a_move_for_each_sample_is_refused(start: Any) -> None:
    objective = RobustObjective(nn.Linear(3, 1), squared, radius=0.5)
    with pytest.raises(Refused, match=r"start must be a tensor like x, \(10, 3\), one move for each sample, not"):
        objective(X, Y, start)


def test_fit_and_the_command_pass_it_on() -> None:
    y = (Y > 0).long()
    found = []
    for memory in (None, 0.9):
        torch.manual_seed(0)
        trained = rhobust.fit(nn.Linear(3, 2), (X, y), method="spgda-loss", radius=0.1, epochs=3, memory=memory)
        found.append(trained.objective.model.get_parameter("weight").detach())
    assert not torch.equal(*found)
    assert Config.resolve({"method": "spgda", "radius": 2.0, "memory": 0.9}).memory == 0.9


def test_it_is_recalled_in_the_precision_of_the_data() -> None:
    memory = Memory(torch.zeros(2, 2, dtype=torch.float64), 1.0)
    memory.keep(
        torch.tensor([1]), torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1.5, 0.5]], dtype=torch.float64)
    )
    recalled = memory.recall(torch.tensor([1, 0]))
    assert recalled.dtype == torch.float64
    assert recalled.tolist() == [[0.5, -0.5], [0.0, 0.0]]


def test_a_move_beyond_half_precision_is_kept_as_far_as_that_goes() -> None:
    memory = Memory(torch.zeros(1, 2), 1.0)
    memory.keep(torch.tensor([0]), torch.zeros(1, 2), torch.tensor([[1e6, -1e6]]))
    assert memory.recall(torch.tensor([0])).tolist() == [[65504.0, -65504.0]]


def test_a_start_that_is_no_number_is_refused() -> None:
    objective = rhobust.RobustObjective(nn.Linear(3, 2), cross_entropy, radius=0.1)
    with pytest.raises(Refused, match="start holds NaN or infinite moves"):
        objective(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), torch.full((2, 3), float("nan")))
