"""A run knows its data: others under the same name are refused, whoever asks."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rhobust.commands.app import app
from rhobust.data.npz import from_npz
from rhobust.errors import ConfigError, DataError, RunError

WORDS = "train --data mine.npz --model linear --method erm --epochs 2 --out run checkpoint_every=1 learning_rate=0.1"


def command(words: str) -> str:
    result = CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def write(path: Path, flip: bool = False) -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(60, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(path, x=x, y=1 - y if flip else y)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.npz")
    command(WORDS)
    return tmp_path


def test_a_run_finds_its_data_from_wherever_it_is_looked_at(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "elsewhere").mkdir()
    write(place / "elsewhere" / "mine.npz", flip=True)  # another file of that name lies there
    monkeypatch.chdir(place / "elsewhere")
    command(f"evaluate ..{os.sep}run --attacks fgsm --epsilons 0 --json errors.json")
    assert json.loads(Path("errors.json").read_text())["clean"] < 0.3


@pytest.mark.parametrize("words", ["evaluate run", "certify run", "audit run", "report run --out r.html"])
def test_changed_test_data_are_refused_and_nothing_is_written(place: Path, words: str) -> None:
    before = sorted(place.rglob("*"))
    write(place / "mine.npz", flip=True)
    with pytest.raises(RunError, match=r"mine\.npz has changed since run began: its test samples are others"):
        command(words)
    assert sorted(place.rglob("*")) == before


def test_changed_training_data_stop_a_resumed_run(place: Path) -> None:
    (place / "run" / "model.safetensors").unlink()  # as if it had not come to its end
    write(place / "mine.npz", flip=True)
    with pytest.raises(RunError, match="its train and test samples are others"):
        command("train --resume run")
    write(place / "mine.npz")
    command("train --resume run")
    assert (place / "run" / "model.safetensors").exists()


def test_a_baseline_of_other_data_is_refused(place: Path) -> None:
    np.savez(place / "other.npz", x=np.random.default_rng(1).normal(size=(60, 5)), y=np.arange(60) % 2)
    command(WORDS.replace("mine.npz", "other.npz").replace("--out run", "--out other"))
    with pytest.raises(ConfigError, match=r"other\.npz.* for .*mine\.npz"):
        command("evaluate run --attacks fgsm --shifts all --baseline other")


def test_images_with_their_channels_last_are_refused(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    path = tmp_path / "last.npz"
    np.savez(path, x=draws.integers(0, 255, (20, 12, 12, 3)).astype(np.uint8), y=np.arange(20) % 2)
    with pytest.raises(DataError, match=r"looks like images \(N, H, W, C\); give \(N, C, H, W\)"):
        from_npz(path)
    np.savez(path, x=draws.integers(0, 255, (20, 3, 12, 12)).astype(np.uint8), y=np.arange(20) % 2)
    assert from_npz(path).train.x.shape[1:] == (3, 12, 12)


def test_a_report_says_when_only_weak_attacks_stand_behind_it(place: Path) -> None:
    command("evaluate run --attacks fgsm --epsilons 0,0.1")
    command("report run --out r.json")
    flags = {flag["check"]: flag["message"] for flag in json.loads((place / "r.json").read_text())["flags"]}
    assert flags["strong attacks"].startswith("only fgsm stand behind its errors; run rhobust evaluate run")


def test_a_report_shows_no_examples_of_other_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def images(size: int) -> None:
        draws = np.random.default_rng(0)
        np.savez(tmp_path / "mine.npz", x=draws.random((60, 1, size, size), np.float32), y=np.arange(60) % 2)

    monkeypatch.chdir(tmp_path)
    images(8)
    command(WORDS)
    command("report run --samples 9 --out r.html")
    assert "Test sample 1" in Path("r.html").read_text()
    images(6)
    command("report run --samples 9 --out r.html")
    assert "so no examples are shown: " in Path("r.html").read_text()


def test_bounds_without_an_end_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.random.default_rng(0).random((9, 2)), y=np.arange(9) % 2, bounds=[0, np.inf])
    with pytest.raises(DataError, match="bounds must be finite"):
        from_npz(tmp_path / "mine.npz")
