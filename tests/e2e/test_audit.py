"""The referee and we agree, on runs trained here; and where our attacks are weak the audit says so."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from rhobust.commands.app import app
from rhobust.data import digits
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, Refused
from rhobust.evaluation import audit as audits
from rhobust.evaluation.audit import TOLERANCE, audit
from rhobust.evaluation.evaluate import evaluate
from rhobust.evaluation.evaluation import Evaluation

LOSS = partial(cross_entropy, reduction="none")


def command(words: str) -> str:
    result = CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("settings", "norm"),
    [("method=erm", "inf"), ("method=spgd radius=2", "2"), ("method=spgda-margin radius=2 model=linear", "inf")],
)
def test_ours_is_not_more_than_a_point_below_autoattack_s(tmp_path: Path, settings: str, norm: str) -> None:
    run, epsilon = tmp_path / "run", {"inf": "0.2", "2": "1"}[norm]
    command(f"train --epochs 8 --out {run} {settings}")
    asked = f"--epsilon {epsilon} --norm {norm} --samples 120"
    printed = command(f"audit {run} {asked} --json {tmp_path / 'audit.json'}")
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found == json.loads((run / "audit.json").read_text())
    assert (found["suite"], found["norm"], found["reason"]) == ("AutoAttack", norm, "")
    assert list(found["attacks"]) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert found["clean"] <= found["attacks"]["apgd-ce"] <= found["attacks"]["square"] == found["referee"]
    assert found["clean"] < found["referee"] < 1  # it did attack, and had something left to find
    assert found["ours"] >= found["referee"] - TOLERANCE
    low, high = found["referee_interval"]
    assert low < found["referee"] < high
    assert found["flags"] == []
    assert "AutoAttack: apgd-ce" in printed
    assert f"{100 * found['referee']:.2f}" in printed
    assert f"{100 * low:.1f}-{100 * high:.1f}" in printed
    assert "failed check" not in printed


def test_an_evaluation_of_ours_that_misses_errors_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    """FGSM in place of our cascade, on a network that has more errors than one step finds."""
    torch.manual_seed(0)
    data = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(data.train.x), data.train.y).backward()
        optimizer.step()

    def weak(*given: Any, **asked: Any) -> Evaluation:
        found = evaluate(*given, **asked | {"attacks": ["fgsm"], "checks": False})
        assert isinstance(found, Evaluation)
        cells = [replace(cell, attack="cascade") for cell in found.attacked if cell.attack == "fgsm"]
        return replace(found, attacked=cells)

    monkeypatch.setattr(audits, "evaluate", weak)
    found = audit(model, data.test[:80], epsilon=0.2, loss=LOSS, bounds=data.bounds)
    assert found.referee > found.ours + TOLERANCE
    (flag,) = found.flags
    assert flag.check == "referee"
    assert flag.message.startswith("AutoAttack finds ")
    assert flag.message.endswith("Report the larger number")


def test_two_classes_and_vectors_are_judged_by_what_suits_them() -> None:
    """Exact for a linear model: a margin below epsilon times the l_1 norm of the weights' difference is lost."""
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    x = torch.rand(100, 6) - 0.5
    with torch.no_grad():
        y = model(x).argmax(1)
        gap = (model(x)[:, 1] - model(x)[:, 0]).abs()
        lost = float((gap < 0.1 * (model.weight[1] - model.weight[0]).abs().sum()).double().mean())
    state, before = np.random.get_state(legacy=False)["state"]["key"].copy(), torch.get_rng_state()
    found = audit(model, Samples(x, y), epsilon=0.1, loss=LOSS, bounds=(-1.0, 1.0))
    assert (found.suite, list(found.attacks)) == ("ART", ["apgd-ce", "deepfool"])
    assert found.reason == "AutoAttack takes images (channels, height, width)"
    assert found.ours == found.referee == lost > 0.1
    assert (np.random.get_state(legacy=False)["state"]["key"] == state).all()
    assert torch.equal(torch.get_rng_state(), before)


def test_wrong_requests_and_a_missing_referee_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    with pytest.raises(ConfigError, match="epsilon must be finite and > 0, not 0"):
        audit(nn.Linear(2, 2), samples, epsilon=0.0, loss=LOSS, bounds=(-1.0, 1.0))
    with pytest.raises(ConfigError, match="norm must be one of inf, 2, not '1'"):
        audit(nn.Linear(2, 2), samples, epsilon=0.1, norm="1", loss=LOSS, bounds=(-1.0, 1.0))
    monkeypatch.setitem(sys.modules, "art.attacks.evasion", None)
    with pytest.raises(Refused, match=r"pip install 'rhobust\[audit\]'"):
        audit(nn.Linear(2, 2), samples, epsilon=0.1, loss=LOSS, bounds=(-1.0, 1.0))
    images, classes = (
        Samples(torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.long)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 4)),
    )
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(Refused, match=r"pip install 'rhobust\[audit\]'"):
        audit(classes, images, epsilon=0.1, loss=LOSS, bounds=(-1.0, 1.0))


@pytest.mark.parametrize(
    ("shape", "classes", "bounds", "reason"),
    [
        ((1, 6, 6), 3, (-1.0, 1.0), "takes 4 classes or more, and this model has 3"),
        ((1, 6, 6), 5, None, "in a bounded box"),
        ((36,), 5, (-1.0, 1.0), "takes images"),
    ],
)
@pytest.mark.parametrize("norm", ["inf", "2"])
def test_where_autoattack_does_not_apply_the_reason_is_told(
    shape: tuple[int, ...], classes: int, bounds: tuple[float, float] | None, reason: str, norm: str
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(36, classes)), torch.rand(40, *shape) - 0.5
    found = audit(model, Samples(x, model(x).argmax(1)), epsilon=0.2, norm=norm, loss=LOSS, bounds=bounds)
    assert found.suite == "ART"
    assert reason in found.reason
    assert 0 < found.referee <= found.ours + 1 / 40
