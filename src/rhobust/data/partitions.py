"""Partitions of a training set among simulated workers.

    iid              every worker a random share; sizes are equal up to one
    one-class        worker k and class c belong together where k = c modulo the smaller of their numbers: with as many
                     workers as classes or more, a worker has one class (shared evenly with those who have it too);
                     with fewer, each has several whole classes
    dirichlet:ALPHA  each class is cut in proportions over the workers that are drawn from Dirichlet(ALPHA, ..., ALPHA):
                     nearly iid for a large ALPHA, nearly one worker a class for a small one
    sizes:zipf       random shares, with sizes in proportion to 1, 1/2, 1/3, ..., so that worker 0 has the most

Every sample belongs to exactly one worker, and every worker has at least one. Where Dirichlet or Zipf leaves a worker
with none, the worker who has most at that time gives it one of its own, chosen at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rhobust.errors import ConfigError, DataError, Refused, unknown

Integers = NDArray[np.int64]
Rule = Callable[[NDArray[np.generic], int, np.random.Generator], Integers]
"""(labels, workers, draws) -> the worker that each sample belongs to."""

PARTITIONS = ("iid", "one-class", "dirichlet:ALPHA", "sizes:zipf")
"""Every partition, as it is written."""


def partition(spec: str, labels: Tensor, workers: int, seed: int) -> list[Tensor]:
    """The indices of each worker's samples, in increasing order; the seed alone decides.

    >>> partition("one-class", torch.tensor([1, 0, 1, 0, 0]), workers=2, seed=0)
    [tensor([1, 3, 4]), tensor([0, 2])]
    """
    rule = find_partition(spec)
    problems = []
    if not 1 <= workers <= len(labels):
        problems.append(f"{workers} workers cannot share {len(labels)} samples: each needs one at least")
    if seed < 0:
        problems.append(f"seed must be >= 0, not {seed}")
    if problems:
        raise ConfigError(problems)
    draws = np.random.default_rng([seed, workers, *spec.encode()])
    owners = rule(labels.cpu().numpy(), workers, draws)
    order = np.argsort(owners, kind="stable")
    return [torch.from_numpy(share) for share in np.split(order, np.bincount(owners, minlength=workers).cumsum()[:-1])]


def find_partition(spec: str) -> Rule:
    """The rule that a text names.

    >>> find_partition("dirichlet:0")
    Traceback (most recent call last):
    rhobust.errors.ConfigError: partition 'dirichlet:0': ALPHA must be a finite number > 0
    """
    match spec.split(":"):
        case ["iid"]:
            return _iid
        case ["one-class"]:
            return _one_class
        case ["dirichlet", text]:
            return partial(_dirichlet, alpha=_alpha(spec, text))
        case ["sizes", "zipf"]:
            return _zipf
        case ["sites"]:
            return _sites
    raise ConfigError([unknown("partition", spec, PARTITIONS)])


def _sites(labels: NDArray[np.generic], workers: int, draws: np.random.Generator) -> Integers:
    """No partition at all: the sites of a deployed federation hold what they hold."""
    raise Refused(
        "partition 'sites' belongs to a deployed federation, whose data are not here; continue such a run with: "
        "rhobust federation submit FED --resume RUN"
    )


def _iid(labels: NDArray[np.generic], workers: int, draws: np.random.Generator) -> Integers:
    return draws.permutation(len(labels)) % workers


def _one_class(labels: NDArray[np.generic], workers: int, draws: np.random.Generator) -> Integers:
    owners = np.empty(len(labels), np.int64)
    members = _by_class("one-class", labels, draws)
    smaller = min(workers, len(members))
    for number, (name, samples) in enumerate(members.items()):
        holders = np.arange(number % smaller, workers, smaller)
        if len(samples) < len(holders):
            raise ConfigError(
                [f"one-class: class {name} has {len(samples)} samples, too few for {len(holders)} workers"]
            )
        owners[samples] = holders[np.arange(len(samples)) % len(holders)]
    return owners


def _dirichlet(labels: NDArray[np.generic], workers: int, draws: np.random.Generator, alpha: float) -> Integers:
    owners = np.empty(len(labels), np.int64)
    for samples in _by_class("dirichlet", labels, draws).values():
        owners[samples] = _cut(len(samples), draws.dirichlet(np.full(workers, alpha)))
    return _nobody_empty(owners, workers, draws)


def _zipf(labels: NDArray[np.generic], workers: int, draws: np.random.Generator) -> Integers:
    owners = _cut(len(labels), 1 / np.arange(1, workers + 1))
    return _nobody_empty(draws.permutation(owners), workers, draws)


def _by_class(spec: str, labels: NDArray[np.generic], draws: np.random.Generator) -> dict[int, Integers]:
    """The samples of each class that is there, in random order."""
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"partition '{spec}' needs classes, but the labels are of type {labels.dtype}")
    return {int(name): draws.permutation(np.flatnonzero(labels == name)) for name in np.unique(labels)}


def _cut(count: int, proportions: NDArray[np.float64]) -> Integers:
    """0, ..., 0, 1, ..., 1, 2, ...: `count` samples cut in these proportions, each cut to the nearest sample."""
    cuts = np.rint(proportions.cumsum() / proportions.sum() * count).astype(np.int64)
    return np.repeat(np.arange(len(proportions)), np.diff(cuts, prepend=0))


def _nobody_empty(owners: Integers, workers: int, draws: np.random.Generator) -> Integers:
    """Whoever has nothing gets a sample from whoever has most; as there are enough samples, once for each is enough."""
    sizes = np.bincount(owners, minlength=workers)
    for worker in np.flatnonzero(sizes == 0):
        giver = sizes.argmax()
        owners[draws.choice(np.flatnonzero(owners == giver))] = worker
        sizes[giver] -= 1
        sizes[worker] = 1
    return owners


def _alpha(spec: str, text: str) -> float:
    try:
        alpha = float(text)
    except ValueError:
        alpha = math.nan
    if not 0 < alpha < math.inf:
        raise ConfigError([f"partition '{spec}': ALPHA must be a finite number > 0"])
    return min(alpha, 1e12)  # beyond, proportions are equal to rounding, and their sum would overflow at last
