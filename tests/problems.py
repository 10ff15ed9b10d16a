"""Small problems drawn together with their exact answers, and the one checker that compares.

No answer here comes from the library: each is a formula, or a solver that shares no code with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import expit
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Problem
from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp
from rhobust.objective import RobustObjective

T = TypeVar("T")


@dataclass(frozen=True)
class Norm:
    """A cost with the exponent p of its norm and the exponent q of the dual one, 1/p + 1/q = 1."""

    cost: Cost
    p: float
    q: float

    def __str__(self) -> str:
        return f"l{self.p:g}"


NORMS = [
    Norm(SquaredL2(), 2.0, 2.0),
    Norm(SquaredLp(1.5), 1.5, 3.0),
    Norm(SquaredLp(1.25), 1.25, 5.0),
    Norm(SquaredLinf(), math.inf, 1.0),
]


@dataclass(frozen=True)
class Solved:
    """An inner problem and its exact sup for each sample."""

    problem: Problem
    sup: Tensor  # (B,)


def penalized(problem: Problem, zeta: Tensor) -> Tensor:
    """loss(zeta) - gamma c(z, zeta), (B,)."""
    return problem.loss(zeta) - problem.gamma * problem.cost(problem.z, zeta)


def check_sup(solved: Solved, zeta: Tensor, tolerance: float = 1e-9) -> None:
    """zeta attains the sup, and lies in the box."""
    torch.testing.assert_close(penalized(solved.problem, zeta), solved.sup, rtol=tolerance, atol=tolerance)
    if solved.problem.bounds is not None:
        lower, upper = solved.problem.bounds
        assert ((lower <= zeta) & (zeta <= upper)).all()


def known(value: T | None) -> T:
    """A gradient, an accuracy or a bound that has to be there."""
    assert value is not None
    return value


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(draws: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draws, dtype=torch.float64)


def uniform(draws: torch.Generator, lower: float, upper: float, *shape: int) -> Tensor:
    return lower + (upper - lower) * torch.rand(*shape, generator=draws, dtype=torch.float64)


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def length(v: Tensor, p: float) -> Tensor:
    """||v||_p of each row, by numpy: (..., d) -> (...)."""
    return torch.as_tensor(np.linalg.norm(v.numpy(), p, axis=-1))


# Losses loss(model(x), y) -> (B,); a binary label is -1 or 1.
def squared_error(output: Tensor, y: Tensor) -> Tensor:
    return (y - output[:, 0]).square()


def linear_loss(output: Tensor, y: Tensor) -> Tensor:
    return output[:, 0] + y


def logistic_loss(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.softplus(-y * output[:, 0])


def hinge_loss(output: Tensor, y: Tensor) -> Tensor:
    return (1 - y * output[:, 0]).clamp_min(0)


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y, reduction="none")


def linear_model(weight: Tensor) -> nn.Linear:
    """x -> x W^T in float64, without a bias; a vector is one output."""
    weight = weight.reshape(-1, weight.shape[-1])
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    with torch.no_grad():
        model.weight.copy_(weight)
    return model


def relu_network(draws: torch.Generator, features: int, classes: int = 3) -> nn.Sequential:
    """A network whose loss is neither concave nor smooth in its input."""
    model = nn.Sequential(
        nn.Linear(features, 8, dtype=torch.float64), nn.ReLU(), nn.Linear(8, classes, dtype=torch.float64)
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(2 * normal(draws, *weight.shape))
    return model


# Inner problems with an exact sup. `dearness` is gamma in units of the value below which the formula fails.
def linear_problem(norm: Norm, seed: int) -> Solved:
    """sup_d g.d - gamma ||d||_p^2 = ||g||_q^2 / (4 gamma)."""
    draws = generator(seed)
    z, slopes = normal(draws, 5, 4), normal(draws, 5, 4)
    gamma = uniform(draws, 0.1, 3.0, 1)[0]
    problem = Problem(z, lambda zeta: (slopes * zeta).sum(1), gamma, norm.cost)
    return Solved(problem, (slopes * z).sum(1) + length(slopes, norm.q).square() / (4 * gamma))


def quadratic_problem(seed: int, bends: tuple[float, ...] = (2.0, 0.7, -1.0, -9.0), gamma: float = 1.3) -> Solved:
    """sup_d g.d + d'Hd/2 - gamma ||d||^2 = g'(2 gamma I - H)^{-1} g / 2, for 2 gamma > max `bends`, H's eigenvalues."""
    draws = generator(seed)
    z, slopes = normal(draws, 5, 4), normal(draws, 5, 4)
    basis, _ = torch.linalg.qr(normal(draws, 4, 4))
    bend = basis @ torch.diag(torch.tensor(bends, dtype=torch.float64)) @ basis.T

    def loss(zeta: Tensor) -> Tensor:
        d = zeta - z
        return (slopes * d).sum(1) + (d @ bend * d).sum(1) / 2

    room = 2 * gamma * torch.eye(4, dtype=torch.float64) - bend
    problem = Problem(z, loss, scalar(gamma), SquaredL2())
    return Solved(problem, (slopes * torch.linalg.solve(room, slopes.T).T).sum(1) / 2)


