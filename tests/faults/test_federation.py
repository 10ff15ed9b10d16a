"""Sites that die, send invalid uploads, sleep or have a foreign certificate; a killed server: with real processes."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rhobust.deployment import processes
from rhobust.deployment.kits import FederationError, make_kits
from rhobust.deployment.processes import Party
from rhobust.runs.config import Config
from tests.deployments import (
    PATIENCE,
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

# The rhobust that is installed at the second site, as its owner has changed it: in the rounds that a file names it
# fails as the file says. Only that site's processes load it.
FAULTY = """
import sys
if any("worker_process" in word for word in sys.orig_argv):
    import json, os, pathlib, time
    if pathlib.Path({faults!r} + ".dead").exists():
        os._exit(1)
    from rhobust.deployment.site import Site
    honest = Site._gradient
    def faulty(self, task):
        answer = honest(self, task)
        file = pathlib.Path({faults!r})
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
    Site._gradient = faulty
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
    with deployed(folder / "fed", 2) as federation:
        federation.use(digits_file(folder / "digits.npz"))
        code = folder / "faulty"
        code.mkdir()
        faults = str(folder / "faults.json")
        (code / "sitecustomize.py").write_text(FAULTY.format(faults=faults, secret=SECRET, deadline=DEADLINE))
        federation.start("server")
        federation.start("site-1")
        federation.start("site-2", PYTHONPATH=str(code))
        yield federation


@pytest.fixture
def submit(federation: Deployment, folder: Path, tmp_path: Path) -> Submit:
    """A training into tmp_path/run with some settings besides ours."""

    def submitted(*options: str, **more: object) -> subprocess.Popen[str]:
        data = os.path.relpath(folder / "digits.npz")  # as a user would write it; the server is elsewhere
        words = [f"{key}={value}" for key, value in (SETTINGS | {"data": data} | more).items()]
        return federation.submit(*words, "--out", str(tmp_path / "run"), *options)

    return submitted


def test_a_training_begins_without_a_site_whose_process_does_not_start(
    federation: Deployment, folder: Path, submit: Submit, tmp_path: Path
) -> None:
    dead = folder / "faults.json.dead"
    dead.touch()
    try:
        training = submit("--deadline", DEADLINE, rounds=30, quorum=1)
        with killed_at_last(training):
            said = training.communicate(timeout=3 * PATIENCE)[1]
    finally:
        dead.unlink()
    assert training.returncode == 0, said
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(30))
    assert all(record["dropped"] == {"site-2": "is not connected"} for record in records)


def test_a_faulty_answer_is_dropped_and_named_and_an_interrupt_waits_for_its_checkpoint(
    federation: Deployment, folder: Path, tmp_path: Path, submit: Submit
) -> None:
    planned = {3 + 2 * number: how for number, how in enumerate(NAMED)}
    (folder / "faults.json").write_text(json.dumps(planned))
    run = tmp_path / "run"
    process = submit("--deadline", DEADLINE, rounds=100_000)
    with killed_at_last(process):
        until(lambda: len(lines(run)) > max(planned), "every fault to happen")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    (folder / "faults.json").unlink()
    assert process.returncode == 130, said
    assert f"--resume {run}" in said
    rounds = lines(run)
    assert (run / "checkpoints" / f"step-{len(rounds):09d}.safetensors").exists()  # nothing that was done is lost
    for line in rounds[: max(planned) + 1]:  # every round stands
        how = planned.get(line["step"])
        assert list(line["dropped"]) == (["site-2"] if how else []), line
        assert line["workers"] == (1 if how else 2)
        if how:
            assert NAMED[how] in line["dropped"]["site-2"]
    assert SECRET not in (run / "metrics.jsonl").read_text() + said  # of a failure only its kind leaves a site
    assert SECRET in "".join(file.read_text() for file in (federation.path / "site-2").rglob("log.txt"))


def test_a_killed_site_is_left_out_at_no_cost_and_comes_back_and_too_few_are_a_stop(
    federation: Deployment, tmp_path: Path, submit: Submit
) -> None:
    run = tmp_path / "run"
    process = submit("--deadline", DEADLINE, rounds=100_000)
    with killed_at_last(process):
        _lost(run, "site-1", federation.kill)
        longest = _longest_gap(run, seconds=12)  # it is tried again after ten
        assert longest < 2, f"a round took {longest:.1f} s"
        federation.start("site-1")
        until(lambda: not last(run)["dropped"], "its return")
        for name in federation.kits.sites:
            federation.kill(name)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "site-1 was dropped: no answer within 4 s" in said
    assert "site-1 came back" in said
    assert "0 of 2 workers sent a valid upload, 1 are needed (site-1: no answer" in said
    assert f"--resume {run}" in said
    newest = sorted((run / "checkpoints").iterdir())[-1]
    assert newest.name == f"step-{len(lines(run)):09d}.safetensors"
    process = federation.submit("--resume", str(run))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "1 sites are needed and 0 are there; missing: site-1, site-2" in said
    federation.start()


