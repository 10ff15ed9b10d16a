"""Run directories that somebody else touches: another process, an editor, a full disk."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rhobust
from rhobust.ascent.oracle import Oracle
from rhobust.commands.app import app
from rhobust.errors import RunError
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.start import train_run
from rhobust.runs.summary import summary
from rhobust.support.files import LOCK, write_atomically
from rhobust.training.observers import Observer
from rhobust.training.record import rho_eff
from rhobust.training.remarks import apart

CONFIG = Config.resolve({"method": "spgda", "radius": 1, "epochs": 2, "batch_size": 512, "threads": 1})


class Stop(Observer):
    """Ends a training after some steps as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.left = after

    def stepped(self, record: object) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


class Said(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warned(self, message: str) -> None:
        self.messages.append(message)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run with a checkpoint after its first epoch, stopped in the second."""
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train_run(path, CONFIG, Stop(after=5))
    assert not Run.find(path).finished
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(tmp_path_factory.mktemp("whole") / "run", CONFIG).path


def test_two_processes_cannot_write_one_run(stopped: Path) -> None:
    with Run.find(stopped).locked():
        other = subprocess.run(
            [sys.executable, "-m", "rhobust", "train", "--resume", str(stopped)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert other.returncode == 1
    assert other.stderr == f"error: {stopped} is being written by another process; wait for it, or stop it\n"
    train_run(stopped, None)  # and the lock is gone with its holder
    assert Run.find(stopped).finished


def test_a_directory_with_a_lock_alone_is_vacant(tmp_path: Path) -> None:
    with Run(tmp_path).locked():
        assert Run.vacant(tmp_path).path == tmp_path
    (tmp_path / LOCK).touch()
    train_run(tmp_path, CONFIG)
    with pytest.raises(RunError, match="already holds a run"):
        Run.vacant(tmp_path)


def test_a_config_that_was_edited_is_not_resumed(stopped: Path) -> None:
    path = stopped / "config.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 5"))
    with pytest.raises(RunError, match=r"config\.toml was changed since the run started"):
        train_run(stopped, None)


def test_without_a_usable_checkpoint_it_says_so_and_starts_again(stopped: Path, whole: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    said = Said()
    train_run(stopped, None, said)
    assert said.messages == [f"{stopped} has no usable checkpoint; starting again from step 0"]
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()


def test_metrics_that_are_gone_or_cut_stop_a_resumption(stopped: Path) -> None:
    metrics = stopped / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:100])
    with pytest.raises(RunError, match="shorter than its checkpoint says"):
        train_run(stopped, None)
    metrics.unlink()
    with pytest.raises(RunError, match="is missing"):
        train_run(stopped, None)


def test_a_damaged_model_says_how_to_make_it_again(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(whole, path)
    model = path / "model.safetensors"
    sound = model.read_bytes()
    for damaged, why in (
        (sound[:-1] + bytes([sound[-1] ^ 1]), "does not match its checksum"),
        (sound[:500], r"damaged or not ours \(SafetensorError\)"),
    ):
        model.write_bytes(damaged)
        for use in (rhobust.load, lambda path: train_run(path, None)):  # "finished already" would not be true
            with pytest.raises(RunError, match=f"{why}; delete it and make it again: rhobust train --resume"):
                use(path)
    model.unlink()
    train_run(path, None)
    assert model.read_bytes() == sound


@pytest.mark.skipif(sys.platform == "darwin", reason="no such names there")
def test_a_name_that_is_not_utf8_is_one_like_any_other(stopped: Path, whole: Path) -> None:
    path, shown = stopped.with_name(os.fsdecode(b"run\xff")), rf"{stopped.parent}/run\udcff"
    stopped.rename(path)
    said = Said()
    train_run(path, None, said)
    assert said.messages == []  # it went on from its checkpoint
    assert (path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert rhobust.load(path).gamma == rhobust.load(whole).gamma
    few, page = ["--samples", "20"], path.with_suffix(".md")
    for words, line in (
        (["train", "--resume", path], f"{shown} was finished already"),
        (["evaluate", path, *few, "--attacks", "fgsm"], f"test data of {shown}\n"),
        (["certify", path, *few], f"test data of {shown}\n"),
        (["report", path, *few, "--out", page], f"{shown}.md: 1 row of 1 run"),
    ):
        done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        assert done.exit_code == 0
        assert line in done.stdout
    assert f"rhobust certify '{shown}'" in page.read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rhobust.commands.app import main

    file = tmp_path / "file"
    file.write_text("in the way")
    monkeypatch.setattr(sys, "argv", ["rhobust", "train", "radius=1", "--out", str(file / "run")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "Not a directory" in said


def test_a_full_disk_is_one_line_and_the_run_can_go_on(tmp_path: Path, whole: Path) -> None:
    """A limit on the size of files stands in for the disk: checkpoints are larger, the other files are not."""
    path = tmp_path / "run"
    words = ["method=spgda", "radius=1", "epochs=2", "batch_size=512", "threads=1"]
    command = f"ulimit -f 100; exec {sys.executable} -m rhobust train {' '.join(words)} --out {path} --quiet"
    full = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert full.returncode == 1
    assert full.stderr.startswith("error: ")
    assert full.stderr.count("\n") == 1
    assert not list((path / "checkpoints").iterdir())
    train_run(path, None)
    assert (path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_run_is_continued_by_the_command_that_can(tmp_path: Path) -> None:
    for settings, command in (
        ('method = "spgda"', "rhobust train --resume"),
        ('partition = "sites"', "rhobust federation submit FED --resume"),
    ):
        run = Run(tmp_path / command.split()[1])
        run.path.mkdir()
        run.config_path.write_text(settings)
        with pytest.raises(RunError, match=f"not finished; continue it with: {command} {run.path}"):
            run.trained()
        with pytest.raises(RunError, match=f"or go on with: {command} {run.path}"):
            Run.vacant(run.path)


def test_the_cost_of_a_federation_is_that_of_its_last_rounds() -> None:
    def rounds(count: int) -> list[dict[str, Any]]:
        return [{"epoch": number // 50, "rho_eff": float(number), "workers": 3} for number in range(count)]

    assert rho_eff(rounds(40)) == pytest.approx(34.5)  # 30 to 39
    assert rho_eff(rounds(51)) == pytest.approx(44.0)  # 38 to 50: not the one round of a new block
    assert rho_eff(rounds(1000)) == pytest.approx(974.5)  # 950 to 999


def test_a_radius_that_is_not_spent_is_remarked_on(tmp_path: Path) -> None:
    """With a cap of 0.1 no more than 0.01 can be spent, whatever the price; and no more than errors take, at any."""
    common = {"method": "spgda", "cost": "linf", "model": "linear", "epochs": 1, "gamma": 0.001}
    capped = " and no more: with cap 0.1 no sample costs more than 0.01. Raise cap, or take a smaller rho"
    floored = " and no more: gamma is at its floor. Lower gamma_min, or take a smaller rho"
    for radius, cap, rule, remark in (
        (1.0, 0.1, "multiplicative:0.05", capped),
        (3.9, math.inf, "multiplicative:0.05", floored),
        (0.001, 0.1, "multiplicative:0.05", ": gamma has not settled. Train longer"),
        (1.0, 0.1, "fixed", ""),
    ):
        config = Config.resolve(common, {"radius": radius, "cap": cap, "gamma_rule": rule})
        run = train_run(tmp_path / f"{radius}-{rule[:5]}", config)
        found = re.search(
            rf"^12 steps, loss .*E\[c\] [\d.e-]+ of rho {radius:g} \([\d.]+ deviations a feature\)(.*)$", summary(run)
        )
        assert found
        assert found[1] == remark


def test_steps_that_are_not_all_logged_are_not_counted_as_if(tmp_path: Path) -> None:
    settings = {"method": "erm", "model": "linear", "epochs": 1, "log_every": 5}
    assert summary(train_run(tmp_path / "run", Config.resolve(settings))).startswith("steps logged up to 11, ")


def test_damaged_checkpoints_do_not_outlive_sound_ones_of_fewer_steps(stopped: Path) -> None:
    run = Run(stopped)
    for path in (stopped / "checkpoints").iterdir():
        path.unlink()
    for step in (3000, 3100, 3200):
        run._checkpoint_path(step).write_bytes(b"damage")
    said: list[str] = []
    assert run.restore(said.append) == (0, None)
    assert len([words for words in said if "looking for one before it" in words]) == 3
    run.save_checkpoint(20, {})
    assert run.restore(said.append)[0] == 20
    assert len(list((stopped / "checkpoints").glob("*.damaged"))) == 3  # nothing is lost


def test_a_file_that_is_written_again_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "secret.md"
    write_atomically(path, b"a")
    path.chmod(0o600)
    write_atomically(path, b"b")
    assert path.stat().st_mode & 0o777 == 0o600


def test_why_nothing_moves_is_remarked_on() -> None:
    """An ascent that cannot, or a loss without a slope, as where logits are saturated."""
    one = apart(0.0, 1.0, 0.5, 1e-3, Oracle(max_steps=1))
    assert one.startswith(" and no more: with max_steps 1 the one gradient measures the start")
    assert apart(0.0, 1.0, 0.5, 1e-3, Oracle()).startswith(": nothing moves, for the loss has no slope.")
