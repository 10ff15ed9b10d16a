"""A worker of Alg. 3: it draws a minibatch, moves it, and uploads the gradient in theta and gamma.

A worker's random stream depends on (seed, round, worker) alone, so neither the order of arrival nor a restart changes
the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.data.samples import Samples
from rhobust.federation.messages import Task, Upload, flat, flat_gradient, put
from rhobust.federation.randomness import Stream
from rhobust.objective import RobustObjective
from rhobust.training.graph_recording import Recordings


@dataclass(frozen=True)
class LocalSteps:
    """What every worker does in a round.

    With `steps` H > 1 it goes on from theta - rate g and uploads the mean of the H gradients: more work for the same
    bytes. Only the server updates gamma.
    """

    batch_size: int = 64
    steps: int = 1
    rate: float = 0.1
    seed: int = 0

    def chosen(self, samples: int, round_: int, worker: int, step: int = 0) -> Tensor:
        """The samples that a worker uses: `batch_size` of them, each once, or all if it has no more."""
        if samples <= self.batch_size:
            return torch.arange(samples)
        draws = Stream.MINIBATCH.draws(self.seed, round_, worker, step)
        return torch.from_numpy(draws.choice(samples, self.batch_size, replace=False))

    @contextmanager
    def draws(self, device: torch.device, round_: int, worker: int, step: int = 0) -> Iterator[None]:
        """Random starts come from the worker's own stream, too."""
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            seed = Stream.ASCENT.seed(self.seed, round_, worker, step)
            if device.type == "cuda":
                torch.manual_seed(seed)
            else:  # without a GPU, the call above would store a stack trace for every GPU
                torch.default_generator.manual_seed(seed)
            yield


class Worker:
    """A worker, or several that share one model; on a GPU a local step is captured once and replayed."""

    def __init__(
        self, objective: RobustObjective, work: LocalSteps, warn: Callable[[str], None] = lambda message: None
    ) -> None:
        self.objective, self.work = objective, work
        device = objective.gamma.device
        self._start = flat(objective.model)  # theta as it was broadcast
        self._total = torch.zeros_like(self._start)  # the gradients of the local steps so far
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # of E c and of the loss
        self._recordings = Recordings(self._local_step, device, warn) if device.type == "cuda" else None

    def upload(self, samples: Samples, task: Task, number: int) -> Upload:
        """The upload of worker `number`, which holds these samples."""
        self.begin(task)
        gradients = 0
        for step in range(self.work.steps):
            with self.minibatch(samples, task, number, step) as (center, y):
                gradients += self.take(center, y, task.round * self.work.steps + step)
        return self.end(task, len(samples), gradients)

    @contextmanager
    def minibatch(self, samples: Samples, task: Task, number: int, step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """A minibatch of worker `number`, (centers, y); inside the block, random numbers come from its own stream."""
        # Alg. 3, line 3
        device = self.objective.gamma.device
        chosen = self.work.chosen(len(samples), task.round, number, step).to(samples.x.device)
        x, y = samples.x[chosen].to(device), samples.y[chosen].to(device)
        self.objective.check(x, y)
        with self.work.draws(device, task.round, number, step):
            yield self.objective.center(x), y

    def begin(self, task: Task) -> None:
        """Take theta and gamma as they were broadcast."""
        with torch.no_grad():
            self.objective.gamma.fill_(task.gamma)
        self._start.copy_(task.theta)
        self._total.zero_()
        self._sums.zero_()

    def take(self, center: Tensor, y: Tensor, step: int) -> int:
        """One local step; `step` counts those of all rounds. The number of gradients in zeta that it took."""
        turn = self.objective.maximizer.turn(step)
        if self._recordings is None:
            return self._local_step(center, y, turn)
        recording = self._recordings.find(center, y, turn=turn)
        if recording is None:
            with self._recordings.warming():
                return self._local_step(center, y, turn)
        return recording.replay(center, y)

    def end(self, task: Task, samples: int, gradients: int) -> Upload:
        """The upload: the mean over the local steps."""
        # Alg. 3, line 6: uploads
        cost, loss = (self._sums / self.work.steps).tolist()
        theta = self._total / self.work.steps
        return Upload(task.round, theta, self.objective.radius - cost, samples, loss, gradients)

    def _local_step(self, center: Tensor, y: Tensor, turn: int) -> int:
        put(self.objective.model, self._start - self.work.rate * self._total)
        surrogate = self.objective.surrogate(center, y, turn=turn)  # Alg. 3, lines 4 and 5
        self.objective.zero_grad()
        torch.autograd.backward(surrogate.value)  # Alg. 3, line 6: the stochastic gradient
        self._total += flat_gradient(self.objective.model)
        self._sums += torch.stack([surrogate.cost.mean(), surrogate.loss.mean()])
        return surrogate.gradients
