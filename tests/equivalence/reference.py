"""Alg. 1 (SPGD) and Alg. 2 (SPGDA), literally and slowly: one sample, one coordinate, one line at a time.

Nothing here comes from the library. Theta is a flat list of Python floats (which are float64); torch appears only
where a gradient of the loss at a single sample is needed. The paper's lines, as numbered in the comments:

    Alg. 1                                               Alg. 2
    1  for t = 1, ..., T                                 1  for t = 1, ..., T
    2      draw samples z_n                              2      draw a batch z_m
    3      find an eps-optimizer zeta_n by the oracle    3      zeta_m = z_m + eta_t grad psi(zeta = z_m)
    4      theta, gamma <- prox[... - alpha mean grad]   4      theta, gamma <- prox[... - alpha mean grad]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Floats = list[float]


# ---------------------------------------------------------------------------------------------------------------------
# One sample


@dataclass
class Sample:
    """One nominal sample z = (x, y) and the model it meets: everything the inner problem of Alg. 1-2 is about."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    x: Floats
    y: Tensor  # ()
    gamma: float
    bounds: tuple[float, float] | None

    def loss_and_slope(self, zeta: Floats) -> tuple[float, Floats]:
        """loss(theta; zeta) and its gradient in zeta."""
        point = torch.tensor([zeta], dtype=torch.float64, requires_grad=True)
        loss = self.loss(self.model(point), self.y[None])[0]
        (slope,) = torch.autograd.grad(loss, point)
        return loss.item(), slope[0].tolist()

    def theta_gradient(self, zeta: Floats) -> Floats:
        """grad_theta psi(theta, gamma, zeta; z) = grad_theta loss(theta; zeta), by Lemma 1 with zeta held fixed."""
        loss = self.loss(self.model(torch.tensor([zeta], dtype=torch.float64)), self.y[None])[0]
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        return [value for gradient in gradients for value in gradient.flatten().tolist()]

    def cost(self, zeta: Floats) -> float:
        """c(z, zeta) = ||zeta - x||_2^2, summed over the features."""
        return sum((after - before) ** 2 for after, before in zip(zeta, self.x, strict=True))

    def project(self, zeta: Floats) -> Floats:
        if self.bounds is None:
            return zeta
        lower, upper = self.bounds
        return [min(max(value, lower), upper) for value in zeta]

    def best_response(self, slope: Floats) -> Floats:
        """argmax over the box of slope.zeta - gamma ||zeta - x||^2: coordinate by coordinate x + slope / (2 gamma)."""
        return self.project([x + s / (2 * self.gamma) for x, s in zip(self.x, slope, strict=True)])


# ---------------------------------------------------------------------------------------------------------------------
# Line 3: from a sample to its zeta.

Ascent = Callable[[Sample], Floats]


def constant_steps(steps: int, eta: float) -> Ascent:
    """Gradient ascent on psi with the constant step size eta; steps = 1 is Alg. 2, line 3, as printed."""

    def ascend(sample: Sample) -> Floats:
        zeta = list(sample.x)
        for _ in range(steps):
            _, slope = sample.loss_and_slope(zeta)
            # grad psi = grad loss - gamma grad c, with grad c = 2 (zeta - z)
            psi = [s - sample.gamma * 2 * (v - x) for s, v, x in zip(slope, zeta, sample.x, strict=True)]
            zeta = sample.project([v + eta * g for v, g in zip(zeta, psi, strict=True)])
        return zeta

    return ascend


def curvature_aware_steps(steps: int) -> Ascent:
    """The same with eta_t = 1 / (2 gamma) / sqrt(t + 1), written as a fraction of the way to the best response."""

    def ascend(sample: Sample) -> Floats:
        zeta = list(sample.x)
        for t in range(steps):
            _, slope = sample.loss_and_slope(zeta)
            target = sample.best_response(slope)
            zeta = [v + (goal - v) / math.sqrt(t + 1) for v, goal in zip(zeta, target, strict=True)]
        return zeta

    return ascend


def damped_oracle(accuracy: float, max_steps: int) -> Ascent:
    """The oracle of Alg. 1, line 3: damped best responses, until the sample's gap is at most `accuracy`."""

    def ascend(sample: Sample) -> Floats:
        search = _damped_search(sample)
        zeta, gap = next(search)
        for _ in range(max_steps - 1):
            if gap <= accuracy:
                break
            zeta, gap = next(search)
        return zeta

    return ascend


