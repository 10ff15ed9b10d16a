"""Tables: what is learned of raw columns, what is made of rows, and what is refused."""

import json
import math
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import rhobust
from rhobust.data.catalog import load_data
from rhobust.data.frame import Frame
from rhobust.data.table import Table
from rhobust.data.table_settings import TableSettings
from rhobust.errors import ConfigError, DataError


def people(count: int = 200, seed: int = 0) -> pd.DataFrame:
    """Numbers, whole and real, text, truth values, with gaps in the second and third column."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": draw.integers(18, 80, count),
            "hours": draw.normal(40, 10, count),
            "job": draw.choice(["clerk", "manager", "nurse"], count),
            "member": draw.random(count) < 0.5,
        }
    )
    frame.loc[draw.random(count) < 0.1, "hours"] = None
    frame.loc[draw.random(count) < 0.1, "job"] = None
    frame["income"] = np.where(frame["age"] + draw.normal(0, 9, count) > 50, "high", "low")
    return frame


def literal(train: pd.DataFrame, rows: pd.DataFrame) -> list[list[float]]:
    """The rules in plain Python, row by row."""
    ages = [float(value) for value in train["age"]]
    hours = [value for value in train["hours"] if not math.isnan(value)]
    found = []
    for _, row in rows.iterrows():
        worked = statistics.median(hours) if math.isnan(row["hours"]) else row["hours"]
        found.append(
            [
                (row["age"] - statistics.fmean(ages)) / statistics.pstdev(ages),
                (worked - statistics.fmean(hours)) / statistics.pstdev(hours),
                *(float(row["job"] == job) for job in ("clerk", "manager", "nurse")),
                float(pd.isna(row["job"])),
                *(float(row["member"] == member) for member in (False, True)),
            ]
        )
    return found


def written(place: Path, text: str | bytes) -> Path:
    path = place / "rows.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_rows_are_encoded_by_the_literal_rules() -> None:
    train, test = people(), people(50, seed=1)
    table = Table.fit(train, "income")
    assert table.features == (
        *("age", "hours", "job=clerk", "job=manager", "job=nurse", "job=(missing)"),
        *("member=False", "member=True"),
    )
    for rows in (train, test):
        x, y = table.encode(rows)
        np.testing.assert_allclose(x.numpy(), literal(train, rows), atol=1e-5)
        assert [table.classes[label] for label in y.tolist()] == rows["income"].tolist()


def test_without_gaps_the_features_are_those_of_scikit_learn() -> None:
    train, test = people().dropna(), people(seed=1).dropna()
    table = Table.fit(train, "income")
    kinds = [("n", StandardScaler(), ["age", "hours"]), ("c", OneHotEncoder(sparse_output=False), ["job", "member"])]
    theirs = ColumnTransformer(kinds).fit(train)
    np.testing.assert_allclose(table.inputs(test).numpy(), theirs.transform(test), atol=1e-5)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_is_the_frame_that_was_written(tmp_path: Path, suffix: str) -> None:
    train, path = people(), tmp_path / f"people.{suffix}"
    train.to_csv(path, index=False) if suffix == "csv" else train.to_parquet(path)
    table = Table.fit(train, "income")
    raw = Frame.read(path)
    assert Table.fit(raw, "income") == table
    for mine, theirs in zip(table.encode(raw), table.encode(train), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_and_an_unnamed_index_are_seen(tmp_path: Path, separator: str) -> None:
    train, path = people(), tmp_path / "people.csv"
    train.to_csv(path, sep=separator)
    assert Table.fit(Frame.read(path), "income") == Table.fit(train, "income")


def test_the_preprocessing_is_plain_json_and_comes_back() -> None:
    train = people()
    table = Table.fit(train, "age", task="regression", drop=["member"], fixed=["job"], clip_to_training=True)
    again = Table.from_json(json.loads(json.dumps(table.to_json(), allow_nan=False)))
    assert again == table
    assert torch.equal(again.inputs(train), table.inputs(train))
    for spoilt in ({}, {"columns": [{"kind": "who"}]}, table.to_json() | {"columns": []}, {"columns": 3}):
        with pytest.raises(DataError, match="no preprocessing of a table"):
            Table.from_json(spoilt)


def test_columns_are_found_by_name_and_others_are_ignored_with_a_remark() -> None:
    train, remarks = people(), list[str]()
    table = Table.fit(train, "income", drop=["member"])
    moved = train[["job", "hours", "member", "age"]].assign(new=1)
    assert torch.equal(table.inputs(moved, remarks.append), table.inputs(train))
    assert remarks == ["the table: the training rows have no column 'new'; ignored"]
    with pytest.raises(DataError, match="has no column 'age', 'job', on which the model was trained; it has 'hours'"):
        table.inputs(train[["hours"]])


def test_unknown_categories_are_0_in_all_and_told_once_with_their_counts() -> None:
    table, remarks = Table.fit({"job": ["a", "b", "a"], "y": [0, 1, 1]}, "y"), list[str]()
    x = table.inputs({"job": ["c", "a", "c", None, "d"]}, remarks.append)
    assert x.tolist() == [[0, 0], [1, 0], [0, 0], [0, 0], [0, 0]]
    (remark,) = remarks
    assert (
        "column 'job' holds categories that the training rows do not have: 'c' (2), 'd' (1), '(missing)' (1)." in remark
    )
    assert remark.endswith("in 4 of 5 rows")
    with pytest.warns(UserWarning, match="categories that the training rows do not have") as caught:
        table.inputs({"job": ["c"]})
    assert caught[0].filename == __file__


def test_clipping_keeps_numbers_within_the_training_range() -> None:
    train = {"a": [1.0, 3.0, 5.0], "y": [0, 1, 1]}
    free, clipped = (Table.fit(train, "y", clip_to_training=clip) for clip in (False, True))
    rows = {"a": [-100.0, 4.0, 100.0]}
    assert torch.equal(clipped.inputs(rows), clipped.inputs({"a": [1.0, 4.0, 5.0]}))
    assert free.inputs(rows).abs().max() > 50
    lower, upper = clipped.range
    torch.testing.assert_close(torch.stack([lower, upper]), clipped.inputs({"a": [1.0, 5.0]}))


def test_features_of_text_and_of_fixed_columns_are_held() -> None:
    table = Table.fit(people(), "income", fixed=["age"])
    assert table.held.tolist() == [True, False, *[True] * 6]
    assert table.groups == [slice(0, 1), slice(1, 2), slice(2, 6), slice(6, 8)]
    lower, upper = table.range
    x = table.inputs(people())
    torch.testing.assert_close(lower[:2], x.amin(0)[:2])
    torch.testing.assert_close(upper[:2], x.amax(0)[:2])
    assert (lower[2:].tolist(), upper[2:].tolist()) == ([0] * 6, [1] * 6)


def test_a_regression_predicts_in_the_target_s_own_unit() -> None:
    rows = {"a": [1.0, 2.0, 3.0, 4.0], "price": [100.0, 200.0, 300.0, 400.0]}
    table = Table.fit(rows, "price", task="regression")
    x, y = table.encode(rows)
    torch.testing.assert_close(x[:, 0], y)  # both standardized, and proportional
    identity = torch.nn.Identity()
    np.testing.assert_allclose(table.predict(identity, rows)["prediction"], rows["price"], rtol=1e-6)


def test_predictions_of_a_frame_are_a_frame_with_its_index() -> None:
    train = people()
    table = Table.fit(train, "income")
    torch.manual_seed(0)
    model = torch.nn.Linear(table.width, table.outputs)
    part = train.drop(columns="income").iloc[5:9]
    found = table.predict(model, part)
    assert list(found.index) == [5, 6, 7, 8]
    assert list(found) == ["prediction", "probability of high", "probability of low"]
    expected = model(table.inputs(part)).softmax(1).detach().numpy()
    np.testing.assert_allclose(found[["probability of high", "probability of low"]].to_numpy(), expected, rtol=1e-6)
    assert found["prediction"].tolist() == [table.classes[best] for best in expected.argmax(1)]
    assert isinstance(table.predict(model, part.to_dict("list")), dict)


def test_words_that_only_look_like_numbers_keep_their_meaning(tmp_path: Path) -> None:
    """A column of words may hold only numbers, or only true and false, in the next file."""
    table = Table.fit(Frame.read(written(tmp_path, "a,b,y\n1,True,0\n3+,False,1\n2,maybe,1\n")), "y")
    raw = Frame.read(written(tmp_path, "a,b\n1,True\n2,False\n"), table.text)
    assert table.inputs(raw).tolist() == [[1, 0, 0, 0, 1, 0], [0, 1, 0, 1, 0, 0]]
    assert table.inputs({"a": [1.0, None], "b": [True, False]}, lambda _: None).tolist()[0] == [1, 0, 0, 0, 1, 0]
    lines = "\n".join(f" {value},{value % 2}" for value in range(9))
    plain = Table.fit(Frame.read(written(tmp_path, f"a,y\n{lines}\n ?,1\n")), "y")
    assert plain.features == ("a",)  # blanks and ? around numbers make no text of them


def test_missing_values_go_by_many_names(tmp_path: Path) -> None:
    words = ["", "?", "NA", "N/A", "nan", "NULL", "None", " ? "]
    path = written(tmp_path, "a,b,y\n1,x,0\n2,z,1\n" + "".join(f"{word},{word},1\n" for word in words))
    table = Table.fit(Frame.read(path), "y")
    x = table.inputs(Frame.read(path, table.text))
    assert table.features == ("a", "b=x", "b=z", "b=(missing)")
    assert x[2:].tolist() == [[0, 0, 0, 1]] * len(words)


def test_constant_and_empty_columns_are_left_out_with_a_remark() -> None:
    table = Table.fit({"a": [1, 2], "b": [5, 5], "c": ["x", "x"], "d": [None, None], "y": [0, 1]}, "y")
    assert (table.features, table.left_out) == (("a",), ("b", "c", "d"))
    assert table.remarks == ("constant columns are left out: 'b', 'c', 'd'",)
    text = Table.fit({"a": ["x", None], "y": [0, 1]}, "y")
    assert text.features == ("a=x", "a=(missing)")  # not constant
    assert text.remarks == ("every column is text or fixed, so no row can move, and a radius has no effect",)


MANY = "\n".join(f"n{row},{row},2020-01-{1 + row % 28:02d},{row % 2}" for row in range(60))
BAD: list[tuple[str | bytes, dict[str, Any], str]] = [
    ("", {}, "rows.csv is empty"),
    ("\n \n", {}, "rows.csv is empty"),
    ("a,y\n", {}, "has a header but no rows"),
    ("a,a,y\n1,2,3\n", {}, "more than one column named 'a'"),
    ("39,x,77516\n40,y,2\n", {}, "has no header: its first line holds the numbers 39, 77516"),
    ("a,y\n1,0\n2,1,3\n", {}, "cannot be read as a csv file: .*Expected 2 columns, got 3"),
    ("a,y\n1,0\n2,1\n", {"target": "z"}, "has no column 'z', the target; it has 'a', 'y'"),
    ("a,y\n1,0\n2,1\n", {"drop": ["z"]}, "has no column 'z', which is to be left out; it has"),
    ("a,y\n1,0\n2,1\n", {"fixed": ["z"]}, "has no column 'z', which is to stay as it is; it has"),
    ("a,y\n1,0\n2,1\n", {"fixed": ["y"]}, "'y' is no input of the model"),
    ("a,y\n1,0\n2,1\n", {"task": "ranking"}, "unknown task 'ranking'"),
    ("a,y\n1,0\n2,1\n", {"drop": "a"}, r"drop is a list of columns, such as \['a'\]"),
    ("a,b,y\n1,é,0\n2,u,1\n".encode("latin1"), {}, r"column 'b' is not UTF-8 text .*iconv -f latin1 -t utf-8"),
    ("a,y\n1,0\n".encode("utf-16"), {}, "is UTF-16, not a csv file in UTF-8"),
    (b"a,y\n\x00,0\n", {}, "bytes that are no text"),
    (b"PK\x03\x04\x14\x00", {}, "is a zip or Excel file, not a csv file"),
    ("a,y\n1,5\n", {"target": "y"}, "target 'y' is '5' in every row"),
    ("a,y\n1,0\n2,\n", {}, "target 'y' is missing in row 2"),
    ("a,y\n1,\n2,\n", {}, "target 'y' has no values"),
    ("a,y\n1,0.5\n2,0.7\n", {}, "2 different numbers, 0.5 to 0.7, which are no classes; set task to regression"),
    ("a,y\n1,u\n2,v\n", {"task": "regression"}, "holds text, such as 'u'; a regression needs numbers"),
    ("a,y\n1,3\n2,3\n", {"task": "regression"}, "target 'y' is 3 in every row"),
    ("a,y\n2020-01-02,0\n2020-01-03,1\n", {}, r"'a' holds dates or times \(2020-01-02\)\. Leave them out: --drop a"),
    ("a,y\n02.01.2020,0\n03.01.2020,1\n", {}, r"'a' holds dates \(02.01.2020\)\. Leave them out: --drop a"),
    ("b,y\n2020-01-02,2020-01-02\n2020-01-03,2020-01-02\n", {}, "target 'y' holds dates or times"),
    (f"name,a,when,y\n{MANY}\n", {}, "60 different values in 60 rows, such as 'n0'; 'when' .*--drop name,when"),
    ("a,y\n" + "\n".join(f"{row if row else 'lots'},{row % 2}" for row in range(60)), {}, "98% .* such as 'lots'"),
    ("a;b;y\n1,5;u;0\n2,5;v;1\n", {}, "column 'a' holds numbers with a comma, such as '1,5'; write a point"),
    ("a,y\n1,0\ninf,1\n", {}, "column 'a' holds an infinite number in row 2"),
    ("a,y\n-1e308,0\n1e308,1\n", {}, "numbers of column 'a' are too large"),
    ("a,y\n5,0\n5,1\n", {}, "has no column to predict 'y' from: 'a'"),
    ("y\n0\n1\n", {}, "has no column to predict 'y' from: no other"),
]


@pytest.mark.parametrize(("text", "asked", "message"), BAD)
def test_a_bad_table_is_one_clear_error(tmp_path: Path, text: str | bytes, asked: dict[str, Any], message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError, match=message):
        Table.fit(Frame.read(path), **({"target": "y"} | asked))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (5, "a table is a DataFrame or a dict of arrays by column, not a int"),
        ({"a": [1, 2], "y": [1]}, "expected length 2 but got length 1"),
        (pd.DataFrame({"a": [1, "x"], "y": [0, 1]}), "Conversion failed for column a"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "Duplicate column names"),
        ({"a": [], "y": []}, "no rows"),
    ],
)
def test_what_is_no_table_is_one_clear_error(frame: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Table.fit(frame, "y")


def test_rows_that_do_not_fit_the_training_are_one_clear_error() -> None:
    table = Table.fit({"a": [1, 2, 3], "y": ["u", "v", "v"]}, "y")
    for rows, message in (
        ({"a": ["x"], "y": ["u"]}, "column 'a' must hold numbers; row 1 holds 'x'"),
        ({"a": [1, 2], "y": ["u", "w"]}, "the class 'w', which is not among those of the training rows: u, v"),
        ({"a": [1, 2], "y": ["u", None]}, "target 'y' is missing in row 2"),
        ({"a": [1]}, "has no column 'y', the target"),
        ({"a": [1e300], "y": ["u"]}, "column 'a' holds numbers that are too large for 32 bits"),
    ):
        with pytest.raises(DataError, match=message):
            table.encode(rows)


# Data sets from files


def loaded(path: Path, task: str = "classification", **settings: Any) -> Any:
    return load_data(str(path), task=task, table=TableSettings(**({"target": "income"} | settings)))


def test_a_data_set_is_prepared_from_its_training_rows_alone(tmp_path: Path) -> None:
    frame, path = people(), tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    data = loaded(path)
    assert (len(data.train), len(data.test), data.classes, data.test.names) == (160, 40, 2, ("high", "low"))
    torch.testing.assert_close(data.train.x[:, 0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train.x[:, 0].std(correction=0), torch.tensor(1.0))
    every = torch.cat([data.train.x, data.test.x])
    numbers = data.bounds.fixed.logical_not()
    assert numbers.tolist() == [True, True, *[False] * 6]
    assert torch.equal(data.bounds.lower[numbers], every.amin(0)[numbers])
    assert torch.equal(data.bounds.upper[numbers], every.amax(0)[numbers])
    again = load_data(str(path), table=TableSettings(target="income"), learned=Table.from_json(data.preprocessing))
    assert again.test.digest() == data.test.digest()


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("Train", "TEST"), (False, True), (0, 1)])
def test_a_column_and_a_file_divide_the_rows_alike(tmp_path: Path, train: object, test: object) -> None:
    frame, path = people(), tmp_path / "people.csv"
    held_out = np.arange(len(frame)) % 3 == 0
    frame[~held_out].to_csv(tmp_path / "train.csv", index=False)
    frame[held_out].to_csv(tmp_path / "test.csv", index=False)
    frame.assign(part=[test if one else train for one in held_out]).to_csv(path, index=False)
    by_column, by_file = loaded(path, test="part"), loaded(tmp_path / "train.csv", test=str(tmp_path / "test.csv"))
    assert by_column.train.digest() == by_file.train.digest()
    assert by_column.test.digest() == by_file.test.digest()


def test_a_class_of_test_rows_alone_is_a_class(tmp_path: Path) -> None:
    rows = "".join(
        f"{row},{'rare' if row == 7 else 'often' if row % 2 else 'seldom'},{int(row == 7)}\n" for row in range(40)
    )
    data = loaded(written(tmp_path, f"a,y,held\n{rows}"), target="y", test="held")
    assert data.test.names == ("often", "rare", "seldom")
    assert data.test.y.tolist() == [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: load_data(str(path)), "is a table: say which column to predict"),
        (lambda path: load_data("digits", table=TableSettings(target="y")), "'digits' is no table"),
        (lambda path: loaded(path, test="no.csv"), "'no.csv': there is no such file"),
        (lambda path: loaded(path, test="part"), "no column 'part', which is to say which rows are the test"),
        (lambda path: loaded(path, test="job"), "'job' is to say which rows are the test. It must hold train and test"),
        (lambda path: loaded(path, drop=["income"]), "target 'income' is left out by drop or test"),
        (lambda path: loaded(path, drop=["job"], fixed=["job"]), "fixed names the column 'job', which is no input"),
        (lambda path: loaded(path.with_name("none.csv")), "there is no such"),
    ],
)
def test_bad_settings_of_a_table(tmp_path: Path, call: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "people.csv"
    people().to_csv(path, index=False)
    with pytest.raises((ConfigError, DataError), match=re.escape(message)):
        call(path)


def test_a_class_is_called_by_its_name_where_it_is_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = "".join(f"{row % 7},{'rain' if row % 4 else 'sun'}\n" for row in range(100))
    data = loaded(written(tmp_path, f"a,weather\n{rows}"), target="weather")
    model = torch.nn.Linear(1, 2)
    torch.nn.init.constant_(model.bias, 0.0)
    torch.nn.init.constant_(model.weight, 0.0)  # the answer is always class 0, rain
    flags = rhobust.evaluate(model, data.test, attacks=["pgd"], epsilons=[0.1], checks=False).flags
    assert "that of the constant answer rain: the model has learned nothing" in flags[0].message


def test_a_table_of_arrow_is_taken_as_any_frame_that_hands_one_over() -> None:
    """polars hands its columns over in this way."""
    train = people()

    class Handed:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pyarrow.table(train).__arrow_c_stream__(requested_schema)

    assert Table.fit(Handed(), "income") == Table.fit(pyarrow.table(train), "income") == Table.fit(train, "income")


def test_without_pyarrow_a_table_is_one_clear_error_and_the_rest_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # importing it now fails
    with pytest.raises(ConfigError, match=r"tables need pyarrow: pip install 'rhobust\[tables\]'"):
        loaded(written(tmp_path, "a,income\n1,u\n2,v\n"))
    with pytest.raises(ConfigError, match="tables need pyarrow"):
        Table.fit({"a": [1, 2], "y": [0, 1]}, "y")
    assert load_data("digits").classes == 10
