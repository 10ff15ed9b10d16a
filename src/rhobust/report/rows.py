"""The rows of a report: runs that differ in their seed only are one row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rhobust.attacks.attack import norm_of
from rhobust.attacks.cascade import CASCADES
from rhobust.evaluation.evaluation import WASSERSTEIN, WORST, AttackedError
from rhobust.evaluation.intervals import difference, unpacked
from rhobust.evaluation.regression_evaluation import RegressionEvaluation
from rhobust.models.source import Source, is_own
from rhobust.report.spread import Spread
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.measurements import EVALUATION, SHIFTS, Kind, Measurement, R
from rhobust.support.toml import to_toml
from rhobust.training.record import rho_eff


def telling(config: Config) -> dict[str, Any]:
    """The settings of a run that have a value, and a say in what comes of it."""
    silent: set[str] = set()
    if federation := config.federation:
        silent = {"evaluate_every"}
        silent |= set() if federation.byzantine else {"byzantine_attack"}
        local = federation.local_steps > 1 or federation.server_update == "average"
        silent |= set() if local else {"local_learning_rate"}
    return {key: value for key, value in config.settings().items() if value is not None and key not in silent}


@dataclass(frozen=True)
class Entry:
    """One run with everything that was measured of it."""

    run: Run
    config: Config
    environment: dict[str, Any]
    records: list[dict[str, Any]]
    gamma: float | None
    """The price of transport at the end; none where the method has no price."""
    measured: dict[Kind[Any], Measurement[Any]]
    refused: dict[Kind[Any], str]
    """Why something could not be measured."""

    @property
    def rho_eff(self) -> float:
        """E c over the last epoch, or the last rounds."""
        return rho_eff(self.records)

    @property
    def radius_per_feature(self) -> float | None:
        """The radius in standard deviations of every feature."""
        return self.run.radius_per_feature(self.config.radius)

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting that has a value and a say, the method's knobs too."""
        return telling(self.config)

    def result(self, kind: Kind[R]) -> R | None:
        """What was found of one kind."""
        return self.measured[kind].result if kind in self.measured else None

    def asked(self, kind: Kind[Any]) -> dict[str, Any]:
        """The settings that something was measured with."""
        return self.measured[kind].settings if kind in self.measured else {}

    @property
    def clean(self) -> float | None:
        """The error without an attack."""
        found = self.result(EVALUATION)
        return found.clean if found else None

    def error(self, attack: str, epsilon: float) -> float | None:
        """One attacked error."""
        found = self.result(EVALUATION)
        cell = found.grid.get(attack, {}).get(epsilon) if found else None
        return cell.error if cell else None

    @property
    def r2(self) -> float | None:
        """R^2 without an attack, of a regression."""
        found = self.result(EVALUATION)
        return found.residuals.r2 if isinstance(found, RegressionEvaluation) else None

    def ends(self, attack: str | None = None, epsilon: float = 0.0) -> tuple[float, float] | None:
        """The 95 % interval of an RMSE, of the clean one without an attack; none of a share, which has Wilson's."""
        found = self.result(EVALUATION)
        if not isinstance(found, RegressionEvaluation) or (attack and epsilon not in found.grid.get(attack, {})):
            return None
        low, high = found.interval(attack, epsilon) if attack else found.residuals.rmse_interval
        return low, high

    def wrong(self, attack: str, epsilon: float) -> Tensor | None:
        """Which samples the model gets wrong, (N,); none where that was not kept."""
        found = self.result(EVALUATION)
        cell = found.grid.get(attack, {}).get(epsilon) if found else None
        return unpacked(cell.wrong, found.samples) if found and isinstance(cell, AttackedError) and cell.wrong else None

    def behind(self, attack: str) -> tuple[tuple[str, ...], int]:
        """The attacks that stand behind an error of this name, and the restarts of each."""
        if attack == WASSERSTEIN:
            return (attack,), 1
        asked = self.asked(EVALUATION)
        by_name = [one for one in asked.get("attacks", []) if one not in CASCADES]
        of_its_norm = {one for one in by_name if WORST[norm_of(one)] == attack}
        attacks = of_its_norm if attack in WORST.values() else {attack}
        return tuple(sorted(attacks)), asked.get("restarts", 1)

    @property
    def shifts(self) -> tuple[str, ...]:
        """The shifts that were measured of it."""
        found = self.result(SHIFTS)
        return tuple(found.by_shift) if found else ()

    def shifted(self, shift: str | None = None) -> float | None:
        """The mean error under one shift, over its severities; without one, over all that were measured of it."""
        found = self.result(SHIFTS)
        if found is None:
            return None
        return found.mean if shift is None else found.means.get(shift)

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite setting is the text 'inf'."""
        settings = {key: _json_value(value) for key, value in self.settings.items()}
        return {
            "run": str(self.run.path),
            "settings": settings,
            "environment": self.environment,
            "gamma": self.gamma,
            "rho_eff": self.rho_eff,
            "radius_per_feature": self.radius_per_feature,
            **{kind.name: made.to_json() for kind, made in self.measured.items()},
            "refused": {kind.name: reason for kind, reason in self.refused.items()},
        }


def _json_value(value: Any) -> Any:
    """The value with every infinity as text, which JSON can hold."""
    if isinstance(value, dict):
        return {key: _json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(one) for one in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed only."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """The run of the lowest seed."""
        return self.entries[0]

    @property
    def method(self) -> str:
        """Its name."""
        return self.first.config.name

    @property
    def unit(self) -> str:
        """What its training is counted in: an epoch, or a round of a federation."""
        return "round" if self.first.config.federation else "epoch"

    def spread(self, pick: Callable[[Entry], float | None]) -> Spread | None:
        """A number of every seed; none where a seed lacks it."""
        values = [pick(entry) for entry in self.entries]
        known = tuple(value for value in values if value is not None)
        return Spread(known) if len(known) == len(values) else None

    @property
    def samples(self) -> int | None:
        """Test samples of its evaluations, where all seeds have as many."""
        counts = {found.samples if (found := entry.result(EVALUATION)) else None for entry in self.entries}
        return counts.pop() if len(counts) == 1 else None

    @property
    def clean(self) -> Spread | None:
        """The error without an attack."""
        return self.errors(lambda entry: entry.clean, lambda entry: entry.ends())

    def attacked(self, attack: str, epsilon: float) -> Spread | None:
        """The error under an attack."""
        return self.errors(lambda entry: entry.error(attack, epsilon), lambda entry: entry.ends(attack, epsilon))

    def errors(
        self, pick: Callable[[Entry], float | None], ends: Callable[[Entry], tuple[float, float] | None]
    ) -> Spread | None:
        """Errors on the samples of its evaluations, with intervals of their own where they have some."""
        found, own = self.spread(pick), [pair for entry in self.entries if (pair := ends(entry)) is not None]
        if found is None or len(own) < len(self.entries):
            return found and replace(found, samples=self.samples)
        low, high = (statistics.fmean(values) for values in zip(*own, strict=True))
        return replace(found, ends=(low, high))

    def less(self, other: Row, attack: str, epsilon: float) -> tuple[float, float, float] | None:
        """Its error less another row's with the 95 % interval, paired by sample and seed, where outcomes were kept."""
        ours, theirs = ({e.config.seed: e.wrong(attack, epsilon) for e in row.entries} for row in (self, other))
        pairs = [(ours[seed], theirs[seed]) for seed in ours if ours.keys() == theirs.keys()]
        known = [(a, b) for a, b in pairs if a is not None and b is not None and len(a) == len(b)]
        if not known or len(known) < len(pairs):
            return None
        first, second = (torch.stack(column) for column in zip(*known, strict=True))
        return difference(first, second)


