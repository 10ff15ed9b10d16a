"""The settings of a run: what each is, how it is checked alone, and what it stands for."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from rhobust import batch_norm
from rhobust.checks import decay_problem, seed_problems
from rhobust.costs import COSTS, Cost
from rhobust.data.catalog import DATA
from rhobust.data.samples import TASKS
from rhobust.data.table_settings import TableSettings
from rhobust.federation.settings import Federation
from rhobust.gamma_rules import GAMMA_RULES, GammaRule
from rhobust.losses import LOSSES, PerSampleLoss, cross_entropy
from rhobust.method import FEDERATED, Method, find_method, methods
from rhobust.models.catalog import MODELS, build_model, model_problems
from rhobust.models.source import FORM, digest_problems
from rhobust.optim import OPTIMIZERS
from rhobust.regularizers import REGULARIZERS, Regularizer
from rhobust.support.setting import (
    accepted_by,
    auto_or,
    below_one,
    keyword_arguments,
    not_negative,
    one_of,
    positive,
    setting,
    settings_of,
    thread_count,
)
from rhobust.support.spec import parse_spec
from rhobust.support.toml import to_toml
from rhobust.training.schedule import SCHEDULES
from rhobust.training.step import PRECISIONS


@dataclass(frozen=True)
class Settings:
    """Every setting of a run. `knobs` are the method's own (`rhobust methods` lists them)."""

    data: str = setting(
        "digits", f"Data set: {', '.join(DATA)}, or the path of an .npz file, a table (.csv, .parquet) or images."
    )
    data_dir: str | None = setting(
        None, "Folder with mnist/ and fashion-mnist/, searched first.", usual="the variable RHOBUST_DATA"
    )
    task: str = setting(TASKS[0], "What y is: classes (classification) or numbers (regression).", one_of(TASKS))
    loss: str | None = setting(
        None,
        "Loss of a regression, in y's unit: squared, absolute, huber:DELTA or quantile:TAU.",
        accepted_by(partial(parse_spec, "loss", table=LOSSES)),
        usual="squared for a regression",
    )
    train_samples: int | None = setting(None, "Number of training samples, the first ones.", positive, usual="all")
    model: str = setting(
        "mlp",
        f"Model to train: {', '.join(MODELS)}; or one of your own, {FORM}.",
        model_problems,
        usual="mlp; cnn for mnist and fashion-mnist",
    )
    model_args: dict[str, Any] | None = setting(  # noqa: RUF009 (it is a field)
        None,
        "Keyword arguments of the factory of a model of your own: a table such as {width = 64}.",
        keyword_arguments,
    )
    model_digest: str | None = setting(
        None,
        "SHA-256 of the source of a model of your own. A source with another digest is refused.",
        digest_problems,
        usual="that of the file",
    )
    method: str = setting("spgd", "Training method; `rhobust methods` lists them.", one_of([*methods(), *FEDERATED]))
    radius: float | None = setting(
        None,
        "Radius rho, the bound on the average transport cost. Methods that learn gamma require it, others refuse it.",
        positive,
    )
    radius_per_feature: float | None = setting(
        None,
        "The radius as a number of standard deviations that every feature moves, in place of radius.",
        positive,
    )
    epochs: int | Literal["auto"] = setting(
        30, "Number of passes over the training data, or auto: until the objective has settled.", auto_or(positive)
    )
    batch_size: int = setting(128, "Number of samples per step; in a federation, per step of each worker.", positive)
    optimizer: str = setting("adam", "Optimizer of the weights: adam or sgd.", one_of(OPTIMIZERS))
    learning_rate: float = setting(1e-3, "Learning rate alpha of the weights.", positive)
    cost: str = setting(
        "l2",
        "Transport cost, a squared norm: l2, lp:P with 1 < P <= 2, or linf.",
        accepted_by(partial(parse_spec, "cost", table=COSTS)),
    )
    label_cost: float = setting(math.inf, "Cost of changing a label; inf never changes labels.", not_negative)
    regularizer: str = setting(
        "none",
        "Regularizer of the weights: none, l1:W, squared-l1:W, squared-l2:W, elastic-net:L1,L2, group-l2:W or "
        "box:LOWER,UPPER.",
        accepted_by(partial(parse_spec, "regularizer", table=REGULARIZERS)),
    )
    gamma_min: float = setting(1e-3, "Lower bound of the dual variable gamma.", positive)
    gamma_rule: str | None = setting(
        None,
        "Update rule of gamma: multiplicative:LR, projected:LR, adam:LR or fixed.",
        accepted_by(partial(parse_spec, "gamma_rule", table=GAMMA_RULES)),
        usual="the method's",
    )
    seed: int = setting(
        0, "Seed of the weights, the order of the data and every random draw.", lambda _, seed: seed_problems(seed)
    )
    device: str = setting(
        "auto", "Device: cpu, cuda, or auto (cuda where there is one).", one_of(("auto", "cpu", "cuda"))
    )
    precision: str = setting(
        "auto",
        "Precision of the model's passes: float32, bfloat16, or auto (bfloat16 on a GPU, float32 otherwise and in "
        "federations).",
        one_of(("auto", *PRECISIONS)),
    )
    threads: int | None = setting(None, "Number of CPU threads.", thread_count, usual="PyTorch's")
    log_every: int = setting(1, "Number of training steps between two lines of metrics.jsonl.", positive)
    checkpoint_every: int | None = setting(
        None, "Number of training steps between two checkpoints.", positive, usual="one epoch"
    )
    schedule: str = setting(
        "constant", f"Schedule of the learning rate of the weights: {', '.join(SCHEDULES)}.", one_of(SCHEDULES)
    )
    momentum: float = setting(0.0, "Momentum of the optimizer sgd, in [0, 1).", below_one)
    ema: float | None = setting(
        None, "Decay of the moving average of the weights (EMA), in [0, 1).", below_one, usual="off"
    )
    memory: float | None = setting(
        None,
        "Warm start: fraction, in (0, 1], of last epoch's perturbation from which the ascent of a sample starts.",
        lambda _, decay: filter(None, [decay_problem(decay)]),
        usual="off",
    )
    batch_norm: str = setting("ascent-eval", batch_norm.HELP, one_of(batch_norm.WAYS))
    knobs: dict[str, Any] = field(default_factory=dict)
    federation: Federation | None = None
    table: TableSettings | None = None

    @property
    def name(self) -> str:
        """The method's name, the federated one where there is a federation."""
        return self.method if self.federation is None else self.federation.method_name(self.method)

    def make_model(self, shape: torch.Size, outputs: int) -> nn.Module:
        """A fresh model on the CPU. Of a model of the user's own this runs the source, if it has its digest."""
        return build_model(self.model, shape, outputs, self.model_args, self.model_digest)

    def make_loss(self) -> PerSampleLoss:
        """The loss of a sample."""
        return cross_entropy if self.loss is None else parse_spec("loss", self.loss, LOSSES)

    def make_method(self) -> Method:
        """The method with this run's knobs."""
        return find_method(self.method).tuned(**self.knobs)

    def make_cost(self) -> Cost:
        """The transport cost, with the cost of changing a label."""
        return dataclasses.replace(parse_spec("cost", self.cost, COSTS), kappa=self.label_cost)  # type: ignore[type-var]

    def make_regularizer(self) -> Regularizer:
        """The regularizer of the weights."""
        return parse_spec("regularizer", self.regularizer, REGULARIZERS)

    def make_gamma_rule(self) -> GammaRule | None:
        """The rule for gamma; none means the method's own."""
        return None if self.gamma_rule is None else parse_spec("gamma_rule", self.gamma_rule, GAMMA_RULES)

    def settings(self) -> dict[str, Any]:
        """Every setting by its key, the method's knobs among them; a federation's instead of epochs."""
        own = {key: getattr(self, key) for key in settings_of(Settings)} | self.knobs
        if self.federation:
            del own["epochs"]
            own |= dataclasses.asdict(self.federation)
        if self.table:
            own |= dataclasses.asdict(self.table)
        return own

    def to_toml(self) -> str:
        """The settings as TOML, flat; what is unset is left out."""
        return "".join(f"{key} = {to_toml(value)}\n" for key, value in self.settings().items() if value is not None)
