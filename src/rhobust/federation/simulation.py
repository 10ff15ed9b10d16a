"""Workers in one process: slices of one data set, honest or Byzantine.

If the workers' minibatches have equal sizes and their gradients are averaged, one pass over all of them as one batch
gives the same gradient (up to rounding) at the speed of central training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from rhobust.data.samples import Samples
from rhobust.federation.aggregators import Mean
from rhobust.federation.byzantine import byzantine_uploads, flipped
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

    The last `byzantine` of them are Byzantine; `attack` names theirs in `BYZANTINE_ATTACKS`, as in `sign-flip:4`.
    `fuse` allows one batch for all workers.
    """

    def __init__(
        self,
        objective: RobustObjective,
        samples: Samples,
        shares: Sequence[Tensor],
        work: LocalSteps,
        *,
        classes: int,
        byzantine: int = 0,
        attack: str = "sign-flip",
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
        self.classes, self.byzantine, self.attack, self.fuse = classes, byzantine, attack, fuse

    def prepare(self, warn: Warn) -> None:
        self._warn = warn

    def round(self, server: Server, asked: Sequence[str]) -> RoundRecord:
        """All workers as one batch if that is exact, else one worker after another."""
        return self._fused(server, asked) if self._is_one_batch(server, asked) else super().round(server, asked)

    def ask(self, task: Task, asked: Sequence[str]) -> Mapping[str, Upload | str]:
        """Every worker's own gradient; Byzantine workers know the honest uploads before they send theirs."""
        uploads = {name: self._upload(task, self.number(name)) for name in asked}  # Alg. 3, line 2
        attackers = [name for name in asked if self._is_byzantine(self.number(name))]
        return uploads | self._attacked(uploads, attackers, task) if attackers else uploads

    def _is_one_batch(self, server: Server, asked: Sequence[str]) -> bool:
        sizes = {min(len(self._own(self.number(name))), self.work.batch_size) for name in asked}
        plain = self.fuse and not self.byzantine and self.work.steps == 1 and not server.weighted
        # A step draws from one random stream, and each worker must draw from its own.
        random = self.objective.maximizer.random_start or _draws(self.objective.model)
        return plain and not random and isinstance(server.aggregator, Mean) and len(sizes) == 1

    def _fused(self, server: Server, asked: Sequence[str]) -> RoundRecord:
        task = server.task()
        self._worker.begin(task)
        batches = [self._minibatch(task, self.number(name)) for name in sorted(asked)]  # Alg. 3, line 3, of all workers
        center, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        gradients = self._worker.take(center, y, task.round)  # Alg. 3, lines 4 to 6
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
        if self._is_byzantine(number) and self.attack == "label-flip":
            own = Samples(own.x, flipped(own.y, self.classes))
        return self._worker.upload(own, task, number)

    def _is_byzantine(self, number: int) -> bool:
        return number >= len(self.names) - self.byzantine

    def _attacked(self, uploads: Mapping[str, Upload], attackers: Sequence[str], task: Task) -> dict[str, Upload]:
        """The Byzantine workers' uploads; theta's gradient and gamma's are attacked in the same way."""
        own = [uploads[name] for name in attackers]
        honest = [upload for name, upload in uploads.items() if name not in attackers]
        device = own[0].theta.device
        draws = torch.Generator(device).manual_seed(Stream.BYZANTINE.seed(self.work.seed, task.round))

        def uploaded(part: Callable[[Upload], Tensor]) -> Tensor:
            theirs = torch.stack([part(upload) for upload in own])
            others = torch.stack([part(upload) for upload in honest]) if honest else theirs[:0]
            return byzantine_uploads(self.attack, others, theirs, len(uploads), draws)

        theta = uploaded(lambda upload: upload.theta)
        gamma = uploaded(lambda upload: torch.tensor([upload.gamma], dtype=torch.float64, device=device))
        return {
            name: replace(uploads[name], theta=theta[i], gamma=float(gamma[i, 0])) for i, name in enumerate(attackers)
        }


def _draws(model: nn.Module) -> bool:
    """Whether its training passes draw random numbers, judged by torch's own modules."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd | nn.RReLU) for module in model.modules())
