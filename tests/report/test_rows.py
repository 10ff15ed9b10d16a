"""Rows, flags, tables and commands of a report, from entries made by hand."""

import base64
import dataclasses
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rhobust.certificates.certificate import Certificate, Certification
from rhobust.evaluation.audit import Audit
from rhobust.evaluation.evaluation import AttackedError, Evaluation
from rhobust.evaluation.intervals import interval, packed
from rhobust.evaluation.shifts import ShiftedError, ShiftEvaluation
from rhobust.evaluation.trust import Flag
from rhobust.report.examples import examples
from rhobust.report.gather import Report
from rhobust.report.page import to_html, to_markdown
from rhobust.report.panels import error_curves, swatches, trajectories
from rhobust.report.recipes import commands, training
from rhobust.report.rows import Entry, rows_of
from rhobust.report.spread import Spread
from rhobust.report.summary import summary
from rhobust.report.tables import (
    MISSING,
    audits,
    certificates,
    differences,
    environments,
    every_attack,
    every_shift,
    facts,
    headline,
    settings,
)
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.measurements import AUDIT, CERTIFICATES, EVALUATION, SHIFTS, Kind, Measurement
from rhobust.support.toml import parse_overrides

STILL = {"value": 1.0, "stationarity": 1.0}
ASKED = {"attacks": ["pgd"], "epsilons": [0.0, 0.2], "budgets": [], "restarts": 1, "seed": 0}


def evaluated(
    clean: float,
    pgd: float,
    samples: int = 50,
    asked: dict[str, Any] = ASKED,
    cells: list[AttackedError] | None = None,
    flags: list[Flag] | None = None,
) -> Measurement[Evaluation]:
    """PGD's errors at epsilon 0 and 0.2, or these cells."""
    usual = [AttackedError("pgd", 0.0, clean), AttackedError("pgd", 0.2, pgd)]
    found = Evaluation(samples, clean, usual if cells is None else cells, flags or [], ["grows", "inside"])
    return Measurement("", asked, {"torch": "2"}, found)


def certified(low: float, high: float, status: Any, samples: int = 9) -> Measurement[Certification]:
    found = Certificate(1.0, high, low, math.inf, 1.0, 1.0, status)
    return Measurement("", {"radii": [1.0]}, {}, Certification(samples, [found]))


def entry(measured: dict[Kind[Any], Measurement[Any]] | None = None, path: str = "runs/a", **options: Any) -> Entry:
    config = Config.resolve({"threads": 1, "device": "cpu"}, options)
    records = [{"epoch": e, "rho_eff": c, "gamma": g, **STILL} for e, c, g in ((0, 9.0, 1.0), (1, 2.0, 0.5))]
    penalized = config.make_method().maximizer.penalized
    return Entry(Run(Path(path)), config, {"torch": "2"}, records, 0.5 if penalized else None, measured or {}, {})


def report(*entries: Entry) -> Report:
    return Report(rows_of(entries))


def cells(table: Any, line: int) -> list[str]:
    return [cell.text for cell in table.lines[line].cells]


def test_seeds_are_one_row_and_everything_else_sets_rows_apart() -> None:
    made = report(
        entry(method="spgd", radius=2.0, seed=3),
        entry(method="erm"),
        entry(method="spgd", radius=2.0, seed=1),
        entry(method="spgd", radius=6.0),
        entry(method="wrm", gamma=0.3),
    )
    assert [row.name for row in made.rows] == ["spgd, radius 2", "erm", "spgd, radius 6", "wrm"]
    assert [one.config.seed for one in made.rows[0].entries] == [1, 3]
    common, own = settings(made)
    assert {line.head for line in common.lines} >= {"data", "model", "epochs", "learning rate"}
    assert own is not None
    assert cells(own, 0)[0] == "1, 3"
    assert "radius 2" in cells(own, 0)[1]
    assert "gamma 0.3" in cells(own, 3)[1]
    assert "epochs" not in cells(own, 0)[1]


