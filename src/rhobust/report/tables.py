"""The tables of a report as text, the same in every format."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rhobust.attacks.cascade import CASCADES
from rhobust.certificates.certificate import Certificate
from rhobust.evaluation.evaluation import WASSERSTEIN, WORST
from rhobust.report.gather import Report
from rhobust.report.rows import Entry, Row, counted, shown, shown_setting
from rhobust.report.scale import RMSE, number, percent
from rhobust.report.spread import Spread
from rhobust.runs.measurements import AUDIT, CERTIFICATES, EVALUATION, SHIFTS, Kind

MISSING = "–"
_ALL_SHIFTS = "all shifts"


@dataclass(frozen=True)
class Cell:
    """One number, and whether it is the best of its column."""

    text: str
    best: bool = False
    interval: str = ""
    """The 95 % interval of an error."""


@dataclass(frozen=True)
class Line:
    """One line of a table; `row` where it speaks of a row of the report, so that its style can stand beside it."""

    head: str
    cells: list[Cell]
    row: str | None = None


@dataclass(frozen=True)
class Table:
    """A caption, column heads (the first over the heads of the lines), and lines."""

    caption: str
    columns: list[str]
    lines: list[Line]


@dataclass(frozen=True)
class _Column:
    """A number of every row; the lowest is the best where `ranked` and no row lacks it."""

    head: str
    pick: Callable[[Row], Spread | None]
    show: Callable[[float], str]
    ranked: bool = True


def attack_name(attack: str) -> str:
    """As people write it.

    >>> attack_name("pgd-l2"), attack_name("worst"), attack_name("wasserstein")
    ('PGD-L2', 'worst', 'Wasserstein')
    """
    if attack in (*CASCADES, *WORST.values()):
        return attack
    return "Wasserstein" if attack == WASSERSTEIN else attack.upper()


def _table(caption: str, first: str, rows: Sequence[Row], columns: Sequence[_Column], compared: bool) -> Table:
    lines = [Line(row.name, [], row.name) for row in rows]
    for column in columns:
        found = [column.pick(row) for row in rows]
        # The best as shown: what the table does not tell apart is equally good.
        means = [column.show(spread.mean) if spread else None for spread in found]
        known = [float(mean) for mean in means if mean is not None]
        best = min(known, default=None) if compared and column.ranked and len(known) == len(rows) > 1 else None
        for line, spread, mean in zip(lines, found, means, strict=True):
            leads = mean is not None and float(mean) == best
            ends = spread.interval if spread else None
            between = f"{column.show(ends[0])}–{column.show(ends[1])}" if ends else ""
            line.cells.append(Cell(spread.text(column.show) if spread else MISSING, leads, between))
    return Table(caption, [first, *(column.head for column in columns)], lines)


def shifted(row: Row, shift: str | None = None) -> Spread | None:
    """The mean error of a row under a shift; without one, over those that were measured of it."""
    return row.spread(lambda entry: entry.shifted(shift))


def _error(report: Report, head: str, attack: str, epsilon: float) -> _Column:
    # At zero it is the clean error, whatever the attack.
    alike = report.attacked_alike(attack) if epsilon else report.on_the_same_samples(EVALUATION)
    return _Column(head, lambda row: row.attacked(attack, epsilon), report.scale.text, ranked=alike)


def headline(report: Report) -> Table:
    """Clean, attacked and shifted error, gamma, and E[c] beside rho."""
    attack = report.strongest()
    sizes = report.in_balls()[attack] if attack else []
    show = report.scale.text
    columns = [_Column("clean", lambda row: row.clean, show, ranked=report.on_the_same_samples(EVALUATION))]
    if report.scale is RMSE:
        columns.append(_Column("clean R^2", lambda row: row.spread(lambda entry: entry.r2), number, ranked=False))
    columns += [_error(report, f"{attack_name(attack)} {epsilon:g}", attack, epsilon) for epsilon in sizes if attack]
    if report.shifts():
        columns.append(_Column("shifted", shifted, show, ranked=report.shifted_alike()))
    columns += [
        _Column("gamma", lambda row: row.spread(lambda entry: entry.gamma), number, ranked=False),
        _Column("E[c]", lambda row: row.spread(lambda entry: entry.rho_eff), number, ranked=False),
        _Column(
            "rho", lambda row: Spread((row.first.config.radius,)) if row.first.config.radius else None, number, False
        ),
        _Column("seeds", lambda row: Spread((float(len(row.entries)),)), number, ranked=False),
    ]
    typical = _Column("rho per feature", lambda row: row.spread(lambda entry: entry.radius_per_feature), number, False)
    if any(typical.pick(row) for row in report.rows):
        columns.insert(-1, typical)
    caption = f"{report.scale.caption}{_shifted_otherwise(report)}"
    return _table(caption, "method", report.rows, columns, len(report.data) == 1)


def _shifted_otherwise(report: Report) -> str:
    """What is behind the shifted errors, in brackets, unless it is all shifts of the samples of the other errors."""
    if all(_behind_shifted(entry) in (None, _usually_behind_shifted(entry)) for entry in report.entries):
        return ""
    found = [(behind, names) for behind, names in report.names_by(_behind_shifted).items() if behind]
    each = []
    for (shifts, samples), names in found:
        whose = f" for {' and '.join(names)}" if len(found) > 1 else ""
        each.append(f"under {shifts} on {counted(samples, 'test sample')}{whose}")
    return f" (shifted: {'; '.join(each)})"


def _behind_shifted(entry: Entry) -> tuple[str, int] | None:
    """The shifts and the number of samples."""
    found = entry.result(SHIFTS)
    if found is None:
        return None
    shifts = _ALL_SHIFTS if "all" in entry.asked(SHIFTS).get("shifts", []) else ", ".join(entry.shifts)
    return shifts, found.samples


def _usually_behind_shifted(entry: Entry) -> tuple[str, int | None]:
    found = entry.result(EVALUATION)
    return _ALL_SHIFTS, found.samples if found else None


def every_attack(report: Report) -> list[Table]:
    """Errors under every attack that was measured, a table for each."""
    show = report.scale
    return [
        _table(
            f"{show.caption} under {attack_name(attack)}, by {'budget' if attack == WASSERSTEIN else 'epsilon'}",
            "method",
            report.rows,
            [_error(report, f"{epsilon:g}", attack, epsilon) for epsilon in epsilons],
            len(report.data) == 1,
        )
        for attack, epsilons in report.grid().items()
    ]


def differences(report: Report) -> Table | None:
    """How far every row is from plain training under the leading attack, or from the first row where there is none."""
    attack = next(iter(report.shared_balls()), None)
    if attack is None or len(report.rows) < 2 or len(report.data) > 1 or not report.attacked_alike(attack):
        return None
    base = next((row for row in report.rows if row.method == "erm"), report.rows[0])
    sizes = [0.0, *report.shared_balls()[attack]]
    found = {row.name: [row.less(base, attack, size) for size in sizes] for row in report.rows if row is not base}
    lines = [Line(name, [_apart(one) for one in apart], name) for name, apart in found.items() if any(apart)]
    columns = ["method", *(f"{attack_name(attack)} {size:g}" if size else "clean" for size in sizes)]
    caption = f"Error less that of {base.name}, in points, paired by sample, with 95 % intervals"
    return Table(caption, columns, lines) if lines else None


def _apart(found: tuple[float, float, float] | None) -> Cell:
    if found is None:
        return Cell(MISSING)
    middle, low, high = (f"{100 * value:+.1f}" for value in found)
    return Cell(middle, interval=f"{low} to {high}")


def every_shift(report: Report) -> Table | None:
    """Mean error under every shift."""
    show = report.scale.text
    columns = [_Column(shift, lambda row, shift=shift: shifted(row, shift), show) for shift in report.shifts()]  # type: ignore[misc]
    columns.append(_Column("mean", shifted, show, ranked=report.shifted_alike()))
    caption = f"Mean {report.scale.measured} over the severities of every shift"
    return _table(caption, "method", report.rows, columns, len(report.data) == 1) if report.shifts() else None


def certificates(report: Report) -> Table | None:
    """Bound and attained worst loss at every radius."""
    found = [
        (row.name, [one.by_radius for entry in row.entries if (one := entry.result(CERTIFICATES))])
        for row in report.rows
    ]
    radii = sorted({radius for _, certified in found for by_radius in certified for radius in by_radius})
    lines = []
    for name, certified in found:
        status = {one.status for by_radius in certified for one in by_radius.values()}
        cells = [Cell(" and ".join(sorted(status)) or MISSING)]
        cells += [_certified([one[radius] for one in certified if radius in one]) for radius in radii]
        lines.append(Line(name, cells, name))
    columns = ["method", "status", *(f"rho {radius:g}" for radius in radii)]
    return Table("Worst expected loss in the ball, from attained to bound", columns, lines) if radii else None


def _certified(found: Sequence[Certificate]) -> Cell:
    """What the certificates of a row at one radius say on average."""
    if not found:
        return Cell(MISSING)
    low, high = number(fmean(one.attained for one in found)), number(fmean(one.bound for one in found))
    return Cell(low if low == high else f"{low} to {high}")


def audits(report: Report) -> Table | None:
    """The referee's error beside ours, run by run, where there was one."""
    made = [(row, entry, entry.result(AUDIT)) for row in report.rows for entry in row.entries]
    found = [(row, entry, audit) for row, entry, audit in made if audit is not None]
    attacks = list(dict.fromkeys(name for _, _, audit in found for name in audit.attacks))
    lines = []
    for row, entry, audit in found:
        cells = [f"{audit.epsilon:g}", audit.norm, str(audit.samples), percent(audit.ours), percent(audit.referee)]
        cells.append(audit.suite)
        cells += [percent(audit.attacks[name]) if name in audit.attacks else MISSING for name in attacks]
        head = row.name if len(row.entries) == 1 else f"{row.name}, seed {entry.config.seed}"
        lines.append(Line(head, [Cell(text) for text in cells], row.name))
    columns = [
        "method",
        "epsilon",
        "norm",
        "samples",
        "ours",
        "theirs",
        "whose",
        *(f"after {attack_name(name)}" for name in attacks),
    ]
    return Table("Error in percent: our evaluation, and independent attacks", columns, lines) if found else None


