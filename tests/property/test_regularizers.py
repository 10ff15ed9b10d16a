"""Laws of every regularizer and its prox, p = argmin r(u) + ||u - v||_D^2 / 2 with D = diag(1 / steps).

Scalar and per-coordinate steps, several tensors at once. The certificate is Fenchel's: p is the prox exactly when
s = (v - p) / steps satisfies r(p) + r*(s) = s.p, and the conjugates r* are written down here, not in the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from rhobust.errors import Refused
from rhobust.regularizers import L1, Box, ElasticNet, GroupL2, NoRegularizer, Regularizer, SquaredL1, SquaredL2
from tests.problems import generator, normal, uniform

SHAPES = [(3,), (2, 2), ()]  # a bias, a matrix with two groups, a lone number
SIZE = 8


def tensors(flat: Sequence[float]) -> list[Tensor]:
    parts = torch.tensor(flat, dtype=torch.float64).split([math.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def groups(s: Tensor) -> list[Tensor]:
    """The groups of SHAPES in a flat vector: the bias, each row of the matrix, the lone number."""
    return list(s.split([3, 2, 2, 1]))


def indicator(outside: Tensor | float) -> float:
    """0, or infinity where a constraint is broken by more than rounding."""
    return math.inf if float(outside) > 1e-9 else 0.0


@dataclass(frozen=True)
class Case:
    """A regularizer with its value and its conjugate, both as functions of the flat vector."""

    name: str
    regularizer: Regularizer
    value: Callable[[Tensor], float]
    conjugate: Callable[[Tensor], float]


def cases(w: float) -> list[Case]:
    return [
        Case("none", NoRegularizer(), lambda u: 0.0, lambda s: indicator(s.abs().max())),
        Case("l1", L1(w), lambda u: w * float(u.abs().sum()), lambda s: indicator(s.abs().max() - w)),
        Case("l2 squared", SquaredL2(w), lambda u: w * float(u @ u), lambda s: float(s @ s) / (4 * w)),
        Case(
            "elastic net",
            ElasticNet(w, 2 * w),
            lambda u: w * float(u.abs().sum()) + 2 * w * float(u @ u),
            lambda s: float((s.abs() - w).clamp_min(0).square().sum()) / (8 * w),
        ),
        Case(
            "l1 squared",
            SquaredL1(w),
            lambda u: w * float(u.abs().sum()) ** 2,
            lambda s: float(s.abs().max()) ** 2 / (4 * w),
        ),
        Case(
            "group",
            GroupL2(w),
            lambda u: w * sum(float(part.norm()) for part in groups(u)),
            lambda s: indicator(max(float(part.norm()) for part in groups(s)) - w),
        ),
        Case(
            "box",
            Box(-w, 2 * w),
            lambda u: indicator(max(float(u.max()) - 2 * w, -w - float(u.min()))),
            lambda s: float(torch.maximum(-w * s, 2 * w * s).sum()),
        ),
    ]


NAMES = [case.name for case in cases(1.0)]
WEIGHTS = st.sampled_from([0.01, 0.3, 1.0, 4.0])
POINTS = st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=SIZE, max_size=SIZE).map(tensors)
# Adam's steps differ by orders of magnitude between coordinates.
STEPS = st.one_of(
    st.lists(st.floats(0.01, 3), min_size=3, max_size=3).map(
        lambda values: [torch.tensor(value, dtype=torch.float64) for value in values]
    ),
    st.lists(st.floats(-4, 4), min_size=SIZE, max_size=SIZE).map(lambda powers: tensors([10.0**p for p in powers])),
)
each_case = pytest.mark.parametrize("name", NAMES)
law = settings(deadline=None, derandomize=True, max_examples=40)


def pick(name: str, weight: float) -> Case:
    return next(case for case in cases(weight) if case.name == name)


def spread(steps: Sequence[Tensor]) -> Tensor:
    """One step per coordinate, flat."""
    return torch.cat([step.expand(shape).flatten() for step, shape in zip(steps, SHAPES, strict=True)])


@each_case
@law
@given(weight=WEIGHTS, u=POINTS)
def test_value_is_the_norm_it_says(name: str, weight: float, u: list[Tensor]) -> None:
    case = pick(name, weight)
    assert float(case.regularizer.value(u)) == pytest.approx(case.value(flat(u)), rel=1e-12, abs=1e-12)


@each_case
@law
@given(weight=WEIGHTS, v=POINTS, steps=STEPS)
def test_prox_satisfies_fenchel_equality(name: str, weight: float, v: list[Tensor], steps: list[Tensor]) -> None:
    case = pick(name, weight)
    found = case.regularizer.prox(v, steps)
    assert [part.shape for part in found] == [part.shape for part in v]
    p, s = flat(found), (flat(v) - flat(found)) / spread(steps)
    assert case.value(p) + case.conjugate(s) == pytest.approx(float(p @ s), rel=1e-9, abs=1e-9)


@each_case
@law
@given(weight=WEIGHTS, v=POINTS, u=POINTS, steps=STEPS)
def test_three_point_inequality(
    name: str, weight: float, v: list[Tensor], u: list[Tensor], steps: list[Tensor]
) -> None:
    case = pick(name, weight)
    p, metric = flat(case.regularizer.prox(v, steps)), 1 / spread(steps)

    def half(a: Tensor, b: Tensor) -> float:
        return float((metric * (a - b).square()).sum()) / 2

    left = case.value(p) + half(p, flat(v)) + half(flat(u), p)
    right = case.value(flat(u)) + half(flat(u), flat(v))
    assert left <= right + 1e-9 * (1 + abs(left))


@each_case
@law
@given(weight=WEIGHTS, one=POINTS, two=POINTS, steps=STEPS)
def test_prox_is_firmly_nonexpansive_in_its_metric(
    name: str, weight: float, one: list[Tensor], two: list[Tensor], steps: list[Tensor]
) -> None:
    prox, metric = pick(name, weight).regularizer.prox, 1 / spread(steps)
    moved, apart = flat(prox(one, steps)) - flat(prox(two, steps)), flat(one) - flat(two)
    assert (metric * moved * moved).sum() <= (metric * moved * apart).sum() * (1 + 1e-9) + 1e-9


# Moreau: v = prox_r(v; steps) + steps prox_{r*}(v / steps; 1 / steps), for the pairs of which the library has both.
@pytest.mark.parametrize(
    "pair",
    [
        lambda w: (L1(w), Box(-w, w)),
        lambda w: (Box(-w, w), L1(w)),
        lambda w: (SquaredL2(w), SquaredL2(1 / (4 * w))),
    ],
    ids=["l1 and box", "box and l1", "l2 squared and itself"],
)
@law
@given(weight=WEIGHTS, v=POINTS, steps=STEPS)
def test_moreau_identity(
    pair: Callable[[float], tuple[Regularizer, Regularizer]], weight: float, v: list[Tensor], steps: list[Tensor]
) -> None:
    regularizer, conjugate = pair(weight)
    p = regularizer.prox(v, steps)
    s = conjugate.prox([part / step for part, step in zip(v, steps, strict=True)], [1 / step for step in steps])
    for whole, part, step, dual in zip(v, p, steps, s, strict=True):
        torch.testing.assert_close(part + step * dual, whole, rtol=1e-12, atol=1e-12)


@law
@given(weight=WEIGHTS, v=POINTS, step=st.floats(0.01, 3))
def test_squared_l1_equals_its_formula(weight: float, v: list[Tensor], step: float) -> None:
    """soft(v, tau), tau = 2 lambda S_k / (1 + 2 lambda k), k the largest with |v|_(k) > tau; S_k sums the k largest."""
    values, scaled = flat(v).numpy(), weight * step
    ranked, tau = np.sort(np.abs(values))[::-1], 0.0
    for k in range(1, SIZE + 1):
        threshold = 2 * scaled * ranked[:k].sum() / (1 + 2 * scaled * k)
        if ranked[k - 1] > threshold:
            tau = threshold
    expected = np.sign(values) * np.maximum(np.abs(values) - tau, 0)
    found = flat(SquaredL1(weight).prox(v, [torch.tensor(step, dtype=torch.float64)] * 3))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@each_case
@pytest.mark.parametrize("seed", range(4))
def test_prox_equals_a_general_minimizer(name: str, seed: int) -> None:
    draws = generator(seed)
    v, steps = [2 * normal(draws, 2)], [uniform(draws, 0.1, 1.0, 2)]
    regularizer = pick(name, 0.4).regularizer

    def energy(u: np.ndarray) -> float:
        point = torch.from_numpy(u)
        return float(regularizer.value([point]) + ((point - v[0]).square() / steps[0]).sum() / 2)

    found = regularizer.prox(v, steps)[0].numpy()
    start = v[0].numpy() if name != "box" else np.array([0.3, 0.3])  # a simplex needs a finite energy to start from
    options = {"xatol": 1e-10, "fatol": 1e-15, "maxiter": 4000, "maxfev": 4000}
    # The energy has kinks: a simplex method, restarted where it may have collapsed on one.
    for _ in range(3):
        start = minimize(energy, start, method="Nelder-Mead", options=options).x
    assert energy(found) <= energy(start) + 1e-12
    np.testing.assert_allclose(found, start, atol=1e-6)


@law
@given(v=POINTS, steps=STEPS)
def test_weight_zero_changes_nothing(v: list[Tensor], steps: list[Tensor]) -> None:
    for regularizer in (L1(0.0), SquaredL2(0.0), SquaredL1(0.0), GroupL2(0.0), ElasticNet(0.0, 0.0)):
        torch.testing.assert_close(flat(regularizer.prox(v, steps)), flat(v), rtol=1e-15, atol=1e-150)


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize("make", [L1, SquaredL2, SquaredL1, GroupL2, lambda w: ElasticNet(w, 1.0)])
def test_impossible_weights_are_refused(make: Callable[[float], Regularizer], weight: float) -> None:
    with pytest.raises(Refused, match="finite and >= 0"):
        make(weight)


def test_empty_box_is_refused() -> None:
    with pytest.raises(Refused, match="lower <= upper"):
        Box(1.0, -1.0)


def test_squared_l1_shrinks_the_others_where_zeros_rest() -> None:
    """0 / 0 of a tensor that neither moves nor counts must not hide the rest."""
    zeros, moving = SquaredL1(0.5).prox(
        [torch.zeros(2), torch.tensor([2.0, 0.5])], [torch.tensor(0.0), torch.tensor(1.0)]
    )
    assert (zeros.tolist(), moving.tolist()) == ([0, 0], [1, 0])


def test_a_group_of_which_a_part_stands_still_shrinks_in_the_rest() -> None:
    (found,) = GroupL2(1.0).prox([torch.tensor([[0.1, 0.2]])], [torch.tensor([[0.0, 1.0]])])
    assert found[0, 0] == torch.tensor(0.1)
    # theta_2 = 0.2 N / (N + 1) with N = ||(0.1, theta_2)||, by iterating that.
    other = 0.2
    for _ in range(100):
        length = math.hypot(0.1, other)
        other = 0.2 * length / (length + 1)
    assert float(found[0, 1]) == pytest.approx(other, rel=1e-5)
