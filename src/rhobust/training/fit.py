"""A training in one call."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rhobust.box import Bounds
from rhobust.charts.axes import drawable
from rhobust.charts.drawings import draw_training
from rhobust.checks import seed_problems
from rhobust.costs import Cost
from rhobust.data.arrays import as_numbers
from rhobust.data.batches import batches_of
from rhobust.errors import ConfigError, Refused, unknown
from rhobust.gamma_rules import FixedGamma, GammaRule
from rhobust.inputs import Perturb
from rhobust.losses import PerSampleLoss, cross_entropy, is_regression
from rhobust.method import find_method
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer, adam
from rhobust.regularizers import Regularizer
from rhobust.support.display import Displayed, Table
from rhobust.support.renamed import RENAMED, renamed_problem
from rhobust.support.seeding import seeded
from rhobust.training.compose import central_engine, compose
from rhobust.training.loop import train
from rhobust.training.observers import Observer
from rhobust.training.record import Record, rho_eff
from rhobust.training.remarks import apart, remarks, useless, watched
from rhobust.training.schedule import SCHEDULES
from rhobust.training.spread import deviations, per_feature, price_of
from rhobust.training.stopping_rule import Epochs, epochs_problem, most_epochs, schedule_problem, stopping_rule
from rhobust.training.trend import unsettled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RATE = "the learning rate is the optimizer's: pass optimizer=torch.optim.Adam(model.parameters(), lr=...)"
_ELSEWHERE = {
    "lr": _RATE,
    "learning_rate": _RATE,
    "device": "a model is trained where it is: model.to(device) before, and drop device=",
}
"""Settings of the command that a call says otherwise."""


@dataclass(frozen=True)
class Fit(Displayed):
    """A trained model with its objective and what happened on the way."""

    objective: RobustObjective
    optimizer: ProximalOptimizer
    history: list[Record] = field(repr=False)
    radius_per_feature: float | None = None
    """The radius as a number of standard deviations that every feature moves, where the data are in memory."""
    classes: tuple[str, ...] = ()
    """The names of the classes by number, where y was text."""

    @property
    def model(self) -> nn.Module:
        """The model that was handed in, trained."""
        return self.objective.model

    @property
    def gamma(self) -> float:
        """The dual variable at the end."""
        return float(self.objective.gamma.detach())

    @property
    def rho_eff(self) -> float:
        """E c over the last epoch, the mean of its steps; near the radius when gamma has settled."""
        return rho_eff([asdict(record) for record in self.history])

    def plot(self, axes: Axes | None = None) -> Axes:
        """The loss at the worst-case samples over the steps, and on the right the average transport cost.

        Thin lines are steps, thick ones the means of epochs. Draws on `axes`, or on those of a new figure, and returns
        them. The scale on the right belongs to axes of its own, `axes.figure.axes[-1]`.
        """
        axes = drawable(axes, "training step", "loss at worst-case samples")
        losses, costs = [one.loss for one in self.history], [one.rho_eff for one in self.history]
        draw_training(axes, losses, costs, [one.epoch for one in self.history], self.objective.radius)
        return axes

    def _shown(self) -> list[Table | str]:
        """A table of the last epoch, and what keeps the average transport cost from meeting the radius."""
        if not self.history:
            return ["no step was taken"]
        objective, end, spent = self.objective, self.history[-1], f"{self.rho_eff:.4g}"
        losses = [record.loss for record in self.history if record.epoch == end.epoch]
        cells = {"steps": f"{len(self.history)}", "epochs": f"{end.epoch + 1}"}
        cells |= {"loss": f"{sum(losses) / len(losses):.4g}", "average transport cost": spent}
        cells |= {"radius": f"{objective.radius:g}"} if objective.radius > 0 else {}
        if objective.radius > 0 and self.radius_per_feature is not None:
            cells |= {"per feature": f"{self.radius_per_feature:.2g} deviations"}
        cells |= {"gamma": f"{self.gamma:.4g}"} if objective.maximizer.penalized else {}
        caption = f"training of {type(self.model).__name__}; loss and cost are means of the last epoch"
        table = Table(caption, list(cells), [list(cells.values())])
        if not objective.maximizer.penalized or isinstance(self.optimizer.gamma_rule, FixedGamma):
            return [table]
        remark = apart(self.rho_eff, objective.radius, self.gamma, objective.gamma_min, objective.maximizer)
        return [table, f"average transport cost {spent} of radius {objective.radius:g}{remark}"] if remark else [table]


def fit(
    model: nn.Module,
    data: object,
    *,
    method: str = "spgd",
    radius: float | None = None,
    loss: PerSampleLoss = cross_entropy,
    epochs: Epochs = 30,
    batch_size: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    cost: Cost | None = None,
    regularizer: Regularizer | None = None,
    gamma_min: float = 1e-3,
    gamma_rule: GammaRule | None = None,
    bounds: Bounds = None,
    precision: torch.dtype = torch.float32,
    ema: float | None = None,
    memory: float | None = None,
    schedule: str = "constant",
    perturb: Perturb | str | int | None = None,
    batch_norm: str = "ascent-eval",
    weights: object = None,
    seed: int = 0,
    observer: Observer | None = None,
    **knobs: Any,
) -> Fit:
    """Train `model` in place by a method of `rhobust.methods()`; `knobs` are that method's own.

    `data` is (x, y) of tensors or arrays, a `Dataset` (shuffled by `seed`) or a `DataLoader` (taken as it comes);
    neither of the last two is ever held in memory whole. float32 and float64 are taken in the model's precision. x may
    be a DataFrame of numbers or an array of whole numbers, and y may be text, whose names `Fit.classes` has. Batches
    have 128 samples; a loader brings its own. For a regression `loss` is one of `rhobust.losses`, such as
    `squared_error`, or of PyTorch's with `reduction="none"`. The optimizer defaults to Adam with the paper's learning
    rate, 0.001. With `precision` torch.bfloat16 the model's passes run under autocast; with `ema`, a decay such as
    0.999, the model ends with its weights averaged over the steps; with `memory`, a decay such as 1, an ascent goes on
    from where that of the epoch before ended (`Memory`; for tensors and arrays only). `schedule` is how the learning
    rate changes over the training: constant, cosine or one-cycle. `batch_norm` is how BatchNorm layers are treated
    (`batch_norm.WAYS`). Of an x that is a dict or a tuple of tensors, or holds token numbers, `perturb` names what
    moves: a key, an index or a submodule (`Perturb`). `weights` (N,) say how much each sample in memory counts; a
    `Dataset` or a loader may give triples (x, y, weight) instead. The objective of a batch is the mean weighted within
    the batch, so in batches of few samples a heavy one counts less than its share, and alone like any other. A sample
    of weight 0 counts nothing, and a batch needs a weight above 0. With `epochs` "auto" the training ends where the
    objective has settled, at a constant rate and within 10,000 epochs. An `observer`, a subclass of `rhobust.Observer`,
    sees steps, warnings and ends of epochs, and may end the training early. On a GPU the step is captured once and
    replayed, where it can be. The random draws of the training come from `seed`; the global generators are left as they
    were.

    >>> x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> model = nn.Linear(3, 2)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> data = x, (x[:, 0] > 0).long()
    >>> trained = fit(model, data, method="spgda", radius=0.1, epochs=60, optimizer=optimizer)
    >>> len(trained.history)
    60
    """
    misplaced = [_ELSEWHERE[knob] for knob in knobs if knob in _ELSEWHERE]
    misplaced += [renamed_problem(knob) for knob in knobs if RENAMED.get(knob) in (fit.__kwdefaults__ or ())]
    if misplaced:
        raise ConfigError(dict.fromkeys(misplaced))
    chosen = find_method(method).tuned(fit.__kwdefaults__ or (), **knobs)
    if problem := chosen.radius_problem(radius):
        raise ConfigError([problem])
    if problems := seed_problems(seed):
        raise ConfigError(problems)
    if precision not in (torch.float32, torch.bfloat16):
        # float16 would need a scaled loss: without, small gradients become 0 and nothing says so.
        raise ConfigError([f"precision is torch.float32 or torch.bfloat16, not {precision}"])
    if schedule not in SCHEDULES:
        raise ConfigError([unknown("schedule", str(schedule), SCHEDULES)])
    if gamma_rule is not None and not chosen.robust:
        raise ConfigError([chosen.no_gamma_rule])
    if problem := epochs_problem(epochs) or schedule_problem(epochs, schedule):
        raise ConfigError([problem])
    if not isinstance(observer, Observer | None):
        raise Refused(f"observer must be an instance of a subclass of rhobust.Observer, not {observer!r}")
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}; build one" if isinstance(model, type) else type(model).__name__
        raise Refused(f"model must be an instance of nn.Module, not {what}")
    if next(model.parameters(), None) is None:
        raise Refused(f"{type(model).__name__} has no parameters: there is nothing to train")
    if not any(theta.requires_grad for theta in model.parameters()):
        raise Refused(f"all parameters of {type(model).__name__} are frozen (requires_grad): there is nothing to train")
    some = next(model.parameters())
    objective, proximal = compose(
        model,
        loss,
        chosen,
        radius=radius or 0.0,
        optimizer=optimizer or adam(model),
        cost=cost,
        regularizer=regularizer,
        gamma_min=gamma_min,
        gamma_rule=gamma_rule,
        bounds=bounds,
        perturb=perturb,
        batch_norm=batch_norm,
    )
    data, classes = (data, ()) if perturb is not None else as_numbers(data, model)
    observer = observer or Observer()
    batches = batches_of(data, batch_size, seed, some.device, some.dtype, perturb is not None, weights)
    whole = batches.whole()
    engine = central_engine(
        objective,
        proximal,
        watched(batches, objective, observer.warned),
        most_epochs(epochs),
        precision=precision,
        ema=ema,
        memory=memory,
        schedule=schedule,
    )
    stop = stopping_rule(epochs)
    for remark in remarks(objective, None if whole is None else whole.x, None if stop else engine.total, ema):
        observer.warned(remark)
    with seeded(seed, some.device):
        history = train(engine, observer=observer, stop=stop)
    # Errors that count all samples alike say little of what was learned from some more than others.
    judged = whole if weights is None and (objective.classifies or is_regression(loss)) else None
    if judged is not None and (doubt := useless(objective, judged, batches.full or len(judged))):
        observer.warned(doubt)
    ended = stop is not None or history[-1].epoch + 1 < engine.epochs  # by the rule, its limit or the observer
    if not ended and (doubt := unsettled([asdict(record) for record in history], schedule)):
        observer.warned(doubt)
    typical = None
    if whole is not None and objective.radius:
        price = price_of(deviations(whole.x, objective.cost, bounds), objective.cost)
        typical = per_feature(objective.radius, price)
    return Fit(objective, proximal, history, typical, classes)
