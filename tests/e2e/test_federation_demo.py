"""The demo of a deployed federation: from nothing to a trained model that every other command reads."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from rhobust.commands.app import app
from rhobust.errors import RhobustError
from rhobust.runs.config import Config
from tests.deployments import assert_same, in_process, lines


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rhobust", *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    began = time.monotonic()
    done = command("federation", "demo", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 120
    assert "test error: clean" in done.stdout
    left = [process.pid for process in psutil.process_iter(["cmdline"]) if str(out) in str(process.info["cmdline"])]
    assert not left
    return out


def test_it_is_the_federation_in_one_process_to_the_bit(demo: Path) -> None:
    run = demo / "run"
    config = Config.from_toml(run / "config.toml")
    server = in_process(config, 3)
    assert len(lines(run)) == server.round == 200
    assert not any(line["dropped"] for line in lines(run))
    assert_same(run, server)


def test_its_run_is_read_by_the_other_commands(demo: Path) -> None:
    run = demo / "run"
    done = command(
        "evaluate", str(run), "--attacks", "ifgsm", "--epsilons", "0,0.1", "--json", str(demo / "errors.json")
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((demo / "errors.json").read_text())
    done = command("certify", str(run), "--radii", "0.5,2")
    assert done.returncode == 0, done.stderr


def test_resuming_it_when_it_is_finished_says_so_and_needs_nobody(demo: Path) -> None:
    done = command("federation", "submit", str(demo / "fed"), "--resume", str(demo / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{demo / 'run'} was finished already, nothing was done: 200 rounds, loss ")


def test_what_cannot_be_is_one_clear_line(demo: Path, tmp_path: Path) -> None:
    fed = str(demo / "fed")
    for words, said in (
        (["submit", fed, "radius=2", "--out", str(tmp_path / "run")], "cannot be reached"),
        (["submit", fed, "radius=2", "workers=7", "--out", str(tmp_path / "run")], "has 3 sites"),
        (["submit", fed, "radius=2", "partition=iid", "--out", str(tmp_path / "run")], "simulated workers"),
        (["submit", fed, "radius=2", "train_samples=50", "--out", str(tmp_path / "run")], "by share in its site.toml"),
        (
            ["submit", fed, "liars=1", "--out", str(tmp_path / "run")],
            "byzantine is for simulated workers (rhobust federate); drop it\n'liars' is called 'byzantine' now\nmethod",
        ),
        (["submit", fed, "radius=2"], "--out DIRECTORY"),
        (["submit", str(tmp_path), "--out", "run"], "is no federation"),
        (["start", fed, "--site", "site-9"], "'site-9' (did you mean 'site-3'?); known: server, site-1"),
        (["init", "--out", fed], "not empty; nothing was changed"),
        (["status", str(tmp_path)], "holds no kits"),
    ):
        found = CliRunner().invoke(app, ["federation", *words])
        assert isinstance(found.exception, RhobustError), words  # one line and exit code 1 (e2e/test_command.py)
        assert said in str(found.exception)
    assert not (tmp_path / "run").exists()
