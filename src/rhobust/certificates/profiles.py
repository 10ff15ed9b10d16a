"""Losses of one linear score, and how far it is worth moving that score: closed forms for every sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rhobust.ascent.margin import margin_length
from rhobust.losses import Huber, PerSampleLoss, Quantile, absolute_error, cross_entropy, squared_error


class Profile(ABC):
    """A loss of one score. A move of length t changes the score by s t, where the rate s is the weight's dual norm."""

    @abstractmethod
    def best(self, score: Tensor, y: Tensor, rate: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """The t of either sign with the largest loss(score + s t) - gamma t^2, (B,), and that value, (B,)."""

    def floor(self, rate: float) -> float:
        """The gamma below which the largest value is infinite."""
        return 0.0


@dataclass(frozen=True)
class TwoClasses(Profile):
    """Cross-entropy of two classes, whose score is logit 1 - logit 0: softplus(b + s t) is solved for every gamma."""

    def best(self, score: Tensor, y: Tensor, rate: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        side = 1 - 2 * y  # a sample of class 0 is lost upward
        bias = side * score
        length = margin_length(bias, rate.expand_as(score), gamma)
        # softplus, which torch rounds to its argument above 20: too low by 2e-9.
        upper = torch.logaddexp(torch.zeros_like(bias), bias + rate * length) - gamma * length.square()
        return side * length, upper


@dataclass(frozen=True)
class Squared(Profile):
    """(|r| + s t)^2 - gamma t^2 has t = s |r| / (gamma - s^2) for gamma > s^2, and no maximum below."""

    def best(self, score: Tensor, y: Tensor, rate: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        residual, room = score - y, gamma - rate.square()
        return rate * residual / room, residual.square() * gamma / room

    def floor(self, rate: float) -> float:
        return rate**2


@dataclass(frozen=True)
class Pinball(Profile):
    """The larger of two lines, up r and -down r: along a line of slope a the best t is a s / (2 gamma)."""

    up: float
    down: float

    def best(self, score: Tensor, y: Tensor, rate: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        slopes = score.new_tensor([[self.up], [-self.down]])  # (2, 1)
        values = slopes * (score - y) + (slopes * rate).square() / (4 * gamma)  # (2, B)
        upper, line = values.max(0)
        return (slopes * rate / (2 * gamma)).expand_as(values).gather(0, line[None])[0], upper


@dataclass(frozen=True)
class HuberProfile(Profile):
    """r^2 / 2 up to delta, then a line: the best t is that of the parabola, s |r| / (2 gamma - s^2), if it ends there,
    else that of the line, delta s / (2 gamma)."""

    delta: float

    def best(self, score: Tensor, y: Tensor, rate: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        residual, room = score - y, 2 * gamma - rate.square()
        size = residual.abs()
        near = (room > 0) & (2 * gamma * size <= self.delta * room)
        length = torch.where(near, rate * size / torch.where(room > 0, room, 1.0), self.delta * rate / (2 * gamma))
        end = size + rate * length
        inside = end.clamp_max(self.delta)
        return side(residual) * length, inside * (end - inside / 2) - gamma * length.square()


def side(residual: Tensor) -> Tensor:
    """Which way the error grows; from 0 either."""
    return torch.where(residual < 0, -1.0, 1.0).to(residual)


def profile_of(loss: PerSampleLoss, outputs: int) -> Profile | None:
    """The profile of a loss of a linear model with these outputs; none where it does not see one score alone."""
    if is_cross_entropy(loss) and outputs == 2:
        return TwoClasses()
    return _of_residual(loss) if outputs == 1 else None


def _of_residual(loss: PerSampleLoss) -> Profile | None:
    if is_squared_error(loss):
        return Squared()
    if isinstance(loss, Quantile):
        return Pinball(1 - loss.tau, loss.tau)
    if loss is absolute_error or (type(loss) is nn.L1Loss and loss.reduction == "none"):
        return Pinball(1.0, 1.0)
    delta = huber_delta(loss)
    return None if delta is None else HuberProfile(delta)


def is_cross_entropy(loss: PerSampleLoss) -> bool:
    """Whether a loss is plain cross-entropy."""
    if type(loss) is nn.CrossEntropyLoss:  # an ignored class would have no loss at all
        return loss.reduction == "none" and loss.weight is None and not loss.label_smoothing and loss.ignore_index < 0
    return loss is cross_entropy


def is_squared_error(loss: PerSampleLoss) -> bool:
    """Whether a loss is the squared error."""
    return loss is squared_error or (type(loss) is nn.MSELoss and loss.reduction == "none")


def huber_delta(loss: PerSampleLoss) -> float | None:
    """The delta of a Huber loss; none of another one."""
    if isinstance(loss, Huber):
        return loss.delta
    return float(loss.delta) if type(loss) is nn.HuberLoss and loss.reduction == "none" else None
