"""Sites that die, lie, sleep or are not who they say; a server that is killed: with real processes."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rhobust.config import Config
from rhobust.engines.nvflare import processes
from rhobust.engines.nvflare.kits import FederationError, make_kits
from rhobust.engines.nvflare.processes import Party
from tests.deployments import (
    Deployment,
    assert_same,
    deployed,
    digits_file,
    in_process,
    killed_at_last,
    last,
    lines,
    until,
)

Submit = Callable[..., subprocess.Popen[str]]
SETTINGS = {"method": "drfl", "radius": 2.0, "batch_size": 32, "threads": 1, "checkpoint_every": 10, "seed": 3}
DEADLINE = "4"
SECRET = "/patients/names.npz"

# The rhobust that is installed at the third site, as its owner has changed it: in the rounds that a file names it
# answers as the file says. It is loaded by that site's processes only.
LIAR = """
import sys
if any("worker_process" in word for word in sys.orig_argv):
    import json, pathlib, time
    from rhobust.engines.nvflare.site import Site
    honest = Site._gradient
    def lying(self, task):
        answer = honest(self, task)
        file = pathlib.Path({lies!r})
        how = json.loads(file.read_text()).get(str(task["round"])) if file.exists() else None
        vector = answer["theta"]
        if how == "raise":
            raise RuntimeError({secret!r})
        if how == "sleep":
            time.sleep({deadline} + 2)
        return {{
            "nan": answer | {{"theta": vector | {{"numbers": b"\\xff" * len(vector["numbers"])}}}},
            "shape": answer | {{"theta": vector | {{"numbers": vector["numbers"][:-4]}}}},
            "object": answer | {{"theta": vector | {{"type": "|O"}}}},
            "stale": answer | {{"round": answer["round"] - 1}},
            "twice": [answer, answer],
            "more": answer | {{"extra": 1}},
            "greedy": answer | {{"gamma": 5.0}},
        }}.get(how, answer)
    Site._gradient = lying