def rows_of(entries: Sequence[Entry]) -> tuple[Row, ...]:
    """Runs that are the same but for their seed, together; rows in the order in which runs were given."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(repr(entry.settings | {"seed": 0}), []).append(entry)
    rows = [tuple(sorted(group, key=lambda entry: entry.config.seed)) for group in groups.values()]
    return tuple(Row(_name(row[0], [other[0] for other in rows]), row) for row in rows)


def _name(entry: Entry, others: Sequence[Entry]) -> str:
    """The method, and what sets this row apart from others of the same method."""
    alike = [other.settings for other in others if other.config.name == entry.config.name]
    apart = [
        f"{key.replace('_', ' ')} {shown_setting(key, value)}"
        for key, value in entry.settings.items()
        if key != "seed" and any(other.get(key) != value for other in alike)
    ]
    return ", ".join([entry.config.name, *apart])


def counted(number: int, noun: str) -> str:
    """So many of them.

    >>> counted(1, "run"), counted(2, "run"), counted(0, "flag")
    ('1 run', '2 runs', 'no flags')
    """
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def shown(value: object) -> str:
    """A setting as a reader wants it.

    >>> shown(2.0), shown(True), shown("adam"), shown((1, 3)), shown({"width": 64})
    ('2', 'true', 'adam', '1,3', '{width = 64}')
    """
    if isinstance(value, dict):
        return to_toml(value)
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value))  # as the command takes it
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown_setting(key: str, value: object) -> str:
    """The value of a setting as a reader wants it: the file of a model without its folder, a digest by its beginning.

    >>> shown_setting("model", "/home/me/nets.py:wide"), shown_setting("radius", 2.0)
    ('nets.py:wide', '2')
    """
    if key == "model" and is_own(str(value)):
        return Source.parse(str(value)).label
    return str(value)[:12] if key == "model_digest" else shown(value)
