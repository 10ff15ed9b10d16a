"""BatchNorm: what each way computes, bit for bit, and that one remark says what is beyond the theory."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.ascent import Ball, Identity, Maximizer, Oracle, PenalizedAscent
from rhobust.losses import cross_entropy
from rhobust.models.resnet import resnet

REMARK = "running statistics of the BatchNorm layers.*outside the theory.*batch_norm='frozen'.*to_group_norm"
X = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
Y = torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))
SILENT = pytest.mark.filterwarnings("ignore:the ascent uses the running statistics")


def network(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return resnet(torch.Size([1, 8, 8]), 3)


def build(model: nn.Module, maximizer: Maximizer | None = None, way: str = "ascent-eval") -> rhobust.RobustObjective:
    maximizer = maximizer or PenalizedAscent(steps=2)
    return rhobust.RobustObjective(model, cross_entropy, radius=0.5, maximizer=maximizer, batch_norm=way)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: part.detach().clone() for name, part in model.state_dict().items()}


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(part, other.state_dict()[name]) for name, part in one.state_dict().items())


def batches(epochs: int = 2) -> list[tuple[Tensor, Tensor]]:
    return list(zip(X.split(8), Y.split(8), strict=True)) * epochs


def by_hand(model: nn.Module, moved: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """The plain loop, with the samples moved beforehand."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in batches():
        optimizer.zero_grad()
        cross_entropy(model(moved(x, y)), y).mean().backward()
        optimizer.step()
    return model


def trained(objective: rhobust.RobustObjective) -> nn.Module:
    model = objective.model
    optimizer = rhobust.ProximalOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), objective)
    for x, y in batches():
        optimizer.zero_grad()
        objective(x, y).value.backward()
        optimizer.step()
    return model


def test_erm_is_the_loop_by_hand_bit_for_bit_and_needs_no_remark() -> None:
    expected = by_hand(network(), lambda x, y: x)
    assert same(trained(build(network(), Identity())), expected)  # a warning would be an error
    assert expected.get_buffer("0.1.running_mean").abs().max() > 0


def test_an_ascent_uses_running_statistics_and_the_weights_step_those_of_the_batch() -> None:
    model = network()

    def moved(x: Tensor, y: Tensor) -> Tensor:
        # One signed step of the size 0.1, by hand, at the model in evaluation mode.
        model.eval()
        at = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(model(at), y).sum(), at)
        model.train()
        return x + 0.1 * slope.sign()

    expected = by_hand(model, moved)
    with pytest.warns(UserWarning, match=REMARK):
        found = trained(build(network(), Ball(0.1)))
    assert same(found, expected)


@pytest.mark.parametrize("maximizer", [Identity(), Ball(0.1), Oracle()], ids=lambda m: type(m).__name__)
def test_frozen_is_evaluation_mode_of_these_layers_in_every_pass_whatever_mode_they_have(maximizer: Maximizer) -> None:
    # Training it in evaluation mode is the same: no other layer of this network has a mode.
    by_mode, by_way = network().eval(), network()
    before = state(by_way)
    assert same(trained(build(by_way, maximizer, "frozen")), trained(build(by_mode, maximizer)))
    assert all(module.training for module in by_way.modules())
    statistics = [name for name in before if "running" in name or "num_batches" in name]
    assert all(torch.equal(state(by_way)[name], before[name]) for name in statistics)
    assert not torch.equal(state(by_way)["0.0.weight"], before["0.0.weight"])


def test_frozen_leaves_dropout_in_its_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    seen: list[bool] = []
    model[3].register_forward_hook(lambda module, *_: seen.append(module.training))
    build(model, way="frozen")(X, Y)
    assert seen[-1]
    assert not any(seen[:-1])


def test_a_frozen_model_comes_back_in_its_mode_when_its_pass_fails() -> None:
    model = network()

    def broken(output: Tensor, y: Tensor) -> Tensor:
        if output.requires_grad and model[0][1].weight.requires_grad:
            raise RuntimeError
        return cross_entropy(output, y)

    objective = rhobust.RobustObjective(model, broken, radius=0.5, maximizer=Ball(0.1), batch_norm="frozen")
    with pytest.raises(RuntimeError):
        objective(X, Y)
    assert all(module.training for module in model.modules())


def test_the_remark_comes_once_an_objective_at_the_user_s_line_and_not_where_it_is_built() -> None:
    objective = build(network())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            objective(X, Y)  # here
    (one,) = said
    assert one.filename == __file__
    assert __import__("linecache").getline(__file__, one.lineno).endswith("# here\n")


@pytest.mark.parametrize(
    "quiet",
    [
        lambda: build(network(), Identity()),
        lambda: build(network(), way="frozen"),
        lambda: build(network().eval()),
        lambda: build(rhobust.models.to_group_norm(network())),
    ],
    ids=["ERM", "frozen", "evaluation mode", "GroupNorm"],
)
def test_no_remark_where_the_theory_holds(quiet: Callable[[], rhobust.RobustObjective]) -> None:
    assert quiet()(X, Y).value.isfinite()  # a warning would be an error


@SILENT
def test_an_objective_is_copied_and_pickled_after_it_was_called() -> None:
    objective = build(network())
    objective(X, Y).value.backward()
    for copied in (copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        twin = copied(objective)
        assert same(twin, objective)
        assert torch.equal(twin(X, Y).value, objective(X, Y).value)


@SILENT
def test_the_ascent_moves_no_statistics_and_the_weights_step_moves_them_once() -> None:
    model, plain = network(), network()
    zeta = build(model)(X, Y).zeta
    plain(zeta)
    assert same(model, plain)
    assert model.get_buffer("0.1.num_batches_tracked") == 1
