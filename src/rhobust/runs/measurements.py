"""Measurements of a trained run, each kept beside its model as one JSON file (`KINDS`).

    evaluation.json       clean and attacked errors, and whether they can be trusted    (`rhobust evaluate`)
    shifts.json           errors under distribution shift                               (`rhobust evaluate --shifts`)
    certificates.json     bounds on the worst expected loss                             (`rhobust certify`)
    audit.json            independent attacks' errors beside ours                             (`rhobust audit`)

Each holds the settings it was made with, the environment, and the digest of the model it was made of. A measurement of
another model does not count. The newest measurement of a kind replaces the one before it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch

from rhobust.certificates.certificate import Certification
from rhobust.certificates.certify import certify
from rhobust.checks import is_number
from rhobust.costs import SquaredLinf
from rhobust.data.samples import DataSet, Samples
from rhobust.errors import RunError
from rhobust.evaluation.audit import Audit, audit
from rhobust.evaluation.evaluate import USUAL_ATTACKS, USUAL_EPSILONS, USUAL_RESTARTS, evaluate
from rhobust.evaluation.evaluation import Evaluation
from rhobust.evaluation.regression_evaluation import RegressionEvaluation
from rhobust.evaluation.shifts import ShiftEvaluation, evaluate_shifts
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.load import TrainedModel, load
from rhobust.runs.run_data import run_data
from rhobust.support.environment import environment
from rhobust.support.files import write_json

R = TypeVar("R", bound=Evaluation | RegressionEvaluation | ShiftEvaluation | Certification | Audit)
Done = Callable[[str], None]
"""Told what was finished, or what is under way."""

RADII = (0.1, 0.5, 1.0, 2.0, 6.0)
LINF_RADII = (0.01, 0.04, 0.09, 0.16)  # squares of the usual epsilons: there the cost is the largest change, squared


@dataclass(frozen=True)
class Measurement(Generic[R]):
    """A result with what it depends on."""

    model: str
    """SHA-256 of the model's file."""
    settings: dict[str, Any]
    """Seeds, grids: what was asked."""
    environment: dict[str, Any]
    result: R
    unkept: str | None = None
    """Why it does not lie beside the model, where it does not."""

    def to_json(self) -> dict[str, Any]:
        """The result flat, beside what it depends on."""
        depends = {"model": self.model, "settings": self.settings, "environment": self.environment}
        return depends | self.result.to_json()


@dataclass(frozen=True)
class Kind(Generic[R]):
    """A kind of measurement: what it is called, what it finds, what makes it, and the command that asks for it."""

    name: str
    result: type[R] | UnionType
    """Its type; of several, the first whose fields a kept result has."""
    measure: Callable[..., Measurement[R]]
    """Takes a `TrainedRun`; the number of `samples` and `done`, as all kinds; and settings of its own."""
    command: str

    @property
    def file(self) -> str:
        """Its name in a run directory."""
        return f"{self.name}.json"


def kept(run: Run, kind: Kind[R]) -> Measurement[R] | None:
    """The run's measurement of this kind; None where there is none of the model as it is now."""
    path = run.path / kind.file
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        depends = str(content["model"]), dict(content["settings"]), dict(content["environment"])
        made = Measurement(*depends, _decoded(kind.result, content))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise RunError(f"{path} is damaged; delete it and measure again") from None
    return made if made.model == _digest(run) else None


def _decoded(kind: Any, value: Any) -> Any:
    """A value of this type from plain JSON, where null is an infinite number, and keys that are no fields are ignored.

    >>> _decoded(float, 1), _decoded(float, None), _decoded(float | None, None), _decoded(dict[str, int], {"a": 1})
    (1.0, inf, None, {'a': 1})
    """
    outer, inner = get_origin(kind), get_args(kind)
    if outer is UnionType:
        return None if value is None else _decoded(_fitting(inner, value), value)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        types = get_type_hints(kind)
        return kind(**{name: _decoded(types[name], value[name]) for name in types if name in value})
    if outer is list and isinstance(value, list):
        return [_decoded(inner[0], one) for one in value]
    if outer is dict and isinstance(value, dict):
        return {key: _decoded(inner[1], one) for key, one in value.items()}
    if kind is float and value is None:
        return math.inf
    if kind is float and is_number(value) and math.isfinite(value):
        return float(value)
    if (kind in (str, int) and type(value) is kind) or (outer is Literal and value in inner):
        return value
    raise TypeError(f"{value!r} is no {kind}")


def _fitting(kinds: Sequence[Any], value: Any) -> Any:
    """Of several dataclasses the first whose fields without a default the value has; else the first kind."""
    for kind in kinds if isinstance(value, dict) else ():
        if is_dataclass(kind):
            needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
            if needed <= value.keys():
                return kind
    return kinds[0]


