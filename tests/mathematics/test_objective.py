"""The objective: what the surrogate holds, its Danskin gradient, and that the ascent leaves no trace."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import rhobust
from rhobust.ascent import Ball, ErrorAscent, Identity, MarginAscent, Maximizer, Oracle, PenalizedAscent
from rhobust.costs import SquaredL2, SquaredLinf, SquaredLp
from rhobust.errors import DataError, Refused
from tests.problems import known

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
ORACLE = Oracle(accuracy=1e-5)
PENALIZED: list[Maximizer] = [PenalizedAscent(), PenalizedAscent(steps=3, eta=0.1), ORACLE, MarginAscent(steps=2)]
CONSTRAINED: list[Maximizer] = [Identity(), Ball(0.1), Ball(0.3, norm=2, steps=3, random_start=True)]


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    return (output.reshape(len(y), -1)[:, 0] - y).square()


def network(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """A small model for samples of any shape, also of none."""
    return nn.Sequential(
        nn.Unflatten(0, (-1, 1)) if not shape else nn.Flatten(),
        nn.Linear(math.prod(shape), 7),
        nn.Tanh(),
        nn.Linear(7, outputs),
    )


def classification(
    shape: tuple[int, ...] = (3,), dtype: torch.dtype = torch.float32
) -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    return network(shape, 3).to(dtype), torch.randn(6, *shape, dtype=dtype), torch.randint(3, (6,))


# ---------------------------------------------------------------------------------------------------------------------
# What the surrogate holds


@pytest.mark.parametrize(
    ("task", "maximizer"),
    [("classification", maximizer) for maximizer in PENALIZED]
    + [("regression", maximizer) for maximizer in PENALIZED if not maximizer.classifies],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_field_of_the_surrogate_is_what_its_name_says(
    task: str, dtype: torch.dtype, shape: tuple[int, ...], maximizer: Maximizer
) -> None:
    model, x, y = classification(shape, dtype)
    loss: Callable[[Tensor, Tensor], Tensor] = CROSS_ENTROPY
    if task == "regression":
        model, y, loss = network(shape, 1).to(dtype), torch.randn(6, dtype=dtype), squared_error
    objective = rhobust.RobustObjective(model, loss, radius=0.3, gamma=2.5, maximizer=maximizer)
    surrogate = objective(x, y)

    assert surrogate.zeta.shape == x.shape
    assert surrogate.cost.shape == surrogate.loss.shape == (6,)
    assert {surrogate.zeta.dtype, surrogate.cost.dtype, surrogate.loss.dtype, surrogate.value.dtype} == {dtype}
    assert objective.gamma.dtype == dtype
    assert not any(part.requires_grad for part in (surrogate.zeta, surrogate.cost, surrogate.loss))
    assert torch.equal(surrogate.labels, y)
    assert 1 <= surrogate.gradients <= maximizer.gradients
    assert (surrogate.accuracy is not None) == isinstance(maximizer, Oracle)

    torch.testing.assert_close(surrogate.cost, (surrogate.zeta - x).reshape(6, -1).square().sum(1))
    torch.testing.assert_close(surrogate.loss, loss(model(surrogate.zeta), y).detach())
    assert surrogate.value.shape == ()
    torch.testing.assert_close(surrogate.value, surrogate.loss.mean() + 2.5 * (0.3 - surrogate.cost.mean()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("maximizer", PENALIZED, ids=lambda m: type(m).__name__)
def test_the_gradient_in_gamma_is_exactly_rho_minus_the_mean_cost(maximizer: Maximizer, dtype: torch.dtype) -> None:
    model, x, y = classification(dtype=dtype)
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, maximizer=maximizer)
    surrogate = objective(x, y)
    surrogate.value.backward()
    assert surrogate.cost.mean() > 0
    assert objective.gamma.grad == 0.3 - surrogate.cost.mean()  # Prop. 1: psi is affine in gamma


def test_the_gradient_in_theta_is_that_of_the_loss_at_zeta_held_fixed() -> None:
    model, x, y = classification(dtype=torch.float64)
    surrogate = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, maximizer=PenalizedAscent(steps=3))(x, y)
    surrogate.value.backward()
    direct = torch.autograd.grad(CROSS_ENTROPY(model(surrogate.zeta), y).mean(), list(model.parameters()))
    for weight, gradient in zip(model.parameters(), direct, strict=True):
        torch.testing.assert_close(weight.grad, gradient)


def test_the_oracle_raises_psi_and_a_sample_is_moved_the_same_way_in_any_company() -> None:
    # Lemma 1 is about one z at a time: a batch must give every sample what it would get alone.
    model, x, y = classification(dtype=torch.float64)
    for maximizer in (PenalizedAscent(steps=4), Oracle(accuracy=0.01), MarginAscent(steps=2)):
        objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, gamma=0.7, maximizer=maximizer)
        together = objective(x, y)
        alone = torch.cat([objective(x[i : i + 1], y[i : i + 1]).zeta for i in range(len(x))])
        torch.testing.assert_close(together.zeta, alone)

    surrogate = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, gamma=0.7)(x, y)
    assert (surrogate.loss - 0.7 * surrogate.cost >= CROSS_ENTROPY(model(x), y)).all()
    assert surrogate.cost.max() > 0


@pytest.mark.parametrize("cost", [SquaredL2(), SquaredLp(1.5), SquaredLinf()], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("maximizer", [*PENALIZED, *CONSTRAINED], ids=lambda m: type(m).__name__)
def test_zeta_stays_in_the_box_and_its_cost_is_the_cost_asked_for(maximizer: Maximizer, cost: Any) -> None:
    model, x, y = classification()
    x = x.clamp(-1, 1)
    objective = rhobust.RobustObjective(
        model, CROSS_ENTROPY, radius=0.3, gamma=0.05, maximizer=maximizer, cost=cost, bounds=(-1, 1)
    )
    surrogate = objective(x, y)
    assert surrogate.zeta.abs().max() <= 1
    torch.testing.assert_close(surrogate.cost, cost(x, surrogate.zeta))


def test_noise_moves_the_center_of_the_ball_and_is_not_charged() -> None:
    # A linear loss: zeta = center + g / (2 gamma), and c = ||g||^2 / (4 gamma^2) from the center, whatever the noise.
    torch.manual_seed(0)
    model, gamma, noise = nn.Linear(50, 1, bias=False), 3.0, 0.4
    slope = model.weight.detach()[0]
    objective = rhobust.RobustObjective(
        model, lambda out, y: out[:, 0], radius=1.0, gamma=gamma, maximizer=PenalizedAscent(), noise=noise
    )
    x = torch.randn(2000, 50)
    surrogate = objective(x, torch.zeros(2000))
    torch.testing.assert_close(surrogate.cost, (slope.square().sum() / (4 * gamma**2)).expand(2000))
    moved = surrogate.zeta - slope / (2 * gamma) - x
    assert moved.abs().max() <= noise + 1e-5
    assert moved.var() == pytest.approx(noise**2 / 3, rel=0.02)  # uniform
    assert moved.mean() == pytest.approx(0, abs=0.01)
    assert not torch.equal(objective(x, torch.zeros(2000)).zeta, surrogate.zeta)  # drawn anew for each batch
    torch.testing.assert_close(
        objective.maximum(x, torch.zeros(2000)).zeta, x + slope / (2 * gamma)
    )  # attacks: x itself


def test_a_noisy_center_stays_in_the_box() -> None:
    torch.manual_seed(0)
    model, x, y = classification()
    objective = rhobust.RobustObjective(
        model, CROSS_ENTROPY, radius=0.0, maximizer=Identity(), bounds=(-1, 1), noise=0.5
    )
    x = x.clamp(-1, 1)
    zeta = objective(x, y).zeta
    assert zeta.abs().max() <= 1
    assert (zeta - x).abs().max() > 0.3


@pytest.mark.parametrize("noise", [-0.1, float("nan"), float("inf"), "much"])
def test_impossible_noise_is_refused(noise: Any) -> None:
    with pytest.raises(Refused, match="noise"):
        rhobust.RobustObjective(nn.Linear(1, 1), squared_error, radius=1.0, noise=noise)


def test_inputs_outside_the_box_are_refused() -> None:
    objective = rhobust.RobustObjective(nn.Linear(1, 1), squared_error, radius=1.0, bounds=(-1, 1))
    with pytest.raises(DataError, match=r"outside its bounds \(-1, 1\)"):
        objective(torch.full((2, 1), 100.0), torch.zeros(2))


@pytest.mark.parametrize("maximizer", CONSTRAINED, ids=lambda m: type(m).__name__)
def test_a_maximizer_with_its_own_constraint_gives_the_mean_loss_and_leaves_gamma_idle(maximizer: Maximizer) -> None:
    model, x, y = classification()
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=5.0, gamma=3.0, maximizer=maximizer)
    surrogate = objective(x, y)
    surrogate.value.backward()
    assert surrogate.value == CROSS_ENTROPY(model(surrogate.zeta), y).mean()
    assert not objective.gamma.requires_grad
    assert objective.gamma.grad is None
    assert (surrogate.cost.max() > 0) == (maximizer.gradients > 0)

    optimizer = rhobust.ProximalOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), objective)
    optimizer.step()
    assert objective.gamma == 3.0


def test_erm_sees_the_data_themselves() -> None:
    model, x, y = classification()
    surrogate = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=5.0, maximizer=Identity())(x, y)
    assert torch.equal(surrogate.zeta, x)
    assert surrogate.gradients == 0


# ---------------------------------------------------------------------------------------------------------------------
# Labels with a finite price


def brute_force_labels(
    model: nn.Module, x: Tensor, y: Tensor, maximizer: Maximizer, kappa: float
) -> tuple[Tensor, Tensor]:
    """The label with the largest psi, each label tried on its own, and the cost of the winner."""
    psi, costs = [], []
    for label in range(3):
        fixed = torch.full_like(y, label)
        objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, gamma=1.5, maximizer=maximizer)
        surrogate = objective(x, fixed)
        costs.append(surrogate.cost + kappa * (fixed != y))
        psi.append(surrogate.loss - 1.5 * costs[-1])
    best = torch.stack(psi).argmax(0)
    return best, torch.stack(costs).gather(0, best[None])[0]


@pytest.mark.parametrize("maximizer", [PenalizedAscent(), PenalizedAscent(steps=3)], ids=["one step", "three steps"])
def test_labels_flip_where_that_pays_more_than_kappa_and_the_flip_is_charged(maximizer: Maximizer) -> None:
    model, x, _ = classification(dtype=torch.float64)
    with torch.no_grad():
        model.get_parameter("3.weight").mul_(4)
    y = model(x).argmax(1)  # confident samples, for which another label costs a lot of loss
    objective = rhobust.RobustObjective(
        model, CROSS_ENTROPY, radius=0.3, gamma=1.5, maximizer=maximizer, cost=SquaredL2(kappa=0.8)
    )
    surrogate = objective(x, y)
    labels, cost = brute_force_labels(model, x, y, maximizer, kappa=0.8)
    assert 0 < (labels != y).sum() < len(y), "some must flip and some must not"
    assert torch.equal(surrogate.labels, labels)
    torch.testing.assert_close(surrogate.cost, cost)
    torch.testing.assert_close(surrogate.loss, CROSS_ENTROPY(model(surrogate.zeta), labels).detach())
    assert surrogate.gradients == 3 * maximizer.gradients
    surrogate.value.backward()
    assert objective.gamma.grad == 0.3 - surrogate.cost.mean()


def test_a_prohibitive_kappa_is_an_infinite_one() -> None:
    model, x, y = classification(dtype=torch.float64)
    finite, infinite = (
        rhobust.RobustObjective(
            model, CROSS_ENTROPY, radius=0.3, maximizer=PenalizedAscent(steps=2), cost=SquaredL2(kappa=kappa)
        )(x, y)
        for kappa in (1e6, math.inf)
    )
    assert torch.equal(finite.labels, y)
    torch.testing.assert_close(finite.zeta, infinite.zeta)
    torch.testing.assert_close(finite.value, infinite.value)


def test_an_oracle_reports_the_gap_of_every_sample_when_labels_move() -> None:
    model, x, y = classification(dtype=torch.float64)
    surrogate = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, cost=SquaredL2(kappa=0.5))(x, y)
    assert surrogate.accuracy is not None
    assert surrogate.accuracy.gap.shape == (6,)
    assert surrogate.accuracy.target == Oracle().accuracy


def test_a_finite_kappa_without_class_labels_is_refused() -> None:
    # There is no set of labels to try: to answer with any labels but y's own would be to change the data.
    objective = rhobust.RobustObjective(nn.Linear(2, 1), squared_error, radius=1.0, cost=SquaredL2(kappa=1.0))
    with pytest.raises(Refused, match="kappa"):
        objective(torch.ones(3, 2), torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("maximizer", CONSTRAINED, ids=lambda m: type(m).__name__)
def test_a_finite_kappa_is_refused_where_gamma_is_idle(maximizer: Maximizer) -> None:
    with pytest.raises(Refused, match=rf"{type(maximizer).__name__} does not price transport.*leave kappa infinite"):
        rhobust.RobustObjective(
            nn.Linear(3, 3), CROSS_ENTROPY, radius=0.3, maximizer=maximizer, cost=SquaredL2(kappa=0.01)
        )


# ---------------------------------------------------------------------------------------------------------------------
# The ascent pays for no weight gradients


class ConvolutionBackward(TorchDispatchMode):
    """Records, for every backward pass of a convolution, which gradients it computed: input, weight, bias."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[list[bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution_backward.default:
            self.masks.append(list(args[10]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("maximizer", [PenalizedAscent(steps=3), Ball(0.1, steps=3)], ids=lambda m: type(m).__name__)
def test_the_ascent_computes_gradients_of_the_input_only(maximizer: Maximizer) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=1.0, maximizer=maximizer)
    with ConvolutionBackward() as ascent:
        surrogate = objective(torch.randn(4, 1, 5, 5), torch.randint(3, (4,)))
    assert ascent.masks == [[True, False, False]] * 3
    with ConvolutionBackward() as training:
        surrogate.value.backward()
    assert training.masks == [[False, True, True]]  # and here zeta is held fixed (Danskin)


class _Spied(torch.autograd.Function):
    """x @ w, noting which gradients a backward pass was asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, asked: list[tuple[bool, bool]]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.asked = asked
        return x @ weight

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        ctx.asked.append((ctx.needs_input_grad[0], ctx.needs_input_grad[1]))
        return upstream @ weight.T, x.T @ upstream, None


class SpiedLinear(nn.Module):
    """A linear map that remembers, pass by pass, its mode, its weight's flag, and the gradients asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.asked: list[tuple[bool, bool]] = []
        self.passes: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append((self.training, self.weight.requires_grad))
        return _Spied.apply(x, self.weight, self.asked)


def test_during_the_ascent_weights_require_no_gradient_and_the_model_is_in_evaluation_mode() -> None:
    torch.manual_seed(0)
    model = SpiedLinear()
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=1.0, maximizer=PenalizedAscent(steps=2))
    surrogate = objective(torch.randn(4, 3), torch.randint(3, (4,)))
    assert model.passes == [(False, False), (False, False), (True, True)]
    assert model.asked == [(True, False), (True, False)]
    surrogate.value.backward()
    assert model.asked[2:] == [(False, True)]