def _damped_search(sample: Sample) -> Iterator[tuple[Floats, float]]:
    """The best zeta so far and its estimated gap, after each gradient."""
    best, tau, seen = list(sample.x), 1.0, math.inf  # before the first move nothing is known of the curvature
    loss, slope = sample.loss_and_slope(best)
    while True:
        target = sample.best_response(slope)
        # What a loss that is linear from here on would still gain, enlarged by the curvature seen on the last move.
        gain = sum(s * (goal - v) for s, goal, v in zip(slope, target, best, strict=True))
        gain -= sample.gamma * (sample.cost(target) - sample.cost(best))
        concavity = max(0.0, 1 - max(0.0, seen) / (2 * sample.gamma))
        gap = max(gain, 0.0) / concavity if concavity > 0 else (math.inf if gain > 0 else 0.0)
        yield best, gap

        trial = [v + tau * (goal - v) for v, goal in zip(best, target, strict=True)]
        trial_loss, trial_slope = sample.loss_and_slope(trial)
        move = [after - before for after, before in zip(trial, best, strict=True)]
        bend = sum(m * (after - before) for m, after, before in zip(move, trial_slope, slope, strict=True))
        length = sum(m * m for m in move)
        seen = bend / length if length > 0 else 0.0
        before, after = loss - sample.gamma * sample.cost(best), trial_loss - sample.gamma * sample.cost(trial)
        if after >= before - 4 * 2.0**-52 * abs(before):  # psi rose, up to rounding
            best, loss, slope = trial, trial_loss, trial_slope
        else:
            tau /= 2


# ---------------------------------------------------------------------------------------------------------------------
# Line 4, the step of theta: a move for each coordinate, and the step size with which the prox must be taken.


@dataclass
class Sgd:
    """theta <- theta - lr buffer, with buffer = momentum buffer + (1 - dampening) gradient, the first one undamped."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    buffer: Floats = field(default_factory=list)

    def step(self, theta: Floats, gradient: Floats) -> tuple[Floats, Floats]:
        if self.momentum == 0:
            return [v - self.lr * g for v, g in zip(theta, gradient, strict=True)], [self.lr] * len(theta)
        if not self.buffer:
            self.buffer = list(gradient)
        else:
            self.buffer = [
                self.momentum * b + (1 - self.dampening) * g for b, g in zip(self.buffer, gradient, strict=True)
            ]
        settled = self.lr * (1 - self.dampening) / (1 - self.momentum)  # what a lasting unit gradient moves per step
        return [v - self.lr * b for v, b in zip(theta, self.buffer, strict=True)], [settled] * len(theta)


@dataclass
class Adam:
    """Kingma and Ba, Alg. 1, for each coordinate."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    count: int = 0
    mean: Floats = field(default_factory=list)
    square: Floats = field(default_factory=list)

    def step(self, theta: Floats, gradient: Floats) -> tuple[Floats, Floats]:
        if self.count == 0:
            self.mean, self.square = [0.0] * len(theta), [0.0] * len(theta)
        self.count += 1
        moved, steps = [], []
        for i, (v, g) in enumerate(zip(theta, gradient, strict=True)):
            self.mean[i] = self.beta1 * self.mean[i] + (1 - self.beta1) * g
            self.square[i] = self.beta2 * self.square[i] + (1 - self.beta2) * g * g
            mean = self.mean[i] / (1 - self.beta1**self.count)
            square = self.square[i] / (1 - self.beta2**self.count)
            alpha = self.lr / (math.sqrt(square) + self.eps)
            moved.append(v - alpha * mean)
            steps.append(alpha)
        return moved, steps


# ---------------------------------------------------------------------------------------------------------------------
# Line 4, the prox: argmin over theta of r(theta) + sum_i (theta_i - v_i)^2 / (2 step_i)

Prox = Callable[[Floats, Floats], Floats]


def _soft(v: float, threshold: float) -> float:
    return math.copysign(max(abs(v) - threshold, 0.0), v)


def no_prox(v: Floats, steps: Floats) -> Floats:
    """r = 0."""
    return v


def l1_prox(weight: float) -> Prox:
    """r = weight ||theta||_1: soft thresholding."""
    return lambda v, steps: [_soft(value, weight * step) for value, step in zip(v, steps, strict=True)]