def test_a_site_of_which_only_the_job_was_killed_is_dropped_and_named_and_comes_back(
    federation: Deployment, tmp_path: Path, submit: Submit
) -> None:
    run = tmp_path / "run"
    process = submit("--deadline", DEADLINE, rounds=100_000)
    with killed_at_last(process):
        first = _lost(run, "site-1", federation.kill_job)
        assert first["workers"] == 1  # the round stands
        until(lambda: not last(run)["dropped"], "its return")
        rounds = lines(run)
        assert [line["step"] for line in rounds] == list(range(len(rounds)))  # no round is lost or taken twice
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "site-1 was dropped: " in said
    assert "site-1 came back" in said
    without = [line["step"] for line in lines(run) if line["dropped"]]
    assert without == list(range(first["step"], without[-1] + 1))  # once it is back, it stays


def _lost(run: Path, name: str, kill: Callable[[str], object]) -> dict[str, Any]:
    """The first round without a site that is killed in the middle of a training."""
    until(lambda: len(lines(run)) > 20, "the first rounds")
    kill(name)
    until(lambda: last(run)["dropped"], "the loss to be noticed")
    first = next(line for line in lines(run) if line["dropped"])
    assert list(first["dropped"]) == [name]
    return first


def _longest_gap(run: Path, seconds: float) -> float:
    """The longest time without a new round."""
    end, size, since, longest = time.monotonic() + seconds, 0, time.monotonic(), 0.0
    while (now := time.monotonic()) < end:
        if (run / "metrics.jsonl").stat().st_size > size:
            size, since = (run / "metrics.jsonl").stat().st_size, now
        longest = max(longest, now - since)
        time.sleep(0.01)
    return longest


def test_with_its_server_killed_and_resumed_it_ends_with_the_same_bits(
    federation: Deployment, tmp_path: Path, submit: Submit
) -> None:
    run, rounds = tmp_path / "run", 200
    process = submit(rounds=rounds)
    with killed_at_last(process):
        until(lambda: len(lines(run)) > 25, "the first rounds")
        federation.kill("server")
        _, said = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "the server is gone" in said
    assert f"--resume {run}" in said
    assert not (run / "model.safetensors").exists()
    assert len(lines(run)) < rounds

    federation.start("server")
    until(lambda: _idle(federation) == set(federation.kits.sites), "the sites to find the server again")
    process = federation.submit("--resume", str(run))
    with killed_at_last(process):
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert [line["step"] for line in lines(run)] == list(range(rounds))
    assert not any(line["dropped"] for line in lines(run))
    assert_same(run, in_process(Config.from_toml(run / "config.toml"), 2))


def _idle(federation: Deployment) -> set[str]:
    """The sites that are connected and have nothing to do, as the command says."""
    command = [sys.executable, "-m", "rhobust", "federation", "status", str(federation.path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {line.removesuffix(": idle") for line in said.splitlines() if line.endswith(": idle")}


def test_a_site_with_a_certificate_of_another_authority_is_refused(
    federation: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = make_kits(tmp_path / "other", 3, "localhost", federation.kits.port)
    own, foreign = federation.path / "site-1" / "startup", stranger.path / "site-1" / "startup"
    assert _handshake(federation, own) == "accepted"
    assert _handshake(federation, foreign) == "refused"
    assert _handshake(federation, None) == "refused"
    monkeypatch.setattr(processes, "_PATIENCE", 8.0)
    with pytest.raises(FederationError, match="site-3 cannot join"):
        processes.start([Party(stranger.path / "site-3")], lambda line: None)
    assert Party(stranger.path / "site-3").process() is None
    assert _idle(federation) == set(federation.kits.sites)


def _handshake(federation: Deployment, startup: Path | None) -> str:
    """Whether the server accepts a certificate, or none, from a party that trusts the server."""
    context = ssl.create_default_context(cafile=str(federation.path / "site-1" / "startup" / "rootCA.pem"))
    if startup:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with socket.create_connection(("localhost", federation.kits.port)) as plain:
        plain.settimeout(2)
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as channel:
                return "accepted" if channel.recv(1) else "refused"
        except TimeoutError:  # it waits for us to speak
            return "accepted"
        except (ssl.SSLError, ConnectionError):
            return "refused"
