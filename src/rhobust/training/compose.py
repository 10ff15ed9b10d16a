"""The objective, the optimizer and the engine of a method."""

from __future__ import annotations

import torch
from torch import nn

from rhobust.ascent.maximizer import Maximizer
from rhobust.box import Bounds
from rhobust.costs import Cost
from rhobust.data.batches import Batches
from rhobust.errors import Refused
from rhobust.gamma_rules import GammaRule
from rhobust.inputs import Perturb
from rhobust.losses import PerSampleLoss
from rhobust.memory import Memory
from rhobust.method import Method
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer
from rhobust.regularizers import Regularizer
from rhobust.training.cuda_graph import CudaGraphEngine
from rhobust.training.eager import EagerEngine
from rhobust.training.engine import Engine
from rhobust.training.weight_average import WeightAverage


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
    bounds: Bounds = None,
    perturb: Perturb | str | int | None = None,
    batch_norm: str = "ascent-eval",
) -> tuple[RobustObjective, ProximalOptimizer]:
    """A method on a model: its objective and the step that it takes."""
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
        perturb=perturb,
        batch_norm=batch_norm,
    )
    objective.own_loop.silent = True  # a training tells its observer
    objective.check_model()
    rule = gamma_rule or chosen.gamma_rule
    return objective, ProximalOptimizer(optimizer, objective, regularizer=regularizer, gamma_rule=rule)


def central_engine(
    objective: RobustObjective,
    optimizer: ProximalOptimizer,
    batches: Batches,
    epochs: int,
    *,
    precision: torch.dtype = torch.float32,
    ema: float | None = None,
    memory: float | None = None,
    schedule: str = "constant",
) -> Engine:
    """The engine of one process where the objective lives: on a GPU the step is captured, where it can be.

    `ema` is the decay of a `WeightAverage`, `memory` that of a `Memory`, and `schedule` a name of `SCHEDULES`.
    """
    objective.check_model(batches.smallest())
    eager = EagerEngine(
        objective,
        optimizer,
        batches,
        epochs,
        precision=precision,
        ema=None if ema is None else WeightAverage(objective.model, ema),
        memory=None if memory is None else memory_for(batches, objective.maximizer, memory),
        schedule=schedule,
    )
    return CudaGraphEngine(eager) if objective.gamma.is_cuda else eager


def memory_for(batches: Batches, maximizer: Maximizer, decay: float) -> Memory:
    """A memory of the ascents of all samples, where batches say which samples they have and the ascents move them."""
    whole = batches.whole()
    if whole is None:
        raise Refused(
            "memory needs the data as tensors or arrays (x, y), where all of x moves: loaders and Datasets do not say "
            "which samples come, and with perturb= only a part of them moves"
        )
    if not maximizer.gradients:
        raise Refused("this method does not move the samples: drop memory")
    if maximizer.random_start:
        raise Refused("memory and random_start both say where an ascent begins: drop one of them")
    return Memory(whole.x, decay)
