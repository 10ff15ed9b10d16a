"""Small federations in float64, and what a slow reader of Alg. 3 would make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.data.batches import SampleBatches
from rhobust.data.samples import Samples
from rhobust.federation.aggregators import Aggregator, Mean
from rhobust.federation.messages import Task, Upload, flat
from rhobust.federation.server import Server
from rhobust.federation.simulation import Simulation
from rhobust.federation.worker import LocalSteps, Worker
from rhobust.losses import cross_entropy
from rhobust.method import find_method
from rhobust.regularizers import NoRegularizer, Regularizer
from rhobust.training.compose import compose
from rhobust.training.eager import EagerEngine
from rhobust.training.record import RoundRecord

BOUNDS = (-3.0, 3.0)
CLASSES = 3
SGD = partial(torch.optim.SGD, lr=0.1)


def data(count: int, seed: int = 1) -> Samples:
    """Three classes in four dimensions."""
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).clamp(*BOUNDS)
    return Samples(x, x[:, :CLASSES].argmax(1))


def network() -> nn.Module:
    """Always the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


@dataclass(frozen=True)
class Setting:
    """A federation: the method, the server's optimizer, the workers' shares and their work."""

    method: str = "spgda"
    radius: float | None = 0.5
    knobs: dict[str, Any] = field(default_factory=dict)
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = SGD
    regularizer: Regularizer = field(default_factory=NoRegularizer)
    sizes: Sequence[int] = (12, 12, 12, 12)
    work: LocalSteps = field(default_factory=lambda: LocalSteps(batch_size=8, seed=3))
    aggregator: Aggregator = field(default_factory=Mean)
    quorum: int = 1
    weighted: bool = False

    def engine(self) -> EagerEngine:
        """Central training on the workers' samples, always from the same start."""
        model, samples = network(), data(sum(self.sizes))
        objective, optimizer = compose(
            model,
            cross_entropy,
            find_method(self.method).tuned(**self.knobs),
            radius=self.radius or 0.0,
            optimizer=self.optimizer(model.parameters()),
            regularizer=self.regularizer,
            bounds=BOUNDS,
        )
        return EagerEngine(objective, optimizer, SampleBatches(samples, len(samples), 0, samples.x.device))

    def server(self) -> Server:
        engine = self.engine()
        return Server(engine.objective, engine.optimizer, self.aggregator, quorum=self.quorum, weighted=self.weighted)

    @property
    def shares(self) -> list[Tensor]:
        return list(torch.arange(sum(self.sizes)).split(list(self.sizes)))

    def own(self) -> list[Samples]:
        """Each worker's samples."""
        whole = data(sum(self.sizes))
        return [whole[share] for share in self.shares]

    def minibatches(self, round_: int, step: int = 0) -> list[Samples]:
        """What each worker looks at in a round."""
        return [own[self.work.chosen(len(own), round_, k, step)] for k, own in enumerate(self.own())]

    def simulation(self, **options: Any) -> Simulation:
        whole = data(sum(self.sizes))
        return Simulation(self.engine().objective, whole, self.shares, self.work, classes=CLASSES, **options)

    def uploads(self, task: Task) -> dict[str, Upload]:
        """Every worker's honest answer, each from an objective of its own."""
        return {
            f"worker-{k + 1}": Worker(self.engine().objective, self.work).upload(own, task, k)
            for k, own in enumerate(self.own())
        }


def answered(server: Server, asked: Iterable[str], answers: Mapping[str, Upload | str]) -> RoundRecord:
    """The round in which its workers answer this."""
    return server.step(server.task(), asked, answers)


def watched(workers: Simulation) -> list[int]:
    """The sizes of the batches that its steps will take."""
    seen: list[int] = []
    take = workers._worker.take

    def noted(center: Tensor, y: Tensor, step: int) -> int:
        seen.append(len(center))
        return take(center, y, step)

    workers._worker.take = noted  # type: ignore[method-assign]
    return seen


def theta_gamma(trained: Server | EagerEngine) -> Tensor:
    """Theta and gamma as one vector."""
    return torch.cat([flat(trained.objective.model), trained.objective.gamma.detach().reshape(1)])


def away(found: Tensor, expected: Tensor) -> float:
    """How far, for its size."""
    return float((found - expected).norm() / expected.norm())