# ---------------------------------------------------------------------------------------------------------------------
# The ascent leaves no trace


class Restless(nn.Module):
    """Draws random numbers and counts its passes in a buffer, in every mode."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes.add_(1)
        return x + 0.01 * torch.rand_like(x)


def restless_model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 8), nn.Dropout(0.5), Restless(), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3)
    )
    model[4].eval()  # mixed modes: this dropout was switched off on purpose
    model[0].bias.requires_grad_(False)  # and this bias frozen
    model[3].weight.grad = torch.full((8, 8), 7.0)
    return model


@dataclass(frozen=True)
class Trace:
    """Everything about a model and the process that an ascent could disturb."""

    modes: list[bool]
    flags: list[bool]
    gradients: list[Tensor | None]
    tensors: dict[str, Tensor]
    generator: Tensor = field(default_factory=torch.get_rng_state)

    @classmethod
    def of(cls, model: nn.Module) -> Trace:
        return cls(
            [module.training for module in model.modules()],
            [weight.requires_grad for weight in model.parameters()],
            [None if weight.grad is None else weight.grad.clone() for weight in model.parameters()],
            {name: tensor.clone() for name, tensor in model.state_dict().items()},
        )

    def differences(self, other: Trace) -> list[str]:
        """The names of what is not the same in the other."""
        same = {
            "modes": self.modes == other.modes,
            "flags": self.flags == other.flags,
            "gradients": all(map(_equal, self.gradients, other.gradients)),
            "generator": torch.equal(self.generator, other.generator),
            **{name: torch.equal(tensor, other.tensors[name]) for name, tensor in self.tensors.items()},
        }
        return [name for name, equal in same.items() if not equal]


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


@pytest.mark.parametrize(
    "maximizer", [Identity(), Ball(0.1, steps=3), *PENALIZED], ids=lambda m: f"{type(m).__name__}-{m.gradients}"
)
def test_the_ascent_leaves_the_trace_of_one_plain_pass_and_no_more(maximizer: Maximizer) -> None:
    # The final pass, which carries the gradient, is the pass that training without an ascent would have made.
    x, y = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1])
    plain, robust = restless_model(), restless_model()
    torch.manual_seed(3)
    plain(x)
    expected = Trace.of(plain)
    torch.manual_seed(3)
    rhobust.RobustObjective(robust, CROSS_ENTROPY, radius=0.3, maximizer=maximizer)(x, y)
    assert Trace.of(robust).differences(expected) == []


class Rebinding(Restless):
    """Counts by putting a new tensor in the buffer's place."""

    def forward(self, x: Tensor) -> Tensor:
        self.passes = self.passes + 1
        return x


