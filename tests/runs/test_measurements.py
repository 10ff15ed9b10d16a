"""Measurements: what is written is what is read, whatever its kind."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rhobust.certificates.certificate import Certificate, Certification
from rhobust.evaluation.audit import Audit
from rhobust.evaluation.evaluation import AttackedError, Evaluation
from rhobust.evaluation.group_errors import GroupedCell, GroupError, GroupErrors
from rhobust.evaluation.shifts import ShiftedError, ShiftEvaluation
from rhobust.evaluation.trust import Flag
from rhobust.runs.directory import Run
from rhobust.runs.measurements import AUDIT, CERTIFICATES, EVALUATION, KINDS, SHIFTS, Kind, Measurement, kept

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of a model of no bytes
FLAG = Flag("grows", "it falls")
RESULTS: dict[Kind[Any], Any] = {
    EVALUATION: Evaluation(
        9,
        0.1,
        [AttackedError("pgd", 0.1, 1 / 3, 2), AttackedError("wasserstein", 2.0, 0.5, 0, 1.9)],
        [FLAG],
        ["grows"],
        groups=GroupErrors(
            [GroupError("a", 9, 0.1, [0.0, 0.4])], [GroupedCell("pgd", 0.1, [GroupError("a", 9, 1 / 3, [0.1, 0.6])])]
        ),
    ),
    SHIFTS: ShiftEvaluation(9, 0.1, [ShiftedError("blur", 1, 0.1), ShiftedError("blur", 2, 0.2)]),
    CERTIFICATES: Certification(
        9,
        [
            Certificate(0.0, 1.0, 1.0, math.inf, 0.0, 0.0, "proved"),
            Certificate(0.1, 1.2, 1.1, 0.3, 0.12, 0.1, "estimated", "no bound is known"),
        ],
    ),
    AUDIT: Audit(0.2, 9, 0.1, 0.2, 0.3, {"apgd-ce": 0.25, "square": 0.3}, [FLAG]),
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "model.safetensors").touch()
    return Run(tmp_path)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_written_is_read(run: Run, kind: Kind[Any]) -> None:
    assert kept(run, kind) is None
    made = Measurement(EMPTY, {"seed": 0}, {"torch": "2"}, RESULTS[kind])
    (run.path / kind.file).write_text(json.dumps(made.to_json(), allow_nan=False))
    assert kept(run, kind) == made
    run.model_path.write_text("another model")
    assert kept(run, kind) is None


def test_results_answer_by_name() -> None:
    errors, shifts, certified = RESULTS[EVALUATION], RESULTS[SHIFTS], RESULTS[CERTIFICATES]
    assert errors.error("pgd", 0.1) == 1 / 3
    assert list(errors.grid) == ["pgd", "wasserstein"]
    assert list(errors.in_balls) == ["pgd"]
    with pytest.raises(KeyError):
        errors.error("pgd", 0.2)
    assert shifts.by_shift == {"blur": {1: 0.1, 2: 0.2}}
    assert shifts.means["blur"] == shifts.mean == pytest.approx(0.15)
    assert certified.status == "estimated"
    assert certified.by_radius[0.1].tight == (0.12, pytest.approx(1.2 + 0.3 * 0.02))
