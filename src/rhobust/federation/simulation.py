"""Workers in one process: slices of one data set, honest or Byzantine.

Where the workers' minibatches are equal and are averaged, they are one batch that was cut up only to be put together
again: one pass over the whole batch gives the same gradient (up to rounding) at the speed of central training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from rhobust.data.samples import Samples
from rhobust.federation.aggregators import Mean
from rhobust.federation.byzantine import flipped, lie
from rhobust.federation.federated_engine import Workers
from rhobust.federation.messages import Aggregate, Task, Upload
from rhobust.federation.randomness import Stream
from rhobust.federation.server import Server
from rhobust.federation.worker import LocalSteps, Worker
from rhobust.objective import RobustObjective
from rhobust.training.engine import Warn
from rhobust.training.record import RoundRecord


class Simulation(Workers):
    """Workers of one process. They share one model: memory does not grow with their number beyond their data.

    The last `liars` of them lie, in the way of `liars.LIARS` named by `how`. `fuse` allows one batch for all.
    """

    def __init__(
        self,
        objective: RobustObjective,
        samples: Samples,
        shares: Sequence[Tensor],
        work: LocalSteps,
        *,
        classes: int,
        liars: int = 0,
        how: str = "sign-flip",
        fuse: bool = True,
    ) -> None:
        digits = len(str(len(shares)))
        super().__init__([f"worker-{number:0{digits}d}" for number in range(1, len(shares) + 1)])
        # Put the shares one after another, once: then each is a slice, and no round copies more than its minibatches.
        self.samples = samples[torch.cat(list(shares))]
        ends = torch.tensor([len(share) for share in shares]).cumsum(0).tolist()
        self.shares = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        self.objective, self.work = objective, work
        self._warn: Warn = lambda message: None
        self._worker = Worker(objective, work, lambda message: self._warn(message))
        self.classes, self.liars, self.how, self.fuse = classes, liars, how, fuse

    def prepare(self, warn: Warn) -> None:
        self._warn = warn

    def round(self, server: Server, asked: Sequence[str]) -> RoundRecord:
        """One batch where that is exact, else one worker after another."""
        return self._fused(server, asked) if self._is_one_batch(server, asked) else super().round(server, asked)

    def ask(self, task: Task, asked: Sequence[str]) -> Mapping[str, Upload | str]:
        """Every worker's own gradient; liars see those of the honest before they answer."""
        uploads = {name: self._upload(task, self.number(name)) for name in asked}
        lying = [name for name in asked if self._lies(self.number(name))]
        return uploads | self._lied(uploads, lying, task) if lying else uploads

    def _is_one_batch(self, server: Server, asked: Sequence[str]) -> bool:
        sizes = {min(len(self._own(self.number(name))), self.work.batch_size) for name in asked}
        plain = self.fuse and not self.liars and self.work.steps == 1 and not server.weighted
        # Drawn inside the step, which has one stream for all.
        random = self.objective.maximizer.random_start or _draws(self.objective.model)
        return plain and not random and isinstance(server.aggregator, Mean) and len(sizes) == 1

    def _fused(self, server: Server, asked: Sequence[str]) -> RoundRecord:
        task = server.task()
        self._worker.begin(task)
        batches = [self._minibatch(task, self.number(name)) for name in sorted(asked)]
        center, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        gradients = self._worker.take(center, y, task.round)
        one = self._worker.end(task, 1, gradients)
        return server.apply(
            Aggregate(
                theta=one.theta,
                gamma=one.gamma,
                loss=one.loss,
                gradients=one.gradients * len(asked),
                workers=len(asked),
                dropped={},
                bytes_up=len(asked) * one.size,
                bytes_down=len(asked) * task.size,
            )
        )

    def _own(self, number: int) -> Samples:
        return self.samples[self.shares[number]]

    def _minibatch(self, task: Task, number: int) -> tuple[Tensor, Tensor]:
        with self._worker.minibatch(self._own(number), task, number) as found:
            return found

    def _upload(self, task: Task, number: int) -> Upload:
        own = self._own(number)
        if self._lies(number) and self.how == "label-flip":
            own = Samples(own.x, flipped(own.y, self.classes))
        return self._worker.upload(own, task, number)

    def _lies(self, number: int) -> bool:
        return number >= len(self.names) - self.liars

    def _lied(self, uploads: Mapping[str, Upload], lying: Sequence[str], task: Task) -> dict[str, Upload]:
        """Lies about theta's gradient and, in the same way, about gamma's."""
        own = [uploads[name] for name in lying]
        honest = [upload for name, upload in uploads.items() if name not in lying]
        device = own[0].theta.device
        draws = torch.Generator(device).manual_seed(Stream.LIES.seed(self.work.seed, task.round))

        def told(what: Callable[[Upload], Tensor]) -> Tensor:
            liars = torch.stack([what(upload) for upload in own])
            others = torch.stack([what(upload) for upload in honest]) if honest else liars[:0]
            return lie(self.how, others, liars, len(uploads), draws)

        theta = told(lambda upload: upload.theta)
        gamma = told(lambda upload: torch.tensor([upload.gamma], dtype=torch.float64, device=device))
        return {name: replace(uploads[name], theta=theta[i], gamma=float(gamma[i, 0])) for i, name in enumerate(lying)}


def _draws(model: nn.Module) -> bool:
    """Whether its passes in training take random numbers, as far as torch's own modules tell."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd | nn.RReLU) for module in model.modules())