@dataclass(frozen=True)
class TrainedRun:
    """A trained run on the device it is measured on, and the data it was trained for."""

    run: Run
    model: TrainedModel
    data: DataSet
    test_digest: str
    device: str

    @classmethod
    def of(cls, run: Run) -> TrainedRun:
        """Load model and data; a GPU is used where there is one."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = load(run.path)
        data = run_data(model.config, model.table)
        digest = data.test.digest()
        run.check_data(test=digest)
        return cls(run, model.to(device), data, digest, device)

    def test(self, samples: int | None) -> Samples:
        """The first `samples` test samples, on the device; all for None."""
        return self.data.test[slice(samples)].to(self.device)

    def keep(self, kind: Kind[R], settings: dict[str, Any], result: R) -> Measurement[R]:
        """Write a measurement into the run directory; if that fails, it is not lost."""
        made = Measurement(_digest(self.run), settings, environment(self.device), result)
        path = self.run.path / kind.file
        try:
            write_json(path, made.to_json())
        except OSError as problem:
            return replace(made, unkept=f"{path} cannot be written: {problem.strerror}")
        return made


def measure_errors(
    trained: TrainedRun,
    *,
    attacks: Sequence[str] | None = None,
    epsilons: Sequence[float] = USUAL_EPSILONS,
    budgets: Sequence[float] = (),
    samples: int | None = None,
    restarts: int | None = None,
    seed: int = 0,
    keep: bool = False,
    done: Done | None = None,
) -> Measurement[Evaluation | RegressionEvaluation]:
    """Clean and attacked errors, or residuals (`evaluate.evaluate`); by default the usual attacks of the task."""
    task = trained.model.config.task
    attacks = USUAL_ATTACKS[task] if attacks is None else attacks
    restarts = USUAL_RESTARTS[task] if restarts is None else restarts
    asked = {"attacks": list(attacks), "epsilons": list(epsilons), "budgets": list(budgets)}
    found = evaluate(
        trained.model,
        trained.test(samples),
        loss=trained.model.config.make_loss(),
        bounds=trained.model.bounds,
        attacks=attacks,
        epsilons=epsilons,
        budgets=budgets,
        restarts=restarts,
        seed=seed,
        keep=keep,
        task=task,
        done=done,
    )
    return trained.keep(EVALUATION, asked | {"restarts": restarts, "seed": seed}, found)


def measure_shifts(
    trained: TrainedRun,
    *,
    shifts: Sequence[str] = ("all",),
    samples: int | None = None,
    seed: int = 0,
    done: Done | None = None,
) -> Measurement[ShiftEvaluation]:
    """Errors under distribution shift (`shifts.evaluate_shifts`)."""
    found = evaluate_shifts(trained.model, trained.data, trained.test(samples), shifts=shifts, seed=seed, done=done)
    return trained.keep(SHIFTS, {"shifts": list(shifts), "seed": seed}, found)


def usual_radii(config: Config) -> tuple[float, ...]:
    """Those that runs with this cost are certified at."""
    return LINF_RADII if isinstance(config.make_cost(), SquaredLinf) else RADII


def measure_certificates(
    trained: TrainedRun,
    *,
    radii: Sequence[float] | None = None,
    samples: int | None = None,
    done: Done | None = None,
) -> Measurement[Certification]:
    """Bounds on the worst expected loss (`certificates.certify`).

    The radii are by default the `usual_radii`, which runs have in common, and the radius that this one was trained for.
    """
    if radii is None:
        own, usual = trained.model.config.radius, usual_radii(trained.model.config)
        radii = usual if own is None else sorted({*usual, own})
    found = certify(
        trained.model,
        trained.test(samples),
        loss=trained.model.config.make_loss(),
        radii=radii,
        cost=trained.model.config.make_cost(),
        bounds=trained.model.bounds,
        done=done,
    )
    return trained.keep(CERTIFICATES, {"radii": list(radii)}, found)


def measure_audit(
    trained: TrainedRun,
    *,
    epsilon: float = 0.2,
    norm: str = "inf",
    samples: int | None = None,
    seed: int = 0,
    done: Done | None = None,
) -> Measurement[Audit]:
    """The error that independent attacks find, beside ours (`audit.audit`)."""
    found = audit(
        trained.model,
        trained.test(samples),
        epsilon=epsilon,
        norm=norm,
        loss=trained.model.config.make_loss(),
        bounds=trained.model.bounds,
        seed=seed,
        done=done,
    )
    return trained.keep(AUDIT, {"epsilon": epsilon, "norm": norm, "seed": seed}, found)


def _digest(run: Run) -> str:
    return hashlib.sha256(run.model_path.read_bytes()).hexdigest()


EVALUATION: Kind[Evaluation | RegressionEvaluation] = Kind(
    "evaluation", Evaluation | RegressionEvaluation, measure_errors, "evaluate"
)
SHIFTS = Kind("shifts", ShiftEvaluation, measure_shifts, "evaluate")
CERTIFICATES = Kind("certificates", Certification, measure_certificates, "certify")
AUDIT = Kind("audit", Audit, measure_audit, "audit")
KINDS: tuple[Kind[Any], ...] = (EVALUATION, SHIFTS, CERTIFICATES, AUDIT)
