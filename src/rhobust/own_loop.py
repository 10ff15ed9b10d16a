"""Mistakes in a user's own training loop, each told once, at the user's line.

Gamma is one of the parameters of an objective and has a rule of its own, the `ProximalOptimizer`'s. Code that treats
it as a weight delays it or moves it by another rule.
"""

from __future__ import annotations

import math
import weakref
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from rhobust.support.compiling import capturing
from rhobust.support.user_warnings import warn_user

CLIPPED = (
    "the gradient of gamma was clipped with those of the weights: gamma learns late, and its gradient counts in the "
    "norm. Clip objective.model.parameters() instead of objective.parameters()"
)
FOREIGN_STEP = (
    "{optimizer} steps gamma as if it were a weight, which ignores the rule and the floor of gamma. Give it "
    "model.parameters() and wrap it: rhobust.ProximalOptimizer({optimizer}(model.parameters(), ...), objective)"
)

_MOST_LOOKS = 100  # at gradients that were changed; each waits for the device


class _Noted(NamedTuple):
    """Gamma's gradient as a backward pass left it."""

    gradient: Tensor
    version: int
    value: Tensor


class _Change(NamedTuple):
    """What became of gamma's gradient before a step."""

    share: float
    """The gradient over that of the backward pass."""
    norm: float
    """The norm of the gradient in theta and gamma together."""


class OwnLoop:
    """Watches how the loop around an objective treats gamma. `silent` where the loop is the library's.

    A copy, as of an objective that is copied, begins to watch anew.
    """

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent
        self._told: set[str] = set()
        self._watching = self._stepped = False
        self._noted: _Noted | None = None
        self._last: _Change | None = None
        self._looks = 0

    def __reduce__(self) -> tuple[type[OwnLoop], tuple[bool]]:
        return OwnLoop, (self.silent,)

    def tell(self, message: str) -> None:
        """Warn of this, once."""
        if not self.silent and message not in self._told:
            self._told.add(message)
            warn_user(message)

    def called(self, objective: nn.Module, gamma: nn.Parameter, remark: str | None) -> None:
        """A call of the objective, which may be worth a remark: from the first on, watch gamma and the optimizers."""
        if remark is not None:
            self.tell(remark)
        if self.silent or self._watching or not gamma.requires_grad:
            return
        self._watching = True
        gamma.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
        seen = register_optimizer_step_post_hook(partial(self._see_step, weakref.ref(objective), weakref.ref(gamma)))
        weakref.finalize(objective, seen.remove)

    def before_step(self, objective: nn.Module, gradient: Tensor | None) -> None:
        """Look at gamma's gradient where it was changed since the last backward pass: was it clipped?

        Clipping by the norm of all leaves that norm at one value, whatever the shares are. Accumulation, gradient
        scalers and averages over processes do not.
        """
        noted = self._noted
        if noted is None or gradient is not noted.gradient or gradient._version == noted.version:
            return
        if self._looks == _MOST_LOOKS or capturing(gradient) or _is_distributed():
            return
        self._looks += 1
        before, after = torch.stack([noted.value, gradient]).tolist()
        share = after / before if before else 1.0
        if not 0 < share < 1:
            return
        gradients = [theta.grad for theta in objective.parameters() if theta.grad is not None]
        change, last = _Change(share, float(torch.nn.utils.get_total_norm(gradients))), self._last
        if last and math.isclose(change.norm, last.norm, rel_tol=1e-4) and not math.isclose(share, last.share):
            self.tell(CLIPPED)
        self._last = change

    def _note(self, gamma: Tensor) -> None:
        if gamma.grad is not None and not self.silent and not capturing(gamma):
            self._noted = _Noted(gamma.grad, gamma.grad._version, gamma.grad.detach().clone())

    def _see_step(
        self,
        objective: weakref.ref[nn.Module],
        gamma: weakref.ref[nn.Parameter],
        optimizer: Optimizer,
        args: Any,
        kwargs: Any,
    ) -> None:
        """After a step of any optimizer: the first that has gamma tells whether it is a `ProximalOptimizer`."""
        if self._stepped or not any(theta is gamma() for group in optimizer.param_groups for theta in group["params"]):
            return
        self._stepped = True
        if getattr(optimizer, "objective", None) is not objective():
            self.tell(FOREIGN_STEP.format(optimizer=type(optimizer).__name__))


def _is_distributed() -> bool:
    """Whether gradients are averaged over processes, after they were noted."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
