"""A run killed with SIGKILL at any moment and resumed ends bit for bit like one that was left alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rhobust.runs import Run

# Dropout draws from the generator and Adam keeps buffers: all of it has to survive.
SETTINGS = ["data=digits", "method=spgda", "radius=1", "epochs=3", "batch_size=256", "checkpoint_every=4", "seed=5"]

# The command in a process that kills itself, as no handler can prevent, at the nth call of a system call.
KILL_AT = """
import os, signal, sys
call, count = sys.argv[1], int(sys.argv[2])
real = getattr(os, call)
def counted(*args, **kwargs):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(os, call, counted)
sys.argv = ["rhobust", *sys.argv[3:]]
from rhobust.cli import main
main()
"""


def train(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "rhobust", "train", *words, "--quiet"], check=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "run"
    train(*SETTINGS, "--out", str(path))
    return path


def assert_same_run(path: Path, reference: Path) -> None:
    for name in ("model.safetensors", "metrics.jsonl", "config.toml"):
        assert (path / name).read_bytes() == (reference / name).read_bytes(), name


# fsync and replace are called while a checkpoint is written: before its bytes are safe, and before it has its name.
@pytest.mark.parametrize(("call", "count"), [("fsync", 8), ("fsync", 14), ("replace", 4), ("replace", 6)])
def test_killed_during_a_save_and_resumed(tmp_path: Path, undisturbed: Path, call: str, count: int) -> None:
    path = tmp_path / "run"
    command = [sys.executable, "-c", KILL_AT, call, str(count), "train", *SETTINGS, "--out", str(path), "--quiet"]
    killed = subprocess.run(command, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not Run.find(path).finished
    train("--resume", str(path))
    assert_same_run(path, undisturbed)


def test_killed_from_outside_twice_and_resumed(tmp_path: Path, undisturbed: Path) -> None:
    path = tmp_path / "run"
    words = [*SETTINGS, "--out", str(path)]
    for lines in (3, 9):  # wait until so many steps are logged, then kill without warning
        process = subprocess.Popen([sys.executable, "-m", "rhobust", "train", *words, "--quiet"])
        metrics = path / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines):
            time.sleep(0.002)
        process.kill()
        process.wait()
        words = ["--resume", str(path)]
    train("--resume", str(path))
    assert_same_run(path, undisturbed)


def test_an_interrupt_waits_for_the_step_saves_it_and_says_how_to_go_on(tmp_path: Path, undisturbed: Path) -> None:
    path = tmp_path / "run"
    command = [sys.executable, "-m", "rhobust", "train", *SETTINGS, "checkpoint_every=1000", "--out", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    metrics = path / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"--resume {path}" in said
    assert len(list((path / "checkpoints").iterdir())) == 1
    train("--resume", str(path))
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (path / name).read_bytes() == (undisturbed / name).read_bytes(), name


@pytest.mark.parametrize("damage", ["flipped bit", "cut short", "emptied"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    tmp_path: Path, undisturbed: Path, damage: str
) -> None:
    path = tmp_path / "run"
    command = [sys.executable, "-c", KILL_AT, "replace", "8", "train", *SETTINGS, "--out", str(path), "--quiet"]
    subprocess.run(command, check=False)
    newest = sorted((path / "checkpoints").glob("step-*"))[-1]
    content = bytearray(newest.read_bytes())
    if damage == "flipped bit":
        content[-100] ^= 1
    newest.write_bytes({"flipped bit": content, "cut short": content[: len(content) // 2], "emptied": b""}[damage])
    resumed = subprocess.run(
        [sys.executable, "-m", "rhobust", "train", "--resume", str(path)], capture_output=True, text=True, check=True
    )
    assert newest.name in resumed.stderr
    assert_same_run(path, undisturbed)


def test_no_partial_file_is_left_behind_by_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rhobust.files import write_atomically

    target = tmp_path / "file"
    write_atomically(target, b"old")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
