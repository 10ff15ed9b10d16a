"""Training from the first step to the last: epochs, metrics, checkpoints, interruption and resumption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.averaging import WeightAverage
from rhobust.batches import Batches, batches_of
from rhobust.costs import Cost
from rhobust.engines.captured import CapturedEngine
from rhobust.engines.local import LocalEngine, Record
from rhobust.errors import ConfigError, Refused
from rhobust.gamma_rules import GammaRule
from rhobust.interrupts import deferred_signals
from rhobust.losses import cross_entropy
from rhobust.memory import Memory
from rhobust.methods import Method, find_method
from rhobust.objective import PerSampleLoss, RobustObjective
from rhobust.observer import Observer, Warner
from rhobust.optim import ProximalOptimizer, adam
from rhobust.regularizers import Regularizer
from rhobust.runs import Run, rho_eff

_LOOKED_AT = 1000  # samples


@dataclass
class Trainer:
    """The loop over epochs, with an optional run directory to log and checkpoint into.

    After `checkpoint_every` steps (an epoch, by default) the complete state is kept: theta, gamma, both optimizers'
    buffers, the generators. Batches depend on (seed, epoch) alone, so a run that is killed and resumed takes the same
    steps as one that is not.
    """

    engine: LocalEngine
    batches: Batches
    epochs: int
    run: Run | None = None
    log_every: int = 1
    checkpoint_every: int | None = None
    memory: float | None = None
    """The decay of `Memory`, where the ascents go on from where they were left."""
    history: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.memory is not None:
            self.engine.memory = self._remembering(self.memory)

    def _remembering(self, decay: float) -> Memory:
        whole = self.batches.whole()
        if whole is None:
            raise Refused(
                "memory needs the data as tensors or arrays (x, y): loaders and Datasets do not say which samples come"
            )
        if not self.objective.maximizer.gradients:
            raise Refused("this method does not move the samples: drop memory")
        if self.objective.maximizer.random_start:
            raise Refused("memory and random_start both say where an ascent begins: drop one of them")
        return Memory(whole.x, decay)

    def train(self, observer: Observer | None = None, start: int = 0) -> None:
        """Take every step from `start` on.

        With a run directory, SIGINT and SIGTERM take effect between two steps, after a checkpoint.
        """
        observer = observer or Observer()
        per_epoch = self.batches.steps()
        observer.started(per_epoch and per_epoch * self.epochs, start, self.engine.objective.radius or None)
        first, skip = divmod(start, per_epoch) if per_epoch else (0, 0)
        step = start
        self.engine.warn = observer.warned
        if problem := self.objective.unspendable:
            observer.warned(problem)
        average = self.engine.average
        if average is not None and per_epoch and (steps := per_epoch * self.epochs) < average.reach:
            observer.warned(
                f"an average of decay {average.decay:g} looks back over {average.reach:.0f} steps, and there are "
                f"{steps}: the first, of a model that knows nothing, count as much as the last. Lower average"
            )
        self.engine.full_batch = self.batches.full
        whole = self.batches.whole()
        if whole is not None:
            self.engine.admit(whole.x, whole.y)
            enough = _to_one_point(self.objective.cost, whole.x)
            if 0 < self.objective.radius >= enough:
                observer.warned(
                    f"radius {self.objective.radius:g} pays for moving every sample to one and the same point, which "
                    f"costs {enough:.2g} on average: there is nothing left to learn. Lower it"
                )
        with deferred_signals(enabled=self.run is not None) as signals:
            for epoch in range(first, self.epochs):
                for x, y, at in self.batches.epoch(epoch, skip if epoch == first else 0):
                    self._note(self.engine.step(x, y, step, epoch, at), observer)
                    step += 1
                    if self.run and (signals or step % (self.checkpoint_every or per_epoch or 1) == 0):
                        self._catch_up(observer)
                        self.run.save_checkpoint(step, self.state())
                    if signals:
                        raise KeyboardInterrupt
            self._catch_up(observer)
            self.engine.settle()

    def _catch_up(self, observer: Observer) -> None:
        """Hear of every step that was taken; one that diverged is never checkpointed."""
        while records := self.engine.flush():
            self._note(records, observer)

    def _note(self, records: Sequence[Record], observer: Observer) -> None:
        for record in records:
            if self.objective.maximizer.is_logged(record.step, self.log_every):
                self.history.append(record)
                if self.run:
                    self.run.log(record)
            observer.stepped(record)

    @property
    def objective(self) -> RobustObjective:
        """What is trained."""
        return self.engine.objective

    def state(self) -> dict[str, Any]:
        """Everything the next step depends on."""
        device = self.objective.gamma.device
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return {
            "objective": dict(self.engine.objective.state_dict()),
            "optimizer": self.engine.optimizer.state_dict(),
            "average": None if self.engine.average is None else self.engine.average.state_dict(),
            "memory": None if self.engine.memory is None else self.engine.memory.state_dict(),
            "generator": torch.get_rng_state(),
            "cuda_generator": cuda,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` took."""
        self.engine.objective.load_state_dict(state["objective"])
        self.engine.optimizer.load_state_dict(state["optimizer"])
        if self.engine.average is not None:
            self.engine.average.load_state_dict(state["average"])
        if self.engine.memory is not None:
            self.engine.memory.load_state_dict(state["memory"])
        torch.set_rng_state(state["generator"])
        if state["cuda_generator"] is not None:
            torch.cuda.set_rng_state(state["cuda_generator"], self.objective.gamma.device)


