"""`rhobust predict`, and `predict` of a loaded run: tables, arrays, classes and numbers."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import rhobust
from rhobust.commands.app import app
from rhobust.errors import DataError, RhobustError

FIT = ("--method", "erm", "--model", "linear", "--epochs", "1", "--device", "cpu", "--quiet")


def command(*words: str | Path) -> str:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).output


def refused(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, RhobustError)
    return str(result.exception)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, and runs on it and on arrays."""
    place, draw = tmp_path_factory.mktemp("predict"), np.random.default_rng(0)
    frame = pd.DataFrame({"size": draw.normal(70, 20, 80), "town": draw.choice(["Ulm", "Köln"], 80)})
    frame["price"] = 1000 * frame["size"] + 5000 * (frame["town"] == "Ulm")
    frame["dear"] = np.where(frame["price"] > 70_000, "yes", "no")
    frame.to_csv(place / "homes.csv", index=False)
    np.savez(place / "arrays.npz", x=draw.normal(size=(40, 3)), y=draw.integers(0, 2, 40))
    data = ("train", "--data", place / "homes.csv")
    command(*data, "--target", "dear", "--drop", "price", "--out", place / "classes", *FIT)
    command("train", "--data", place / "arrays.npz", "--out", place / "arrays", *FIT)
    return place


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_file_and_a_frame_are_predicted_alike(place: Path) -> None:
    rows = pd.read_csv(place / "homes.csv").drop(columns=["dear", "price"])[["town", "size"]]
    rows.to_csv(place / "new.csv", index=False)
    assert "predictions of 80 rows" in command(
        "predict", place / "classes", place / "new.csv", "--out", place / "a.csv"
    )
    model = rhobust.load(place / "classes")
    found, written = model.predict(rows), read(place / "a.csv")
    assert [row["prediction"] for row in written] == found["prediction"].tolist()
    for name in ("no", "yes"):
        column = f"probability of {name}"
        np.testing.assert_array_equal([np.float32(row[column]) for row in written], found[column].to_numpy())
    assert model.table is not None
    outputs = model(model.table.inputs(rows))
    assert [model.names[label] for label in outputs.argmax(1).tolist()] == found["prediction"].tolist()
    assert list(model.predict(rows.to_dict("list"))) == ["prediction", "probability of no", "probability of yes"]


def test_a_run_on_arrays_predicts_arrays(place: Path) -> None:
    model, x = rhobust.load(place / "arrays"), np.load(place / "arrays.npz")["x"]
    np.savez(place / "x.npz", x=x)
    command("predict", place / "arrays", place / "x.npz", "--out", place / "b.csv")
    expected = model(torch.from_numpy(x.astype(np.float32))).argmax(1).tolist()
    assert model.predict(x)["prediction"].tolist() == expected
    assert [int(row["prediction"]) for row in read(place / "b.csv")] == expected
    with pytest.raises(DataError, match=r"x must be samples of shape \(3,\), one at least, not \(40, 2\)"):
        model.predict(x[:, :2])


def test_unknown_categories_and_columns_without_use_are_told(place: Path) -> None:
    pd.DataFrame({"size": [50.0], "town": ["Bonn"], "floor": [3]}).to_csv(place / "odd.csv", index=False)
    said = command("predict", place / "classes", place / "odd.csv", "--out", place / "c.csv")
    assert "no column 'floor'; ignored" in said
    assert "'Bonn' (1)" in said
    assert len(read(place / "c.csv")) == 1


def test_nothing_is_written_over_and_nothing_else_is_read(place: Path) -> None:
    homes, run = place / "homes.csv", place / "classes"
    before = {path: path.read_bytes() for path in (homes, run / "config.toml")}
    pd.DataFrame({"size": [50.0]}).to_csv(place / "short.csv", index=False)
    for data, out, message in (
        (place / "short.csv", place / "d.csv", "has no column 'town', on which the model was trained; it has 'size'"),
        (homes, homes, "is a file of data; choose another name"),
        (place / "short.csv", homes, "is a file of data; choose another name"),
        (homes, run / "config.toml", "is a file of a run"),
        (homes, place / "d.txt", "must be a .csv file"),
        (place / "none.csv", place / "d.csv", "there is no file"),
        (place / "arrays.npz", place / "d.csv", "was trained on a table, and predicts the rows of one"),
    ):
        assert message in refused("predict", run, data, "--out", out)
    assert "was trained on arrays" in refused("predict", place / "arrays", homes, "--out", place / "d.csv")
    assert not (place / "d.csv").exists()
    assert {path: path.read_bytes() for path in before} == before


def test_evaluation_uses_the_preprocessing_of_the_run(place: Path, tmp_path: Path) -> None:
    """Training rows that have changed since do not move the test rows; test rows that have changed are refused."""
    train, test = (pd.read_csv(place / "homes.csv").iloc[part] for part in (slice(0, 60), slice(60, 80)))
    train.to_csv(tmp_path / "train.csv", index=False)
    test.to_csv(tmp_path / "test.csv", index=False)
    words = ("--target", "dear", "--drop", "price", "--test", tmp_path / "test.csv", "--out", tmp_path / "run")
    command("train", "--data", tmp_path / "train.csv", *words, *FIT)
    before = command("evaluate", tmp_path / "run", "--epsilons", "0")
    train.assign(size=2 * train["size"]).to_csv(tmp_path / "train.csv", index=False)
    assert command("evaluate", tmp_path / "run", "--epsilons", "0") == before
    test.assign(size=2 * test["size"]).to_csv(tmp_path / "test.csv", index=False)
    assert "its test samples are others" in refused("evaluate", tmp_path / "run", "--epsilons", "0")


def test_no_run_directory_is_made_of_a_bad_table(place: Path, tmp_path: Path) -> None:
    data = ("train", "--data", place / "homes.csv", "--out", tmp_path / "run", *FIT)
    assert "say which column to predict, target=COLUMN" in refused(*data)
    assert "has no column 'cheap', the target" in refused(*data, "--target", "cheap")
    assert "no table" in refused("train", "--data", "digits", "--target", "y", "--out", tmp_path / "run", *FIT)
    assert not (tmp_path / "run").exists()


def test_a_federation_is_simulated_on_a_table(place: Path, tmp_path: Path) -> None:
    data = ("federate", "--data", place / "homes.csv", "--target", "dear", "--drop", "price", "--radius", "0.1")
    command(*data, "--rounds", "2", "--workers", "2", "--model", "linear", "--out", tmp_path / "run", "--quiet")
    model = rhobust.load(tmp_path / "run")
    assert model.names == ("no", "yes")
    assert model.config.federation is not None