def squared_l1_prox(weight: float) -> Prox:
    """r = weight ||theta||_1^2: soft(v_i, 2 weight step_i S) with S = ||theta||_1, found by trying every support."""

    def prox(v: Floats, steps: Floats) -> Floats:
        order = sorted(range(len(v)), key=lambda i: abs(v[i]) / steps[i], reverse=True)
        for k in range(len(v), 0, -1):  # the k coordinates with the largest |v_i| / step_i stay
            support = order[:k]
            total = sum(abs(v[i]) for i in support) / (1 + 2 * weight * sum(steps[i] for i in support))
            if all(abs(v[i]) > 2 * weight * steps[i] * total for i in support):
                return [_soft(value, 2 * weight * step * total) for value, step in zip(v, steps, strict=True)]
        return [0.0] * len(v)

    return prox


# ---------------------------------------------------------------------------------------------------------------------
# Line 4, the step of gamma, before its projection; gradient = rho - E c


@dataclass
class ProjectedGamma:
    """gamma <- gamma - lr (rho - E c), as printed."""

    lr: float

    def step(self, gamma: float, gradient: float, rho: float) -> float:
        return gamma - self.lr * gradient


@dataclass
class AdamGamma:
    """Adam for the one coordinate gamma."""

    lr: float
    count: int = 0
    mean: float = 0.0
    square: float = 0.0

    def step(self, gamma: float, gradient: float, rho: float) -> float:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient * gradient
        mean, square = self.mean / (1 - 0.9**self.count), self.square / (1 - 0.999**self.count)
        return gamma - self.lr * mean / (math.sqrt(square) + 1e-8)


@dataclass
class MultiplicativeGamma:
    """gamma <- gamma exp(-lr clip((rho - E c) / rho, -1, 1))."""

    lr: float

    def step(self, gamma: float, gradient: float, rho: float) -> float:
        return gamma * math.exp(-self.lr * min(max(gradient / rho, -1.0), 1.0))


GammaRule = ProjectedGamma | AdamGamma | MultiplicativeGamma


# ---------------------------------------------------------------------------------------------------------------------
# The algorithms: they differ in line 3 only, which is the argument `ascent`.


@dataclass
class Reference:
    """The state of Alg. 1 and Alg. 2 between two iterations, and the iteration."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    ascent: Ascent
    optimizer: Sgd | Adam
    prox: Prox
    gamma_rule: GammaRule
    rho: float
    gamma: float
    gamma_min: float
    bounds: tuple[float, float] | None

    @property
    def theta(self) -> Floats:
        return [value for weight in self.model.parameters() for value in weight.flatten().tolist()]

    def iterate(self, x: Tensor, y: Tensor) -> tuple[list[Floats], Floats]:
        """Lines 2-4 on the batch drawn; returns every zeta and its cost."""
        # Alg. 1 and 2, line 2: the samples, one by one
        batch = [
            Sample(self.model, self.loss, z, label, self.gamma, self.bounds)
            for z, label in zip(x.tolist(), y, strict=True)
        ]
        # Alg. 1, line 3 (an oracle) or Alg. 2, line 3 (one gradient)
        zetas = [self.ascent(sample) for sample in batch]
        # Alg. 1 and 2, line 4: the mean over the batch of grad psi in (theta, gamma) at zeta ...
        gradients = [sample.theta_gradient(zeta) for sample, zeta in zip(batch, zetas, strict=True)]
        costs = [sample.cost(zeta) for sample, zeta in zip(batch, zetas, strict=True)]
        theta_gradient = [sum(column) / len(batch) for column in zip(*gradients, strict=True)]
        gamma_gradient = self.rho - sum(costs) / len(batch)
        # ... a step and the prox of r, which is a function of theta alone ...
        moved, steps = self.optimizer.step(self.theta, theta_gradient)
        self._write(self.prox(moved, steps))
        # ... and a step of gamma, projected on [gamma_min, infinity)
        self.gamma = max(self.gamma_min, self.gamma_rule.step(self.gamma, gamma_gradient, self.rho))
        return zetas, costs

    def _write(self, theta: Floats) -> None:
        values = iter(theta)
        with torch.no_grad():
            for weight in self.model.parameters():
                fresh = torch.tensor([next(values) for _ in range(weight.numel())], dtype=torch.float64)
                weight.copy_(fresh.reshape(weight.shape))
