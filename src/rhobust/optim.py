"""The one step: the optimizer's step, the prox of r on theta, and the projected update of gamma.

    theta <- prox_{alpha r}[theta - alpha g_theta],   gamma <- max(gamma_min, rule(gamma, g_gamma))   (Alg. 1-3)

with g_gamma = rho - E c. The server of a federation calls the same step on averaged gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from rhobust.errors import Refused
from rhobust.gamma_rules import FixedGamma, GammaRule, Multiplicative, Rate
from rhobust.objective import RobustObjective
from rhobust.regularizers import NoRegularizer, Regularizer
from rhobust.support.compiling import compilable, fuses

Metric = Callable[[dict[str, Any], dict[str, Any], Tensor], Tensor]
"""(state of the parameter, its group, the parameter) -> the step size of each coordinate, after the step.

The group's "lr" is a tensor, of float64 unless the optimizer has one of its own."""

Known = list[tuple[dict[str, Any], dict[str, Any]]]
"""What the optimizer knows of each parameter: (its state, its group)."""


def _rate(lr: Rate, device: torch.device) -> Tensor:
    """A learning rate as a tensor, made where it is used: a copy from the host cannot be captured."""
    return lr if isinstance(lr, Tensor) else torch.full((), lr, dtype=torch.float64, device=device)


def _sgd_metric(state: dict[str, Any], group: dict[str, Any], theta: Tensor) -> Tensor:
    # With momentum the buffer settles at gradient (1 - dampening) / (1 - momentum); the prox must take the same
    # step, or the fixed point is not one of loss + r.
    settled = (1 - group["dampening"]) / (1 - group["momentum"]) if group["momentum"] else 1.0
    step: Tensor = (group["lr"] * settled).to(theta)
    return step


def _adam_metric(state: dict[str, Any], group: dict[str, Any], theta: Tensor) -> Tensor:
    square = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    correction = 1 - group["betas"][1] ** state["step"].to(theta.device, torch.float64)  # in bfloat16 0.999 is 1
    scale: Tensor = group["lr"] / ((square / correction).sqrt() + group["eps"])
    return scale


def _rmsprop_metric(state: dict[str, Any], group: dict[str, Any], theta: Tensor) -> Tensor:
    square = state["square_avg"]
    if group["centered"]:
        square = square - state["grad_avg"].square()
    scale: Tensor = group["lr"] / (square.sqrt() + group["eps"]) / (1 - group["momentum"])
    return scale


def _adagrad_metric(state: dict[str, Any], group: dict[str, Any], theta: Tensor) -> Tensor:
    lr = group["lr"] / (1 + (state["step"].to(theta) - 1) * group["lr_decay"])
    scale: Tensor = lr / (state["sum"].sqrt() + group["eps"])
    return scale


METRICS: dict[type[Optimizer], Metric] = {
    SGD: _sgd_metric,
    Adam: _adam_metric,
    AdamW: _adam_metric,
    RMSprop: _rmsprop_metric,
    Adagrad: _adagrad_metric,
}


def adam(model: torch.nn.Module, lr: float = 1e-3) -> Adam:
    """Adam over theta, by default with the paper's rate; on a GPU one kernel, which can be captured."""
    on_gpu = all(theta.is_cuda for theta in model.parameters())
    return Adam(model.parameters(), lr=lr, fused=on_gpu or None, capturable=on_gpu)


OPTIMIZERS: dict[str, Callable[[torch.nn.Module, float, float], Optimizer]] = {
    "adam": lambda model, lr, momentum: adam(model, lr),  # it has a momentum of its own
    "sgd": lambda model, lr, momentum: SGD(model.parameters(), lr=lr, momentum=momentum),
}
"""The optimizer of the weights by name, of a model, a learning rate and a momentum."""


def _shrink(regularizer: Regularizer, metric: Metric, thetas: list[Tensor], known: Known) -> None:
    """The prox of each theta in its place, in the metric that the optimizer has after its step."""
    steps = [metric(state, group, theta) for theta, (state, group) in zip(thetas, known, strict=True)]
    torch._foreach_copy_(thetas, regularizer.prox(thetas, steps))


