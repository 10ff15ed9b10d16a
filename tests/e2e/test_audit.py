"""The referee and we agree, on runs trained here; and where our attacks are weak the audit says so."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from rhobust.commands.app import app
from rhobust.data import digits
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, Refused
from rhobust.evaluation import referee as audits
from rhobust.evaluation.referee import TOLERANCE, audit

LOSS = partial(cross_entropy, reduction="none")


def command(words: str) -> str:
    result = CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    "settings", ["method=erm", "method=spgd radius=2", "method=spgda-margin radius=2 model=linear"]
)
def test_ours_is_not_more_than_a_point_below_the_referee_s(tmp_path: Path, settings: str) -> None:
    run = tmp_path / "run"
    command(f"train --epochs 8 --out {run} {settings}")
    printed = command(f"audit {run} --epsilon 0.2 --samples 120 --json {tmp_path / 'audit.json'}")
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found == json.loads((run / "audit.json").read_text())
    assert list(found["attacks"]) == ["apgd-ce", "apgd-dlr", "deepfool", "square"]
    assert found["clean"] <= found["attacks"]["apgd-ce"] <= found["attacks"]["square"] == found["referee"]
    assert found["clean"] < found["referee"] < 1  # it did attack, and had something left to find
    assert found["ours"] >= found["referee"] - TOLERANCE
    assert found["flags"] == []
    assert f"{100 * found['referee']:.2f}" in printed
    assert "NOT TO BE TRUSTED" not in printed


def test_weak_attacks_of_ours_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step in place of ours, on a model whose gradient at the samples leads astray."""

    class Astray(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            there = x.detach()
            still = (8 * there == (8 * there).round()).flatten(1).all(1).to(x).reshape(-1, 1, 1, 1)
            output: Tensor = model((there + (1 - 2 * still) * (x - there)).flatten(1))
            return output

    torch.manual_seed(0)
    data = digits()
    model = nn.Linear(64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(data.train.x.flatten(1)), data.train.y).backward()
        optimizer.step()
    monkeypatch.setattr(audits, "OURS", ("fgsm",))
    found = audit(Astray(), data.test[:80], epsilon=0.2, loss=LOSS, bounds=data.bounds)
    assert found.referee > found.ours + 0.2
    assert [flag.check for flag in found.flags] == ["one-step", "referee"]


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
    assert list(found.attacks) == ["apgd-ce", "deepfool"]
    assert found.ours == found.referee == lost > 0.1
    assert (np.random.get_state(legacy=False)["state"]["key"] == state).all()
    assert torch.equal(torch.get_rng_state(), before)


def test_wrong_requests_and_a_missing_referee_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    with pytest.raises(ConfigError, match="epsilon must be finite and > 0, not 0"):
        audit(nn.Linear(2, 2), samples, epsilon=0.0, loss=LOSS, bounds=(-1.0, 1.0))
    monkeypatch.setitem(sys.modules, "art.attacks.evasion", None)
    with pytest.raises(Refused, match=r"pip install 'rhobust\[audit\]'"):
        audit(nn.Linear(2, 2), samples, epsilon=0.1, loss=LOSS, bounds=(-1.0, 1.0))