def test_a_row_is_the_mean_over_its_seeds_and_half_of_the_range() -> None:
    made = report(
        entry({EVALUATION: evaluated(0.01, 0.2)}, method="erm"),
        entry({EVALUATION: evaluated(0.04, 0.3)}, method="erm", seed=1),
        entry({EVALUATION: evaluated(0.10, 0.6)}, method="erm", seed=2),
        entry({EVALUATION: evaluated(0.05, 0.1)}, method="spgd", radius=2.0),
    )
    table = headline(made)
    assert table.columns == ["method", "clean", "PGD 0.2", "gamma", "E[c]", "rho", "seeds"]
    assert cells(table, 0) == ["5.0 ± 4.5", "36.7 ± 20.0", MISSING, "2 ± 0", MISSING, "3"]
    assert cells(table, 1) == ["5.0", "10.0", "0.5", "2", "2", "1"]
    # As shown, the clean errors are equal: both are the best; only one is under attack. gamma has no best.
    assert [[cell.best for cell in line.cells[:4]] for line in table.lines] == [
        [True, False, False, False],
        [True, True, False, False],
    ]
    said = summary(made)
    assert "spgd has the lowest error, 10.0 %" in said
    assert "has 36.7 %" in said
    assert "on clean data it errs on 5.0 %, erm on 5.0 %" in said
    assert facts(made) == "2 rows from 4 runs · data digits · model mlp · epochs 30 · measured on 50 test samples"
    assert Spread((0.25,)).text(lambda value: f"{value:g}") == "0.25"


def test_a_number_that_a_seed_lacks_is_missing_not_guessed() -> None:
    made = report(entry({EVALUATION: evaluated(0.1, 0.2)}, method="erm"), entry(method="erm", seed=1))
    assert cells(headline(made), 0)[:2] == [MISSING, MISSING]


