"""A run killed with SIGKILL at any moment and resumed ends bit for bit like one that was left alone."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rhobust.runs.directory import Run

# Noise and dropout draw from the generator, also in the middle of an epoch (of 6 steps), and Adam keeps buffers: all of
# it has to survive.
SETTINGS = [
    *("data=digits", "method=spgda", "radius=1", "noise=0.1", "epochs=3", "batch_size=256"),
    *("checkpoint_every=4", "seed=5"),
]

# The command, where a model has dropout.
MAIN = """
from torch import nn
from rhobust.commands.app import main
from rhobust.models.catalog import MODELS, mlp
MODELS["mlp"] = lambda shape, classes: nn.Sequential(nn.Dropout(0.2), mlp(shape, classes))
main()
"""

# The same in a process that kills itself, as no handler can prevent, at the nth call of a system call.
KILL_AT = f"""
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
{MAIN}"""


def training(*words: str) -> list[str]:
    return [sys.executable, "-c", MAIN, "train", *words]


def train(*words: str) -> None:
    subprocess.run([*training(*words), "--quiet"], check=True)


def wait_for(process: subprocess.Popen[str], path: Path, lines: int, screen: int | None = None) -> None:
    """Until so many steps are logged, or the process has ended."""
    metrics = path / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines):
        time.sleep(0.002)
        if screen is not None:
            os.read(screen, 10_000)  # a terminal that is full would hold up the bar


@pytest.fixture(scope="module")
def probing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "run"
    train(*SETTINGS, "--out", str(path))
    return path


def assert_same_run(path: Path, reference: Path) -> None:
    for name in ("model.safetensors", "metrics.jsonl", "config.toml"):
        assert (path / name).read_bytes() == (reference / name).read_bytes(), name


# fsync and replace are called while a checkpoint is written: before its bytes are safe, and before it has its name.
@pytest.mark.parametrize(("call", "count"), [("fsync", 8), ("fsync", 14), ("replace", 4), ("replace", 6)])
def test_killed_during_a_save_and_resumed(tmp_path: Path, probing: Path, call: str, count: int) -> None:
    path = tmp_path / "run"
    command = [sys.executable, "-c", KILL_AT, call, str(count), "train", *SETTINGS, "--out", str(path), "--quiet"]
    killed = subprocess.run(command, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not Run.find(path).finished
    train("--resume", str(path))
    assert_same_run(path, probing)


def test_killed_from_outside_twice_and_resumed(tmp_path: Path, probing: Path) -> None:
    path = tmp_path / "run"
    words = [*SETTINGS, "--out", str(path)]
    for lines in (3, 9):
        process = subprocess.Popen([*training(*words), "--quiet"], text=True)
        wait_for(process, path, lines)
        process.kill()
        process.wait()
        words = ["--resume", str(path)]
    train("--resume", str(path))
    assert_same_run(path, probing)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_waits_for_the_step_saves_it_and_says_how_to_go_on(
    tmp_path: Path, probing: Path, number: signal.Signals
) -> None:
    path = tmp_path / "run"
    command = training(*SETTINGS, "checkpoint_every=1000", "--out", str(path))
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(process, path, 2)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"--resume {path}" in said
    assert len(list((path / "checkpoints").iterdir())) == 1
    train("--resume", str(path))
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (path / name).read_bytes() == (probing / name).read_bytes(), name


def test_what_was_ignored_when_it_began_stays_so(tmp_path: Path) -> None:
    """SIGINT in the background of a script, SIGHUP under nohup."""
    path = tmp_path / "run"
    command = training(*SETTINGS, "epochs=1000", "checkpoint_every=100000", "--out", str(path))
    deaf = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *command]
    process = subprocess.Popen(deaf, stderr=subprocess.PIPE, text=True)
    for number, lines in ((signal.SIGINT, 2), (signal.SIGHUP, 7), (signal.SIGTERM, 12)):
        wait_for(process, path, lines)
        assert process.poll() is None
        process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"--resume {path}" in said
    assert len(list((path / "checkpoints").iterdir())) == 1


def test_a_terminal_that_is_closed_takes_no_step_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    screen, its = pty.openpty()
    command = training(*SETTINGS, "epochs=1000", "checkpoint_every=100000", "--out", str(path))
    process = subprocess.Popen(command, stderr=its, text=True)
    os.close(its)
    wait_for(process, path, 2, screen)
    os.close(screen)
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 130
    assert len(list((path / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize("damage", ["flipped bit", "cut short", "emptied"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    tmp_path: Path, probing: Path, damage: str
) -> None:
    path = tmp_path / "run"
    command = [sys.executable, "-c", KILL_AT, "replace", "8", "train", *SETTINGS, "--out", str(path), "--quiet"]
    subprocess.run(command, check=False)
    newest = sorted((path / "checkpoints").glob("step-*"))[-1]
    content = bytearray(newest.read_bytes())
    if damage == "flipped bit":
        content[-100] ^= 1
    newest.write_bytes(
        {"flipped bit": content, "cut short": content[: len(content) // 2], "emptied": bytearray()}[damage]
    )
    resumed = subprocess.run(training("--resume", str(path)), capture_output=True, text=True, check=True)
    assert newest.name in resumed.stderr
    assert_same_run(path, probing)


def test_no_partial_file_is_left_behind_by_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rhobust.support.files import write_atomically

    target = tmp_path / "file"
    write_atomically(target, b"old")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
