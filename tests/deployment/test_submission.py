"""A training that is followed from outside: whose run is resumed, which rounds are shown, how long a stop may take."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rhobust.deployment import submission as jobs
from rhobust.deployment.coordinator import stop_file
from rhobust.deployment.kits import FederationError
from rhobust.deployment.submission import Submission
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.training.observers import Observer, Silent
from rhobust.training.record import RoundRecord


class Seen(Observer):
    def __init__(self) -> None:
        self.rounds: list[int] = []

    def stepped(self, record: Any) -> None:
        self.rounds.append(record.step)


def submission(path: Path, observer: Observer | None = None) -> Submission:
    kits: Any = SimpleNamespace(sites=["a", "b", "c"], path=path)
    return Submission(kits, path, 30.0, observer or Silent())


def round_of(step: int, workers: int, **dropped: str) -> RoundRecord:
    numbers: dict[str, Any] = dict.fromkeys(("loss", "value", "gamma", "rho_eff", "stationarity"), 1.0)
    counts: dict[str, Any] = {"gradients": 1, "bytes_up": 0, "bytes_down": 0}
    return RoundRecord(step=step, epoch=0, accuracy=None, workers=workers, dropped=dropped, **numbers, **counts)


def line(step: int) -> bytes:
    return json.dumps(asdict(round_of(step, 3))).encode() + b"\n"


@pytest.mark.parametrize("given", [{"workers": 3}, {"workers": 5, "partition": "sites"}])
def test_a_run_of_another_federation_is_not_resumed(tmp_path: Path, given: dict[str, Any]) -> None:
    config = Config.resolve({"method": "drfl", "radius": 1, **given}, here=False)
    with pytest.raises(FederationError, match="here are 3 sites with data of their own"):
        submission(tmp_path)._check(Run(tmp_path), config)


def test_its_own_run_is(tmp_path: Path) -> None:
    config = Config.resolve({"method": "drfl", "radius": 1, "workers": 3, "partition": "sites"}, here=False)
    submission(tmp_path)._check(Run(tmp_path), config)


def test_metrics_that_were_cut_back_and_grew_again_are_read_from_a_whole_line(tmp_path: Path) -> None:
    seen, run = Seen(), Run(tmp_path)
    follower = submission(tmp_path, seen)
    run.metrics_path.write_bytes(line(0) + line(1))
    follower._show(run)
    other = line(1).replace(b"1.0", b"1.25", 1)  # longer than what was there
    run.metrics_path.write_bytes(line(0) + other + line(2))
    follower._show(run)
    assert seen.rounds == [0, 1, 2]


@pytest.mark.parametrize("answers", [True, False])
def test_a_stop_waits_for_the_round_before_the_job_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    report, now, aborted = tmp_path / "report.json", [0.0], list[str]()

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if answers and now[0] > 50:  # a round of 50 s, of a deadline of 60
            report.write_text('{"outcome": "stopped"}')

    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    jobs._stop(SimpleNamespace(abort_job=aborted.append), "job", report, 60.0)
    assert aborted == ([] if answers else ["job"])
    assert not stop_file(report).exists()


def test_if_only_some_sites_are_asked_one_that_is_gone_is_named_once(tmp_path: Path) -> None:
    warnings: list[str] = []

    class Warned(Observer):
        def warned(self, message: str) -> None:
            warnings.append(message)

    follower = submission(tmp_path, Warned())
    gone = round_of(0, 1, c="no answer")
    without = replace(gone, workers=2, dropped={})  # two of three were asked, and c was not
    for step, record in enumerate([gone, without, gone, without]):
        follower._tell(replace(record, step=step))
    assert warnings == ["round 0: c was dropped: no answer"]
    assert follower._dropped == {"c"}
    follower._tell(replace(gone, workers=3, dropped={}))  # all were asked, and all answered
    assert not follower._dropped


def test_returning_sites_are_waited_for_and_missing_ones_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(jobs, "present", lambda session: {"a": False})  # one of three, for good
    config = Config.resolve({"method": "drfl", "radius": 1, "workers": 3, "quorum": 2}, here=False)
    with pytest.raises(FederationError, match="2 sites are needed and 1 are there; missing: b, c"):
        submission(tmp_path)._take_part(SimpleNamespace(), Run(tmp_path), config)
    assert now[0] >= jobs._REJOINING
