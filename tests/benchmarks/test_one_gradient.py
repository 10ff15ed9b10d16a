"""The comparison of one-gradient trainings counts what collapsed, and compares at the clean error of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import one_gradient_training as training
from benchmarks.command import write_csv
from benchmarks.one_gradient_tables import COLUMNS, WORST, Row, Variant, frontier, goals_table, read
from benchmarks.one_gradient_variants import WAYS
from benchmarks.step_times import times_table
from rhobust.runs.config import Config


def row(variant: str, clean: float, attacked: float, data: str = "fashion-mnist") -> Row:
    job = {"part": "sweep", "data": data, "variant": variant, "seed": "0"}
    return {**job, "clean": clean, "gradients": 1.4, "rho_eff": 0.1, **dict.fromkeys(WORST, attacked)}


def test_seeds_that_collapsed_are_counted_and_left_out() -> None:
    some = Variant("a", [row("ifgsm", 0.01, 0.04), row("ifgsm", 0.9, 0.9), row("ifgsm", 0.03, 0.06)])
    assert (some.seeds, some.collapsed, some.spread) == ("2 of 3", False, "5.0 ± 1.0")
    assert some.clean == pytest.approx(2)
    none = Variant("b", [row("ifgsm", 0.9, 0.9)])
    assert (none.seeds, none.collapsed, none.spread) == ("0 of 1", True, "90.0")
    assert Variant("c", [row("ifgsm", 0.01, 0.04)]).seeds == "1"


def test_the_frontier_has_those_that_no_other_is_ahead_of_in_both() -> None:
    points = {"a": (1, 9), "b": (2, 7), "c": (2, 8), "d": (3, 7), "e": (4, 5)}
    made = [Variant(name, [row(name, clean / 100, hit / 100)]) for name, (clean, hit) in points.items()]
    assert [one.name for one in frontier(made)] == ["a", "b", "e"]


def test_a_goal_is_met_by_the_best_that_is_no_worse_on_clean_data() -> None:
    low, high, *_ = WAYS["fashion-mnist"]
    found = [
        row(low, 0.10, 0.50),
        row(high, 0.14, 0.30),
        row("ifgsm, epsilon 0.1", 0.09, 0.70),  # cleaner than ours
        row("ifgsm, epsilon 0.2", 0.12, 0.54),  # 4 behind the first: not 5
        row("ifgsm, epsilon 0.3", 0.15, 0.40),
        row("ifgsm, epsilon 0.4", 0.90, 0.90),  # collapsed: nothing to compare with
        row("nfgsm, epsilon 0.2, noise 0.4", 0.13, 0.525),
        row("erm", 0.09, 0.99),
        row(low, 0.01, 0.01, data="mnist"),  # other data
    ]
    lines = [line.strip("| ").split(" | ") for line in goals_table(found).splitlines()[2:]]
    assert [(line[1], line[-1]) for line in lines] == [
        ("ifgsm, epsilon 0.1", "missed"),
        ("ifgsm, epsilon 0.2", ">= 5: missed"),
        ("nfgsm, epsilon 0.2, noise 0.4", ">= 2: met"),
        ("ifgsm, epsilon 0.3", ">= 5: met"),
    ]
    assert [line[5] for line in lines[1:]] == [low, low, high]


def test_times_are_over_those_of_erm_in_the_same_run() -> None:
    runs = {1: {"erm": 2.0}, 2: {"erm": 4.0, "fgsm": 6.0}, 3: {"erm": 1.0, "fgsm": 1.7}}
    rows = [
        {"kind": "cpu", "run": number, "variant": name, "ms": ms}
        for number, times in runs.items()
        for name, ms in times.items()
    ]
    assert times_table(rows).splitlines()[2:] == [
        "| cpu | erm | 1 | 1.00 | 1.00, 1.00 |",
        "| cpu | fgsm | 1.7 | 1.70 | 1.50 |",
    ]


def test_a_training_makes_a_row_and_rows_come_back_from_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(training.SHARED, "epochs", 1)
    monkeypatch.setitem(training.IMAGES, "sweep", slice(4))
    monkeypatch.setattr(training, "RESTARTS", 1)
    monkeypatch.setattr(training, "SAMPLES", 4)
    job = training.Job("sweep", "digits", "spgda, radius 0.04, cap 0.3, noise 0.3, steps 1 1 3, memory 1", "0")
    made = training.measure(job)
    assert set(made) == set(COLUMNS) - {"note"}
    assert made["gradients"] == pytest.approx(5 / 3)
    assert made["clean"] < 0.9  # chance
    assert made["apgd"] <= sum(made[key] for key in WORST) / len(WORST)
    write_csv(tmp_path / "rows.csv", COLUMNS, [made])
    (back,) = read(tmp_path / "rows.csv")
    assert {key: back[key] for key in made if key != "git"} == {key: made[key] for key in made if key != "git"}


def test_the_committed_rows_have_what_the_tables_ask_for_and_say_how_they_were_trained() -> None:
    jobs = training.jobs(read(training.RESULTS))
    assert jobs[: len(training.jobs([]))] == training.jobs([])
    rows = {training.Job(*(row[key] for key in training.Job._fields)) for row in read(training.RESULTS)}
    assert set(jobs) <= rows
    for job in jobs:
        config = Config.resolve(job.settings)
        assert (config.data, config.seed) == (job.data, int(job.seed))
        assert job.variant.startswith(config.method)
