"""Real MNIST and the paper's network, from the file to the report."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rhobust.commands.app import app

REAL = Path(os.environ.get("RHOBUST_DATA", Path(__file__).parents[3] / "shared" / "data"))


def test_train_evaluate_certify_and_report_on_the_real_thing(tmp_path: Path) -> None:
    if not (REAL / "mnist").is_dir():
        pytest.skip(f"REAL DATA ABSENT: {REAL / 'mnist'} is not there; set RHOBUST_DATA to test on it")
    run, page = tmp_path / "run", tmp_path / "report.html"
    errors, certificates = tmp_path / "errors.json", tmp_path / "certificates.json"
    for words in (
        f"train --data mnist --data-dir {REAL} --train-samples 4000 --epochs 1 --out {run} method=spgda radius=6",
        f"evaluate {run} --attacks fgsm --epsilons 0,0.1 --samples 200 --json {errors}",
        f"certify {run} --radii 0.5 --samples 20 --json {certificates}",
        f"report {run} --samples 60 --out {page}",
    ):
        result = CliRunner().invoke(app, words.split(), catch_exceptions=False)
        assert result.exit_code == 0, result.output
    measured = json.loads(errors.read_text())
    assert measured["samples"] == 200
    assert measured["clean"] < 0.25  # thirty-two steps; chance is 0.9
    attacked = {cell["epsilon"]: cell["error"] for cell in measured["attacked"]}
    assert measured["clean"] == attacked[0.0] <= attacked[0.1]
    (certificate,) = json.loads(certificates.read_text())["certificates"]
    assert certificate["status"] == "estimated"  # a ReLU network has no bounded curvature
    assert 0 < certificate["attained"] <= certificate["bound"]
    shifts = json.loads((run / "shifts.json").read_text())  # the report measured what was missing
    shifted = {(cell["shift"], cell["severity"]): cell["error"] for cell in shifts["shifted"]}
    assert measured["clean"] < shifted["uci-digits", 1] < 0.8  # other people's digits: harder, and not hopeless
    assert "uci-digits" in page.read_text()
