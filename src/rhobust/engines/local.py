"""The engine of one process: the step as it is, nothing averaged."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from rhobust.errors import Diverged
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer


@dataclass(frozen=True)
class Record:
    """What one step did; a line of metrics.jsonl."""

    step: int
    epoch: int
    loss: float
    """Mean loss at zeta."""
    value: float
    """Mean psi, the robust objective without r."""
    gamma: float
    """The gamma that this step's batch was priced with."""
    rho_eff: float
    """E c on the batch; the learned gamma drives it to rho."""
    stationarity: float
    """||theta - prox(theta - alpha g)|| / alpha before the step."""
    accuracy: float | None
    """The largest gap of the inner sup over the batch; none where it was not measured or has no bound."""
    gradients: int
    """Gradients in zeta paid for the batch."""


class LocalEngine:
    """Runs the one step eagerly, on whatever device the objective lives."""

    def __init__(self, objective: RobustObjective, optimizer: ProximalOptimizer) -> None:
        self.objective, self.optimizer = objective, optimizer

    def step(self, x: Tensor, y: Tensor, step: int, epoch: int) -> Record:
        """One training step. A value that is not finite stops it before anything is updated."""
        self.optimizer.zero_grad()
        surrogate = self.objective(x, y)
        surrogate.value.backward()
        value, stationarity = float(surrogate.value.detach()), float(self.optimizer.stationarity())
        if not (math.isfinite(value) and math.isfinite(stationarity)):
            raise Diverged(
                f"at step {step} (epoch {epoch}) the objective is {value} and its gradient's norm {stationarity}; "
                "nothing was updated. Lower the learning rate, or raise gamma_min or lower the radius"
            )
        gap = math.inf if surrogate.accuracy is None else float(surrogate.accuracy.gap.max())
        record = Record(
            step=step,
            epoch=epoch,
            loss=float(surrogate.loss.mean()),
            value=value,
            gamma=float(self.objective.gamma.detach()),
            rho_eff=float(surrogate.cost.mean()),
            stationarity=stationarity,
            accuracy=gap if math.isfinite(gap) else None,
            gradients=surrogate.gradients,
        )
        self.optimizer.step()
        return record