def test_a_buffer_that_the_model_replaces_comes_back_too() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Rebinding())
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, maximizer=PenalizedAscent(steps=3))
    objective(torch.ones(2, 3), torch.tensor([0, 1]))
    assert model[1].passes == 1  # the final pass, as in plain training


def test_a_random_start_draws_anew_each_time_although_the_model_does_not() -> None:
    model, x, y = classification()
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, maximizer=Ball(0.5, random_start=True))
    torch.manual_seed(5)
    first, second = objective(x, y).zeta, objective(x, y).zeta
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(objective(x, y).zeta, first)


class Broken(Exception):
    """What a user's code might raise."""


@contextmanager
def breaks_on_call(number: int) -> Iterator[Callable[[], None]]:
    """A function that raises when it is called for the given time."""
    calls = iter(range(1, 100))

    def tick() -> None:
        if next(calls) == number:
            raise Broken

    yield tick


@pytest.mark.parametrize("where", ["model", "loss"])
@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("kappa", [math.inf, 1.0], ids=["labels fixed", "labels move"])
def test_the_ascent_leaves_no_trace_when_it_is_interrupted(where: str, call: int, kappa: float) -> None:
    model = restless_model()
    with breaks_on_call(call) as tick:
        if where == "model":
            model[5].register_forward_hook(lambda *_: tick())

        def loss(output: Tensor, y: Tensor) -> Tensor:
            if where == "loss":
                tick()
            return CROSS_ENTROPY(output, y)

        objective = rhobust.RobustObjective(
            model, loss, radius=0.3, maximizer=PenalizedAscent(steps=4), cost=SquaredL2(kappa=kappa)
        )
        before = Trace.of(model)
        with pytest.raises(Broken):
            objective(torch.ones(5, 3), torch.tensor([0, 1, 2, 0, 1]))
    assert Trace.of(model).differences(before) == []