def settings(report: Report) -> tuple[Table, Table | None]:
    """What all rows share, and what each has of its own."""
    shared = report.shared()
    common = Table("Settings that all rows share", ["setting", "value"], _pairs(shared))
    lines = []
    for row in report.rows:
        own = {key: value for key, value in row.first.settings.items() if key not in shared and key != "seed"}
        text = ", ".join(f"{key} {shown_setting(key, value)}" for key, value in own.items() if key != "method")
        seeds = ", ".join(str(entry.config.seed) for entry in row.entries)
        lines.append(Line(row.name, [Cell(seeds), Cell(text or MISSING)], row.name))
    return common, Table("Settings of each row", ["method", "seeds", "settings of its own"], lines)


def environments(report: Report) -> Table:
    """Where runs were trained and measured."""
    done: dict[str, dict[str, int]] = {}
    for entry in report.entries:
        where: dict[str, dict[str, Any]] = {"training": entry.environment}
        where |= {kind.name: made.environment for kind, made in entry.measured.items()}
        for what, place in where.items():
            counts = done.setdefault(json.dumps(place), {})
            counts[what] = counts.get(what, 0) + 1
    found = [(json.loads(text), counts) for text, counts in done.items()]
    heads = [", ".join(f"{what} ({count})" for what, count in counts.items()) for _, counts in found]
    keys = dict.fromkeys(key for place, _ in found for key in place)
    lines = [Line(key, [Cell(shown(place.get(key) or MISSING)) for place, _ in found]) for key in keys]
    return Table("Versions and hardware, and what was done there (how often)", ["", *heads], lines)


def facts(report: Report) -> str:
    """What was trained and on how much it was measured, in a line."""
    shared = {key: value for key, value in report.shared().items() if key in ("data", "model", "epochs", "rounds")}
    parts = [
        f"{counted(len(report.rows), 'row')} from {counted(len(report.entries), 'run')}",
        *(f"{k} {shown_setting(k, v)}" for k, v in shared.items()),
    ]
    return " · ".join([*parts, f"measured on {_samples(report, EVALUATION)} test samples"])


def other_samples(report: Report, kind: Kind[Any]) -> str:
    """On how many samples something was measured, in a sentence, where it is not as many as the errors."""
    used = _samples(report, kind)
    return "" if used in ("", _samples(report, EVALUATION)) else f"Measured on the first {used} test samples."


def _samples(report: Report, kind: Kind[Any]) -> str:
    counts = {found.samples for entry in report.entries if (found := entry.result(kind))}
    return " or ".join(map(str, sorted(counts)))


def _pairs(values: dict[str, object]) -> list[Line]:
    return [Line(key.replace("_", " "), [Cell(shown_setting(key, value))]) for key, value in values.items()]
