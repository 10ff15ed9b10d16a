"""A report: runs, what was measured of them, and whether the numbers may be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from rhobust.attacks.attack import only_weak
from rhobust.attacks.cascade import CASCADES
from rhobust.errors import ConfigError, DataError, Refused, RunError
from rhobust.evaluation.evaluation import WASSERSTEIN, WORST
from rhobust.evaluation.trust import Flag
from rhobust.report.rows import Entry, Row, rows_of, telling
from rhobust.report.scale import Scale, scale_of
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.measurements import (
    AUDIT,
    CERTIFICATES,
    EVALUATION,
    KINDS,
    SHIFTS,
    Done,
    Kind,
    Measurement,
    TrainedRun,
    kept,
    usual_radii,
)
from rhobust.support.version import __version__
from rhobust.training.trend import unsettled

# Strongest first: the attack whose errors lead the report is the first of these that was measured.
_STRONGEST = (*CASCADES, WORST[math.inf], "pgd", "ifgsm", "fgsm")
_MOST_CERTIFIED = 200
COMPARABLE = ("same data", "same samples", "same settings")
"""Checks across rows, beside those that each evaluation makes of itself (`trust.CHECKS`)."""
_MEASURED = [kind for kind in KINDS if kind is not AUDIT]  # what a report measures where it is missing
_Trait = TypeVar("_Trait", bound=Hashable)


@dataclass(frozen=True)
class ReportFlag(Flag):
    """A reason not to trust, or not to compare, numbers of some rows."""

    where: str


@dataclass(frozen=True)
class Report:
    """Rows, one for each method and its settings."""

    rows: tuple[Row, ...]

    @property
    def entries(self) -> list[Entry]:
        """Every run."""
        return [entry for row in self.rows for entry in row.entries]

    @property
    def scale(self) -> Scale:
        """How its errors are shown."""
        return scale_of(self.rows[0].first.config.task)

    @property
    def data(self) -> list[str]:
        """Names of the data that runs were trained and measured on."""
        return list(dict.fromkeys(entry.config.data for entry in self.entries))

    def shared(self) -> dict[str, Any]:
        """The settings that all rows have in common."""
        first, *others = [row.first.settings for row in self.rows]
        return {k: v for k, v in first.items() if k != "seed" and all(s.get(k) == v for s in others)}

    def grid(self) -> dict[str, list[float]]:
        """Every attack that was measured with its epsilons, in order; zero, the clean error, included."""
        found: dict[str, set[float]] = {}
        for entry in self.entries:
            if evaluation := entry.result(EVALUATION):
                for attack, cells in evaluation.grid.items():
                    found.setdefault(attack, set()).update(cells)
        worst_first = sorted(found, key=lambda attack: attack not in (*CASCADES, *WORST.values()))
        return {attack: sorted(found[attack]) for attack in worst_first}

    def in_balls(self) -> dict[str, list[float]]:
        """Of the grid, the attacks in a ball with the epsilons above zero, the strongest first."""
        sizes = {attack: [epsilon for epsilon in epsilons if epsilon] for attack, epsilons in self.grid().items()}
        order = dict.fromkeys((*_STRONGEST, *sizes))
        return {attack: sizes[attack] for attack in order if attack != WASSERSTEIN and sizes.get(attack)}

    def shared_balls(self) -> dict[str, list[float]]:
        """Of those, what was measured of every row: only there are rows compared."""
        found = {
            attack: [size for size in sizes if all(row.attacked(attack, size) for row in self.rows)]
            for attack, sizes in self.in_balls().items()
        }
        return {attack: sizes for attack, sizes in found.items() if sizes}

    def strongest(self) -> str | None:
        """The attack that leads the report; one that all rows share, if there is one."""
        return next(iter(self.shared_balls() or self.in_balls()), None)

    def middle(self) -> tuple[str, float] | None:
        """The leading attack at an epsilon in the middle of what all rows share: where methods differ most."""
        attack, sizes = next(iter(self.shared_balls().items()), ("", []))
        return (attack, sizes[(len(sizes) - 1) // 2]) if sizes else None

    def ranked(self) -> list[Row]:
        """Rows by their error there, the best first; as they are where they share nothing."""
        where = self.middle()

        def error(row: Row) -> float:
            found = row.attacked(*where) if where else None
            return found.mean if found else math.inf

        return sorted(self.rows, key=error)

    def shifts(self) -> list[str]:
        """Every shift that was measured."""
        return list(dict.fromkeys(shift for entry in self.entries for shift in entry.shifts))

    def names_by(self, trait: Callable[[Entry], _Trait]) -> dict[_Trait, list[str]]:
        """The names of the rows that have each trait; a row whose seeds differ in it has several."""
        found: dict[_Trait, dict[str, None]] = {}
        for row in self.rows:
            for entry in row.entries:
                found.setdefault(trait(entry), {})[row.name] = None
        return {one: list(names) for one, names in found.items()}

    def on_the_same_samples(self, kind: Kind[Any]) -> bool:
        """Whether all rows were measured on equally many test samples, which are the first ones."""
        return len(self.names_by(lambda entry: getattr(entry.result(kind), "samples", None))) == 1

    def attacked_alike(self, attack: str) -> bool:
        """Whether the same attacks with the same restarts stand behind this one in all rows, on the same samples."""
        return self.on_the_same_samples(EVALUATION) and len(self.names_by(lambda entry: entry.behind(attack))) == 1

    def shifted_alike(self) -> bool:
        """Whether the mean over shifts is over the same ones in all rows, on the same samples."""
        return self.on_the_same_samples(SHIFTS) and len(self.names_by(lambda entry: entry.shifts)) == 1

    def flags(self) -> list[ReportFlag]:
        """What the evaluations and audits say against themselves, and what speaks against comparing them."""
        found = []
        for row in self.rows:
            for entry in row.entries:
                where = row.name if len(row.entries) == 1 else f"{row.name}, seed {entry.config.seed}"
                found += self._weak(where, entry)
                if doubt := unsettled(entry.records, entry.config.schedule):
                    found.append(ReportFlag("settled", doubt, where))
                judged = [entry.result(EVALUATION), entry.result(AUDIT)]
                flags = [flag for result in judged if result for flag in result.flags]
                found += [ReportFlag(flag.check, flag.message, where) for flag in flags]
        return self._incomparable() + found

    def _weak(self, where: str, entry: Entry) -> list[ReportFlag]:
        """Errors that only weak attacks stand behind, or none in a ball."""
        found = entry.result(EVALUATION)
        if found is None:
            return []
        again = f"rhobust evaluate {entry.run.path}"
        if not any(epsilon for cells in found.in_balls.values() for epsilon in cells):
            message = f"no attack in a ball was measured of it; run {again} for that"
            return [ReportFlag("attacked errors", message, where)]
        asked = entry.asked(EVALUATION).get("attacks", [])
        if not asked or not CASCADES.keys().isdisjoint(asked) or not only_weak(asked):
            return []
        message = f"only {', '.join(asked)} stand behind its errors; run {again} for stronger ones"
        return [ReportFlag("strong attacks", message, where)]

    def _incomparable(self) -> list[ReportFlag]:
        """Settings of the measurements in which rows differ."""
        found = []
        if len(self.data) > 1:
            message = f"rows were trained and measured on {' and on '.join(self.data)}"
            found.append(ReportFlag("same data", message, "all rows"))
        for kind in KINDS:
            asked = [
                (row.name, _comparable(entry, kind))
                for row in self.rows
                for entry in row.entries
                if kind in entry.measured
            ]
            for key in dict.fromkeys(key for _, settings in asked for key in settings):
                values: dict[str, dict[str, None]] = {}
                for name, settings in asked:
                    values.setdefault(json.dumps(settings.get(key)), {})[name] = None
                if len(values) > 1:
                    each = "; ".join(f"{value} for {', '.join(names)}" for value, names in values.items())
                    check = "same samples" if key == "samples" else "same settings"
                    message = f"{kind.name}: rows were measured with different {key}: {each}"
                    found.append(ReportFlag(check, message, "all rows"))
        return found

    def to_json(self) -> dict[str, Any]:
        """Every number, run by run, with the rows they make."""
        return {
            "rhobust": __version__,
            "flags": [{"where": flag.where, **asdict(flag)} for flag in self.flags()],
            "rows": [{"name": row.name, "runs": [entry.to_json() for entry in row.entries]} for row in self.rows],
        }


def _comparable(entry: Entry, kind: Kind[Any]) -> dict[str, Any]:
    """How an entry was measured, as far as others must have been measured so, too."""
    found = {**entry.asked(kind), "samples": entry.measured[kind].result.samples}
    if kind is CERTIFICATES:  # at its own radius besides, in balls of its own cost, and of its own loss
        own, usual = entry.config.radius, usual_radii(entry.config)
        found["radii"] = [radius for radius in found.get("radii", []) if radius != own or radius in usual]
        found["cost"] = entry.config.cost
        found["loss"] = entry.config.loss
    return found


def gather(paths: Sequence[Path], samples: int = 1000, done: Done | None = None) -> Report:
    """A report on finished runs. What was not measured of them yet is measured now and kept in their directories.

    That uses the first `samples` test samples, certificates at most 200 of them; or as many as were used for the
    others, where some of the runs have been measured before.
    """
    runs = [Run.find(path) for path in paths]
    gammas = [run.trained()["gamma"] for run in runs]  # one that is not finished is refused before any work
    found = list(zip(runs, [run.config() for run in runs], gammas, strict=True))
    if len({config.task for _, config, _ in found}) > 1:
        raise ConfigError(["errors of classifiers do not compare with RMSEs of regressions: report on one task"])
    known: dict[str, Run] = {}
    twice = []
    for run, config, _ in found:
        if (other := known.setdefault(repr(telling(config)), run)) is not run:
            twice.append(f"{run.path} and {other.path} are the same run: equal settings, equal seed")
    if twice:
        raise ConfigError(twice)
    before = [{kind: made for kind in KINDS if (made := kept(run, kind)) is not None} for run in runs]
    used: dict[Kind[Any], int] = {}
    for kind in _MEASURED:
        usual = min(samples, _MOST_CERTIFIED) if kind is CERTIFICATES else samples
        used[kind] = max((one[kind].result.samples for one in before if kind in one), default=usual)
    entries = [
        _entry(run, config, gamma, made, used, done) for (run, config, gamma), made in zip(found, before, strict=True)
    ]
    return Report(rows_of(entries))


def _entry(
    run: Run,
    config: Config,
    gamma: float,
    measured: dict[Kind[Any], Measurement[Any]],
    samples: Mapping[Kind[Any], int],
    done: Done | None,
) -> Entry:
    refused: dict[Kind[Any], str] = {}
    missing = [kind for kind in samples if kind not in measured]
    if missing:
        trained = TrainedRun.of(run)
        for kind in missing:

            def finished(part: str, kind: Kind[Any] = kind) -> None:
                if done:
                    done(f"{run.path}: {kind.name}, {part}")

            try:
                measured[kind] = kind.measure(trained, samples=samples[kind], done=finished)
            except (Refused, DataError) as reason:
                refused[kind] = str(reason)
    try:
        environment = dict(json.loads((run.path / "environment.json").read_text()))
    except (ValueError, TypeError):
        raise RunError(f"{run.path / 'environment.json'} is damaged; put back the file") from None
    records = run.metrics()
    if not records:
        raise RunError(f"{run.path} has no metrics, which say what its training spent; put back metrics.jsonl")
    price = gamma if config.make_method().maximizer.penalized else None
    return Entry(run, config, environment, records, price, measured, refused)