"""
NAMED = {
    "raise": "RuntimeError",
    "nan": "not finite",
    "shape": "shape",
    "object": "'|O'",
    "stale": "answered for round",
    "twice": "list",
    "more": "extra",
    "greedy": "above rho",
    "sleep": "no answer within",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("federation")


@pytest.fixture(scope="module")
def federation(folder: Path) -> Iterator[Deployment]:
    with deployed(folder / "fed") as federation:
        federation.use(digits_file(folder / "digits.npz"))
        code = folder / "liar"
        code.mkdir()
        lies = str(folder / "lies.json")
        (code / "sitecustomize.py").write_text(LIAR.format(lies=lies, secret=SECRET, deadline=DEADLINE))
        for name in ("server", "site-1", "site-2"):
            federation.start(name)
        federation.start("site-3", PYTHONPATH=str(code))
        yield federation


@pytest.fixture
def submit(federation: Deployment, folder: Path, tmp_path: Path) -> Submit:
    """A training into tmp_path/run with some settings besides ours."""

    def submitted(*options: str, **more: object) -> subprocess.Popen[str]:
        words = [f"{key}={value}" for key, value in (SETTINGS | {"data": folder / "digits.npz"} | more).items()]
        return federation.submit(*words, "--out", str(tmp_path / "run"), *options)

    return submitted


def test_a_faulty_answer_is_dropped_and_named_and_the_round_stands(
    federation: Deployment, folder: Path, tmp_path: Path, submit: Submit
) -> None:
    told = {3 + 2 * number: how for number, how in enumerate(NAMED)}
    (folder / "lies.json").write_text(json.dumps(told))
    run = tmp_path / "run"
    process = submit("--deadline", DEADLINE, rounds=max(told) + 2)
    _, said = process.communicate()
    (folder / "lies.json").unlink()
    assert process.returncode == 0, said
    rounds = lines(run)
    assert [line["step"] for line in rounds] == list(range(max(told) + 2))
    for line in rounds[: max(told) + 1]:
        how = told.get(line["step"])
        assert list(line["dropped"]) == (["site-3"] if how else []), line
        assert line["workers"] == (2 if how else 3)
        if how:
            assert NAMED[how] in line["dropped"]["site-3"]
    assert SECRET not in (run / "metrics.jsonl").read_text() + said  # of a failure only its kind leaves a site
    assert SECRET in "".join(file.read_text() for file in (federation.path / "site-3").rglob("log.txt"))


def test_a_killed_site_is_left_out_at_no_cost_and_comes_back_and_too_few_are_a_stop(
    federation: Deployment, tmp_path: Path, submit: Submit
) -> None:
    run = tmp_path / "run"
    process = submit("--deadline", DEADLINE, rounds=100_000, quorum=2)
    with killed_at_last(process):
        until(lambda: len(lines(run)) > 20, "the first rounds")
        federation.kill("site-2")
        until(lambda: last(run)["dropped"], "the loss to be noticed")
        first = next(line for line in lines(run) if line["dropped"])
        assert list(first["dropped"]) == ["site-2"]
        longest = _longest_gap(run, seconds=12)  # it is tried again after ten
        assert longest < 2, f"a round took {longest:.1f} s"
        federation.start("site-2")
        until(lambda: not last(run)["dropped"], "its return")
        for name in ("site-1", "site-2"):
            federation.kill(name)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "site-2 was dropped: no answer within 4 s" in said
    assert "site-2 came back" in said
    assert "1 of 3 workers answered usefully, 2 are needed (site-1: no answer" in said
    assert f"--resume {run}" in said
    newest = sorted((run / "checkpoints").iterdir())[-1]
    assert newest.name == f"step-{len(lines(run)):09d}.safetensors"  # nothing that was done is lost
    process = federation.submit("--resume", str(run))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "2 sites are needed and 1 are there; missing: site-1, site-2" in said
    federation.start()


def _longest_gap(run: Path, seconds: float) -> float:
    """The longest time without a new round."""
    end, size, since, longest = time.monotonic() + seconds, 0, time.monotonic(), 0.0
    while (now := time.monotonic()) < end:
        if (run / "metrics.jsonl").stat().st_size > size:
            size, since = (run / "metrics.jsonl").stat().st_size, now
        longest = max(longest, now - since)
        time.sleep(0.01)
    return longest


def test_interrupted_resumed_its_server_killed_and_resumed_again_it_ends_with_the_same_bits(
    federation: Deployment, tmp_path: Path, submit: Submit
) -> None:
    run, rounds = tmp_path / "run", 250
    process = submit(rounds=rounds)
    with killed_at_last(process):
        until(lambda: len(lines(run)) > 15, "the first rounds")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"--resume {run}" in said
    stopped = len(lines(run))
    assert (run / "checkpoints" / f"step-{stopped:09d}.safetensors").exists()

    process = federation.submit("--resume", str(run))
    with killed_at_last(process):
        until(lambda: len(lines(run)) > stopped + 15, "it to go on")
        federation.kill("server")
        _, said = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "the server is gone" in said
    assert not (run / "model.safetensors").exists()
    assert stopped < len(lines(run)) < rounds

    federation.start("server")
    until(lambda: _idle(federation) == {"site-1", "site-2", "site-3"}, "the sites to find the server again")
    process = federation.submit("--resume", str(run))
    with killed_at_last(process):
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert [line["step"] for line in lines(run)] == list(range(rounds))
    assert not any(line["dropped"] for line in lines(run))
    assert_same(run, in_process(Config.from_toml(run / "config.toml"), 3))


def _idle(federation: Deployment) -> set[str]:
    """The sites that are connected and have nothing to do, as the command says."""
    command = [sys.executable, "-m", "rhobust", "federation", "status", str(federation.path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {line.removesuffix(": idle") for line in said.splitlines() if line.endswith(": idle")}


def test_a_site_with_a_certificate_of_another_authority_is_refused(
    federation: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = make_kits(tmp_path / "other", 4, "localhost", federation.kits.port)
    monkeypatch.setattr(processes, "_PATIENCE", 10.0)
    with pytest.raises(FederationError, match="site-4 cannot join"):
        processes.start([Party(stranger.path / "site-4")], lambda line: None)
    assert Party(stranger.path / "site-4").process() is None
    assert _idle(federation) == {"site-1", "site-2", "site-3"}
