"""The sentence at the top of a report."""

from __future__ import annotations

import math
from collections.abc import Callable

from rhobust.evaluation.evaluation import WORST
from rhobust.report import tables
from rhobust.report.gather import Report
from rhobust.report.rows import Row, counted
from rhobust.report.scale import RMSE
from rhobust.report.spread import Spread
from rhobust.runs.measurements import EVALUATION


def summary(report: Report) -> str:
    """The one sentence that the numbers bear out: who leads under attack, and what that costs on clean data."""
    where = report.middle()
    if len(report.rows) < 2 or len(report.data) > 1 or not report.in_balls():
        return ""
    if where is None:
        return "The rows were measured differently: no attack at any epsilon was measured of all, so none is the best."
    if not report.on_the_same_samples(EVALUATION):
        return "The rows were measured on different test samples, so none is the best."
    if not report.attacked_alike(where[0]):
        return _attacked_differently(report, where[0])
    attacked, clean = _means(report, lambda row: row.attacked(*where)), _means(report, lambda row: row.clean)
    lowest = min(attacked.values(), key=float)
    best = [name for name, error in attacked.items() if error == lowest]  # as shown, like the best of a table
    erm = next((row.name for row in report.rows if row.method == "erm"), best[0])
    attack = {"cascade": "the cascade of attacks", WORST[math.inf]: "the worst attack"}.get(
        where[0], tables.attack_name(where[0])
    )
    has, it_errs = ("has", "it errs on") if len(best) == 1 else ("have", "they err on")
    if report.scale is RMSE:
        it_errs = "it has" if len(best) == 1 else "they have"
    scale = report.scale
    leads = f"{' and '.join(best)} {has} the lowest {scale.name}, {lowest}{scale.unit}"
    text = f"Under {attack} at epsilon {where[1]:g}, {leads}"
    if erm in best:
        return f"{text}."
    costs = " and ".join(f"{clean[name]}{scale.unit}" for name in best)
    return (
        f"{text}, where erm, plain training, has {attacked[erm]}{scale.unit}; "
        f"on clean data {it_errs} {costs}, erm {'' if scale is RMSE else 'on '}{clean[erm]}{scale.unit}."
    )


def _attacked_differently(report: Report, attack: str) -> str:
    """Who was attacked how, in the sentence that stands where the best would."""
    found = report.names_by(lambda entry: entry.behind(attack))
    same_restarts = len({restarts for _, restarts in found}) == 1
    each = [
        f"{' and '.join(names)} by {', '.join(map(tables.attack_name, attacks))}"
        + ("" if same_restarts else f" with {counted(restarts, 'restart')}")
        for (attacks, restarts), names in found.items()
    ]
    return f"The rows were attacked differently, so none is the best: {'; '.join(each)}."


def _means(report: Report, pick: Callable[[Row], Spread | None]) -> dict[str, str]:
    """A number of every row, as it is shown."""
    return {row.name: report.scale.text(found.mean) for row in report.rows if (found := pick(row))}