def test_no_best_across_different_data(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    made = report(
        entry({EVALUATION: evaluated(0.1, 0.2)}, method="erm"),
        entry({EVALUATION: evaluated(0.2, 0.3)}, method="erm", data=str(tmp_path / "other")),
    )
    assert not any(cell.best for line in headline(made).lines for cell in line.cells)
    (flag,) = made.flags()
    assert flag.check == "same data"
    assert "digits and on" in flag.message


def test_what_was_measured_differently_is_flagged() -> None:
    other = ASKED | {"restarts": 3}
    made = report(
        entry({EVALUATION: evaluated(0.1, 0.2)}, method="erm"),
        entry({EVALUATION: evaluated(0.1, 0.2, samples=20, asked=other)}, method="fgsm"),
        entry({EVALUATION: evaluated(0.1, 0.2)}, method="wrm"),
    )
    flags = {flag.check: flag.message for flag in made.flags()}
    assert flags == {
        "same settings": "evaluation: rows were measured with different restarts: 1 for erm, wrm; 3 for fgsm",
        "same samples": "evaluation: rows were measured with different samples: 50 for erm, wrm; 20 for fgsm",
    }
    same = report(*(entry({EVALUATION: evaluated(0.1, 0.2)}, method=name) for name in ("erm", "fgsm")))
    assert same.flags() == []
    assert "All checks passed: errors grow with epsilon;" in to_markdown(same, Path("r.md"))


def at(errors: dict[tuple[str, float], float]) -> Measurement[Evaluation]:
    """An evaluation of these attacks at these epsilons."""
    return evaluated(0.1, 0.2, cells=[AttackedError(attack, size, error) for (attack, size), error in errors.items()])


def test_rows_are_compared_only_where_all_were_measured() -> None:
    usual = {("worst", 0.1): 0.2, ("worst", 0.3): 0.4, ("pgd", 0.3): 0.4, ("pgd", 0.5): 0.9}
    made = report(
        entry({EVALUATION: at({("worst", 0.5): 0.9, ("pgd", 0.5): 0.8})}, method="spgd", radius=2.0),
        entry({EVALUATION: at(usual)}, method="erm"),
    )
    assert headline(made).columns[1:4] == ["clean", "PGD 0.3", "PGD 0.5"]  # the strongest that both share
    assert cells(headline(made), 0)[1:3] == [MISSING, "80.0"]
    assert [[cell.best for cell in line.cells[:3]] for line in headline(made).lines] == [
        [True, False, True],
        [True, False, False],
    ]
    assert summary(made).startswith("Under PGD at epsilon 0.5, spgd has the lowest error, 80.0 %, where erm")
    assert [row.name for row in made.ranked()] == ["spgd", "erm"]


def test_rows_that_share_no_attack_have_no_best() -> None:
    made = report(
        entry({EVALUATION: at({("worst", 0.5): 0.9, ("pgd", 0.0): 0.1})}, method="spgd", radius=2.0),
        entry({EVALUATION: at({("worst", 0.3): 0.4, ("pgd", 0.0): 0.2})}, method="erm"),
    )
    assert headline(made).columns[1:4] == ["clean", "worst 0.3", "worst 0.5"]
    assert not any(cell.best for line in headline(made).lines for cell in line.cells[1:])
    assert summary(made).startswith("The rows were measured differently: no attack at any epsilon was measured of all")
    assert examples(made).reason == "No attack in a ball was measured of all runs, so no examples are shown."


def by(attacks: list[str], errors: dict[tuple[str, float], float], restarts: int = 1) -> Measurement[Evaluation]:
    """An evaluation by these attacks, of which only some errors matter."""
    return dataclasses.replace(at(errors), settings=ASKED | {"attacks": attacks, "restarts": restarts})


def leading(table: Any) -> dict[str, list[str]]:
    """The rows that are the best of each column."""
    return {
        column: [line.head for line in table.lines if line.cells[place].best]
        for place, column in enumerate(table.columns[1:])
    }


def test_the_worst_of_few_attacks_does_not_beat_the_worst_of_many() -> None:
    few = by(["fgsm"], {("worst", 0.0): 0.1, ("worst", 0.2): 0.2, ("fgsm", 0.2): 0.2})
    many = by(["pgd", "fgsm"], {("worst", 0.0): 0.1, ("worst", 0.2): 0.3, ("fgsm", 0.2): 0.1, ("pgd", 0.2): 0.3})
    made = report(
        entry({EVALUATION: few}, method="erm"),
        entry({EVALUATION: many}, method="spgd", radius=2.0),
        entry({EVALUATION: many}, method="fgsm"),
    )
    assert leading(headline(made))["worst 0.2"] == []
    worst, fgsm, _ = every_attack(made)
    assert leading(worst) == {"0": ["erm", "spgd", "fgsm"], "0.2": []}  # no attack at all is the same for all
    assert leading(fgsm) == {"0.2": ["spgd", "fgsm"]}
    assert summary(made) == (
        "The rows were attacked differently, so none is the best: erm by FGSM; spgd and fgsm by FGSM, PGD."
    )


def test_attacks_in_another_norm_do_not_stand_behind_the_worst() -> None:
    errors = {("worst", 0.2): 0.3}
    made = report(
        entry({EVALUATION: by(["fgsm", "pgd"], errors)}, method="erm"),
        entry({EVALUATION: by(["pgd", "pgd-l2", "fgsm"], errors | {("worst-l2", 0.2): 0.1})}, method="fgsm"),
    )
    assert leading(headline(made))["worst 0.2"] == ["erm", "fgsm"]


@pytest.mark.parametrize("attack", ["worst", "pgd"])
def test_one_restart_does_not_beat_three(attack: str) -> None:
    budget = {("wasserstein", 2.0): 0.5}  # an attack that has no restarts
    made = report(
        entry({EVALUATION: by(["pgd"], {(attack, 0.2): 0.2} | budget)}, method="erm"),
        entry({EVALUATION: by(["pgd"], {(attack, 0.2): 0.2} | budget)}, method="fgsm"),
        entry({EVALUATION: by(["pgd"], {(attack, 0.2): 0.3} | budget, restarts=3)}, method="fgsm", seed=1),
    )
    in_ball, wasserstein = every_attack(made)
    assert leading(in_ball) == {"0.2": []}
    assert leading(wasserstein) == {"2": ["erm", "fgsm"]}
    assert summary(made) == (
        "The rows were attacked differently, so none is the best: "
        "erm and fgsm by PGD with 1 restart; fgsm by PGD with 3 restarts."
    )


def test_fewer_samples_do_not_beat_more() -> None:
    made = report(
        entry({EVALUATION: evaluated(0.1, 0.2, samples=50)}, method="erm"),
        entry({EVALUATION: evaluated(0.2, 0.3, samples=360)}, method="fgsm"),
    )
    found = leading(headline(made))
    assert (found["clean"], found["PGD 0.2"]) == ([], [])
    assert [leading(table) for table in every_attack(made)] == [{"0": [], "0.2": []}]
    assert summary(made) == "The rows were measured on different test samples, so none is the best."


def test_rows_that_are_equal_as_printed_are_all_named() -> None:
    def made(**errors: float) -> str:
        rows: dict[str, Any] = {"spgda": {"radius": 2.0}, "drfl": {"radius": 2.0}}
        return summary(
            report(*(entry({EVALUATION: evaluated(0.02, e)}, method=m, **rows.get(m, {})) for m, e in errors.items()))
        )

    assert made(erm=0.5, spgda=0.15004, fgsm=0.1511, drfl=0.15) == (
        "Under PGD at epsilon 0.2, spgda and drfl have the lowest error, 15.0 %, "
        "where erm, plain training, has 50.0 %; on clean data they err on 2.0 % and 2.0 %, erm on 2.0 %."
    )
    assert made(spgda=0.15, erm=0.15) == "Under PGD at epsilon 0.2, spgda and erm have the lowest error, 15.0 %."


def drifted(mean: float, samples: int = 50, *shifts: str) -> Measurement[ShiftEvaluation]:
    """Errors under these shifts; under two that stand for all without them."""
    cells = [ShiftedError(shift, 1, mean) for shift in shifts or ("blur", "contrast")]
    return Measurement("", {"shifts": list(shifts) or ["all"]}, {}, ShiftEvaluation(samples, 0.0, cells))


def test_the_mean_over_few_shifts_does_not_beat_the_mean_over_all() -> None:
    def made(*few: str) -> Report:
        return report(
            entry({EVALUATION: evaluated(0.1, 0.2), SHIFTS: drifted(0.1, 50, *few)}, method="erm"),
            entry({EVALUATION: evaluated(0.1, 0.2), SHIFTS: drifted(0.2)}, method="fgsm"),
        )

    for few, best in (("blur",), []), (("blur", "contrast"), ["erm"]), ((), ["erm"]):
        table = every_shift(made(*few))
        assert table is not None
        assert leading(headline(made(*few)))["shifted"] == leading(table)["mean"] == best
        assert leading(table)["blur"] == ["erm"]


@pytest.mark.parametrize("form", [to_html, to_markdown])
def test_the_errors_say_what_is_behind_the_shifted_ones_where_it_is_not_all_shifts_of_all_samples(form: Any) -> None:
    def said(*shifts: Measurement[ShiftEvaluation] | None) -> str:
        rows = zip(("erm", "fgsm", "wrm"), shifts, strict=False)
        entries = [
            entry({EVALUATION: evaluated(0.1, 0.2)} | ({SHIFTS: one} if one else {}), method=name) for name, one in rows
        ]
        (caption,) = re.findall(
            r"(?m)^(?:<caption>)?Error in percent( \(.*?)?(?:</caption>|:$)", form(report(*entries), Path("r"))
        )
        return str(caption)

    assert said(drifted(0.1), None, drifted(0.2)) == ""
    assert said(drifted(0.1, 30)) == " (shifted: under all shifts on 30 test samples)"
    assert said(drifted(0.1, 50, "blur")) == " (shifted: under blur on 50 test samples)"
    assert said(drifted(0.1, 30, "blur"), drifted(0.2), drifted(0.3, 30, "blur")) == (
        " (shifted: under blur on 30 test samples for erm and wrm; under all shifts on 50 test samples for fgsm)"
    )
    assert (
        said(drifted(0.1, 30, "<b>"))
        == f" (shifted: under &lt;b{'&gt;' if form is to_html else '>'} on 30 test samples)"
    )


def test_flags_of_a_measurement_name_the_run_they_are_about() -> None:
    against = [Flag("gradients", "the <b>gradients</b> | vanish")]
    made = report(
        entry({EVALUATION: evaluated(0.1, 0.2)}, method="erm"),
        entry({EVALUATION: evaluated(0.1, 0.2, flags=against)}, method="erm", seed=1),
    )
    assert [(flag.where, flag.check, flag.message) for flag in made.flags()] == [
        ("erm, seed 1", "gradients", "the <b>gradients</b> | vanish")
    ]
    page = to_markdown(made, Path("r.md"))
    assert "- **gradients** (erm, seed 1): the &lt;b>gradients&lt;/b> \\| vanish" in page
    assert "All checks passed" not in page


def test_the_worst_attack_leads_where_it_was_measured() -> None:
    one = at({("pgd", 0.0): 0.1, ("pgd", 0.2): 0.2, ("worst", 0.2): 0.25})
    made = report(entry({EVALUATION: one}, method="erm"))
    assert headline(made).columns[2] == "worst 0.2"
    assert cells(headline(made), 0)[1] == "25.0"


def test_certificates_and_audits_are_tabled_where_they_were_made() -> None:
    judged = Audit(epsilon=0.2, samples=9, clean=0.1, ours=0.2, referee=0.25, attacks={"apgd-ce": 0.25})
    made = report(
        entry({CERTIFICATES: certified(1.0, 3.0, "proved")}, method="erm"),
        entry({CERTIFICATES: certified(2.0, 4.0, "estimated")}, method="erm", seed=1),
        entry({AUDIT: Measurement("", {"epsilon": 0.2}, {}, judged)}, method="fgsm"),
    )
    table, judgment = certificates(made), audits(made)
    assert table is not None
    assert judgment is not None
    assert cells(table, 0) == ["estimated and proved", "1.5 to 3.5"]
    assert cells(table, 1) == [MISSING, MISSING]
    assert judgment.columns == ["method", "epsilon", "norm", "samples", "ours", "theirs", "whose", "after APGD-CE"]
    assert [line.head for line in judgment.lines] == ["fgsm"]
    assert cells(judgment, 0) == ["0.2", "inf", "9", "20.0", "25.0", "ART", "25.0"]
    assert certificates(report(entry(method="erm"))) is None
    assert audits(report(entry(method="erm"))) is None
    assert environments(made).columns == ["", "training (3)", "certificates (2), audit (1)"]


@pytest.mark.parametrize("form", [to_html, to_markdown])
def test_certificates_and_shifts_say_their_samples_where_these_are_others(form: Any) -> None:
    def page(with_bounds: int, shifted: int) -> str:
        measured: dict[Kind[Any], Measurement[Any]] = {
            EVALUATION: evaluated(0.1, 0.2, samples=360),
            CERTIFICATES: certified(1.0, 2.0, "proved", with_bounds),
            SHIFTS: drifted(0.5, shifted, "blur"),
        }
        return str(form(report(entry(measured, method="erm")), Path("r")))

    def section(text: str, name: str) -> str:
        return re.split(r"<h2|\n## ", text.partition(name)[2])[0]

    html = form is to_html
    certificates, shifts = ('id="certificates"', 'id="shifts"') if html else ("## Certificates", "## Shifts")
    assert "Measured on the first" not in page(360, 360)
    assert "Measured on the first 200 test samples." in section(page(200, 360), certificates)
    assert "Measured on the first" not in section(page(200, 360), shifts)
    assert "Measured on the first 100 test samples." in section(page(200, 100), shifts)


def test_without_an_attack_in_a_ball_only_the_clean_error_leads() -> None:
    one = at({("wasserstein", 2.0): 0.5})
    made = report(entry({EVALUATION: one}, method="erm"), entry({EVALUATION: one}, method="fgsm"))
    assert headline(made).columns[:3] == ["method", "clean", "gamma"]
    assert summary(made) == ""
    assert examples(made).reason == "No attack in a ball was measured, so no examples are shown."
    (chart,) = error_curves(made)
    assert chart.title == "Wasserstein attack"
    assert "<title>fgsm, Wasserstein 2: 50.0 %</title>" in chart.svg


@pytest.mark.parametrize("cell", [("wasserstein", 2.0), ("pgd", 0.0)])
def test_that_no_attack_in_a_ball_was_measured_is_said_and_no_check_of_one_passed(cell: tuple[str, float]) -> None:
    one = at({cell: 0.1})
    page = to_markdown(report(entry({EVALUATION: one}, method="erm")), Path("r.md"))
    said = "no attack in a ball was measured of it; run rhobust evaluate runs/a for that"
    assert f"- **attacked errors** (erm): {said}\n" in page
    assert "All checks passed" not in page


def test_trajectories_are_means_over_epochs_and_seeds_not_too_many_and_the_last() -> None:
    def long(seed: int, level: float) -> Entry:
        records = [{"epoch": e, "gamma": level + e, "rho_eff": 1.0, **STILL} for e in range(100) for _ in range(2)]
        return dataclasses.replace(entry(method="spgd", radius=2.0, seed=seed), records=records)

    gamma, spent = trajectories(report(long(0, 0.0), long(1, 2.0), entry(method="erm")))
    titles = re.findall(r"<title>(.*?)</title>", gamma.svg)
    assert len(titles) == 25  # every fourth
    assert titles[-1] == "spgd, epoch 100: gamma 100"  # the mean of 99 and 101
    assert titles[0] == "spgd, epoch 4: gamma 4"
    assert "rho = 2" in spent.svg
    assert trajectories(report(entry(method="erm"))) == []


def federated(rounds: int, **options: Any) -> Entry:
    """A federation whose gamma is the number of the round, from 0 on."""
    records = [
        {"step": r, "epoch": r // 50, "gamma": float(r), "rho_eff": 1.0, "workers": 10, **STILL} for r in range(rounds)
    ]
    return dataclasses.replace(entry(method="drfl", radius=2.0, **options), records=records)


def test_a_federation_is_drawn_by_rounds() -> None:
    gamma, _ = trajectories(report(federated(300), federated(300, seed=1)))
    titles = re.findall(r"<title>(.*?)</title>", gamma.svg)
    assert len(titles) == 30
    assert titles[0] == "drfl, round 10: gamma 4.5"  # the mean of 0 to 9
    assert titles[-1] == "drfl, round 300: gamma 294"
    assert re.findall(r">(epoch|round)</text>", gamma.svg) == ["round"]
    few, _ = trajectories(report(federated(31)))  # the first block is what is left
    titles = re.findall(r"<title>(.*?)</title>", few.svg)
    assert [titles[0], titles[-1]] == ["drfl, round 1: gamma 0", "drfl, round 31: gamma 29.5"]
    charts = trajectories(report(federated(31), entry(method="spgd", radius=2.0)))  # not on one axis
    assert [re.findall(r">(epoch|round)</text>", chart.svg) for chart in charts] == [["round"]] * 2 + [["epoch"]] * 2


def test_a_page_speaks_of_rounds_where_there_are_rounds() -> None:
    central, rounds = entry(method="spgd", radius=2.0), federated(300)
    spent, drawn = "the last quarter of the logged rounds (at most fifty)", "the rounds since the point before"
    for entries, last, point in (
        ([central], "the last epoch", "an epoch"),
        ([rounds], spent, drawn),
        ([rounds, central], f"the last epoch or {spent}", f"an epoch or {drawn}"),
    ):
        page = " ".join(to_html(report(*entries), Path("r.html")).split())
        assert f"on average over {last}; where" in page
        assert f"Each point is the mean of {point}." in page
    assert "rounds 300" in facts(report(rounds))


def test_ticks_of_a_logarithmic_axis_are_plain_numbers() -> None:
    def ticks(*values: float) -> list[str]:
        records = [{"epoch": epoch, "gamma": value, "rho_eff": 1.0, **STILL} for epoch, value in enumerate(values)]
        gamma, _ = trajectories(report(dataclasses.replace(entry(method="spgd", radius=2.0), records=records)))
        texts = re.findall(r"<text[^>]*>(.*?)</text>", gamma.svg, re.DOTALL)
        return texts[texts.index("epoch") + 1 : texts.index("gamma")]

    assert ticks(0.08, 0.3) == ["0.1", "0.2", "0.3"]
    assert ticks(0.3, 0.5) == ["0.3", "0.4", "0.5"]
    assert ticks(5e-7, 2e-3) == ["0.000001", "0.00001", "0.0001", "0.001"]
    assert ticks(0.5, 2e5) == ["1", "10", "100", "1000", "10000", "100000"]


def test_rows_of_one_method_are_drawn_apart() -> None:
    made = report(*(entry(method="spgd", radius=radius) for radius in (1.0, 2.0, 3.0)), entry(method="erm"))
    drawn = swatches(made)
    assert list(drawn) == ["spgd, radius 1", "spgd, radius 2", "spgd, radius 3", "erm"]
    lines = [
        re.findall(r'd="(.*?)".*?style="(.*?)"', base64.b64decode(d.split(",")[1]).decode()) for d in drawn.values()
    ]
    assert len({str(sorted(line)) for line in lines}) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"method": "erm"},
        {"method": "spgd", "radius": 2.0, "seed": 7, "max_steps": 3, "epochs": 5, "cost": "lp:1.5"},
        {"method": "fgsm", "epsilon": 0.25, "random_start": True, "regularizer": "elastic-net:0.1,0.2"},
        {"method": "spgda", "radius": 1e-7, "gamma_rule": "adam:0.01", "label_cost": 2.0, "log_every": 3},
        {"method": "spgda-margin", "radius": 3.0, "train_samples": 9, "data_dir": "a b/$(c) 'd'", "learning_rate": 0.1},
        {"method": "spgda", "radius": 2.0, "steps": [1, 2]},
        {"method": "erm", "data_dir": "7"},
    ],
)
def test_the_training_command_gives_the_same_settings(options: dict[str, Any]) -> None:
    """Read as the shell and `rhobust train` read it."""
    made = entry(path="runs/a b", **options)
    program, command, out, path, *words = shlex.split(training(made))
    assert (program, command, out, path) == ("rhobust", "train", "--out", "runs/a b")
    assert Config.resolve(parse_overrides(words)) == made.config
    assert not any(word.startswith(("batch_size", "optimizer", "checkpoint")) for word in words)  # defaults go unsaid


