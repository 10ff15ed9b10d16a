"""Training from the first step to the last: epochs, metrics, checkpoints, interruption and resumption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.averaging import WeightAverage
from rhobust.batches import Batches
from rhobust.costs import Cost
from rhobust.data import Samples
from rhobust.engines.captured import CapturedEngine
from rhobust.engines.local import LocalEngine, Record
from rhobust.errors import Refused
from rhobust.gamma_rules import GammaRule
from rhobust.interrupts import deferred_signals
from rhobust.memory import Memory
from rhobust.methods import Method
from rhobust.objective import PerSampleLoss, RobustObjective
from rhobust.observer import Observer
from rhobust.optim import ProximalOptimizer
from rhobust.regularizers import Regularizer
from rhobust.runs import Run
from rhobust.trust import learned_nothing

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

        With a run directory, SIGINT, SIGTERM and SIGHUP take effect between two steps, after a checkpoint.
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


def no_use(objective: RobustObjective, samples: Samples) -> str | None:
    """Why the model that was trained has learned nothing, if so: judged on samples whose labels are class numbers."""
    if not objective.classifies:
        return None
    moves = objective.maximizer.gradients or objective.noise
    hidden = "The moves of its training may hide what tells the classes apart: lower epsilon, noise or the radius"
    return learned_nothing(objective.model, samples, hidden if moves else "Try another learning rate, or more epochs")


def _to_one_point(cost: Cost, x: Tensor) -> float:
    """What that takes for so many samples, drawn from the data, with the better of two points."""
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_LOOKED_AT]
    x = x[chosen.to(x.device)]
    points = x.mean(0), (x.amin(0) + x.amax(0)) / 2  # the best for costs of squares, and for the largest change
    return min(float(cost(x, point.expand_as(x)).mean()) for point in points)


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