def regression_problem(norm: Norm, seed: int, dearness: float = 1.7) -> Solved:
    """(r + ||theta||_q t)^2 - gamma t^2 over t: r^2 gamma / (gamma - s), s = ||theta||_q^2, for gamma > s."""
    draws = generator(seed)
    theta, z, y = normal(draws, 4), normal(draws, 5, 4), normal(draws, 5)
    s = length(theta, norm.q).square()
    gamma = dearness * s
    problem = Problem(z, lambda zeta: squared_error((zeta @ theta)[:, None], y), gamma, norm.cost)
    return Solved(problem, (y - z @ theta).square() * gamma / (gamma - s))


def logistic_sup(margin: float, s: float, gamma: float) -> float:
    """max_t softplus(-m + s t) - gamma t^2 at the root of s sigmoid(-m + s t) = 2 gamma t; one root, gamma > s^2/8."""
    t = brentq(lambda t: s / (1 + math.exp(margin - s * t)) - 2 * gamma * t, 0, s / (2 * gamma), xtol=1e-15)
    return float(np.logaddexp(0, s * t - margin)) - gamma * t * t


def logistic_problem(norm: Norm, seed: int, dearness: float = 1.5) -> Solved:
    draws = generator(seed)
    theta, z = normal(draws, 4), normal(draws, 6, 4)
    y = normal(draws, 6).sign()
    s = float(length(theta, norm.q))
    gamma = dearness * s * s / 8
    sup = [logistic_sup(margin, s, gamma) for margin in (y * (z @ theta)).tolist()]
    problem = Problem(z, lambda zeta: logistic_loss((zeta @ theta)[:, None], y), scalar(gamma), norm.cost)
    return Solved(problem, torch.tensor(sup, dtype=torch.float64))


def hinge_problem(norm: Norm, margins: Tensor, gamma: float, seed: int = 0) -> Solved:
    """Samples of the given margins; sup = (1 - m + s^2 / (4 gamma))_+."""
    draws = generator(seed)
    theta, z = normal(draws, 4), normal(draws, len(margins), 4)
    y = normal(draws, len(margins)).sign()
    z = z + ((y * margins - z @ theta) / theta.square().sum())[:, None] * theta  # now y theta.z = margin
    problem = Problem(z, lambda zeta: hinge_loss((zeta @ theta)[:, None], y), scalar(gamma), norm.cost)
    return Solved(problem, (1 - margins + length(theta, norm.q).square() / (4 * gamma)).clamp_min(0))