def test_a_graph_built_before_the_ascent_can_still_be_differentiated_after_it() -> None:
    # A clean loss beside the robust one, as in a trade-off between the two; batch norm keeps its buffers for backward.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 3))
    x, y = torch.randn(5, 3), torch.randint(3, (5,))
    surrogate = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3)(x, y)
    expected = torch.autograd.grad(CROSS_ENTROPY(model(x), y).mean() + surrogate.value, list(model.parameters()))

    clean = CROSS_ENTROPY(model(x), y).mean()
    surrogate = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3)(x, y)
    (clean + surrogate.value).backward()
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient)


# ---------------------------------------------------------------------------------------------------------------------
# What PyTorch already does keeps working


def test_gamma_is_part_of_the_state() -> None:
    model, x, y = classification()
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, gamma=2.0)
    assert objective.state_dict()["gamma"] == 2.0
    assert any(parameter is objective.gamma for parameter in objective.parameters())

    twin = rhobust.RobustObjective(network((3,), 3), CROSS_ENTROPY, radius=0.3)
    twin.load_state_dict(objective.state_dict())
    assert torch.equal(twin(x, y).value, objective(x, y).value)


def test_a_deep_copy_is_the_same_objective_and_shares_nothing() -> None:
    model, x, y = classification()
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, gamma=2.0, bounds=(-3, 3))
    twin = copy.deepcopy(objective)
    before = objective(x, y).value.detach()
    assert torch.equal(twin(x, y).value, before)

    optimizer = rhobust.ProximalOptimizer(torch.optim.SGD(twin.model.parameters(), lr=0.5), twin)
    twin(x, y).value.backward()
    optimizer.step()
    assert twin.gamma != 2.0
    assert objective.gamma == 2.0
    assert torch.equal(objective(x, y).value, before)


