"""The server of Alg. 3: it checks every upload, aggregates them, and takes the one step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from rhobust.errors import Diverged, Halted
from rhobust.federation.aggregators import Aggregator
from rhobust.federation.messages import Aggregate, Task, Upload, flat, put_gradient
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer
from rhobust.training.record import RoundRecord

ROUNDS_PER_EPOCH = 50
"""Curves are drawn over epochs. A federation has none, so this number of rounds counts as one."""
_MOST_SAMPLES = 2**53  # a double holds every whole number up to this one
_NOT_FINITE = "its gradient or its loss is not finite"


class QuorumLost(Halted):
    """Too few workers sent a valid upload; the model is as it was before the round."""


class RoundDiverged(Halted, Diverged):
    """A round whose gradients or objective are not finite; the model is as it was before."""


class Server:
    """Theta, gamma and their one step. Every upload is checked before it counts."""

    def __init__(
        self,
        objective: RobustObjective,
        optimizer: ProximalOptimizer,
        aggregator: Aggregator,
        *,
        quorum: int = 1,
        weighted: bool = False,
    ) -> None:
        self.objective, self.optimizer, self.aggregator = objective, optimizer, aggregator
        self.quorum, self.weighted = quorum, weighted
        self.round = 0

    def task(self) -> Task:
        """Theta and gamma as they are now."""
        # Alg. 3, line 9, of the round before
        return Task(self.round, flat(self.objective.model), float(self.objective.gamma.detach()))

    def step(self, task: Task, asked: Iterable[str], answers: Mapping[str, Upload | str]) -> RoundRecord:
        """One round from the answers of the workers asked: an upload each, or the reason why there is none.

        Raises `QuorumLost` if fewer uploads are valid than `quorum` or the aggregator needs; then nothing has changed.
        """
        # Alg. 3, line 7
        names = sorted(asked)  # the order of arrival must not matter
        problems = {name: self._problem(answers.get(name, "no answer"), task) for name in names}
        dropped = {name: problem for name, problem in problems.items() if problem is not None}
        dropped |= {name: "was not asked" for name in sorted(answers) if name not in names}
        kept = [upload for name in names if name not in dropped and isinstance(upload := answers[name], Upload)]
        # A worker that was asked and sent an invalid upload counts as Byzantine. A late or silent one may be honest.
        wrong = [answers[name] for name in names if name in dropped and name in answers]
        invalid = sum(isinstance(answer, Upload) and answer.round == task.round for answer in wrong)
        # An invalid upload may also come from an honest worker with a fault: the rule is relaxed only as far as needed.
        rules = [self.aggregator.relaxed(count) for count in range(invalid + 1)]
        aggregator = next((rule for rule in rules if rule.min_workers <= len(kept)), rules[-1])
        needed = max(self.quorum, aggregator.min_workers)
        if not kept and names and all(reason == _NOT_FINITE for reason in dropped.values()):
            raise RoundDiverged(
                f"in round {self.round} no worker's gradient is finite; nothing was updated. Lower the learning "
                "rate, or raise gamma_min or lower the radius"
            )
        if len(kept) < needed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in dropped.items())
            raise QuorumLost(
                f"round {self.round}: {len(kept)} of {len(names)} workers sent a valid upload, {needed} are needed "
                f"({reasons})"
            )
        counts = [float(upload.samples) if self.weighted else 1.0 for upload in kept]
        weights = torch.tensor(counts, dtype=torch.float64)
        theta, left_out = aggregator.aggregate(torch.stack([upload.theta for upload in kept]), weights)
        gamma, loss = (
            float(aggregator(torch.tensor([[number] for number in numbers], dtype=torch.float64), weights)[0])
            for numbers in ([upload.gamma for upload in kept], [upload.loss for upload in kept])
        )
        valid = [name for name in names if name not in dropped]
        return self.apply(
            Aggregate(
                theta=theta,
                gamma=gamma,
                loss=loss,
                gradients=sum(upload.gradients for upload in kept),
                workers=len(kept),
                dropped=dropped,
                bytes_up=sum(upload.size for upload in answers.values() if isinstance(upload, Upload)),
                bytes_down=task.size * len(names),
                left_out=[name for name, out in zip(valid, left_out.tolist(), strict=True) if out],
            )
        )

    def apply(self, found: Aggregate) -> RoundRecord:
        """The same `ProximalOptimizer.step` as everywhere, on an aggregated gradient."""
        objective = self.objective
        put_gradient(objective.model, found.theta)
        learned = objective.maximizer.penalized
        if learned:
            objective.gamma.grad = torch.full_like(objective.gamma, found.gamma)
        stationarity = float(self.optimizer.stationarity())
        price = float(objective.gamma.detach())
        value = found.loss + price * found.gamma if learned else found.loss
        if not (math.isfinite(value) and math.isfinite(stationarity)):
            raise RoundDiverged(
                f"in round {self.round} the objective is {value} and its gradient's norm {stationarity}; nothing was "
                "updated. Lower the learning rate, or raise gamma_min or lower the radius"
            )
        record = RoundRecord(
            step=self.round,
            epoch=self.round // ROUNDS_PER_EPOCH,
            loss=found.loss,
            value=value,
            gamma=price,
            rho_eff=objective.radius - found.gamma,
            stationarity=stationarity,
            accuracy=None,
            gradients=found.gradients,
            workers=found.workers,
            dropped=found.dropped,
            bytes_up=found.bytes_up,
            bytes_down=found.bytes_down,
            left_out=found.left_out,
        )
        self.optimizer.step()  # Alg. 3, line 8
        self.round += 1
        return record

    def _problem(self, upload: Upload | str, task: Task) -> str | None:
        """What is wrong with an answer, if anything."""
        if isinstance(upload, str):
            return upload
        if upload.round != task.round:
            return f"answered for round {upload.round}"
        if upload.theta.shape != task.theta.shape or upload.theta.dtype != task.theta.dtype:
            return f"its gradient has shape {tuple(upload.theta.shape)} and type {upload.theta.dtype}"
        numbers = torch.tensor([upload.gamma, upload.loss], dtype=self.objective.gamma.dtype)  # finite there, too
        if not all(number.isfinite() for number in (torch.linalg.vector_norm(upload.theta), *numbers)):
            return _NOT_FINITE
        if upload.gamma > self.objective.radius * (1 + 1e-6):
            return f"its gradient in gamma, {upload.gamma:g}, is above rho: no cost is negative"
        if upload.samples > _MOST_SAMPLES:
            return "it reports more samples than there can be"
        if not 0 <= upload.gradients <= _MOST_SAMPLES:
            return "it reports an impossible number of gradients"
        return "it has no samples" if upload.samples < 1 else None

    def state_dict(self) -> dict[str, Any]:
        """Everything the next round depends on."""
        return {
            "objective": dict(self.objective.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "round": self.round,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.round = state["round"]
