"""Inner sups in closed form for linear models, bounds on curvature, and reasons to prove nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Problem
from rhobust.certificates.profiles import (
    Profile,
    Squared,
    huber_delta,
    is_cross_entropy,
    is_squared_error,
    profile_of,
    side,
)
from rhobust.costs import Cost, rows
from rhobust.losses import Huber, PerSampleLoss, Quantile
from rhobust.models.wrapper import unwrapped

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
_MODULES = (nn.Linear, nn.Flatten, nn.Sequential, nn.CrossEntropyLoss, nn.MSELoss, nn.L1Loss, nn.HuberLoss)
# What a proof rests on, as it was when this module was imported.
_TRUSTED = [
    (owner, name, getattr(owner, name))
    for owner, names in (
        (nn.Module, ("__call__", "_wrapped_call_impl", "_call_impl")),
        *((kind, ("forward",)) for kind in _MODULES),
        *((kind, ("__call__",)) for kind in (Huber, Quantile)),
        (F, ("linear", "cross_entropy", "mse_loss", "l1_loss", "huber_loss")),
    )
    for name in names
]


def doubt(model: nn.Module, loss: PerSampleLoss, device: torch.device) -> str | None:
    """Why nothing can be proved of a model and its loss, whatever their classes compute; None where nothing is known.

    A hook may change an output or a gradient, a forward that was replaced may compute anything, and autocast rounds.

    >>> model = nn.Linear(2, 2)
    >>> _ = model.register_full_backward_hook(lambda module, before, after: None)
    >>> doubt(model, nn.CrossEntropyLoss(reduction="none"), torch.device("cpu"))
    'a module (Linear) has a hook'
    """
    if torch.is_autocast_enabled(device.type):
        return "autocast rounds the outputs"
    if any(getattr(nn.modules.module, f"_global_{hooks}") for hooks in _HOOKS):
        return "a hook is registered for all modules"
    for owner, name, trusted in _TRUSTED:
        if getattr(owner, name) is not trusted:
            return f"{owner.__name__}.{name} was replaced"
    for module in (*model.modules(), *(loss.modules() if isinstance(loss, nn.Module) else ())):
        if any(getattr(module, f"_{hooks}") for hooks in _HOOKS):
            return f"a module ({type(module).__name__}) has a hook"
        if "forward" in vars(module) or "_call_impl" in vars(module):
            return f"the forward of a module ({type(module).__name__}) was replaced"
        if getattr(module, "_compiled_call_impl", None) is not None:
            return f"a module ({type(module).__name__}) was compiled"
    return None


def curvature_bound(model: nn.Module, loss: PerSampleLoss) -> float | None:
    """A bound L on the curvature of the loss in its input, in l2, where both are of classes that say one; else None.

    What may change what they compute is not looked at here: see `doubt`.

    Linear softmax: the Hessian is W' (diag p - p p') W, whose middle is at most 1/2 and does not see what all classes
    share, so L = ||W - mean over classes||_2^2 / 2 (two classes: ||w_1 - w_0||^2 / 4). Linear regression with k
    outputs: 2 ||W||_2^2 / k, and half of it for the Huber loss.

    >>> model = nn.Linear(2, 2)
    >>> with torch.no_grad(): _ = model.weight.copy_(torch.tensor([[3.0, 1.0], [0.0, 5.0]]))
    >>> round(curvature_bound(model, nn.CrossEntropyLoss(reduction="none")), 6)  # (3^2 + 4^2) / 4
    6.25
    >>> curvature_bound(nn.Sequential(model, nn.ReLU()), nn.CrossEntropyLoss(reduction="none")) is None
    True
    """
    linear = _linear_layer(model)
    if linear is None:
        return None
    weight = linear.weight.detach().cpu().double()
    if is_cross_entropy(loss):
        return float(torch.linalg.matrix_norm(weight - weight.mean(0), 2).square() / 2)
    # Of k outputs the loss is the mean, and so is the sum of their curvatures.
    steepest = float(torch.linalg.matrix_norm(weight, 2).square() / len(weight))
    if is_squared_error(loss):
        return 2 * steepest
    return None if huber_delta(loss) is None else steepest


@dataclass(frozen=True)
class LinearSup:
    """The exact sup of a loss phi(w.zeta + offset): only the way t along w's steepest direction counts (`Profile`)."""

    weight: Tensor  # (1, features)
    offset: Tensor  # ()
    profile: Profile
    cost: Cost
    fixed: Tensor | None = None  # which features stay, in the shape of a sample

    accuracy = 1e-9
    searches = 100

    @property
    def pull(self) -> Tensor:
        """w where features may move, else 0, (1, features)."""
        return self.weight if self.fixed is None else self.weight * ~self.fixed.reshape(1, -1).cpu()

    @property
    def floor(self) -> float:
        """Where gamma begins: the sup is infinite below."""
        return self.profile.floor(float(self.cost.dual_norm(self.pull)))

    proof = floor
    """Where proofs begin: everywhere."""

    @property
    def spreads(self) -> bool:
        """Whether its worst case without residuals is one that no gamma attains (`spread`)."""
        return isinstance(self.profile, Squared)

    def solve(self, problem: Problem, y: Tensor, starts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        rate = self.cost.dual_norm(self.pull)  # s, (1,)
        lengths, upper = self.profile.best(self._score(problem), _numbers(y), rate, problem.gamma.cpu().double())
        return self._moved(problem, lengths), upper

    def spread(self, problem: Problem, y: Tensor, rho: float) -> Tensor:
        """Every sample of a regression sqrt(rho) away: its worst case without residuals, which no gamma attains.

        The sup is then 0 at z for every gamma > s^2, and at gamma = s^2 wherever a sample goes.
        """
        return self._moved(problem, math.sqrt(rho) * side(self._score(problem) - _numbers(y)))

    def _score(self, problem: Problem) -> Tensor:
        score: Tensor = (rows(problem.z).cpu().double() * self.weight).sum(1) + self.offset
        return score  # (B,)

    def _moved(self, problem: Problem, lengths: Tensor) -> Tensor:
        zeta = rows(problem.z).cpu().double() + lengths[:, None] * self.cost.direction(self.pull)
        return zeta.reshape(problem.z.shape).to(problem.z)


def _numbers(y: Tensor) -> Tensor:
    """y as (B,)."""
    return y.cpu().double().reshape(-1)


def linear_sup(model: nn.Module, loss: PerSampleLoss, cost: Cost, fixed: Tensor | None = None) -> LinearSup | None:
    """The exact sup, where the model is linear and its loss sees one direction only; else None."""
    linear = _linear_layer(model)
    if linear is None:
        return None
    weight = linear.weight.detach().cpu().double()  # (outputs, features)
    offset = torch.zeros(len(weight)).double() if linear.bias is None else linear.bias.detach().cpu().double()
    profile = profile_of(loss, len(weight))
    if profile is None:
        return None
    if len(weight) == 2:
        weight, offset = weight[1:] - weight[:1], offset[1:] - offset[:1]
    return LinearSup(weight, offset[0], profile, cost, fixed)


def _linear_layer(model: nn.Module) -> nn.Linear | None:
    """The one linear layer that the model is, but for a Flatten before it, or after it of its one output; else None."""
    model = unwrapped(model)
    layers = list(model) if type(model) is nn.Sequential else [model]
    if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    if len(layers) == 2 and type(layers[1]) is nn.Flatten and layers[1].start_dim == 0:
        layers = layers[:1]
    # The exact type: a subclass may compute anything.
    return layers[0] if len(layers) == 1 and type(layers[0]) is nn.Linear else None