def _residuals(
    regularizer: Regularizer, thetas: list[Tensor], gradients: list[Tensor], known: Known
) -> tuple[Tensor, ...]:
    """(theta - prox_{alpha r}(theta - alpha g)) / alpha for each theta."""
    # Where alpha is 0, at the start of a warm-up, the tiniest there is: not 0 / 0.
    alphas = [
        group["lr"].to(theta).clamp_min(torch.finfo(theta.dtype).tiny)
        for theta, (_, group) in zip(thetas, known, strict=True)
    ]
    stepped = [theta - alpha * g for theta, alpha, g in zip(thetas, alphas, gradients, strict=True)]
    moves = [theta - after for theta, after in zip(thetas, regularizer.prox(stepped, alphas), strict=True)]
    # Zero, unless g is not finite: behind the clip of a box that would not be seen.
    return torch._foreach_add(torch._foreach_div(moves, alphas), [0 * g for g in gradients])


def _ruled(
    rule: GammaRule, gamma: Tensor, g: Tensor, radius: float, gamma_min: float, lr: Rate, state: dict[str, Any]
) -> None:
    """gamma as its rule has it, projected on Gamma = [gamma_min, infinity), in its place."""
    gamma.copy_(rule.update(gamma, g, radius, lr, state).clamp_min(gamma_min))


_fused_shrink, _fused_residuals = compilable(_shrink, writes=True), compilable(_residuals)
_fused_ruled = compilable(_ruled, writes=True)