@pytest.mark.parametrize(
    "maximizer", [PenalizedAscent(steps=3), ORACLE, MarginAscent()], ids=lambda m: type(m).__name__
)
def test_autocast_lowers_the_precision_of_the_model_and_of_nothing_else(maximizer: Maximizer) -> None:
    model, x, y = classification()
    precisions: list[torch.dtype] = []
    model[3].register_forward_hook(lambda module, inputs, output: precisions.append(output.dtype))

    def solve(lowered: bool) -> tuple[rhobust.Surrogate, rhobust.RobustObjective]:
        model.zero_grad()
        objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, maximizer=maximizer)
        with torch.autocast("cpu", torch.bfloat16, enabled=lowered):
            surrogate = objective(x, y)
        surrogate.value.backward()
        return surrogate, objective

    exact, _ = solve(lowered=False)
    full = [known(weight.grad).clone() for weight in model.parameters()]
    precisions.clear()
    surrogate, objective = solve(lowered=True)
    assert set(precisions) == {torch.bfloat16}
    assert surrogate.zeta.dtype == surrogate.cost.dtype == surrogate.value.dtype == torch.float32
    assert objective.gamma.grad == 0.3 - surrogate.cost.mean()
    torch.testing.assert_close(surrogate.zeta, exact.zeta, rtol=0, atol=0.02)
    torch.testing.assert_close(surrogate.value, exact.value, rtol=0.02, atol=0)
    for weight, gradient in zip(model.parameters(), full, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("maximizer", [*PENALIZED, *CONSTRAINED], ids=lambda m: type(m).__name__)
def test_a_model_of_low_precision_may_have_a_loss_of_higher_precision(maximizer: Maximizer) -> None:
    # The usual way to train in bfloat16: the loss is computed from output.float().
    model, x, y = classification(dtype=torch.bfloat16)
    objective = rhobust.RobustObjective(
        model, lambda output, y: CROSS_ENTROPY(output.float(), y), radius=0.3, gamma=0.1, maximizer=maximizer
    )
    surrogate = objective(x, y)
    assert surrogate.zeta.dtype == torch.bfloat16
    assert objective.gamma.dtype == torch.float32  # gamma sums many small steps


def test_under_no_grad_the_sup_is_found_all_the_same() -> None:
    model, x, y = classification()
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, gamma=0.2)
    with torch.no_grad():
        evaluated = objective(x, y)
    assert torch.equal(evaluated.zeta, objective(x, y).zeta)
    assert not evaluated.value.requires_grad
    assert evaluated.cost.mean() > 0


def test_in_evaluation_mode_nothing_is_noisy_and_nobody_s_turn_passes() -> None:
    model, x, y = classification()
    maximizer = ErrorAscent(steps=(1, 1, 3))
    objective = rhobust.RobustObjective(model, CROSS_ENTROPY, radius=0.3, maximizer=maximizer, noise=0.3)
    assert not torch.equal(objective(x, y).center, x)
    objective.eval()
    found = objective(x, y)
    assert torch.equal(found.center, x)
    assert found.gradients == 3
    assert objective.turn == 1


def test_a_loss_and_a_maximizer_that_are_replaced_are_the_ones_in_force() -> None:
    objective = rhobust.RobustObjective(nn.Linear(2, 1), lambda out, y: (out[:, 0] - y) ** 2, radius=1.0)
    x, y = torch.randn(3, 2), torch.tensor([0.5, 1.5, -2.0])
    objective(x, y)
    objective.loss = lambda out, y: out.sum(1) * 0 + 5
    assert objective(x, y).loss.tolist() == [5.0, 5.0, 5.0]
    objective.maximizer = MarginAscent()
    with pytest.raises(Refused, match="y does not hold classes"):
        objective(x, y)
