"""`examples/tensorboard_observer.py`: the files hold what the training said, and it ended early."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from examples import tensorboard_observer


def test_the_files_hold_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tensorboard_observer.main()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    errors = [event.value for event in events.Scalars("epoch/held-out error")]
    assert 5 < len(errors) < 200
    assert errors.index(min(errors)) == len(errors) - 6  # five epochs without a better one
    assert f"ended after {len(errors)} of 200 epochs" in capsys.readouterr().out
    steps = [event.step for event in events.Scalars("step/gamma")]
    assert steps == list(range(len(steps)))
    assert len(steps) % len(errors) == 0
    last = [event.value for event in events.Scalars("step/rho_eff")][-len(steps) // len(errors) :]
    assert sum(last) / len(last) == pytest.approx(2, rel=0.25)
