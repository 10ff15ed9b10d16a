"""The one objective: the dual of the worst expected loss over a Wasserstein ball, with gamma a parameter.

sup over W_c(P, P_0) <= rho of E_P loss  =  inf over gamma >= 0 of E sup over zeta of psi,
psi = loss(theta; zeta) + gamma (rho - c(z, zeta))                                        (paper, Prop. 1)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Accuracy, Maximum, Problem, begun, smoothed
from rhobust.ascent.maximizer import Maximizer, maximize
from rhobust.ascent.oracle import Oracle
from rhobust.batch_norm import check_apart, check_batch_norm, check_way, frozen
from rhobust.box import Bounds, limits
from rhobust.checked_loss import CheckedLoss
from rhobust.costs import Cost, SquaredL2
from rhobust.errors import Refused
from rhobust.gamma_parameter import but_precise, gamma_parameter
from rhobust.inputs import Inputs, Perturb, attached, bound, mask_of, part_of
from rhobust.losses import PerSampleLoss, tempered
from rhobust.own_loop import OwnLoop
from rhobust.sample_weights import check_weight, weighted_mean
from rhobust.support.compiling import compilable
from rhobust.support.probing import probing
from rhobust.surrogate import Surrogate, mean_psi
from rhobust.validator import check_batch, check_labels, check_settings, check_sign, check_start

# Steps behind an ascent that goes on from where one was left: its first one goes 1 / sqrt(3 + 1), half of the way. All
# of the way leads to a target that depends on the start by the slope alone: what was remembered would be forgotten.
_BEHIND = 3


class RobustObjective(nn.Module):
    """Mean over the batch of sup over zeta of psi, differentiable in theta and gamma by Danskin's theorem.

    (A maximizer after errors, `ErrorAscent`, chooses zeta by another measure than psi; the value is psi there.)
    With zeta held fixed, d value / d theta = mean grad_theta loss(zeta) and d value / d gamma = rho - mean c.
    For a maximizer that is its own constraint (Identity, Ball) the value is the mean loss at zeta, and gamma is idle.

    `loss(model(x), y)` gives one number per sample, (B,); PyTorch's own losses for regression are averaged over the
    numbers of a sample. `radius` is rho, the bound on E c, in the units of `cost`
    (default: squared l2, summed over features). `maximizer` solves the inner sup (default: `Oracle`). `gamma` is where
    the dual variable starts and `gamma_min` its floor. `bounds` is the box that x and zeta live in, if there is one.
    With `temper` above 0, (1 - e^(-temper loss)) / temper takes the place of the loss in psi and in the value
    (`losses.tempered`); a maximizer that climbs a margin still finds it in the loss itself.
    With `noise` a training sample is first moved by uniform noise of that half-width in every coordinate, at no cost:
    the ball is centered at the smoothed data. This keeps a model from overfitting to the one gradient of an ascent.
    In evaluation mode, after `.eval()`, there is no noise, and of steps that take turns the deepest counts.
    Of inputs that are a dict or a tuple, and of token numbers, `perturb` names what moves (`Perturb`): a key, an index,
    or a submodule whose output moves. Where x, or its part that moves, has a gradient, that gradient is taken at a
    fixed displacement: whatever computed x trains along.
    The ascent sees the model in evaluation mode: without dropout, with running statistics of BatchNorm. The training
    pass has the modes that you set, but for BatchNorm, which `batch_norm` may freeze (`batch_norm.WAYS`).

    >>> model = nn.Linear(2, 1, bias=False)
    >>> objective = RobustObjective(model, lambda out, y: (out[:, 0] - y) ** 2, radius=0.5, gamma=4.0)
    >>> surrogate = objective(torch.ones(3, 2), torch.zeros(3))
    >>> surrogate.value.backward()
    >>> bool(objective.gamma.grad == 0.5 - surrogate.cost.mean())
    True
    """

    def __init__(
        self,
        model: nn.Module,
        loss: PerSampleLoss,
        *,
        radius: float,
        cost: Cost | None = None,
        maximizer: Maximizer | None = None,
        gamma: float = 1.0,
        gamma_min: float = 1e-3,
        bounds: Bounds = None,
        noise: float = 0.0,
        temper: float = 0.0,
        perturb: Perturb | str | int | None = None,
        batch_norm: str = "ascent-eval",
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module) or not callable(loss):
            raise Refused("the first two arguments are a model, an nn.Module, and a per-sample loss, a function")
        if isinstance(loss, type):
            raise Refused(f"the loss is the class {loss.__name__}; build one: {loss.__name__}(reduction='none')")
        self.cost: Cost = SquaredL2() if cost is None else cost
        self.maximizer: Maximizer = Oracle() if maximizer is None else maximizer
        check_settings(radius, self.cost, self.maximizer, gamma, gamma_min, bounds, noise, temper)
        check_way(batch_norm)
        self.model = model
        self.loss = loss
        self.radius, self.gamma_min, self.bounds = float(radius), float(gamma_min), bounds
        self.noise, self.temper, self.batch_norm = float(noise), float(temper), batch_norm
        self.perturb = perturb if isinstance(perturb, Perturb | None) else Perturb(perturb)
        self.gamma = gamma_parameter(gamma, model, learned=self.maximizer.penalized)
        self.turn = 0
        """The number of the next training step, for maximizers that do not do the same in each; only calls set it."""
        self.own_loop = OwnLoop()
        self._checked = CheckedLoss()

    def forward(
        self,
        x: Inputs,
        y: Tensor,
        start: Tensor | None = None,
        turn: int | None = None,
        weight: Tensor | None = None,
    ) -> Surrogate:
        """Solve the inner sup for the batch and return the surrogate.

        The ascent begins `start` (B, ...) away from the centers, where one of before was left, and goes on from there;
        by default it begins anew, where its maximizer likes to. `turn` is the number of the training step; by default
        the one after the last. `weight` (B,), >= 0, says how much each sample counts: means over the batch are
        sum(w v) / sum(w), that of c in the gradient of gamma too.
        """
        model, z = bound(self.model, x, self.perturb)
        self._check(z, y, weight)
        if start is not None:
            check_start(start, z)
        return self._surrogate(model, self._center(model, z), y, start, turn, weight)

    def surrogate(self, center: Tensor, y: Tensor, start: Tensor | None = None, turn: int | None = None) -> Surrogate:
        """The same, with the balls centered here and not at fresh noise around some x; nothing is checked again."""
        return self._surrogate(self.model, center, y, start, turn)

    def _surrogate(
        self,
        model: nn.Module,
        center: Tensor,
        y: Tensor,
        start: Tensor | None,
        turn: int | None,
        weight: Tensor | None = None,
    ) -> Surrogate:
        self.own_loop.called(self, self.gamma, self.check_model(len(center)))
        self.turn = self.turn if turn is None else turn
        maximizer = self.maximizer.on(self.turn) if self.training else self.maximizer
        labels, maximum, cost = self._solve(model, center, y, start, maximizer)  # Alg. 1, 2, line 3; Alg. 3, line 5
        self.turn += self.training
        zeta = maximum.zeta
        with frozen(self.model, self.batch_norm):
            loss = self._losses(model(attached(center, zeta.clone())), labels)  # (B,), now with a gradient in theta
        if self.temper:
            check_sign(loss)
        if self.maximizer.penalized:
            # The mean whose gradient is taken in Alg. 1 and 2, line 4, and in Alg. 3, line 6
            value = mean_psi(loss, cost, self.gamma, self.radius, self.temper, weight)
        else:
            value = weighted_mean(tempered(loss, self.temper), weight)
        return Surrogate(
            value, zeta, center.detach(), labels, cost, loss.detach(), maximum.accuracy, maximum.gradients, weight
        )

    def maximum(self, x: Inputs, y: Tensor) -> Maximum:
        """The inner sup alone, for attacks and certificates: no graph, and train-mode layers do no harm."""
        check_apart(self.model)
        model, z = bound(self.model, x, self.perturb)
        self._check(z, y)
        return self._solve(model, z, y, None, self.maximizer)[1]

    def center(self, x: Tensor) -> Tensor:
        """The centers of the balls: x with noise, in the box; in evaluation mode x itself."""
        return self._center(self.model, x)

    def _center(self, model: nn.Module, z: Tensor) -> Tensor:
        if not self.noise or not self.training:
            return z
        return smoothed(z, torch.rand_like(z), self.noise, *limits(self.bounds, z, mask_of(model), self.cost))

    def _solve(
        self, model: nn.Module, z: Tensor, y: Tensor, start: Tensor | None, maximizer: Maximizer
    ) -> tuple[Tensor, Maximum, Tensor]:
        """(labels, maximum, cost) of the inner sup."""
        if self._checked.classes is None and (math.isfinite(self.cost.kappa) or not maximizer.gradients):
            with probing(self.model), torch.no_grad():  # learn the classes, refuse before anything has changed
                self._losses(model(z.clone()), y)
        return (self._flipped if math.isfinite(self.cost.kappa) else self._moved)(model, z, y, start, maximizer)

    def _losses(self, output: Any, y: Tensor) -> Tensor:
        """The loss of each sample, (B,), checked."""
        return self._checked(self.loss, output, y, self.maximizer.classifies)

    @property
    def classifies(self) -> bool:
        """Whether the labels are class numbers of the model's outputs; known once it has answered."""
        return bool(self._checked.classes)

    @property
    def unreachable_radius(self) -> str | None:
        """Why E c cannot meet the radius, if it cannot. (Flips of labels, where they have a price, cost too.)"""
        why = None if math.isfinite(self.cost.kappa) else self.maximizer.why_short_of(self.radius)
        return why and f"radius {self.radius:g} cannot be spent: {why}, or lower the radius"

    def check(self, x: Inputs, y: Tensor, weight: Tensor | None = None) -> None:
        """Refuse data outside the bounds, not finite, or of classes that the model does not have, and no weights."""
        self._check(bound(self.model, x, self.perturb)[1], y, weight)

    def _check(self, z: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        check_batch(z, y, self.bounds)
        if weight is not None:
            check_weight(weight, len(z))
        if self._checked.classes:
            check_labels(y, self._checked.classes)

    def check_model(self, size: int | None = None) -> str | None:
        """Refuse layers that couple the samples of a batch of this size; why the ascent is beyond the theory, if so."""
        return check_batch_norm(self.model, self.batch_norm, bool(self.maximizer.gradients), size)

    def problem(self, x: Inputs, y: Tensor) -> Problem:
        """The inner problem of a batch, for whoever wants to solve it another way.

        Its loss is psi's where the maximizer climbs psi. A margin is read from the loss as it is, and in a ball the two
        have the same maximum.
        """
        return self._problem(*bound(self.model, x, self.perturb), y)

    def _problem(self, model: nn.Module, z: Tensor, y: Tensor) -> Problem:
        climbs = self.maximizer.penalized and not self.maximizer.classifies
        losses, temper = self._losses, self.temper if climbs else 0.0

        def loss(zeta: Tensor) -> Tensor:
            return tempered(losses(model(zeta), y), temper)

        # Alg. 3, line 4
        return Problem(
            z.detach(), loss, self.gamma.detach(), self.cost, *limits(self.bounds, z, mask_of(model), self.cost)
        )

    def _moved(
        self, model: nn.Module, z: Tensor, y: Tensor, start: Tensor | None, maximizer: Maximizer
    ) -> tuple[Tensor, Maximum, Tensor]:
        problem = self._problem(model, z, y)
        # The draws of a maximizer's own start advance the global generator; the model's do not.
        if start is None:
            zeta, behind = maximizer.start(problem), 0
        else:
            zeta, behind = begun(problem.z, start, problem.bounds, problem.mask), _BEHIND
        with probing(self.model) if maximizer.gradients else nullcontext():
            maximum = maximize(problem, maximizer, zeta, behind)
        return y, maximum, _transport(self.cost, problem.z, maximum.zeta)

    def _flipped(
        self, model: nn.Module, z: Tensor, y: Tensor, start: Tensor | None, maximizer: Maximizer
    ) -> tuple[Tensor, Maximum, Tensor]:
        """The sup over labels too: every label is tried, and costs kappa where it is not the sample's own."""
        if not self._checked.classes:
            raise Refused(
                "a finite label cost kappa needs a classifier: outputs (B, classes) and whole-number labels (B,). "
                "For regression leave kappa infinite"
            )
        classes = self._checked.classes
        every = torch.arange(classes, device=y.device).repeat(len(y))  # (B * C,), one sample's labels together
        sample = torch.arange(len(y), device=y.device).repeat_interleave(classes)
        model, start = part_of(model, sample), None if start is None else start[sample]
        every, maximum, cost = self._moved(model, z[sample], every, start, maximizer)
        cost = cost + self.cost.kappa * (every != y[sample]).to(cost)
        with probing(self.model), torch.no_grad():
            psi = tempered(self._losses(model(maximum.zeta.clone()), every), self.temper) - self.gamma * cost
        chosen = psi.reshape(-1, classes).argmax(1) + classes * torch.arange(len(y), device=y.device)  # (B,)
        accuracy = maximum.accuracy
        if accuracy is not None:  # the sup over labels is off by no more than its worst branch
            accuracy = Accuracy(accuracy.gap.reshape(-1, classes).amax(1), accuracy.kind, accuracy.target)
        return every[chosen], Maximum(maximum.zeta[chosen], accuracy, maximum.gradients * classes), cost[chosen]

    def get_extra_state(self) -> Tensor:
        """Whose turn it is: a training that goes on from a `state_dict` takes the deeper steps where it would have."""
        return torch.tensor(self.turn)

    def set_extra_state(self, state: Tensor) -> None:
        """Continue there."""
        self.turn = int(state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}_extra_state", torch.tensor(0))  # checkpoints from before there was one
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RobustObjective:
        super()._apply(but_precise(fn, self.gamma), recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        more = "".join(f", {name}={value}" for name in ("noise", "temper") if (value := getattr(self, name)))
        return f"radius={self.radius}, cost={self.cost}, maximizer={self.maximizer}, bounds={self.bounds}{more}"


@compilable
def _transport(cost: Cost, z: Tensor, zeta: Tensor) -> Tensor:
    return cost(z, zeta)
