"""The demo: every method in the report, and nothing done twice."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

import rhobust
from rhobust.commands.demo import Demo
from rhobust.errors import RunError

SILENT = Console(file=io.StringIO(), width=80)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    Demo(out, epochs=1).show()
    return out


def test_the_page_shows_every_method_with_its_errors(shown: Path) -> None:
    page = (shown / "report.html").read_text()
    for name in rhobust.methods():
        found = json.loads((shown / name / "evaluation.json").read_text())
        (row, *_) = re.findall(rf'alt="">{name}</th>(.*?)</tr>', page)
        cells = [re.sub(r"<(small|span).*", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        worst = [cell["error"] for cell in found["attacked"] if cell["attack"] == "cascade"]
        assert len(worst) >= 4
        assert cells[: len(worst)] == [f"{100 * error:.1f}" for error in worst]
        assert found["samples"] == 360
        assert f"{name}: estimated" in page  # a certificate, and no more than it is
    assert "Test sample 4" in page


def test_again_it_trains_and_measures_nothing_and_shows_the_same(shown: Path) -> None:
    before = (shown / "report.html").read_bytes()
    made = {path: path.stat().st_mtime_ns for path in shown.glob("*/*")}
    table, page = Demo(shown, epochs=1).show()
    assert page.read_bytes() == before
    assert {path: path.stat().st_mtime_ns for path in shown.glob("*/*") if path.name != ".lock"} == {
        path: time for path, time in made.items() if path.name != ".lock"
    }
    SILENT.print(table)
    assert "…" not in SILENT.file.getvalue()  # type: ignore[attr-defined]  # nothing is cut off at eighty columns


def test_other_settings_and_other_runs_are_left_alone(shown: Path) -> None:
    with pytest.raises(RunError, match="with other settings; choose another --out"):
        Demo(shown, epochs=2).show()
    with pytest.raises(RunError, match="is a run itself"):
        Demo(shown / "erm").show()
