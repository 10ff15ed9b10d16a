"""What was measured of a trained run, kept beside its model: one JSON file for each kind.

    evaluation.json       clean and attacked errors, and whether they can be trusted    (`rhobust evaluate`)
    shifts.json           errors under distribution shift                               (`rhobust evaluate --shifts`)
    certificates.json     bounds on the worst expected loss                             (`rhobust certify`)
    audit.json            the referee's errors beside ours                              (`rhobust audit`)

Each holds the settings it was made with, the environment, and the digest of the model it speaks of: what was measured
of another model does not count. A checksum tells numbers that were measured from numbers that were edited. Nothing is
written over but by an answer to the same question: the one that took more attacks, samples and restarts is
evaluation.json, which a report shows, and the other becomes evaluation.1.json, or another number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch

from rhobust.audit import audit
from rhobust.certificates import certify
from rhobust.config import Config
from rhobust.costs import SquaredLinf
from rhobust.data import DataSet, Samples, load_data
from rhobust.environment import environment
from rhobust.errors import RunError
from rhobust.evaluate import USUAL_ATTACKS, USUAL_EPSILONS, evaluate
from rhobust.files import in_turn, write_json
from rhobust.losses import cross_entropy
from rhobust.runs import Run
from rhobust.shifts import evaluate_shifts
from rhobust.trained import TrainedModel, load

Kind = Literal["evaluation", "shifts", "certificates", "audit"]
_DEPENDS = ("settings", "environment")
Done = Callable[[str], None]
"""Told what has just been finished."""

RADII = (0.1, 0.5, 1.0, 2.0, 6.0)
LINF_RADII = (0.01, 0.04, 0.09, 0.16)  # squares of the usual epsilons: there the cost is the largest change, squared


@dataclass(frozen=True)
class Measurement:
    """Numbers with what they depend on."""

    model: str
    """SHA-256 of the model's file."""
    settings: dict[str, Any]
    """Samples, seeds, grids: what was asked."""
    environment: dict[str, Any]
    result: dict[str, Any]
    unkept: str | None = None
    """Why it does not lie beside the model, where it does not."""
    note: str | None = None
    """Where it lies, or the one before it, if not all can lie in one place."""

    def to_json(self) -> dict[str, Any]:
        """The result flat, beside what it depends on, sealed."""
        depends = {"model": self.model, "settings": self.settings, "environment": self.environment}
        return sealed({**depends, **self.result})


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """With the checksum of all else that it says."""
    plain = json.loads(json.dumps({key: value for key, value in content.items() if key != "checksum"}))  # as it is read
    return {**plain, "checksum": hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()}


def kept(run: Run, kind: Kind) -> Measurement | None:
    """The run's measurement of this kind; None where there is none of the model as it is now."""
    path = run.path / f"{kind}.json"
    if not path.exists():
        return None
    result = _read(path)
    if result is None:
        raise RunError(f"{path} is damaged, or was edited; delete it and measure again")
    model, settings, environment_ = (result.pop(key) for key in ("model", "settings", "environment"))
    made = Measurement(model, settings, environment_, result)
    return made if made.model == _digest(run) else None


def _read(path: Path) -> dict[str, Any] | None:
    """What a measurement's file holds but its checksum; none where it is damaged or was edited."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if sealed(content) != content:
            return None
        del content["checksum"]
        return {**content, "model": str(content["model"]), **{key: dict(content[key]) for key in _DEPENDS}}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


@dataclass(frozen=True)
class Subject:
    """A trained run on the device it is measured on, and the data it was trained for."""

    run: Run
    model: TrainedModel
    data: DataSet
    device: str

    @classmethod
    def of(cls, run: Run) -> Subject:
        """Load model and data; a GPU is used where there is one."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = load(run.path)
        data = load_data(model.config.data, model.config.data_dir)
        run.check_data(test=data.test.digest())
        return cls(run, model.to(device), data, device)

    def test(self, samples: int | None) -> Samples:
        """The first so many test samples, on the device; all for None."""
        part = self.data.test[slice(samples)]
        return Samples(part.x.to(self.device), part.y.to(self.device))

    def keep(self, kind: Kind, settings: dict[str, Any], result: dict[str, Any]) -> Measurement:
        """Write a measurement into the run directory; if that fails, it is not lost."""
        made = Measurement(_digest(self.run), settings, environment(self.device), result)
        path = self.run.path / f"{kind}.json"
        try:
            with in_turn(self.run.path):
                return replace(made, note=_write(path, made.to_json()))
        except OSError as problem:
            return replace(made, unkept=f"{path} cannot be written: {problem.strerror}")