def test_the_measuring_commands_say_what_was_asked() -> None:
    shifts = dataclasses.replace(drifted(0.1), settings={"shifts": ["all"], "seed": 0})
    _, evaluate, drift = commands(entry({EVALUATION: evaluated(0.1, 0.2), SHIFTS: shifts}, method="erm"))
    asked = "--attacks pgd --epsilons 0,0.2 --restarts 1 --seed 0 --samples 50"
    assert evaluate == f"rhobust evaluate runs/a {asked}"
    assert drift == "rhobust evaluate runs/a --attacks '' --shifts all --seed 0 --samples 50"


def test_settings_without_a_say_do_not_set_rows_of_a_federation_apart() -> None:
    drfl: dict[str, Any] = {"method": "drfl", "radius": 2.0}
    alike = [entry(**drfl), entry(**drfl, seed=1, evaluate_every=20), entry(**drfl, seed=2)]
    assert [row.name for row in report(*alike).rows] == ["drfl"]
    assert not {"epochs", "byzantine_attack", "evaluate_every", "local_learning_rate"} & alike[1].settings.keys()
    apart = report(entry(**drfl), entry(**drfl, local_steps=2), entry(**drfl, byzantine=2, byzantine_attack="alie"))
    assert len(apart.rows) == 3
    assert "alie" in apart.rows[2].name
    # With fedavg one local step is the only one, and has a rate.
    averaged: dict[str, Any] = {"method": "fedavg", "local_steps": 1}
    rates = entry(**averaged, local_learning_rate=0.01), entry(**averaged, local_learning_rate=0.5, seed=1)
    assert len(report(*rates).rows) == 2


