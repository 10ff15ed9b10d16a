"""The report, from the outside: every number from the runs, in every form, and nothing measured twice."""

import json
import re
import shlex
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rhobust.commands.app import app
from rhobust.errors import RhobustError
from rhobust.runs.config import Config
from rhobust.runs.start import train_run
from rhobust.support.files import write_json
from tests.reports import NAMES, tiny_runs

HOSTILE = '<script>alert("1")</script> & "quotes" \''


def command(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str | Path) -> str:
    with pytest.raises(RhobustError) as problem:
        CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return str(problem.value)


def texts(fragment: str) -> list[str]:
    """The text of every cell of a table row."""
    found = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", fragment, re.DOTALL)
    return [unescape(re.sub(r"<small>.*?</small>|<[^>]*>", "", cell)).strip() for cell in found]


def table(page: str, caption: str) -> dict[str, list[str]]:
    """Cells by row of the table with this caption."""
    (body,) = re.findall(rf"<caption>{re.escape(caption)}</caption>(.*?)</table>", page, re.DOTALL)
    rows = [texts(row) for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)]
    return {first: others for first, *others in rows}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return tiny_runs(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def made(runs: list[Path]) -> Path:
    """A page; what it shows was measured by the report itself."""
    out = runs[0].parent / "report.html"
    said = command("report", *runs, "--samples", "60", "--out", out)
    assert "3 rows of 4 runs" in said
    return out


def test_the_page_shows_the_numbers_that_it_left_in_the_run_directories(made: Path, runs: list[Path]) -> None:
    page = made.read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # one file, nothing from outside
    assert "<script" not in page
    rows = table(page, "Error in percent")
    assert list(rows) == ["method", *NAMES]
    kept = [json.loads((run / "evaluation.json").read_text()) for run in runs]
    assert {one["samples"] for one in kept} == {60}
    epsilons = sorted({cell["epsilon"] for cell in kept[0]["attacked"] if cell["epsilon"]})
    for column, epsilon in enumerate(epsilons, start=1):
        errors = [
            [c["error"] for c in one["attacked"] if (c["attack"], c["epsilon"]) == ("cascade", epsilon)] for one in kept
        ]
        (erm,), (spgd,), (first,), (second,) = errors
        both = f"{100 * ((first + second) / 2):.1f} ± {100 * (abs(first - second) / 2):.1f}"
        shown = [rows[name][column].removesuffix(" (best)") for name in NAMES]
        assert shown == [f"{100 * erm:.1f}", f"{100 * spgd:.1f}", both]
        best = [name for name in NAMES if rows[name][column].endswith(" (best)")]
        means = dict(zip(NAMES, (erm, spgd, (first + second) / 2), strict=True))
        assert best == [name for name in NAMES if round(100 * means[name], 1) == round(100 * min(means.values()), 1)]
    drift = [json.loads((run / "shifts.json").read_text())["mean"] for run in runs]
    assert rows["spgd"][len(epsilons) + 1].removesuffix(" (best)") == f"{100 * drift[1]:.1f}"
    certified = table(page, "Worst expected loss in the ball, from attained to bound")
    bound = json.loads((runs[0] / "certificates.json").read_text())
    assert bound["samples"] == 60
    assert certified["erm"][0] == "proved"  # linear models
    assert certified["erm"][1].endswith(f"{bound['certificates'][0]['bound']:.3g}")


def test_a_second_report_measures_nothing_and_is_the_same(made: Path, runs: list[Path]) -> None:
    before = {file: file.stat().st_mtime_ns for run in runs for file in run.glob("*.json")}
    page = made.read_bytes()
    command("report", *runs, "--samples", "20", "--out", made)  # samples are for what is missing
    assert made.read_bytes() == page
    assert before == {file: file.stat().st_mtime_ns for run in runs for file in run.glob("*.json")}


def test_markdown_and_json_say_the_same(made: Path, runs: list[Path], tmp_path: Path) -> None:
    command("report", *runs, "--out", tmp_path / "report.md")
    command("report", *runs, "--out", tmp_path / "numbers.txt", "--format", "json")
    markdown, numbers = (tmp_path / "report.md").read_text(), json.loads((tmp_path / "numbers.txt").read_text())
    for head, cells in table(made.read_text(), "Error in percent").items():
        plain = [f"**{cell.removesuffix(' (best)')}**" if cell.endswith(" (best)") else cell for cell in cells]
        lines = [re.sub(r" \([\d.–]+\)", "", line) for line in markdown.splitlines()]  # without the intervals
        assert f"| {head} | {' | '.join(plain)} |" in lines
    assert [row["name"] for row in numbers["rows"]] == NAMES
    written = [run for row in numbers["rows"] for run in row["runs"]]
    for run, found in zip(runs, written, strict=True):
        for kind in ("evaluation", "shifts", "certificates"):
            assert found[kind] == json.loads((run / f"{kind}.json").read_text())
        assert found["settings"]["label_cost"] == "inf"
    assert [one["settings"]["seed"] for one in written] == [0, 0, 0, 1]
    *making, again = numbers["commands"]
    assert making == re.findall(r"^rhobust [^\n]*", markdown, re.MULTILINE)[:-1]
    page = str(tmp_path / "numbers.txt")
    assert again == shlex.join(["rhobust", "report", *map(str, runs), "--out", page, "--format", "json"])


def test_the_commands_on_the_page_make_its_numbers_again(made: Path, runs: list[Path]) -> None:
    """The last row's, into the place of the run, which is put aside for it."""
    run = runs[-1]
    lines = [unescape(line) for line in re.findall(r"<code>(.*?)</code>", made.read_text())]
    lines = [line for line in lines if str(run) in shlex.split(line) and " report " not in line]
    assert [shlex.split(line)[1] for line in lines] == ["train", "evaluate", "evaluate", "certify"]
    aside = run.rename(run.with_name("aside"))
    for line in lines:
        command(*shlex.split(line)[1:])
    for name in ("config.toml", "model.safetensors", "evaluation.json", "shifts.json", "certificates.json"):
        assert (run / name).read_bytes() == (aside / name).read_bytes(), name
    shutil.rmtree(aside)


def test_flags_audits_and_hostile_names_are_shown_as_text(made: Path, runs: list[Path], tmp_path: Path) -> None:
    run = tmp_path / HOSTILE.replace("/", "∕") / "run"
    shutil.copytree(runs[0], run)
    evaluation = json.loads((run / "evaluation.json").read_text())
    evaluation["flags"] = [{"check": HOSTILE, "message": f"gradients {HOSTILE} vanish"}]
    write_json(run / "evaluation.json", evaluation)
    shifts = json.loads((run / "shifts.json").read_text())
    shifts["shifted"].append({"shift": f"$x^2 {HOSTILE}", "severity": 1, "error": 0.5})
    write_json(run / "shifts.json", shifts)
    judged = {"epsilon": 0.2, "samples": 60, "clean": 0.0, "ours": 0.25, "referee": 0.5, "attacks": {HOSTILE: 0.5}}
    audit = evaluation["settings"] | {"epsilon": 0.2}
    about = {"model": evaluation["model"], "settings": audit, "environment": {}}
    write_json(run / "audit.json", {**about, **judged, "flags": []})
    out = tmp_path / "page.html"
    said = command("report", run, runs[1], "--out", out)
    page = out.read_text()
    assert f"flag, erm: gradients {HOSTILE} vanish" in said
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;" in page
    assert "All checks passed" not in page
    referee = table(page, "Error in percent: our evaluation, and independent attacks")
    assert referee["erm"] == ["0.2", "inf", "60", "25.0", "50.0", "ART", "50.0"]


def test_a_measurement_of_another_model_does_not_count(runs: list[Path], tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(runs[0], run)
    shutil.copytree(runs[1], other)
    command("evaluate", other, "--samples", "20")
    shutil.copy(other / "evaluation.json", run)
    command("report", run, "--samples", "30", "--out", tmp_path / "r.json")
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert row["runs"][0]["evaluation"]["samples"] == 30


@pytest.mark.parametrize(
    ("shape", "shown"), [((5,), "The data are not images"), ((3, 6, 6), "Test sample 1"), ((1, 6, 6), "Test sample 1")]
)
def test_examples_are_of_images_gray_or_in_color(shape: tuple[int, ...], shown: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.uniform(-1, 1, (40, *shape)).astype(np.float32), generator.integers(0, 3, 40)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    settings = {"data": str(tmp_path / "data.npz"), "method": "erm", "model": "linear", "epochs": 1}
    train_run(tmp_path / "run", Config.resolve(settings))
    command("report", tmp_path / "run", "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert shown in page
    assert ("data:image/png" in page) == (len(shape) == 3)


def test_a_run_that_was_measured_less_is_not_the_best_for_it(runs: list[Path], tmp_path: Path) -> None:
    few, many, out = tmp_path / "few", tmp_path / "many", tmp_path / "r.html"
    for run, copy in zip(runs, (few, many), strict=False):
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("evaluation*", "shifts*"))
    command("evaluate", few, "--attacks", "fgsm", "--samples", "40", "--quiet")
    command("evaluate", few, "--attacks", "", "--shifts", "blur", "--samples", "30", "--quiet")
    command("evaluate", many, "--shifts", "all", "--samples", "40", "--quiet")
    command("report", few, many, "--out", out)
    page = out.read_text()
    assert "The rows were measured differently: no attack at any epsilon was measured of all, so none is" in page
    behind = "under blur on 30 test samples for erm; under all shifts on 40 test samples for spgd"
    clean, *others = zip(
        *(table(page, f"Error in percent (shifted: {behind})")[name] for name in NAMES[:2]), strict=True
    )
    assert any(cell.endswith(" (best)") for cell in clean)
    assert not any(cell.endswith(" (best)") for column in others for cell in column)


def test_bad_requests_get_one_clear_error_and_write_nothing(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert refused("report", runs[0], tmp_path / "no", "--out", out) == (
        f"there is no {tmp_path / 'no'}; a run is the folder that `rhobust train --out` made"
    )
    unfinished = tmp_path / "unfinished"
    shutil.copytree(runs[0], unfinished)
    (unfinished / "model.safetensors").unlink()
    assert f"{unfinished} is not finished" in refused("report", runs[0], unfinished, "--out", out)
    mute = tmp_path / "mute"
    shutil.copytree(runs[0], mute)
    (mute / "metrics.jsonl").write_text("")
    assert f"{mute} has no metrics" in refused("report", mute, "--out", out)
    (mute / "environment.json").write_text("{")
    assert "environment.json is damaged" in refused("report", mute, "--out", out)
    twice = f"{runs[0]} and {runs[0]} are the same run: equal settings, equal seed"
    assert refused("report", runs[0], runs[1], runs[0], "--out", out) == twice
    shutil.copytree(runs[0], tmp_path / "copy")
    assert "are the same run" in refused("report", runs[0], tmp_path / "copy", "--out", out)
    known = "unknown format of a report 'pdf'; known: html, md, json"
    assert refused("report", runs[0], "--out", tmp_path / "r.pdf") == known
    assert refused("report", runs[0], "--format", "pdf", "--out", out) == known
    for form in ([], ["--format", "html"]):
        assert refused("report", runs[0], "--out", tmp_path, *form) == (
            f"{tmp_path} is a folder; --out needs the name of a file, such as {tmp_path / 'report.html'}"
        )
    assert not out.exists()


def test_certificates_are_compared_where_they_mean_the_same(tmp_path: Path) -> None:
    short = ("--epochs", "1", "model=linear", "--quiet")
    command("train", "--method", "erm", *short, "--out", tmp_path / "erm")
    command("train", "--method", "spgd", "--radius", "3", *short, "--out", tmp_path / "own-radius")
    command("train", "--method", "spgda", "--radius", "0.04", "cost=linf", *short, "--out", tmp_path / "other-cost")

    def said(*names: str) -> str:
        return command(
            "report", *(tmp_path / name for name in names), "--samples", "20", "--out", tmp_path / "report.json"
        )

    assert "different" not in said("erm", "own-radius")  # each is certified at its own radius besides
    assert "certificates: rows were measured with different cost" in said("erm", "other-cost")


def test_a_page_of_what_was_measured_outlives_the_data(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=draws.uniform(0, 1, (40, 1, 4, 4)).astype(np.float32), y=np.arange(40) % 2)
    run = tmp_path / "run"
    command("train", "--data", tmp_path / "own.npz", "--method", "erm", "--epochs", "1", "--quiet", "--out", run)
    command("report", run, "--samples", "8", "--out", tmp_path / "before.html")
    (tmp_path / "own.npz").unlink()
    command("report", run, "--samples", "8", "--out", tmp_path / "after.html")
    assert "so no examples are shown" in (tmp_path / "after.html").read_text()