def measure_errors(
    subject: Subject,
    *,
    attacks: Sequence[str] = USUAL_ATTACKS,
    epsilons: Sequence[float] = USUAL_EPSILONS,
    budgets: Sequence[float] = (),
    samples: int | None = None,
    restarts: int = 1,
    seed: int = 0,
    done: Done | None = None,
) -> Measurement:
    """Clean and attacked errors (`evaluate.evaluate`), kept as `evaluation.json`."""
    asked = {"attacks": list(attacks), "epsilons": list(epsilons), "budgets": list(budgets)}
    found = evaluate(
        subject.model,
        subject.test(samples),
        loss=cross_entropy,
        bounds=subject.model.bounds,
        attacks=attacks,
        epsilons=epsilons,
        budgets=budgets,
        restarts=restarts,
        seed=seed,
        done=done,
    )
    return subject.keep("evaluation", asked | {"restarts": restarts, "seed": seed}, found.to_json())


def measure_shifts(
    subject: Subject,
    *,
    shifts: Sequence[str] = ("all",),
    samples: int | None = None,
    seed: int = 0,
    done: Done | None = None,
) -> Measurement:
    """Errors under distribution shift (`shifts.evaluate_shifts`), kept as `shifts.json`."""
    found = evaluate_shifts(subject.model, subject.data, subject.test(samples), shifts=shifts, seed=seed, done=done)
    return subject.keep("shifts", {"shifts": list(shifts), "seed": seed}, found.to_json())


def usual_radii(config: Config) -> tuple[float, ...]:
    """Those that runs with this cost are certified at."""
    return LINF_RADII if isinstance(config.make_cost(), SquaredLinf) else RADII


def measure_certificates(
    subject: Subject,
    *,
    radii: Sequence[float] | None = None,
    samples: int | None = None,
    done: Done | None = None,
) -> Measurement:
    """Bounds on the worst expected loss (`certificates.certify`), kept as `certificates.json`.

    Unless told otherwise at `usual_radii`, which runs have in common, and at the radius that this one was trained for.
    """
    test = subject.test(samples)
    if radii is None:
        own, usual = subject.model.config.radius, usual_radii(subject.model.config)
        radii = usual if own is None else sorted({*usual, own})
    found = certify(
        subject.model,
        test,
        loss=cross_entropy,
        radii=radii,
        cost=subject.model.config.make_cost(),
        bounds=subject.model.bounds,
        done=done,
    )
    rows = [one.to_json() for one in found]
    return subject.keep("certificates", {"radii": list(radii)}, {"samples": len(test), "certificates": rows})


def measure_audit(
    subject: Subject, *, epsilon: float, samples: int | None = None, seed: int = 0, done: Done | None = None
) -> Measurement:
    """The referee's error beside ours (`audit.audit`), kept as `audit.json`."""
    test = subject.test(samples)
    found = audit(
        subject.model, test, epsilon=epsilon, loss=cross_entropy, bounds=subject.model.bounds, seed=seed, done=done
    )
    return subject.keep("audit", {"epsilon": epsilon, "seed": seed}, found.to_json())


def _write(path: Path, content: Mapping[str, Any]) -> str | None:
    """The content here, or beside what is here; which of it, where both stay."""
    if not path.exists():
        write_json(path, content)
        return None
    before = _read(path)
    if before is not None and _question(before) == _question(content):
        write_json(path, content)
        return None
    if before is not None and before["model"] == content["model"] and _size(before) > _size(content):
        place = _place_beside(path, content)
        write_json(place, content)
        return f"{path} answers a larger question, and stays; this is kept as {place}"
    place = _place_beside(path, before)
    path.replace(place)
    try:
        write_json(path, content)
    except BaseException:  # an interrupt, too
        if not path.exists():
            place.replace(path)
        raise
    damaged = ", damaged or edited," if before is None else ""
    return f"what was {path} until now{damaged} is kept as {place}"


def _place_beside(path: Path, content: Mapping[str, Any] | None) -> Path:
    """The first numbered name that is free, or has an answer to the same question."""
    places = (path.with_suffix(f".{number}.json") for number in count(1))
    return next(place for place in places if not place.exists() or (content and _same_question(place, content)))


def _same_question(place: Path, content: Mapping[str, Any]) -> bool:
    other = _read(place)
    return other is not None and _question(other) == _question(content)


def _question(content: Mapping[str, Any]) -> tuple[object, ...]:
    return content["model"], content["settings"], content.get("samples")


def _size(content: Mapping[str, Any]) -> int:
    """How much was asked: numbers, each of so many samples and restarts."""
    asked = next((len(content[key]) for key in ("attacked", "shifted", "certificates") if key in content), 1)
    return int(content.get("samples", 0) * content["settings"].get("restarts", 1) * asked)


def _digest(run: Run) -> str:
    return hashlib.sha256(run.model_path.read_bytes()).hexdigest()
