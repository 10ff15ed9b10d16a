"""Laws of certificates: order, shape in rho, feasibility of what is attained, and that no attack beats a proof."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

from rhobust.certificates import certify as certificates
from rhobust.certificates.certificate import Certification
from rhobust.certificates.certify import certify
from rhobust.certificates.dual import Column, Dual
from rhobust.costs import SquaredL2, SquaredLinf, per_sample
from rhobust.data.samples import Samples
from rhobust.losses import cross_entropy
from tests.problems import NORMS, Norm, generator, known, length, linear_model, normal, uniform

BOX = (-1.0, 1.0)
SEEDS = st.integers(0, 10**6)
law = settings(deadline=None, derandomize=True, max_examples=15)
each_norm = pytest.mark.parametrize("norm", NORMS, ids=str)


def network(draws: torch.Generator, smooth: bool, scale: float = 2.0) -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh() if smooth else nn.ReLU(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(scale * normal(draws, *weight.shape))
    return model


def samples_for(draws: torch.Generator, classes: int, count: int = 7) -> Samples:
    return Samples(uniform(draws, *BOX, count, 2, 2), torch.randint(0, classes, (count,), generator=draws))


def linear(draws: torch.Generator, classes: int, scale: float = 1.0) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), linear_model(scale * normal(draws, classes, 4)))


def certify_and_keep(monkeypatch: pytest.MonkeyPatch, *args: Any, **kwargs: Any) -> tuple[Certification, Dual]:
    """The certificates and the columns behind them."""
    made: list[Dual] = []

    class Kept(Dual):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "Dual", Kept)
        return certify(*args, **kwargs), made[-1]  # the one in the box, where there is one without, too


@pytest.mark.parametrize("bounds", [None, BOX])
@each_norm
@law
@given(seed=SEEDS, smooth=st.booleans(), radius=st.floats(-3, 1.5).map(lambda power: 10**power))
def test_bound_is_never_below_attained_nor_attained_below_clean(
    bounds: tuple[float, float] | None, norm: Norm, seed: int, smooth: bool, radius: float
) -> None:
    draws = generator(seed)
    model, samples = network(draws, smooth), samples_for(draws, 3)
    radii = [radius, 3 * radius, 0.0]
    found = certify(model, samples, loss=cross_entropy, radii=radii, cost=norm.cost, bounds=bounds, max_steps=4)
    clean = found[-1].bound
    for certificate in found:
        assert math.isfinite(certificate.bound)
        assert certificate.bound >= certificate.attained >= clean
        assert 0 <= certificate.spent <= certificate.radius
        assert certificate.rho_hat >= 0
    assert found[0].bound <= found[1].bound
    assert found[0].attained <= found[1].attained


@law
@given(
    gamma=st.floats(0.1, 10), cost=st.floats(0.1, 10), loss=st.floats(0.1, 10), share=st.sampled_from([1.0, 0.5, 0.3])
)
def test_a_line_through_what_is_attained_is_not_below_it_by_rounding(
    gamma: float, cost: float, loss: float, share: float
) -> None:
    dual: Any = Dual.__new__(Dual)
    dual.sup = SimpleNamespace(proof=math.inf)
    touching = loss - gamma * cost  # a line with this clean loss goes through both columns
    dual.doubted, dual.spread, dual.unboxed = None, [], None
    dual.columns = [Column(math.inf, 0.0, touching, math.inf, None), Column(gamma, cost, loss, -math.inf, None)]
    found = dual.certificate(share * cost)
    assert found.bound >= found.attained == pytest.approx(found.bound, abs=1e-9)


@pytest.mark.parametrize("kind", ["network", "softmax", "two classes"])
@each_norm
def test_what_is_attained_is_in_the_ball_and_the_box(kind: str, norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = generator(11)
    classes, bounds = (2, None) if kind == "two classes" else (3, BOX)
    model = network(draws, smooth=False) if kind == "network" else linear(draws, classes, scale=3.0)
    samples, radii = samples_for(draws, classes, count=9), [0.003, 0.1, 2.0, 40.0]
    found, dual = certify_and_keep(
        monkeypatch, model, samples, loss=cross_entropy, radii=radii, cost=norm.cost, bounds=bounds, batch_size=4
    )
    for certificate in found:
        mixture = dual.mixture(certificate.radius)
        spent = attained = 0.0
        for weight, column in ((1 - mixture.weight, mixture.near), (mixture.weight, mixture.far)):
            assert 0 <= weight <= 1
            zeta = known(column.zeta)
            assert zeta.shape == samples.x.shape
            if bounds is not None:
                assert zeta.abs().max() <= 1
            spent += weight * float(length((zeta - samples.x).flatten(1), norm.p).square().mean())
            attained += weight * float(cross_entropy(model(zeta), samples.y).mean().detach())
        assert spent <= certificate.radius * (1 + 1e-14)
        assert spent == pytest.approx(certificate.spent, rel=1e-12, abs=1e-15)
        assert attained == pytest.approx(certificate.attained, rel=1e-12)


@each_norm
@law
@given(seed=SEEDS, scale=st.floats(0.1, 10), top=st.floats(-1, 2).map(lambda power: 10**power))
def test_exact_bound_rises_and_is_concave_in_the_radius(norm: Norm, seed: int, scale: float, top: float) -> None:
    draws = generator(seed)
    model, samples = linear(draws, 2, scale), samples_for(draws, 2)
    radii = [top * share for share in (0.0, 0.1, 0.2, 0.4, 0.7, 1.0)]
    # Each radius on its own, so that the shape is no work of shared lines.
    found = [certify(model, samples, loss=cross_entropy, radii=[rho], cost=norm.cost)[0] for rho in radii]
    for certificate in found:
        assert certificate.gap <= 3e-9 * certificate.bound
    slack = 1e-8 * found[-1].bound
    slopes = [(b.bound - a.bound) / (b.radius - a.radius) for a, b in pairwise(found)]
    assert all(slope >= -slack for slope in slopes)
    for (a, b), c in zip(pairwise(found), found[2:], strict=False):
        share = (b.radius - a.radius) / (c.radius - a.radius)
        assert b.bound >= (1 - share) * a.bound + share * c.bound - slack
    # The gammas are the slopes of the curve, so they fall.
    gammas = [certificate.gamma for certificate in found]
    assert all(a >= b * (1 - 1e-3) for a, b in pairwise(gammas))


@law
@given(
    seed=SEEDS,
    scale=st.floats(0.3, 6),
    radius=st.floats(-3, 1).map(lambda power: 10**power),
    classes=st.integers(2, 5),
    hasty=st.booleans(),
)
def test_no_attack_exceeds_a_proof(seed: int, scale: float, radius: float, classes: int, hasty: bool) -> None:
    draws = generator(seed)
    model, samples = linear(draws, classes, scale), samples_for(draws, classes)
    (found,) = certify(model, samples, loss=cross_entropy, radii=[radius], bounds=BOX, max_steps=2 if hasty else None)
    assert found.status == "proved"
    for restart in range(12):
        zeta = attacked(model, samples, radius, generator(seed + restart))
        assert float(SquaredL2()(samples.x, zeta).mean()) <= radius * (1 + 1e-12)
        assert float(cross_entropy(model(zeta), samples.y).mean().detach()) <= found.bound * (1 + 1e-12)


def attacked(
    model: nn.Module,
    samples: Samples,
    radius: float,
    draws: torch.Generator,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> Tensor:
    """Projected ascent on the mean loss of all samples at once, with a budget on their mean cost, from a random start.

    The projection on the ball of the joint displacement shrinks it, and so keeps it in the box.
    """

    def feasible(zeta: Tensor) -> Tensor:
        away = zeta.clamp(*BOX) - samples.x
        return samples.x + away * min(1.0, math.sqrt(radius / max(float(away.square().sum() / len(away)), 1e-300)))

    share = torch.rand(len(samples), generator=draws, dtype=torch.float64)  # some samples get most of the budget
    zeta = feasible(samples.x + per_sample(share**4, samples.x) * 10 * normal(draws, *samples.x.shape))
    for step in range(25):
        zeta = zeta.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss(model(zeta), samples.y).sum(), zeta)
        size = math.sqrt(radius * len(samples)) / (1 + step / 3)
        zeta = feasible(zeta.detach() + size * slope / slope.norm().clamp_min(1e-300))
    return zeta


def shortened(module: nn.Module, before: Any, after: Any) -> Any:
    """A backward hook, for which a gradient is a tenth of what it was."""
    return tuple(one if one is None or not one.is_floating_point() else 0.1 * one for one in before)


def shortened_first(module: nn.Module, after: Any) -> Any:
    """The same before the backward pass of a module, which has one output."""
    return (0.1 * after[0],)


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "none": lambda part: None,
    "forward": lambda part: part.register_forward_hook(lambda module, inputs, output: 1.3 * output),
    "pre": lambda part: part.register_forward_pre_hook(lambda module, inputs: (1.3 * inputs[0], *inputs[1:])),
    "backward": lambda part: part.register_full_backward_hook(shortened),
    "backward pre": lambda part: part.register_full_backward_pre_hook(shortened_first),
    "own forward": lambda part: setattr(part, "forward", lambda *inputs: 1.3 * type(part).forward(part, *inputs)),
    "global": lambda part: nn.modules.module.register_module_forward_hook(lambda module, inputs, output: 1.3 * output),
    "global backward": lambda part: nn.modules.module.register_module_full_backward_hook(shortened),
}


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
@settings(deadline=None, derandomize=True, max_examples=6)
@given(
    seed=SEEDS,
    scale=st.floats(0.3, 6),
    radius=st.floats(-3, 1).map(lambda power: 10**power),
    kind=st.sampled_from(["two classes", "three classes", "regression"]),
    where=st.sampled_from(["model", "layer", "loss"]),
    curvature=st.sampled_from([None, 0.0, 1e-3]),
)
def test_proved_never_stands_on_a_number_below_what_an_attack_attains(
    boxed: bool, hook: str, seed: int, scale: float, radius: float, kind: str, where: str, curvature: float | None
) -> None:
    draws = generator(seed)
    classes = {"two classes": 2, "three classes": 3, "regression": 1}[kind]
    model, samples = linear(draws, classes, scale), samples_for(draws, classes)
    loss: nn.Module = nn.CrossEntropyLoss(reduction="none")
    if kind == "regression":
        model, loss = nn.Sequential(*model, nn.Flatten(0)), nn.MSELoss(reduction="none")
        samples = Samples(samples.x, normal(draws, len(samples)))
    handle = HOOKS[hook]({"model": model, "layer": model[1], "loss": loss}[where])
    try:
        (found,) = certify(
            model, samples, loss=loss, radii=[radius], bounds=BOX if boxed else None, curvature=curvature
        )
        assert found.status == "estimated" or hook == "none"
        if found.status == "proved":  # a wrong curvature, too, is found out where it matters
            moved = [attacked(model, samples, radius, generator(seed + i), loss) for i in range(4)]
            attained = max(float(loss(model(zeta), samples.y).mean().detach()) for zeta in moved)
            assert curvature is not None or attained <= found.bound * (1 + 1e-12)
            assert found.attained <= found.bound
        else:
            assert found.reason
    finally:
        if handle is not None:
            handle.remove()


@pytest.mark.parametrize("classes", [2, 3])
def test_a_curvature_that_was_given_too_low_is_found_out(classes: int) -> None:
    draws = generator(3)
    model, samples = linear(draws, classes, 4.0), samples_for(draws, classes)
    (found,) = certify(model, samples, loss=cross_entropy, radii=[2.0], bounds=BOX, curvature=0.0)
    assert found.status == "estimated"
    assert found.reason is not None
    assert "more is attained" in found.reason


@law
@given(
    seed=SEEDS,
    scale=st.sampled_from([1.0, 10.0, 100.0, 1000.0]),
    radius=st.sampled_from([0.05, 0.6, 2.0]),
    classes=st.integers(2, 4),
    single=st.booleans(),
)
def test_an_estimate_is_not_below_what_moving_samples_to_their_corners_attains(
    seed: int, scale: float, radius: float, classes: int, single: bool
) -> None:
    """A linear program: each sample goes to the worst corner for each class, or stays, with any probabilities."""
    draws = generator(seed)
    model, samples = linear(draws, classes, scale), samples_for(draws, classes, count=12)
    samples = Samples(samples.x, model(samples.x).argmax(1))  # sure of all: no slope anywhere
    model, x = (model.float(), samples.x.float()) if single else (model, samples.x)
    (found,) = certify(model, Samples(x, samples.y), loss=cross_entropy, radii=[radius], cost=SquaredLinf(), bounds=BOX)
    weight, at = model.get_parameter("1.weight").detach(), torch.arange(len(x))
    costs, losses = [torch.zeros(len(x))], [cross_entropy(model(x), samples.y).detach()]
    for target in range(classes):
        corner = (weight[target] - weight[samples.y]).sign().reshape(x.shape)
        costs.append(SquaredLinf()(x, corner))
        losses.append(cross_entropy(model(corner), samples.y).detach())
    spent, gained = (torch.stack(values).double().T.reshape(-1).numpy() / len(x) for values in (costs, losses))
    each = torch.eye(len(x)).repeat_interleave(classes + 1, 1).numpy()
    best = linprog(-gained, A_ub=spent[None], b_ub=[radius], A_eq=each, b_eq=torch.ones(len(at)).numpy())
    assert found.attained >= -best.fun * (1 - 2e-3)  # the search ends at a gap of a thousandth
    assert found.bound >= found.attained


@law
@given(seed=SEEDS, radius=st.floats(-2, 1).map(lambda power: 10**power))
def test_precision_of_the_model_changes_no_proof_by_more_than_rounding(seed: int, radius: float) -> None:
    draws = generator(seed)
    model, samples = linear(draws, 3), samples_for(draws, 3)
    # The same weights and samples, rounded to float32 first, in both precisions.
    single, rounded = model.float(), Samples(samples.x.float(), samples.y)
    (low,) = certify(single, rounded, loss=cross_entropy, radii=[radius], bounds=BOX)
    (high,) = certify(
        single.double(), Samples(rounded.x.double(), rounded.y), loss=cross_entropy, radii=[radius], bounds=BOX
    )
    assert low.bound == pytest.approx(high.bound, rel=1e-4)
    assert low.bound >= high.attained * (1 - 1e-6)
