"""Real MNIST and the paper's network, from the file to the certificate."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rhobust.cli import app

REAL = Path(os.environ.get("RHOBUST_DATA", Path(__file__).parents[3] / "shared" / "data"))


def test_train_evaluate_and_certify_on_the_real_thing(tmp_path: Path) -> None:
    if not (REAL / "mnist").is_dir():
        pytest.skip(f"REAL DATA ABSENT: {REAL / 'mnist'} is not there; set RHOBUST_DATA to test on it")
    run, errors, certificates = tmp_path / "run", tmp_path / "errors.json", tmp_path / "certificates.json"
    for words in (
        f"train --data mnist --data-dir {REAL} --limit 4000 --model cnn --epochs 1 --out {run} method=spgda radius=6",
        f"evaluate {run} --attacks fgsm --epsilons 0,0.1 --samples 200 --json {errors}",
        f"certify {run} --radii 0.5 --samples 20 --json {certificates}",
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