def test_a_deployed_run_is_made_again_by_its_federation() -> None:
    config = Config.resolve({"method": "drfl", "radius": 2.0, "workers": 3, "partition": "sites"}, here=False)
    words = shlex.split(training(replace(entry(method="drfl", radius=2.0), config=config)))
    assert words[:6] == ["rhobust", "federation", "submit", "FED", "--out", "runs/a"]
    assert not [word for word in words if word.startswith(("partition=", "workers="))]


def outcome(errors: int, first: int = 0, seed: int = 0, **settings: Any) -> Entry:
    """A run with a number of errors on 200 samples under the cascade at 0.2, from sample `first` on, and none clean."""
    wrong = (torch.arange(200) >= first) & (torch.arange(200) < first + errors)
    cells = [AttackedError("cascade", 0.2, errors / 200, wrong=packed(wrong))]
    cells.append(AttackedError("cascade", 0.0, 0.0, wrong=packed(torch.zeros(200, dtype=torch.bool))))
    made = Measurement("", {"attacks": ["cascade"]}, {}, Evaluation(200, 0.0, cells))
    return entry({EVALUATION: made}, seed=seed, **settings)


def test_differences_are_paired_with_plain_training() -> None:
    made = report(outcome(60, method="erm"), outcome(40, method="fgsm"), outcome(40, first=150, method="ifgsm"))
    table = differences(made)
    assert table is not None
    assert table.columns == ["method", "clean", "cascade 0.2"]
    assert "less that of erm" in table.caption
    nested, apart = (line.cells[1] for line in table.lines)
    assert nested.text == apart.text == "-10.0"
    low, high = nested.interval.split(" to ")
    assert float(high) < 0  # 20 samples, all on one side
    assert float(apart.interval.split(" to ")[1]) > float(high)  # 60 on one side, 40 on the other
    assert float(low) < -10 < float(high)