def _to_one_point(cost: Cost, x: Tensor) -> float:
    """What that takes for so many samples, drawn from the data, with the better of two points."""
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_LOOKED_AT]
    x = x[chosen.to(x.device)]
    points = x.mean(0), (x.amin(0) + x.amax(0)) / 2  # the best for costs of squares, and for the largest change
    return min(float(cost(x, point.expand_as(x)).mean()) for point in points)


@dataclass(frozen=True)
class Fit:
    """A trained model with its objective and what happened on the way."""

    objective: RobustObjective
    optimizer: ProximalOptimizer
    history: list[Record] = field(repr=False)

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
        """E c over the last epoch; near the radius when gamma has settled."""
        return rho_eff([asdict(record) for record in self.history])


def compose(
    model: nn.Module,
    loss: PerSampleLoss,
    chosen: Method,
    *,
    radius: float,
    optimizer: torch.optim.Optimizer,
    cost: Cost | None = None,
    regularizer: Regularizer | None = None,
    gamma_min: float = 1e-3,
    gamma_rule: GammaRule | None = None,
    bounds: tuple[float, float] | None = None,
    precision: torch.dtype = torch.float32,
    average: float | None = None,
) -> LocalEngine:
    """A method on a model: its objective and its step, ready to run where the model lives."""
    objective = RobustObjective(
        model,
        loss,
        radius=radius,
        cost=cost,
        maximizer=chosen.maximizer,
        gamma=chosen.gamma,
        gamma_min=gamma_min,
        bounds=bounds,
        noise=chosen.noise,
        temper=chosen.temper,
    )
    rule = gamma_rule or chosen.gamma_rule
    proximal = ProximalOptimizer(optimizer, objective, regularizer=regularizer, gamma_rule=rule)
    engine = CapturedEngine if objective.gamma.is_cuda else LocalEngine
    return engine(objective, proximal, precision, None if average is None else WeightAverage(model, average))


def fit(
    model: nn.Module,
    data: object,
    *,
    method: str = "spgd",
    radius: float | None = None,
    loss: PerSampleLoss = cross_entropy,
    epochs: int = 30,
    batch_size: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    cost: Cost | None = None,
    regularizer: Regularizer | None = None,
    gamma_min: float = 1e-3,
    gamma_rule: GammaRule | None = None,
    bounds: tuple[float, float] | None = None,
    precision: torch.dtype = torch.float32,
    average: float | None = None,
    memory: float | None = None,
    seed: int = 0,
    observer: Observer | None = None,
    **knobs: Any,
) -> Fit:
    """Train `model` in place by a method of `rhobust.methods()`; `knobs` are that method's own.

    `data` is (x, y) of tensors or arrays, a `Dataset` (shuffled by `seed`) or a `DataLoader` (taken as it comes);
    neither of the last two is ever held in memory whole. float32 and float64 are taken in the model's precision.
    Batches have 128 samples; a loader brings its own. The optimizer defaults to Adam with the paper's learning rate,
    0.001. With `precision` torch.bfloat16 the model's passes run under autocast; with `average`, a decay such as 0.999,
    the model ends with its weights averaged over the steps; with `memory`, a decay such as 1, an ascent goes on from
    where that of the epoch before ended (`Memory`; for tensors and arrays only). On a GPU the step is captured once and
    replayed, where it can be. The random draws of the training come from `seed`; the global generators are left as they
    were.

    >>> x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> trained = fit(nn.Linear(3, 2), (x, (x[:, 0] > 0).long()), method="spgda", radius=0.1, epochs=2)
    >>> len(trained.history)
    2
    """
    chosen = find_method(method).tuned(fit.__kwdefaults__ or (), **knobs)
    if problem := chosen.radius_problem(radius):
        raise ConfigError([problem])
    if gamma_rule is not None and not chosen.robust:
        raise ConfigError([chosen.no_gamma_rule])
    if not isinstance(epochs, Integral) or epochs < 1:
        raise ConfigError([f"epochs must be a whole number, at least 1, not {epochs}"])
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}; build one" if isinstance(model, type) else type(model).__name__
        raise Refused(f"model must be an instance of nn.Module, not {what}")
    if next(model.parameters(), None) is None:
        raise Refused(f"{type(model).__name__} has no parameters: there is nothing to train")
    if not any(theta.requires_grad for theta in model.parameters()):
        raise Refused(f"all parameters of {type(model).__name__} are frozen (requires_grad): there is nothing to train")
    some = next(model.parameters())
    device = some.device
    engine = compose(
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
        precision=precision,
        average=average,
    )
    trainer = Trainer(engine, batches_of(data, batch_size, seed, device, some.dtype), epochs, memory=memory)
    with seeded(seed, device):
        trainer.train(observer or Warner())
    return Fit(engine.objective, engine.optimizer, trainer.history)


@contextmanager
def seeded(seed: int, device: torch.device, threads: int | None = None) -> Iterator[None]:
    """The global generators seeded, and the number of threads set, for a while."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        torch.set_num_threads(threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)
