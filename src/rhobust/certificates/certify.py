"""Certificates for a list of radii: bounds from above, and attained losses from below."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rhobust.ascent.multistart import AscentSup
from rhobust.ascent.steps import Identity
from rhobust.box import Bounds, Box, ends_of
from rhobust.certificates.certificate import Certification
from rhobust.certificates.dual import Dual, Part
from rhobust.certificates.exact import LinearSup, curvature_bound, doubt, linear_sup
from rhobust.certificates.starting_points import StartingPoints
from rhobust.checks import check_count, check_size, is_number
from rhobust.costs import Cost, SquaredL2
from rhobust.data.samples import Samples, moving_samples
from rhobust.errors import ConfigError, Refused
from rhobust.inputs import Perturb, part_of
from rhobust.losses import PerSampleLoss, cross_entropy, is_regression
from rhobust.objective import RobustObjective
from rhobust.support.probing import probing
from rhobust.validator import check_batch

_RADII = (1e-100, 1e100)


def certify(
    model: nn.Module,
    data: Samples | tuple[Any, Any],
    *,
    loss: PerSampleLoss = cross_entropy,
    radii: Sequence[float],
    cost: Cost | None = None,
    bounds: Bounds = None,
    curvature: float | None = None,
    accuracy: float | None = None,
    max_steps: int | None = None,
    batch_size: int = 1024,
    perturb: Perturb | str | int | None = None,
    done: Callable[[str], None] | None = None,
) -> Certification:
    """A certificate for every radius, in the order given. The model is used in evaluation mode and left as it was.

    `data` are `Samples`, or a pair (x, y) of tensors or arrays, where the model is. Of an x that is a dict or a tuple,
    or holds token numbers, `perturb` names what moves (`Perturb`), and certificates are about that.

    The inner sup is
    - exact, so the bound is proved and tight, for a linear model without a box whose loss sees one direction only:
      two-class cross-entropy, squared or absolute error, quantiles, Huber (then for every cost and every gamma);
    - proved, by adding the oracle's proved gap, where a bound L on the curvature of the loss in its input is known
      and gamma > L / mu. L is `curvature` (in the cost's norm; one in l2 serves for every p <= 2) or else
      `curvature_bound(model, loss)`. A large radius may want a smaller gamma: the bound is then still valid, since
      any gamma gives one, but loose, and the gap says how much at most;
    - estimated otherwise: see `Certificate`.

    Nothing is proved of a model or a loss with hooks, with a forward that was replaced (its own or its class's) or that
    was compiled, nor under autocast: these may change what is computed. With `curvature` given, a loss of your own must
    leave its gradient as it is, too: a hook on a tensor inside of it cannot be seen from here. Nor is
    anything proved where a distribution attains more than a bound allows, as a wrong `curvature` can bring about. The
    `reason` is in the certificate.

    `accuracy` is the gap, relative to the bound, at which the search over gamma ends: by default 1e-9 where the sup is
    exact, 1e-6 where proved, 1e-3 where estimated. `max_steps` gradients are spent on each sup: 200, or 10 where
    estimated. At radius 0 the certificate is the clean loss, which needs no sup.

    One copy of the samples is kept for each gamma in use, about two for each radius: certify a subset if that is much.

    >>> import torch
    >>> model, squared = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double(), nn.MSELoss(reduction="none")
    >>> x, y = torch.rand(9, 2).double(), torch.rand(9).double()
    >>> (found,) = certify(model, (x, y), loss=squared, radii=[0.1])
    >>> exact = (squared(model(x), y).mean().sqrt() + math.sqrt(0.1) * model[0].weight.norm()) ** 2
    >>> abs(found.bound - exact.item()) < 1e-8, found.gap < 1e-8, found.status
    (True, True, 'proved')
    """
    model, samples = moving_samples(data, model, perturb)
    cost = cost or SquaredL2()
    _check_request(radii, cost, curvature)
    check_batch(samples.x, samples.y)
    check_count("batch_size", batch_size)
    check_size("accuracy", 1.0 if accuracy is None else accuracy, infinite=True)
    parts = []
    for start in range(0, len(samples), batch_size):
        chosen = slice(start, start + batch_size)
        of_part, part = part_of(model, chosen), samples[chosen]
        objective = RobustObjective(of_part, loss, radius=0.0, cost=cost, maximizer=Identity(), bounds=bounds)
        objective.maximum(part.x, part.y)  # refuses what breaks the theory, before any work
        parts.append(Part(of_part, objective.problem(part.x, part.y), part.y))
    doubted = doubt(model, loss, samples.x.device)
    boxed, fixed = ends_of(bounds, samples.x) is not None, bounds.fixed if isinstance(bounds, Box) else None
    exact, ascent = _sups(model, loss, samples, cost, curvature, max_steps, accuracy, fixed, trusted=doubted is None)
    positive = sorted({float(radius) for radius in radii if radius > 0})
    with probing(model):
        dual: Dual | None = None
        if exact:
            anywhere = [replace(part, problem=replace(part.problem, bounds=None)) for part in parts]
            dual = Dual(anywhere, exact, accuracy or exact.accuracy)
        if dual is None or boxed:
            classifies = objective.classifies

            def starting(part: Part) -> StartingPoints:
                return StartingPoints(part.model, part.problem, part.y, classifies, positive)

            dual = Dual(parts, ascent, accuracy or ascent.accuracy, doubted, starting, unboxed=dual)
        for radius in positive:
            dual.refine(radius, keep=radii)
            if done:
                done(f"radius {radius:g}")
        return Certification(len(samples), [dual.certificate(float(radius)) for radius in radii])


def _sups(
    model: nn.Module,
    loss: PerSampleLoss,
    samples: Samples,
    cost: Cost,
    curvature: float | None,
    max_steps: int | None,
    accuracy: float | None,
    fixed: Tensor | None,
    trusted: bool,
) -> tuple[LinearSup | None, AscentSup]:
    """The exact sup without a box, if there is one, and the other: of what is `trusted` to be what its class says."""
    plain = trusted and (samples.y.ndim == 1 or is_regression(loss))
    known = curvature
    if curvature is None and plain and (in_l2 := curvature_bound(model, loss)) is not None:
        known = in_l2 * cost.largest_l2
    ascent = AscentSup(known if trusted and cost.strong_convexity > 0 else None, cost, max_steps, accuracy)
    return linear_sup(model, loss, cost, fixed) if plain else None, ascent


def _check_request(radii: Sequence[float], cost: Cost, curvature: float | None) -> None:
    if not isinstance(radii, Sequence) or not all(map(is_number, radii)):
        raise ConfigError([f"radii are a list of numbers, such as [0.1, 0.5], not {radii!r}"])
    wrong = [f"a radius must be finite and >= 0, not {r}" for r in radii if not (r >= 0 and math.isfinite(r))]
    least, most = _RADII
    wrong += [
        f"a radius must be 0 or between {least:g} and {most:g}, where squares are numbers, not {r}"
        for r in radii
        if 0 < r < least or most < r < math.inf
    ]
    if not len(radii):
        wrong.append("radii is empty: name at least one radius to certify")
    if curvature is not None and not (curvature >= 0 and math.isfinite(curvature)):
        wrong.append(f"curvature, a bound on that of the loss in its input, must be finite and >= 0, not {curvature}")
    if wrong:
        raise ConfigError(wrong)
    if math.isfinite(cost.kappa):
        raise Refused(
            f"certificates are for labels that stay, but flipping one costs kappa = {cost.kappa:g} here; "
            "leave kappa infinite"
        )