def test_differences_need_outcomes_of_the_same_samples_and_seeds() -> None:
    assert differences(report(outcome(60, method="erm"))) is None
    assert differences(report(outcome(60, method="erm"), outcome(40, seed=1, method="fgsm"))) is None
    old = entry({EVALUATION: at({("cascade", 0.2): 0.3, ("cascade", 0.0): 0.0})}, method="fgsm")
    assert differences(report(outcome(60, method="erm"), old)) is None


def test_errors_have_intervals_and_other_numbers_none() -> None:
    table = headline(report(outcome(60, method="erm")))
    by_head = dict(zip(table.columns[1:], table.lines[0].cells, strict=True))
    low, high = interval(0.3, 200)
    assert by_head["cascade 0.2"].interval == f"{100 * low:.1f}–{100 * high:.1f}"
    assert by_head["clean"].interval == "0.0–1.9"
    assert by_head["E[c]"].interval == ""


def test_a_cascade_is_not_ranked_against_attacks_by_name() -> None:
    alone = Measurement("", {"attacks": ["pgd"]}, {}, Evaluation(200, 0.0, [AttackedError("worst", 0.2, 0.1)]))
    made = report(outcome(60, method="erm"), entry({EVALUATION: alone}, method="fgsm"))
    assert made.shared_balls() == {}
    assert not any(cell.best for line in headline(made).lines for cell in line.cells[1:3])
    assert "none is the best" in summary(made)