def softmax_problem(seed: int, bounds: tuple[float, float] | None = None, dearness: float = 1.5) -> Solved:
    """Linear softmax, 3 classes, squared l2: psi is strongly concave for gamma > ||W||^2 / 4, so L-BFGS finds its top.

    The weights are large enough that in a box many coordinates end on its boundary.
    """
    draws = generator(seed)
    weight, y = 3 * normal(draws, 3, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    z = normal(draws, 6, 4) if bounds is None else (0.5 * normal(draws, 6, 4)).clamp(*bounds)
    gamma = dearness * float(torch.linalg.matrix_norm(weight, 2).square()) / 4
    sup = [softmax_sup(weight.numpy(), label, start, gamma, bounds) for label, start in zip(y, z.numpy(), strict=True)]
    problem = Problem(z, lambda zeta: cross_entropy(zeta @ weight.T, y), scalar(gamma), SquaredL2(), bounds)
    return Solved(problem, torch.tensor(sup, dtype=torch.float64))


def softmax_sup(
    weight: np.ndarray, label: int, z: np.ndarray, gamma: float, bounds: tuple[float, float] | None
) -> float:
    def negative(zeta: np.ndarray) -> tuple[float, np.ndarray]:
        logits = weight @ zeta
        top = logits.max()
        mass = np.exp(logits - top)
        value = top + math.log(mass.sum()) - logits[label] - gamma * np.sum((zeta - z) ** 2)
        slope = weight.T @ (mass / mass.sum()) - weight[label] - 2 * gamma * (zeta - z)
        return -value, -slope

    box = None if bounds is None else [bounds] * len(z)
    return -minimize(negative, z, jac=True, bounds=box, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-12}).fun


def margin_gain(t: np.ndarray | float, bias: float, rate: float, gamma: float) -> np.ndarray | float:
    """What a move of length t along a linear margin gains: softplus(bias + rate t) - gamma t^2."""
    return np.logaddexp(0, bias + rate * t) - gamma * np.square(t)


def error_gain(t: np.ndarray | float, bias: float, rate: float, gamma: float) -> np.ndarray | float:
    """The same for the chance of an error: sigmoid(bias + rate t) - gamma t^2."""
    return expit(bias + rate * t) - gamma * np.square(t)


Gain = Callable[[np.ndarray | float, float, float, float], np.ndarray | float]


def margin_sup(bias: float, rate: float, gamma: float, cap: float = math.inf, gain: Gain = margin_gain) -> float:
    """max over 0 <= t <= cap of the gain, by a dense grid whose best cells are polished: no concavity needed."""
    top = min(cap, rate / (2 * gamma))
    border = np.clip((np.linspace(-5, 40, 4001) - bias) / rate, 0, top)  # a sigmoid is steep there, and only there
    grid = np.unique(np.concatenate([np.linspace(0, top, 4001), top * np.logspace(-12, 0, 400), border]))
    gains = np.asarray(gain(grid, bias, rate, gamma))
    best = int(gains.argmax())
    cell = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    polished = minimize_scalar(
        lambda t: -gain(t, bias, rate, gamma), bounds=cell, method="bounded", options={"xatol": 1e-13 * top}
    )
    return max(float(gains[best]), -float(polished.fun))


# The dual as a function of gamma alone.
def dual_minimum(objective: RobustObjective, x: Tensor, y: Tensor, between: tuple[float, float]) -> tuple[float, float]:
    """(gamma*, the value there): the min over gamma of the objective with theta fixed."""
    found = minimize_scalar(
        lambda gamma: dual_value(objective, x, y, gamma), bounds=between, method="bounded", options={"xatol": 1e-12}
    )
    return float(found.x), float(found.fun)


def dual_value(objective: RobustObjective, x: Tensor, y: Tensor, gamma: float) -> float:
    with torch.no_grad():
        objective.gamma.fill_(gamma)
        return float(objective(x, y).value)


def central_difference(value: Callable[[Tensor], float], at: Tensor, step: float = 1e-5) -> Tensor:
    """The gradient of `value` by central differences, coordinate by coordinate."""
    flat = at.flatten()
    moves = step * torch.eye(len(flat), dtype=at.dtype)
    slopes = [(value((flat + d).reshape(at.shape)) - value((flat - d).reshape(at.shape))) / (2 * step) for d in moves]
    return torch.tensor(slopes, dtype=at.dtype).reshape(at.shape)
