"""rhobust radius, from the outside; and the page that tells how to use it."""

import json
import math
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from benchmarks import radius as benchmark
from rhobust.commands.app import app
from rhobust.costs import SquaredLp
from rhobust.data import digits
from rhobust.drift.transport import covering_radius, transport_cost
from rhobust.errors import ConfigError, DataError, Refused, RhobustError

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("RHOBUST_DATA", ROOT.parent / "shared" / "data"))
PAGE = (ROOT / "docs" / "choosing-the-radius.md").read_text()


def command(*words: str) -> str:
    result = CliRunner().invoke(app, ["radius", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def drifted(tmp_path: Path) -> Path:
    path = tmp_path / "sample.npz"
    np.savez(path, x=digits().test.x.numpy() + 0.5)
    return path


def test_a_drift_is_printed_and_written_as_the_library_finds_it(drifted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    printed = command("--data", "digits", "--from", "train", "--to", str(drifted), "--seed", "3", "--json", str(out))
    written = json.loads(out.read_text())
    data = digits()
    found = transport_cost(data.train.x, data.test.x + 0.5, seed=3)
    assert written["value"] == pytest.approx(found.value)
    assert found.comparison is not None
    assert written["comparison"]["excess"]["value"] == pytest.approx(found.comparison.excess.value)
    assert (written["kind"], written["error"], written["samples"]) == ("exact", None, [1437, 360])
    assert written["settings"]["seed"] == 3
    assert written["environment"]["torch"] == torch.__version__
    for number in (written["value"], *(written["comparison"][key]["value"] for key in ("drifted", "baseline"))):
        assert f"{number:.4g}" in printed
    assert f"rho to start from: {written['comparison']['excess']['value']:.4g}" in printed


@pytest.mark.parametrize(("method", "error"), [("exact", False), ("sliced", False), ("subsampled", True)])
def test_every_method_by_name(method: str, error: bool, drifted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert command("--from", "digits", "--to", str(drifted), "--method", method, "--json", str(out), "--quiet") == ""
    written = json.loads(out.read_text())
    assert written["kind"] == method
    assert (written["error"] is not None) == error


def test_a_cost_by_name(drifted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command("--from", "digits:test", "--to", str(drifted), "--cost", "lp:1.5", "--json", str(out))
    # The same samples, all moved by 0.5 in each of 64 features.
    assert json.loads(out.read_text())["value"] == pytest.approx(float(0.25 * 64 ** (2 / 1.5)), rel=1e-5)
    x = digits().test.x
    assert json.loads(out.read_text())["value"] == transport_cost(x, x + 0.5, SquaredLp(1.5)).value


@pytest.mark.parametrize(("shift", "said"), [(0.0, "no drift can be told"), (-2.0, "rho to start from")])
def test_the_verdict_follows_the_error_bar(shift: float, said: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=digits().test.x.numpy() + shift)
    assert said in command("--from", "digits", "--to", str(tmp_path / "s.npz"))


def test_a_fading_is_not_read_from_its_excess(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=0.8 * digits().train.x.numpy())
    printed = command("--from", "digits", "--to", str(tmp_path / "s.npz"))
    assert "nearer than one without drift" in printed
    faded = 0.04 * float(digits().train.x.square().sum() / 1437)
    assert f"before and after, the drift is {faded:.4g}" in printed


def test_bytes_are_pixels_labels_are_left_out_and_folders_are_taken_whole(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 1, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "bytes.npz", x=pixels, y=np.array([5, 4, 3, 2, 1, 0]))
    np.savez(tmp_path / "scaled.npz", x=pixels[::-1] / 127.5 - 1 + 0.5)
    for number, image in enumerate(pixels):
        (tmp_path / "images" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(tmp_path / "images" / str(number % 2) / f"{number}.png")
    out = tmp_path / "out.json"
    for name, cost in (("scaled.npz", 16 * 0.25), ("images", 0.0)):
        printed = command("--from", str(tmp_path / "bytes.npz"), "--to", str(tmp_path / name), "--json", str(out))
        assert "too few samples" in printed
        assert json.loads(out.read_text())["value"] == pytest.approx(cost, abs=1e-6)
        assert json.loads(out.read_text())["samples"] == [6, 6]


def test_a_ball_is_printed_and_written_as_the_library_finds_it(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    printed = command("--epsilon", "1.7", "--norm", "inf", "--data", "digits", "--json", str(out))
    written = json.loads(out.read_text())
    found = covering_radius(1.7, "inf", None, digits().train.x, (-1, 1))
    assert (written["free"], written["boxed"], written["features"]) == (found.free, found.boxed, 64)
    assert written["boxed"] < written["free"] == pytest.approx(64 * 1.7**2)
    assert f"{written['free']:.4g}" in printed
    assert f"{written['boxed']:.4g}" in printed
    assert "0.01" in command("--epsilon", "0.1", "--norm", "2", "--data", "digits")


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ("", ConfigError, ["say which"]),
        ("--from digits --to digits --epsilon 1", ConfigError, ["say which"]),
        ("--from digits", ConfigError, ["--to is missing"]),
        ("--to digits --norm 2", ConfigError, ["--from is missing", "--norm belongs to --epsilon"]),
        ("--from train --to nowhere.npz", ConfigError, ["'train' is a part of what", "there is no such .npz file"]),
        (
            "--from digits --to old.csv",
            ConfigError,
            ["there is no such", "'old.csv' is a table, and tables are not measured here"],
        ),
        (
            "--data old.csv --from train --to test",
            ConfigError,
            ["there is no such", "'old.csv' is a table, and tables are not measured here"],
        ),
        ("--from digit:test --to digits", ConfigError, ["did you mean 'digits'"]),
        ("--data digit --from train --to digits", ConfigError, ["did you mean 'digits'"]),
        ("--epsilon 1 --method exact", ConfigError, ["--method belongs", "--epsilon needs --data"]),
        ("--epsilon -1 --data digits", ConfigError, ["epsilon must be >= 0 and at most 1e+100, not -1"]),
        ("--epsilon 1e200 --norm 2 --data digits", ConfigError, ["at most 1e+100, not 1e+200"]),
        ("--epsilon 1 --norm 3 --data digits", ConfigError, ["unknown norm '3'; known: inf, 2"]),
        ("--from digits --to digits --method sinkhorn", ConfigError, ["unknown method 'sinkhorn'"]),
        ("--from digits --to digits --cost l3", ConfigError, ["unknown cost 'l3'"]),
        ("--from digits --to digits --cost lp:3", Refused, ["1 < p <= 2"]),
        ("--from digits --to digits --seed -1", ConfigError, ["seed must be a whole number >= 0"]),
        (f"--from digits --to digits --seed {10**20}", ConfigError, ["below 2^63"]),
        ("--from digits --to flat.npz", DataError, ["(1437, 1, 8, 8) and (4, 64)"]),
        ("--from digits --to unnamed.npz", DataError, ["has no array x of samples"]),
        ("--from digits --to broken.npz", DataError, ["cannot be read as an .npz"]),
        ("--from digits --to number.npz", DataError, ["has no array x of samples"]),
        ("--from digits --to holes.npz", DataError, ["NaN"]),
        ("--from digits --to empty.npz", DataError, ["0 samples"]),
    ],
)
def test_requests_that_cannot_be_met(
    words: str, kind: type[RhobustError], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("flat.npz", x=np.zeros((4, 64)))
    np.savez("unnamed.npz", z=np.zeros((4, 64)))
    np.savez("holes.npz", x=np.full((4, 1, 8, 8), np.nan))
    np.savez("empty.npz", x=np.zeros((0, 1, 8, 8)))
    np.savez("number.npz", x=np.array(3.0))
    Path("broken.npz").write_bytes(Path("flat.npz").read_bytes()[:-40])
    with pytest.raises(kind) as wrong:
        command(*shlex.split(words))
    for part in said:
        assert part in str(wrong.value)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_the_page_shows_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (made,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(made, {})  # the page's own code, as a reader would paste it
    shown = re.findall(r"```console\n\$ rhobust radius (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) >= 4
    for words, printed in shown:
        if "mnist" in words:
            if not (REAL / "mnist").is_dir():
                continue  # the digits' examples are shown in any case
            words += f" --data-dir {REAL}"
        assert lines(command(*shlex.split(words))) == lines(printed), words


def test_the_committed_curve_is_what_the_page_says_of_it() -> None:
    """The first steps are nearly free; a larger ball asks for a larger radius, about the one that covers it; E[c]
    meets rho until the model gives up.
    """
    results = json.loads(benchmark.RESULTS.read_text())
    radii = results["settings"]["radii"]
    means = np.array([np.mean(benchmark.errors(results, radius), axis=1) for radius in radii])  # (radii, columns)
    clean, small, *_, large = means.T
    assert abs(clean[radii.index(0.25)] - clean[0]) < 1
    assert (means[radii.index(0.25), 1:] < 0.8 * means[0, 1:]).all()
    assert radii[small.argmin()] < radii[large.argmin()] < radii[-1]
    for epsilon, attacked in zip(results["settings"]["epsilons"], means.T[1:], strict=True):
        nearest = min(range(1, len(radii)), key=lambda i: abs(np.log(radii[i] / (64 * epsilon**2))))
        assert attacked[nearest] <= attacked.min() + 5 + 1e-9
    assert clean[radii.index(4.0)] > clean[0]
    assert clean[-1] > 5 * clean[radii.index(4.0)]
    spent = {r: np.mean([row["rho_eff"] for row in results["rows"] if row["radius"] == r]) for r in radii}
    assert all(abs(spent[r] / r - 1) < 0.05 for r in radii if 0 < r <= 8)
    assert spent[radii[-1]] < 0.95 * radii[-1]
    train = digits().train
    apart = torch.cdist(train.x.flatten(1), train.x.flatten(1)).square()
    confused = apart.masked_fill(train.y[:, None] == train.y, math.inf).amin(1).mean()  # its nearest of another class
    assert radii[-2] < confused < radii[-1]
