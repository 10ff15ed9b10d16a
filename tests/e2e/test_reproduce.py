"""The paper's figures on a small slice of the real data, by the command, interrupted and not."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from rhobust.commands.app import app
from rhobust.data import archives
from rhobust.errors import ConfigError, DataError, RunError
from rhobust.reproduction.experiments import FIGURES, QUICK
from rhobust.reproduction.plan import Job, known_jobs, plan
from rhobust.reproduction.pool import Ended, _deaf_to_interrupts, work_through
from rhobust.reproduction.session import Session
from rhobust.reproduction.store import Store, read_figure, read_sessions
from rhobust.support.files import exclusive
from rhobust.support.interrupts import deferred_signals

REAL = Path(os.environ.get("RHOBUST_DATA", Path(__file__).parents[3] / "shared" / "data"))
COMMAND = [sys.executable, "-m", "rhobust", "reproduce"]
SURROUNDINGS = os.environ | {"RHOBUST_DATA": str(REAL), "OMP_NUM_THREADS": "1"}
PASSING = ("training_seconds", "evaluation_seconds", "environment")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything, without an interruption."""
    absent = [name for name in ("mnist", "fashion-mnist") if not (REAL / name).is_dir()]
    if absent:
        pytest.skip(f"REAL DATA ABSENT: {', '.join(absent)} not in {REAL}; set RHOBUST_DATA to test on them")
    out = tmp_path_factory.mktemp("whole")
    done = reproduce("all", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out


def reproduce(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *words, "--quick"]
    return subprocess.run(command, env=SURROUNDINGS, capture_output=True, text=True, check=False, timeout=600)


def numbers(out: Path, figure: str) -> dict[str, Any]:
    """What was measured, without what passes."""
    runs = read_figure(out, figure)["runs"]
    return {name: {key: run[key] for key in run if key not in PASSING} for name, run in runs.items()}


def test_every_job_of_the_plan_has_a_result_and_every_figure_is_drawn(whole: Path) -> None:
    results = Store(whole, QUICK).results
    assert plan(FIGURES, 1, QUICK, results) == []
    assert set(results) == {job.name for name in FIGURES for job in known_jobs(name, 1, QUICK, results)}
    for name in FIGURES:
        assert (whole / f"{name}.svg").read_text().startswith("<svg")
        assert (whole / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"## {name}" in (whole / "tables.md").read_text()
        assert "quick look" in (whole / f"{name}.svg").read_text()  # nobody shall take it for a result
    page = (whole / "tables.md").read_text()
    assert page.startswith("A quick look")
    assert "claims are left out, since" in page.partition("\n\n")[0]
    assert not [word for word in ("## claims", "**no**", "yes", "in part") if word in page]  # no verdict on anything
    (session,) = read_sessions(whole)
    assert (session["jobs"], session["failed"], session["seeds"]) == (len(results), 0, 1)
    erm = results["figure2/paper/erm/0"]["errors"]
    assert erm["fgsm"]["0"] < 0.6  # twenty steps on 640 images; chance is 0.9
    assert erm["fgsm"]["0"] < erm["fgsm"]["0.1"] <= erm["ifgsm"]["0.2"]


def test_what_is_there_is_not_trained_again(whole: Path) -> None:
    before = (whole / "figure3.json").stat().st_mtime_ns
    again = reproduce("all", "--out", str(whole))
    assert again.returncode == 0, again.stderr
    assert (whole / "figure3.json").stat().st_mtime_ns == before
    assert len(read_sessions(whole)) == 1


def test_full_results_do_not_go_where_quick_ones_are(whole: Path) -> None:
    command = [*COMMAND, "figure1", "--out", str(whole)]
    refused = subprocess.run(command, env=SURROUNDINGS, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "holds quick results" in refused.stderr


def test_interrupted_and_killed_it_comes_to_the_same_numbers(whole: Path, tmp_path: Path) -> None:
    """Ctrl-C keeps what is done, and so does kill -9; no worker outlives either."""
    ctrl_c = stopped_after(1, tmp_path, signal.SIGINT)
    assert ctrl_c.returncode == 130
    assert "the same command goes on from here" in ctrl_c.stderr
    assert "Traceback" not in ctrl_c.stderr
    stopped_after(3, tmp_path, signal.SIGKILL)
    begun = set(numbers(tmp_path, "figure5"))
    done = reproduce("figure5", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not [name for name in begun if f" {name}:" in done.stderr]  # these were kept
    assert numbers(tmp_path, "figure5") == numbers(whole, "figure5")


def test_an_interrupt_while_workers_are_started_is_not_lost_and_not_theirs() -> None:
    masked = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with deferred_signals(enabled=True) as signals:
        with _deaf_to_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            child = subprocess.run([sys.executable, "-c", masked], capture_output=True, text=True, check=True)
        until(lambda: signals == [signal.SIGINT])
    assert child.stdout == "True\n"


def test_interrupted_before_the_first_result_nothing_is_promised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "run", interrupted)
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["reproduce", "figure1", "--out", str(out)])
    assert (done.exit_code, done.stderr) == (130, "interrupted; nothing was done yet\n")
    assert not list(out.glob("*.json"))


def test_two_at_a_time_would_lose_what_the_other_finds(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(RunError, match="is being written by another process"):
        CliRunner().invoke(app, ["reproduce", "figure1", "--quick", "--out", str(tmp_path)], catch_exceptions=False)


@pytest.mark.parametrize("edited", ["choices", "runs"])
def test_results_that_were_edited_are_named(whole: Path, tmp_path: Path, edited: str) -> None:
    shutil.copytree(whole, tmp_path / "out")
    path = tmp_path / "out" / "figure4.json"
    content = json.loads(path.read_text())
    if edited == "runs":
        for run in content["runs"].values():
            run["errors"] = {}
    else:
        del content["choices"]
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"the results in .*out are not as they were written \("):
        CliRunner().invoke(app, ["reproduce", "draw", "--out", str(tmp_path / "out")], catch_exceptions=False)


def test_a_changed_setting_is_trained_again_and_nothing_else(whole: Path, tmp_path: Path) -> None:
    content = json.loads((whole / "figure4.json").read_text())
    content["runs"]["figure4/paper/fedavg/0"]["asked"]["training"]["rounds"] = 7
    content["runs"]["figure4/paper/fedavg/0"]["errors"] = {"clean": {"7": 0.5}}
    (tmp_path / "figure4.json").write_text(json.dumps(content))
    done = reproduce("figure4", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [session["jobs"] for session in read_sessions(tmp_path)] == [1]
    assert numbers(tmp_path, "figure4") == numbers(whole, "figure4")


@pytest.mark.parametrize("how", ["", " --quick"])
def test_nothing_to_draw_is_said(how: str, tmp_path: Path) -> None:
    command = [*COMMAND, "draw", *how.split(), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"holds no results to draw; make them: rhobust reproduce all{how} --out {tmp_path}\n" in done.stderr


def test_without_the_data_it_says_what_this_command_understands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_network(address: str) -> bytes:
        raise OSError("unreachable")

    monkeypatch.setattr(archives, "fetch", no_network)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RHOBUST_DATA", raising=False)
    words = ["reproduce", "figure1", "--quick", "--out", str(tmp_path / "out")]
    with pytest.raises(DataError, match=r"point RHOBUST_DATA .* to a directory that has them in mnist/") as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert "--data-dir" not in str(caught.value)


@pytest.mark.parametrize("what", ["figure1", "deployed", "draw"])
@pytest.mark.parametrize("below", [".", "deeper"])
def test_results_do_not_go_into_a_file(what: str, below: str, tmp_path: Path) -> None:
    """Found at once, and not when the first result is there."""
    file = tmp_path / "taken"
    file.write_text("mine")
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, ["reproduce", what, "--quick", "--out", str(file / below)], catch_exceptions=False)
    assert caught.value.problems == [f"{file} is a file, and the numbers go into a directory: choose another --out"]
    assert file.read_text() == "mine"


def test_what_draw_would_ignore_is_refused(tmp_path: Path) -> None:
    words = ["reproduce", "draw", "--seeds", "7", "--workers", "9", "--out", str(tmp_path)]
    with pytest.raises(ConfigError, match="--seeds and --workers: draw trains nothing"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_federation_of_processes_comes_to_the_same_bits(whole: Path) -> None:
    done = reproduce("deployed", "--out", str(whole))
    assert done.returncode == 0, done.stderr
    found = json.loads((whole / "deployed.json").read_text())
    apart = found["largest_difference_in_theta"]
    assert apart["one_by_one"] == 0.0 <= apart["fused"] < 1e-4
    assert found["in_process"]["errors"] == found["deployed"]["errors"]
    assert found["in_process"]["dropped"] == found["deployed"]["dropped"] == {}


def stopped_after(results: int, out: Path, how: signal.Signals) -> subprocess.CompletedProcess[str]:
    """The command for figure 5, stopped once so many results are there; Ctrl-C reaches its workers too."""
    command = [*COMMAND, "figure5", "--quick", "--out", str(out)]
    process = subprocess.Popen(
        command, env=SURROUNDINGS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    file = out / "figure5.json"
    until(lambda: process.poll() is not None or (file.exists() and len(numbers(out, "figure5")) >= results))
    assert process.poll() is None, process.communicate()
    family = psutil.Process(process.pid).children(recursive=True)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
    else:
        process.send_signal(how)
    said = process.communicate(timeout=60)
    until(lambda: not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in family))
    return subprocess.CompletedProcess(command, process.returncode, *said)


def until(happened: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def digits_job(name: str, **settings: Any) -> Job:
    training = {"data": "digits", "method": "erm", "epochs": 1, "batch_size": 128, **settings}
    return Job(name, training, {"kind": "validation", "held_out": 50, "epsilons": [0.0]})


def ended(jobs: Sequence[Job], during: Callable[[Ended], None] = lambda end: None) -> dict[str, Ended]:
    """Those jobs, one at a time."""
    found: dict[str, Ended] = {}
    for end in work_through(lambda: [job for job in jobs if job.name not in found], workers=1):
        found[end.job.name] = end
        during(end)
    return found


def test_a_job_that_fails_is_told_of_and_the_others_go_on() -> None:
    found = ended([digits_job("bad", method="spgd"), digits_job("good")])
    assert found["bad"].result is None
    assert "needs a radius" in found["bad"].problem
    result = found["good"].result
    assert result is not None
    assert result["errors"]["pgd"]["0"] < 0.9


def test_a_worker_that_is_killed_ends_the_call_and_a_second_one_goes_on() -> None:
    jobs = [digits_job("first"), digits_job("endless", epochs=100_000), digits_job("last")]
    found: dict[str, Ended] = {}

    def kill_the_next(end: Ended) -> None:
        found[end.job.name] = end  # "endless" is begun once we have looked at this one: the worker dies in it
        (worker,) = multiprocessing.active_children()
        threading.Timer(1.0, worker.kill).start()

    with pytest.raises(
        RunError, match=r"ended from outside .* at work: endless\. .* the same command goes on from here"
    ):
        ended(jobs, kill_the_next)
    assert list(found) == ["first"]
    assert not multiprocessing.active_children()
    assert list(ended([job for job in jobs if job.name == "last"])) == ["last"]
