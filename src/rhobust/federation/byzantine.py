"""Attacks of simulated Byzantine workers, which know what the honest workers upload.

mu and sigma are the mean and the standard deviation of the honest uploads, coordinate by coordinate (of the liars' own,
in a round without an honest worker); g is what a liar would have uploaded itself. The strength s may follow the name:
`sign-flip:4`.

    sign-flip      -s g                                               s = 1
    noise          s ||g|| / sqrt(P) N(0, I), with P coordinates      s = 10: about ten times as long as g
    label-flip     g, computed honestly from labels C - 1 - y         (`flipped` turns the worker's labels beforehand)
    alie           mu - s sigma, the same from every liar             s = `little_enough(K, f)`
    inner-product  -s mu, the same from every liar                    s = 0.1: small enough to hide among the honest

alie is "a little is enough" (Baruch et al., 2019), inner-product the manipulation of Xie et al. (2020): the mean of all
is (K - f (1 + s)) / K mu, which turns against mu at s = (K - f) / f. Lies about gamma's gradient are told in the same
way, with P = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.errors import ConfigError, DataError, Refused, unknown


@dataclass(frozen=True)
class Known:
    """What the liars know: honest uploads, (K_h, P); their own, (f, P); where noise comes from."""

    honest: Tensor
    own: Tensor
    generator: torch.Generator


@dataclass(frozen=True)
class Lie:
    """A way to lie: its formula, and the strength for K workers with f liars; none where it takes no strength."""

    formula: Callable[[Known, float], Tensor]
    strength: Callable[[int, int], float] | None


def _sign_flip(known: Known, strength: float) -> Tensor:
    return -strength * known.own


def _noise(known: Known, strength: float) -> Tensor:
    own = known.own
    normal = torch.randn(own.shape, generator=known.generator, dtype=own.dtype, device=own.device)
    scale: Tensor = strength * own.norm(dim=1, keepdim=True) / math.sqrt(own.shape[1])
    return scale * normal


def _label_flip(known: Known, strength: float) -> Tensor:
    return known.own


def _alie(known: Known, strength: float) -> Tensor:
    return (known.honest.mean(0) - strength * known.honest.std(0, correction=0)).repeat(len(known.own), 1)


def _inner_product(known: Known, strength: float) -> Tensor:
    return (-strength * known.honest.mean(0)).repeat(len(known.own), 1)


def little_enough(workers: int, liars: int) -> float:
    """z = Phi^-1(1 - m / (K - f)), m = floor(K / 2 + 1) - f; Phi is the normal distribution function.

    The liars need m honest workers for a majority, and about so many are further from the mean, on their side, than z
    deviations. m is at least 1. Where it is more than half of the honest there is no room for a lie: z is 0.

    >>> round(little_enough(workers=50, liars=24), 3)  # Phi^-1(24 / 26)
    1.426
    """
    honest = max(1, workers - liars)
    needed = max(1, workers // 2 + 1 - liars)
    return max(0.0, float(torch.special.ndtri(torch.tensor(1 - needed / honest, dtype=torch.float64))))


LIARS: dict[str, Lie] = {
    "sign-flip": Lie(_sign_flip, lambda workers, liars: 1.0),
    "noise": Lie(_noise, lambda workers, liars: 10.0),
    "label-flip": Lie(_label_flip, None),
    "alie": Lie(_alie, little_enough),
    "inner-product": Lie(_inner_product, lambda workers, liars: 0.1),
}
"""Every way to lie, by name."""


def find_lie(spec: str) -> Lie:
    """The way to lie named by `name` or `name:strength`.

    >>> find_lie("noise:3").strength(10, 2)
    3.0
    """
    name, colon, text = spec.partition(":")
    if name not in LIARS:
        raise ConfigError([unknown("lie", name, LIARS)])
    way = LIARS[name]
    if not colon:
        return way
    if way.strength is None:
        raise ConfigError([f"lie '{spec}': {name} takes no strength"])
    try:
        strength = float(text)
    except ValueError:
        strength = math.nan
    if not 0 < strength < math.inf:
        raise ConfigError([f"lie '{spec}': the strength must be a finite number > 0"])
    return Lie(way.formula, lambda workers, liars: strength)


def lie(name: str, honest: Tensor, own: Tensor, workers: int, generator: torch.Generator) -> Tensor:
    """What the f liars among K = `workers` upload, (f, P), where the honest upload `honest`, (K_h, P).

    `own`, (f, P), is what the liars would have uploaded. Only `noise` draws from the generator.

    >>> lie("sign-flip:2", torch.ones(3, 2), torch.tensor([[1.0, -3.0]]), 4, torch.Generator())
    tensor([[-2.,  6.]])
    """
    way = find_lie(name)
    if honest.ndim != 2 or own.ndim != 2 or honest.shape[1] != own.shape[1] or len(honest) + len(own) > workers:
        shapes = f"{tuple(honest.shape)} and {tuple(own.shape)}"
        raise Refused(f"lies need honest uploads (K_h, P) and own (f, P) of at most {workers} workers, not {shapes}")
    strength = way.strength(workers, len(own)) if way.strength else 0.0
    return way.formula(Known(honest if len(honest) else own, own, generator), strength)


def flipped(labels: Tensor, classes: int) -> Tensor:
    """Labels as a label-flipping worker has them: y -> C - 1 - y.

    >>> flipped(torch.tensor([0, 1, 9]), classes=10)
    tensor([9, 8, 0])
    """
    if labels.is_floating_point() or not bool(((labels >= 0) & (labels < classes)).all()):
        raise DataError(
            f"labels can be flipped where they are whole numbers from 0 to {classes - 1}, and these are not"
        )
    return classes - 1 - labels