class ProximalOptimizer(Optimizer):
    """Wraps a torch optimizer over theta: its step, then the prox of r in its own metric, then gamma.

    It is an `Optimizer` itself (its last parameter group is gamma), so schedulers and gradient scalers take it.
    Schedules set the learning rate of theta. That of gamma is its rule's, `gamma_rule.lr`; its group's is not read.
    Clip the gradients of `objective.model.parameters()` only: gamma learns late where its own is clipped, too.
    An optimizer whose per-coordinate step is not known (`METRICS`) needs `metric=` as soon as r is not zero.

    >>> import rhobust
    >>> model = torch.nn.Linear(2, 1)
    >>> objective = rhobust.RobustObjective(model, lambda out, y: (out[:, 0] - y) ** 2, radius=0.1)
    >>> optimizer = ProximalOptimizer(torch.optim.Adam(model.parameters()), objective, regularizer=rhobust.L1(1e-3))
    >>> objective(torch.ones(4, 2), torch.zeros(4)).value.backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        optimizer: Optimizer,
        objective: RobustObjective,
        *,
        regularizer: Regularizer | None = None,
        gamma_rule: GammaRule | None = None,
        metric: Metric | None = None,
    ) -> None:
        if not (isinstance(optimizer, Optimizer) and isinstance(objective, RobustObjective)):
            raise Refused("the arguments are a torch optimizer over model.parameters() and a RobustObjective")
        if isinstance(optimizer, LBFGS):
            raise Refused("LBFGS asks for the loss several times in a step, and a batch's worst case is found once")
        if not isinstance(regularizer, Regularizer | None):
            raise Refused(f"regularizer must be a Regularizer such as rhobust.L1(0.1), not {regularizer!r}")
        if not isinstance(gamma_rule, GammaRule | None):
            raise Refused(f"gamma_rule must be a GammaRule such as rhobust.Multiplicative(), not {gamma_rule!r}")
        self.objective = objective
        self.regularizer: Regularizer = regularizer or NoRegularizer()
        learned = objective.maximizer.penalized
        self.gamma_rule: GammaRule = gamma_rule or (Multiplicative() if learned else FixedGamma())
        if any(theta is objective.gamma for group in optimizer.param_groups for theta in group["params"]):
            raise Refused(
                "the wrapped optimizer also steps gamma, which has a rule of its own; "
                "give it model.parameters(), not objective.parameters()"
            )
        own = {id(theta) for theta in objective.model.parameters()}
        if not any(id(theta) in own for group in optimizer.param_groups for theta in group["params"]):
            raise Refused(
                "the wrapped optimizer has none of the parameters of the objective's model: nothing would be trained. "
                "Build it with that model's parameters()"
            )
        if isinstance(self.gamma_rule, Multiplicative) and objective.radius == 0:
            raise Refused(
                "with radius 0 the ball holds only the data, gamma has no finite optimum and the multiplicative rule "
                "cannot scale by it. Use a positive radius, or method 'erm'"
            )
        known = metric or next((METRICS[kind] for kind in type(optimizer).__mro__ if kind in METRICS), None)
        if known is None and not isinstance(self.regularizer, NoRegularizer):
            raise Refused(
                f"the prox needs the step size that {type(optimizer).__name__} gives each coordinate, which is not "
                f"known; pass metric=, or use one of {', '.join(kind.__name__ for kind in METRICS)}"
            )
        self._metric: Metric = known or _sgd_metric
        self.base = optimizer
        # Schedules set a rate in every group, and the momentum that they cycle. Those of gamma's group are never read.
        cycled = [key for key in ("betas", "momentum") if key in optimizer.defaults]
        momentum: dict[str, Any] = {key: optimizer.defaults[key] for key in cycled}
        super().__init__([objective.gamma], {"lr": self.gamma_rule.lr, **momentum})
        self.param_groups = [*optimizer.param_groups, *self.param_groups]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Gamma's group stays the last; every other belongs to the wrapped optimizer."""
        if not self.param_groups:  # gamma's own, from the constructor
            super().add_param_group(param_group)
            return
        self.base.add_param_group(param_group)
        self.param_groups.insert(-1, self.base.param_groups[-1])

    def __getstate__(self) -> dict[str, Any]:
        # What `Optimizer` keeps in a copy, and what is ours.
        ours = ("base", "objective", "regularizer", "gamma_rule", "_metric")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in ours}}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One proximal step on theta and one ruled step on gamma, from the gradients as they stand."""
        self.objective.own_loop.before_step(self.objective, self.objective.gamma.grad)
        # Alg. 1 and 2, line 4; Alg. 3, line 8
        result = self.base.step(closure)
        self._prox_step()
        self._gamma_step()
        return result

    def _prox_step(self) -> None:
        if isinstance(self.regularizer, NoRegularizer):
            return
        thetas, _, known = self._moved()
        if not thetas:
            return
        shrink = _fused_shrink if self.regularizer.separable else _shrink
        shrink(self.regularizer, self._metric, thetas, known)

    def _moved(self) -> tuple[list[Tensor], list[Tensor], Known]:
        """The parameters that have a gradient, their gradients, and what is known of them.

        Learning rates as tensors: a compiled function holds for one number, and schedules give many.
        """
        thetas: list[Tensor] = []
        known: Known = []
        for group in self.base.param_groups:
            moved = [theta for theta in group["params"] if theta.grad is not None]
            thetas += moved
            rated = {
                device: {**group, "lr": _rate(group["lr"], device)} for device in {theta.device for theta in moved}
            }
            known += [(self.base.state.get(theta, {}), rated[theta.device]) for theta in moved]
        return thetas, [theta.grad for theta in thetas if theta.grad is not None], known

    def _gamma_step(self) -> None:
        objective, gamma = self.objective, self.objective.gamma
        if gamma.grad is None:
            return
        rule, bounds, state = self.gamma_rule, (objective.radius, objective.gamma_min), self.state[gamma]
        if rule.compilable and fuses():
            # A rate on the host is a kernel's argument; as a number, what is compiled would hold for this one alone.
            rate = torch.full((), rule.lr, dtype=gamma.dtype, device="cpu")
            _fused_ruled(rule, gamma, gamma.grad, *bounds, rate, state)
        else:
            _ruled(rule, gamma, gamma.grad, *bounds, rule.lr, state)

    @torch.no_grad()
    def stationarity(self) -> Tensor:
        """||theta - prox_{alpha r}(theta - alpha g)|| / alpha at the current theta and gradient, with alpha = lr.

        The distance to stationarity of Theorems 1-2 (for r = 0, the gradient's norm); call it before `step()`. Gamma's
        own distance shows in E c against rho.
        """
        if isinstance(self.regularizer, NoRegularizer):  # theta - (theta - alpha g) would only add rounding
            every = [theta.grad for group in self.base.param_groups for theta in group["params"]]
            return torch.nn.utils.get_total_norm([gradient for gradient in every if gradient is not None])
        thetas, gradients, known = self._moved()
        if not thetas:
            return torch.zeros(())
        residuals = _fused_residuals if self.regularizer.separable else _residuals
        return torch.nn.utils.get_total_norm(residuals(self.regularizer, thetas, gradients, known))

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state and gamma's; gamma itself is in the objective's state."""
        gamma_group = {key: value for key, value in self.param_groups[-1].items() if key != "params"}
        return {"base": self.base.state_dict(), "gamma": dict(self.state[self.objective.gamma]), "group": gamma_group}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.base.load_state_dict(state_dict["base"])
        gamma_group = self.param_groups[-1]
        gamma_group.update(state_dict["group"])
        self.param_groups = [*self.base.param_groups, gamma_group]
        gamma = self.objective.gamma
        self.state[gamma] = {
            name: buffer.to(gamma.device, copy=True) if isinstance(buffer, Tensor) else buffer
            for name, buffer in state_dict["gamma"].items()
        }
