"""The demo: every method in the page, every number in the page from the results, and nothing done twice."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

import rhobust
from rhobust.demo import ATTACKS, EPSILONS, Demo
from rhobust.errors import RunError

SILENT = Console(file=io.StringIO(), width=80)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    Demo(out, epochs=1).show(SILENT)
    return out


def test_the_page_shows_the_results(shown: Path) -> None:
    results, page = json.loads((shown / "results.json").read_text()), (shown / "report.html").read_text()
    assert list(results["methods"]) == list(rhobust.methods())
    for name, found in results["methods"].items():
        (row,) = re.findall(rf"<tr><td><code>{name}</code></td>(.*?)</tr>", page)
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
        pgd = [cell["error"] for cell in found["attacked"] if cell["attack"] == "pgd"]
        assert cells[: len(EPSILONS)] == [f"{100 * error:.1f}" for error in pgd]
        assert cells[-1] == f"{found['rho_eff']:.2g}"
        assert len(found["attacked"]) == len(ATTACKS) * len(EPSILONS)
    assert page.count("<svg") == 3
    assert not re.search(r'(src|href)="http', page)  # one file, nothing from outside
    for name in ("curves", "trajectories", "examples"):
        assert (shown / f"{name}.png").stat().st_size > 10_000


def test_again_it_trains_nothing_and_shows_the_same(shown: Path) -> None:
    before = (shown / "report.html").read_bytes()
    models = {path: path.stat().st_mtime_ns for path in shown.rglob("model.safetensors")}
    table, page = Demo(shown, epochs=1).show(SILENT)
    assert page.read_bytes() == before
    assert {path: path.stat().st_mtime_ns for path in shown.rglob("model.safetensors")} == models
    SILENT.print(table)
    assert "…" not in SILENT.file.getvalue()  # type: ignore[attr-defined]  # nothing is cut off at eighty columns


def test_other_settings_and_other_runs_are_left_alone(shown: Path) -> None:
    with pytest.raises(RunError, match="with other settings; choose another --out"):
        Demo(shown, epochs=2).show(SILENT)
    with pytest.raises(RunError, match="is a run itself"):
        Demo(shown / "erm").show(SILENT)
