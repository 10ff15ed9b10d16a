"""A report as a page: HTML in one file, Markdown, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from rhobust.evaluation.trust import CHECKS
from rhobust.report import panels, tables
from rhobust.report.examples import examples
from rhobust.report.gather import COMPARABLE, Report
from rhobust.report.recipes import commands, reporting
from rhobust.report.rows import Row
from rhobust.report.summary import summary
from rhobust.report.tables import Cell, Table
from rhobust.runs.measurements import CERTIFICATES, EVALUATION, SHIFTS, Kind
from rhobust.support.version import __version__

# What it means that a check passed, in words.
_PASSED = {
    "grows": "errors grow with epsilon",
    "unbounded": "an attack that may move anywhere succeeds",
    "inside": "no result of an attack lies outside its ball or the box",
    "many-steps": "many steps find no less than one",
    "one-step": "one step does not miss most of what many find",
    "gradients": "the loss has a slope to climb",
    "white-box": "a blind search does not beat the gradients",
    "same data": "all rows on the same data",
    "same samples": "on the same samples",
    "same settings": "by the same attacks",
}


# What E[c] is averaged over at the end, and what a point of a trajectory stands for.
_LAST = {"epoch": "the last epoch", "round": "the last quarter of the logged rounds (at most fifty)"}
_POINT = {"epoch": "an epoch", "round": "the rounds since the point before"}
_SPREAD = "± is half of the range over the seeds; in brackets the 95 % interval, for chance in drawing the samples."


def to_html(report: Report, out: Path) -> str:
    """One file that needs no other and no network."""
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(files("rhobust.report").joinpath("templates/report.html").read_text(encoding="utf-8"))
    charts = {
        "errors": panels.error_curves(report),
        "trajectories": panels.trajectories(report),
        "certificates": panels.certificate_curves(report),
        "shifts": panels.shift_charts(report),
    }
    common, own = tables.settings(report)
    learning = [row for row in report.rows if row.first.config.make_method().robust]
    return template.render(
        version=__version__,
        title=_title(report),
        report=report,
        summary=summary(report),
        facts=tables.facts(report),
        learning=learning,
        last=_words(_LAST, report.rows),
        point=_words(_POINT, learning),
        attack=report.strongest(),
        flags=report.flags(),
        passed=_passed(report),
        swatches=panels.swatches(report),
        charts={part: [(panel.title, Markup(panel.svg)) for panel in drawn] for part, drawn in charts.items()},
        headline=tables.headline(report),
        differences=tables.differences(report),
        attacks=tables.every_attack(report),
        certificates=tables.certificates(report),
        shifts=tables.every_shift(report),
        others={kind.name: tables.other_samples(report, kind) for kind in (CERTIFICATES, SHIFTS)},
        audits=tables.audits(report),
        common=common,
        own=own,
        environments=tables.environments(report),
        refused=_refused(report),
        examples=examples(report),
        commands=[(row, [commands(entry) for entry in row.entries]) for row in report.rows],
        again=reporting(report, out, "html"),
    )


def to_markdown(report: Report, out: Path) -> str:
    """The same tables and flags, without figures."""
    flags = [f"- **{_plain(f.check)}** ({_plain(f.where)}): {_plain(f.message)}" for f in report.flags()]
    common, own = tables.settings(report)
    attacked = [part for table in tables.every_attack(report) for part in ("", *_markdown(table))]
    sections: list[tuple[str, list[str]]] = [
        ("Can the numbers be trusted?", flags or [f"All checks passed: {_passed(report)}."]),
        ("Errors", [*_markdown(tables.headline(report)), "", _SPREAD]),
        ("Differences", _markdown(tables.differences(report))),
        ("Every attack", attacked[1:]),
        ("Shifts", _measured(report, SHIFTS, tables.every_shift(report))),
        ("Certificates", _measured(report, CERTIFICATES, tables.certificates(report))),
        ("Audit", _markdown(tables.audits(report))),
        ("Left out", [f"- {_plain(line)}" for line in _refused(report)]),
        ("What was trained", [*_markdown(common), "", *_markdown(own), "", *_markdown(tables.environments(report))]),
        ("Again", ["```sh", *_script(report, out, "md"), "```"]),
    ]
    head = [f"# {_plain(_title(report))}", "", _plain(tables.facts(report)), "", _plain(summary(report))]
    body = [line for name, lines in sections if lines for line in ("", f"## {name}", "", *lines)]
    return "\n".join([*head, *body]) + "\n"


def to_json(report: Report, out: Path) -> str:
    """Every number, and the commands that make them."""
    content = report.to_json() | {"commands": _script(report, out, "json")}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Report, Path], str]] = {"html": to_html, "md": to_markdown, "json": to_json}
"""The forms of a report; each is also the suffix of its file."""


def _title(report: Report) -> str:
    return f"Robustness report: {', '.join(report.data)}"


def _passed(report: Report) -> str:
    """Of the checks, those that every evaluation allowed for."""
    found = [evaluation for entry in report.entries if (evaluation := entry.result(EVALUATION))]
    made = [check for check in CHECKS if all(check in one.checked for one in found)]
    return "; ".join(_PASSED.get(check, check) for check in (*made, *COMPARABLE))


def _words(words: Mapping[str, str], rows: Sequence[Row]) -> str:
    """What is said of the units that rows are counted in."""
    return " or ".join(text for unit, text in words.items() if any(row.unit == unit for row in rows))


def _refused(report: Report) -> list[str]:
    return [
        f"{row.name}: no {kind.name}, since {reason}"
        for row in report.rows
        for entry in row.entries
        for kind, reason in entry.refused.items()
    ]


def _measured(report: Report, kind: Kind[Any], table: Table | None) -> list[str]:
    """A table, after the number of samples that it is from, where that is one of its own."""
    said = tables.other_samples(report, kind) if table else ""
    return [*([said, ""] if said else []), *_markdown(table)]


def _script(report: Report, out: Path, form: str) -> list[str]:
    return [*(line for entry in report.entries for line in commands(entry)), reporting(report, out, form)]


def _markdown(table: Table | None) -> list[str]:
    if table is None:
        return []
    lines = [[line.head, *(_in_markdown(cell) for cell in line.cells)] for line in table.lines]
    rule = ["---", *["---:"] * (len(table.columns) - 1)]
    return [
        f"{_plain(table.caption)}:",
        "",
        *(f"| {' | '.join(map(_plain, line))} |" for line in (table.columns, rule, *lines)),
    ]


def _in_markdown(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.best else cell.text
    return f"{text} ({cell.interval})" if cell.interval else text


def _plain(text: str) -> str:
    """Text that stays in its cell and its line of Markdown, and is no HTML.

    >>> _plain("a|b <script>")
    'a\\\\|b &lt;script>'
    """
    kept = text.replace("\\", "\\\\").replace("|", "\\|")  # a backslash of its own must not free the bar
    return " ".join(kept.replace("&", "&amp;").replace("<", "&lt;").split())
