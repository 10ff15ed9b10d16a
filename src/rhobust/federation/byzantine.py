"""Attacks of simulated Byzantine workers, which know what the honest workers upload.

K workers take part in a round, f of them Byzantine. mu and sigma are the mean and the standard deviation of the honest
uploads, coordinate by coordinate (of the Byzantine workers' own in a round without an honest worker). g is what a
Byzantine worker would have uploaded if it were honest. The strength s may follow the name: `sign-flip:4`.

    sign-flip      -s g                                              s = 1
    noise          s ||g|| / sqrt(P) N(0, I), with P coordinates     s = 10: about ten times as long as g
    label-flip     g, computed honestly from labels C - 1 - y        (`flipped` turns the worker's labels beforehand)
    alie           mu - s sigma, the same from every attacker        s = `alie_strength(K, f)`
    inner-product  -s mu, the same from every attacker               s = 0.1: small enough to hide among the honest

alie is "a little is enough" (Baruch et al., 2019), inner-product the manipulation of Xie et al. (2020): the mean of all
is (K - f (1 + s)) / K mu, which turns against mu at s = (K - f) / f. Gamma's gradient is attacked in the same way as
theta's, with P = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.errors import ConfigError, DataError, Refused, unknown


@dataclass(frozen=True)
class Knowledge:
    """What the Byzantine workers know in a round, and where their noise comes from."""

    honest: Tensor  # (K_h, P) the honest uploads
    own: Tensor  # (f, P) what they themselves would have uploaded if they were honest
    generator: torch.Generator


@dataclass(frozen=True)
class ByzantineAttack:
    """An attack: its formula, and its strength for K workers of which f are Byzantine; None if it takes none."""

    formula: Callable[[Knowledge, float], Tensor]
    strength: Callable[[int, int], float] | None


def _sign_flip(known: Knowledge, strength: float) -> Tensor:
    return -strength * known.own


def _noise(known: Knowledge, strength: float) -> Tensor:
    own = known.own
    normal = torch.randn(own.shape, generator=known.generator, dtype=own.dtype, device=own.device)
    scale: Tensor = strength * own.norm(dim=1, keepdim=True) / math.sqrt(own.shape[1])
    return scale * normal


def _label_flip(known: Knowledge, strength: float) -> Tensor:
    return known.own


def _alie(known: Knowledge, strength: float) -> Tensor:
    return (known.honest.mean(0) - strength * known.honest.std(0, correction=0)).repeat(len(known.own), 1)


def _inner_product(known: Knowledge, strength: float) -> Tensor:
    return (-strength * known.honest.mean(0)).repeat(len(known.own), 1)


def alie_strength(workers: int, byzantine: int) -> float:
    """z = Phi^-1(1 - m / (K - f)), m = floor(K / 2 + 1) - f; Phi is the normal distribution function.

    The attackers need m honest workers for a majority. About m honest uploads are further from the mean, on the
    attackers' side, than z deviations. m is at least 1. If m is more than half of the honest workers, z is 0.

    >>> round(alie_strength(workers=50, byzantine=24), 3)  # Phi^-1(24 / 26)
    1.426
    """
    honest = max(1, workers - byzantine)
    needed = max(1, workers // 2 + 1 - byzantine)
    return max(0.0, float(torch.special.ndtri(torch.tensor(1 - needed / honest, dtype=torch.float64))))


BYZANTINE_ATTACKS: dict[str, ByzantineAttack] = {
    "sign-flip": ByzantineAttack(_sign_flip, lambda workers, byzantine: 1.0),
    "noise": ByzantineAttack(_noise, lambda workers, byzantine: 10.0),
    "label-flip": ByzantineAttack(_label_flip, None),
    "alie": ByzantineAttack(_alie, alie_strength),
    "inner-product": ByzantineAttack(_inner_product, lambda workers, byzantine: 0.1),
}
"""Every attack by name."""


def find_byzantine_attack(spec: str) -> ByzantineAttack:
    """The attack named by `name` or `name:strength`.

    >>> find_byzantine_attack("noise:3").strength(10, 2)
    3.0
    """
    name, colon, text = spec.partition(":")
    if name not in BYZANTINE_ATTACKS:
        raise ConfigError([unknown("byzantine_attack", name, BYZANTINE_ATTACKS)])
    attack = BYZANTINE_ATTACKS[name]
    if not colon:
        return attack
    if attack.strength is None:
        raise ConfigError([f"byzantine_attack '{spec}': {name} takes no strength"])
    try:
        strength = float(text)
    except ValueError:
        strength = math.nan
    if not 0 < strength < math.inf:
        raise ConfigError([f"byzantine_attack '{spec}': the strength must be a finite number > 0"])
    return ByzantineAttack(attack.formula, lambda workers, byzantine: strength)


def byzantine_uploads(spec: str, honest: Tensor, own: Tensor, workers: int, generator: torch.Generator) -> Tensor:
    """What the f Byzantine workers among K = `workers` upload, (f, P), if the honest upload `honest`, (K_h, P).

    `own`, (f, P), is what the Byzantine workers would have uploaded if they were honest. Only `noise` draws from the
    generator.

    >>> byzantine_uploads("sign-flip:2", torch.ones(3, 2), torch.tensor([[1.0, -3.0]]), 4, torch.Generator())
    tensor([[-2.,  6.]])
    """
    attack = find_byzantine_attack(spec)
    if honest.ndim != 2 or own.ndim != 2 or honest.shape[1] != own.shape[1] or len(honest) + len(own) > workers:
        shapes = f"{tuple(honest.shape)} and {tuple(own.shape)}"
        raise Refused(
            f"an attack needs honest (K_h, P) and own (f, P) uploads of at most {workers} workers, not {shapes}"
        )
    strength = attack.strength(workers, len(own)) if attack.strength else 0.0
    return attack.formula(Knowledge(honest if len(honest) else own, own, generator), strength)


def flipped(labels: Tensor, classes: int) -> Tensor:
    """Labels as a label-flipping worker has them: y -> C - 1 - y.

    >>> flipped(torch.tensor([0, 1, 9]), classes=10)
    tensor([9, 8, 0])
    """
    if labels.is_floating_point() or not bool(((labels >= 0) & (labels < classes)).all()):
        raise DataError(f"only labels that are whole numbers from 0 to {classes - 1} can be flipped")
    return classes - 1 - labels
