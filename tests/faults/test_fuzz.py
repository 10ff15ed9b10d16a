"""Whatever bytes lie where a file should be: a named error or sound content, soon, and in little memory."""

import gzip
import hashlib
import io
import json
import math
import os
import shutil
import signal
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.extra.numpy as arrays_of
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import rhobust
from rhobust.commands.app import app
from rhobust.data.archives import MNIST, decompressed
from rhobust.data.catalog import load_data
from rhobust.data.image_folder import from_folder
from rhobust.data.npz import from_npz
from rhobust.data.samples import DataSet
from rhobust.data.table import Table
from rhobust.data.table_settings import TableSettings
from rhobust.errors import ConfigError, DataError, RhobustError, RunError
from rhobust.evaluation.regression_evaluation import RegressionEvaluation
from rhobust.method import methods
from rhobust.runs.config import Config
from rhobust.runs.directory import Run
from rhobust.runs.measurements import EVALUATION, kept
from rhobust.runs.start import train_run
from rhobust.runs.summary import summary
from rhobust.support.setting import settings_of
from rhobust.support.state_files import _digest, read_state, write_state
from rhobust.support.toml import parse_overrides, read_toml

T = TypeVar("T")
Noise = list[tuple[str, float, bytes]] | bytes
MANY = settings(derandomize=True, deadline=None, max_examples=200)
FEW = settings(derandomize=True, deadline=None, max_examples=60)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that many examples may share."""
    return tmp_path_factory.mktemp("fuzz")


def _damaged(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    for kind, position, noise in edits:
        at = int(position * len(content))
        if kind == "cut":
            content = content[:at]
        else:
            after = at if kind == "insert" else at + len(noise)
            content = content[:at] + (b"" if kind == "delete" else noise) + content[after:]
    return content


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["overwrite", "insert", "delete", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)
NOISE = st.one_of(EDITS, st.binary(max_size=200))
"""Several edits of a sound file, or bytes of any kind in its place."""


def spoilt(sound: bytes, noise: Noise) -> bytes:
    return noise if isinstance(noise, bytes) else _damaged(sound, noise)


def either(read: Callable[[], T], error: type[RhobustError], file: object) -> T | None:
    """What is read; none where one kind of error, and no other, names the file that is wrong."""
    try:
        return read()
    except error as problem:
        said = str(problem)
    assert str(file) in said
    return None


def in_little_memory(read: Callable[[], object], error: type[RhobustError]) -> None:
    """It is refused, and the most that was asked for on the way is less than what the published archives need."""
    tracemalloc.start()
    try:
        with pytest.raises(error):
            read()
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


def assert_sound(data: DataSet) -> None:
    lower, upper = torch.tensor(data.bounds, dtype=torch.float32).tolist()
    for part in (data.train, data.test):
        assert len(part.x) == len(part.y) > 0
        assert part.x.ndim > 1
        assert part.x.numel() > 0
        assert part.y.dtype == torch.int64
        assert bool(part.x.isfinite().all())
        assert lower <= float(part.x.min()) <= float(part.x.max()) <= upper
        assert 0 <= int(part.y.min()) <= int(part.y.max()) < data.classes
    assert data.train.x.shape[1:] == data.test.x.shape[1:]
    assert data.classes <= len(data.train) + len(data.test)


def assert_buildable(config: Config) -> None:
    method, cost = config.make_method(), config.make_cost()
    assert (method.name, cost.kappa) == (config.method, config.label_cost)
    config.make_regularizer()
    config.make_gamma_rule()


# .npz files


def npy(descr: str, shape: str, content: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def zipped(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


X, Y = np.linspace(-1, 1, 24).reshape(6, 4), np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_spoilt_npz(place: Path, save: Callable[..., None]) -> None:
    file = io.BytesIO()
    save(file, x=X, y=Y, x_test=X, y_test=Y, bounds=np.array([-1.0, 1.0]))
    path = place / "spoilt.npz"

    @MANY
    @given(NOISE)
    def law(noise: Noise) -> None:
        path.write_bytes(spoilt(file.getvalue(), noise))
        if data := either(lambda: load_data(str(path)), DataError, path):
            assert_sound(data)

    law()


ANY_ARRAY = arrays_of.arrays(
    arrays_of.scalar_dtypes(), arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
)
INPUTS = st.one_of(
    ANY_ARRAY, arrays_of.arrays(st.sampled_from([np.float32, np.float64, np.uint8, np.int64, bool]), (4, 2))
)
LABELS = st.one_of(ANY_ARRAY, arrays_of.arrays(np.int64, 4, elements=st.integers(-1, 7)))


@MANY
@given(
    x=INPUTS,
    y=LABELS,
    more=st.fixed_dictionaries({}, optional={"x_test": INPUTS, "y_test": LABELS, "bounds": ANY_ARRAY}),
)
def test_arrays_of_any_kind_and_shape(
    place: Path, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], more: dict[str, Any]
) -> None:
    path = place / "arrays.npz"
    np.savez(path, x=x, y=y, **more)
    if data := either(lambda: from_npz(path), DataError, path):
        assert_sound(data)


TARGETS = st.one_of(ANY_ARRAY, arrays_of.arrays(np.float64, (4, 2)), arrays_of.arrays(np.float64, 4))


@MANY
@given(x=INPUTS, y=TARGETS, more=st.fixed_dictionaries({}, optional={"x_test": INPUTS, "y_test": TARGETS}))
def test_numbers_of_any_kind_and_shape(
    place: Path, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], more: dict[str, Any]
) -> None:
    path = place / "numbers.npz"
    np.savez(path, x=x, y=y, **more)
    data = either(lambda: from_npz(path, "regression"), DataError, path)
    if data is None:
        return
    assert (data.task, data.outputs) == ("regression", data.train.y[0].numel())
    for part in (data.train, data.test):
        assert part.y.dtype == torch.float32
        assert part.y.isfinite().all()
        assert len(part.x) == len(part.y)
    assert not (data.train.y == data.train.y[0]).all()


@MANY
@given(
    arrays_of.arrays(np.float64, (5, 2), elements=st.floats(-1e30, 1e30)).filter(
        lambda x: np.float32(x.min()) < np.float32(x.max())
    )
)
def test_bounds_taken_from_the_data_fit_them(place: Path, x: np.ndarray[Any, Any]) -> None:
    path = place / "bounds.npz"
    np.savez(path, x=x, y=np.arange(5), bounds=np.array([x.min(), x.max()]))
    assert from_npz(path).bounds == (x.min(), x.max())


def sound(**changed: Any) -> dict[str, Any]:
    return {"x": X, "y": Y, **changed}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (sound(x_test=X), "has no array y_test; it has x, y, x_test"),
        (sound(y_test=Y), "has no array x_test; it has x, y, y_test"),
        (sound(x_test=X[:, :2], y_test=Y), r"samples of x are \(4,\), of x_test \(2,\)"),
        (sound(x_test=X, y_test=Y[:3]), "x has 6 samples and y has 3"),
        (sound(bounds=np.array(1.0)), r"bounds must be two numbers \(lower, upper\), not float64 \(\)"),
        (sound(bounds=np.array([-1.0, 1.0, 2.0])), r"bounds must be two numbers.*\(3,\)"),
        (sound(bounds=np.array(["a", "b"])), "bounds must be two numbers"),
        (sound(bounds=np.array([1.0, -1.0])), "lower < upper"),
        (sound(bounds=np.array([np.nan, 1.0])), "bounds must be finite"),
        (sound(y=np.array([0, 1, 2, 3, 4, 2**62])), f"the label {2**62} with 6 samples"),
        (sound(y=np.array([0, 1, 2, 3, 4, 2**64 - 1], dtype=np.uint64)), f"the label {2**64 - 1}"),
        (sound(y=Y[:, None]), r"y must be whole numbers \(N,\), not int64 \(6, 1\)"),
        (sound(x=np.array(1.0)), r"x must be numbers \(N, ...\)"),
        (sound(x=X[:, 0]), r"x must be numbers \(N, ...\)"),
        (sound(x=X[:, :0]), r"6 samples of shape \(0,\)"),
        (sound(x=X[:1], y=Y[:1]), "holds 1 samples"),
        (sound(x=X.astype(complex)), "x must be numbers"),
        (sound(x=X.astype(str)), "x must be numbers"),
        (sound(x=np.zeros(6, dtype=[("a", float)])), "x must be numbers"),
        (sound(x=X * 1e200), "NaN or infinite"),
    ],
)
def test_each_unusable_array_is_called_by_its_name(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message):
        from_npz(path)


@pytest.mark.parametrize(
    "x",
    [
        npy("'<f8'", f"({2**40}, 2)", b"few"),
        npy("'<f8'", f"({2**70}, {2**70})"),
        npy("'<f8'", f"({2**62}, 0)"),
        npy("'<f8'", "(-2, -3)", bytes(48)),
        npy("'|V0'", f"({2**62}, 1)"),
        npy("'|O'", "(2, 1)", bytes(16)),
        npy("'<f8'", "(2, 1" + "(" * 3000, bytes(16)),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"no array",
        b"",
    ],
)
def test_a_header_that_lies_is_not_believed(tmp_path: Path, x: bytes) -> None:
    path = zipped(tmp_path / "lie.npz", {"x.npy": x, "y.npy": npy("'<i8'", "(2,)", bytes(16))})
    in_little_memory(lambda: from_npz(path), DataError)


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """Three hundred kilobytes that are three hundred megabytes of zeros, as every header says."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        member.write(npy("'|u1'", f"(300, {2**20})"))
        for _ in range(300):
            member.write(bytes(2**20))
    in_little_memory(lambda: from_npz(path), DataError)


def test_what_is_no_zip_of_arrays_at_all(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.save(tmp_path / "plain.npy", X)
    (tmp_path / "plain.npy").rename(path)
    with pytest.raises(DataError, match=r"cannot be read as an \.npz file"):
        from_npz(path)
    with pytest.raises(DataError, match="has no array x nor y; it has none"):
        from_npz(zipped(path, {"x": b"not under this name", "../y.npy": b"nor this"}))
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="one folder of images for each class"):
        load_data(str(path))
    path.rmdir()
    path.symlink_to(path)
    with pytest.raises(ConfigError, match=r"there is no such \.npz file"):
        load_data(str(path))
    with pytest.raises(DataError, match=r"cannot be read as an \.npz file"):
        from_npz(path)
    with pytest.raises(ConfigError, match="cannot be looked for: File name too long"):
        load_data("a" * 5000)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of another system")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "closed" / "mine.npz"
    path.parent.mkdir()
    np.savez(path, x=X, y=Y)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist").chmod(0)
    path.parent.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything
        os.seteuid(65534)
    try:
        for read, error in (
            (lambda: load_data(str(path)), ConfigError),
            (lambda: from_npz(path), DataError),
            (lambda: from_folder(path.parent), DataError),
            (lambda: MNIST.load("train", tmp_path), DataError),
            (lambda: read_toml(path), ConfigError),
        ):
            with pytest.raises(error, match="Permission denied"):
                read()
    finally:
        if user == 0:
            os.seteuid(0)
        path.parent.chmod(0o700)
        (tmp_path / "mnist").chmod(0o700)


# Tables

CELLS = [[f"{row / 3:.2f}", "Ulm" if row % 3 else "", f"{row % 2}", f"{row % 5 > 2}"] for row in range(30)]
ROWS = "\n".join(",".join(row) for row in [["age", "town", "when", "y"], *CELLS])


def assert_sound_table(data: DataSet) -> None:
    lower, upper = data.bounds
    assert data.preprocessing is not None
    table = Table.from_json(json.loads(json.dumps(data.preprocessing, allow_nan=False)))
    assert len(data.train) > 0 < len(data.test)
    for part in (data.train, data.test):
        assert part.x.shape[1] == table.width > 0
        assert len(part.x) == len(part.y)
        assert bool(part.x.isfinite().all())
        assert bool(((torch.as_tensor(lower) <= part.x) & (part.x <= torch.as_tensor(upper))).all())
        assert 0 <= int(part.y.min()) <= int(part.y.max()) < data.classes == len(table.classes)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_spoilt_table(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mine.{suffix}"
    path.write_text(ROWS)
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(path), path)
    whole, settings = path.read_bytes(), TableSettings(target="y")

    @MANY
    @given(NOISE)
    def law(noise: Noise) -> None:
        path.write_bytes(spoilt(whole, noise))
        if data := either(lambda: load_data(str(path), table=settings), DataError, path):
            assert_sound_table(data)

    law()


ODD = ["", "?", "nan", "inf", "-1e400", "1e308", "0", "1", "true", "2020-01-01", "é", '"a,b"', '"', "a b"]
FIELD = st.one_of(st.sampled_from(ODD), st.integers(-3, 3).map(str), st.text(max_size=4))
TABLE = st.lists(st.lists(FIELD, min_size=3, max_size=3), min_size=1, max_size=40)


@MANY
@given(TABLE, st.sampled_from([",", ";", "\t", "|"]))
def test_a_table_of_any_cells(place: Path, rows: list[list[str]], separator: str) -> None:
    path, lines = place / "cells.csv", [["a", "b", "y"], *rows]
    path.write_bytes("\n".join(separator.join(row) for row in lines).encode(errors="surrogatepass"))
    if data := either(lambda: load_data(str(path), table=TableSettings(target="y")), DataError, path):
        assert_sound_table(data)


def test_a_parquet_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(10**7, dtype=np.int8)), ["x"])
    pyarrow.parquet.write_table(pyarrow.table(dict.fromkeys("abcdey", column)), path)
    assert path.stat().st_size < 2 * 10**5
    before = pyarrow.total_allocated_bytes()
    with pytest.raises(DataError, match="would unpack to"):
        load_data(str(path), table=TableSettings(target="y"))
    assert pyarrow.total_allocated_bytes() - before < 2**20


# Archives


@MANY
@given(st.lists(st.sampled_from([0, 1, 2, 3, 2**16, 2**31, 2**32 - 1]), min_size=3, max_size=3), st.binary(max_size=30))
def test_an_idx_header_of_any_sizes(place: Path, sizes: list[int], values: bytes) -> None:
    path = place / "mnist" / "train-images-idx3-ubyte"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack(">4I", 0x803, *sizes) + values)
    in_little_memory(lambda: MNIST.load("train", place), DataError)


@MANY
@given(NOISE)
def test_spoilt_gzip(noise: Noise) -> None:
    content = spoilt(gzip.compress(bytes(range(256)) * 20, mtime=0), noise)
    found = either(lambda: decompressed(content, "fuzzed"), DataError, "fuzzed")
    assert found is None or content[:2] == b"\x1f\x8b" or found == content


def test_a_gzip_bomb_is_not_unpacked() -> None:
    packer = zlib.compressobj(wbits=31)
    content = b"".join(packer.compress(bytes(2**20)) for _ in range(200)) + packer.flush()
    in_little_memory(lambda: decompressed(content, Path("bomb")), DataError)


# Folders of images


def folder_of_images(path: Path, suffix: str = "png") -> Path:
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (path / name).mkdir(parents=True)
        for number in range(2):
            pixels = generator.integers(0, 256, (6, 5, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / name / f"{number}.{suffix}")
    return path


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "webp", "tif"])
def test_a_spoilt_image(tmp_path: Path, suffix: str) -> None:
    path = folder_of_images(tmp_path / "images", suffix)
    file = path / "dog" / f"1.{suffix}"
    whole = file.read_bytes()

    @FEW
    @given(NOISE)
    def law(noise: Noise) -> None:
        file.write_bytes(spoilt(whole, noise))
        if data := either(lambda: load_data(str(path)), DataError, file):
            assert_sound(data)

    law()


def test_folders_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    path = folder_of_images(tmp_path / "images")
    reference = load_data(str(path))
    (path / ".hidden").mkdir()
    (path / "cat" / ".0.png").write_bytes(b"left by an editor")
    (path / "cat" / "notes.txt").write_text("no image by its name")
    (path / "cat" / "more.png").mkdir()
    os.mkfifo(path / "cat" / "pipe.png")  # opening it would wait forever
    again = load_data(str(path))
    assert torch.equal(again.train.x, reference.train.x)
    assert again.classes == 2
    (path / "owl").mkdir()
    with pytest.raises(DataError, match=r"no images \(.*\) in .*owl; add some or remove it"):
        load_data(str(path))
    (path / "owl").rmdir()
    shutil.rmtree(path / "dog")
    with pytest.raises(DataError, match="two or more; found 1"):
        load_data(str(path))
    (path / "dog").symlink_to(path / "dog")
    with pytest.raises(DataError, match="two or more; found 1"):
        load_data(str(path))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_modes_become_gray_or_color_or_are_refused(tmp_path: Path, mode: str) -> None:
    for name, value in (("black", 0), ("white", 255)):
        (tmp_path / name).mkdir()
        for number in range(5):
            image = Image.new("L", (3, 2), value)
            image = image.convert("RGB").convert("CMYK") if mode == "CMYK" else image.convert(mode)
            image.save(tmp_path / name / f"{number}.tif")
    if mode in ("I;16", "I", "F"):
        with pytest.raises(DataError, match="more than 8 bits a channel"):
            from_folder(tmp_path)
        return
    data = from_folder(tmp_path)
    assert data.train.x.shape[1:] == (1 if mode in ("1", "L", "LA") else 3, 2, 3)
    assert torch.equal(data.train.x.mean((1, 2, 3)), 2.0 * data.train.y - 1)


@pytest.mark.parametrize("pixels", [100, 1000])  # millions: Pillow only warns of the first, and refuses the second
def test_a_picture_that_would_fill_the_memory(tmp_path: Path, pixels: int) -> None:
    path = folder_of_images(tmp_path / "images")
    head = b"IHDR" + struct.pack(">IIBBBBB", 1000 * pixels, 1000, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    (path / "cat" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + bytes(4) + b"IDAT" + bytes(100))
    in_little_memory(lambda: load_data(str(path)), DataError)


# Run directories


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    np.savez(place / "mine.npz", x=X, y=Y)
    words = {"data": str(place / "mine.npz"), "model": "linear", "method": "spgda", "radius": 1, "epochs": 2}
    return train_run(place / "run", Config.resolve(words)).path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    shutil.copytree(trained, tmp_path / "run")
    return Run.find(tmp_path / "run")


def test_a_spoilt_model(run: Run) -> None:
    whole, weights = run.model_path.read_bytes(), rhobust.load(run.path).state_dict()

    @MANY
    @given(NOISE)
    def law(noise: Noise) -> None:
        run.model_path.write_bytes(spoilt(whole, noise))
        if model := either(lambda: rhobust.load(run.path), RunError, run.model_path):  # only blanks were changed
            assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())

    law()


def test_spoilt_checkpoints(run: Run) -> None:
    older, newer = sorted((run.path / "checkpoints").iterdir())
    whole, metrics = newer.read_bytes(), run.metrics_path.read_bytes()

    @FEW
    @given(NOISE)
    def law(noise: Noise) -> None:
        run.metrics_path.write_bytes(metrics)
        newer.write_bytes(spoilt(whole, noise))
        warned: list[str] = []
        step, state = run.restore(warned.append)
        assert state is not None
        assert (step == 2) == (not warned)
        if warned:
            assert step == 1
            assert str(newer) in warned[0]

    law()
    shutil.copy(run.model_path, newer)
    older.write_bytes(b"")
    warned: list[str] = []
    assert run.restore(warned.append) == (0, None)
    assert [str(path) in line for path, line in zip((newer, older, run.path), warned, strict=True)] == [True] * 3
    assert "is not a checkpoint" in warned[0]
    assert run.metrics_path.read_bytes() == b""


def forged(structure: object, tensors: dict[str, torch.Tensor]) -> bytes:
    text = structure if isinstance(structure, str) else json.dumps(structure)
    header = json.dumps({"digest": _digest(text, tensors), "structure": text})
    return safetensors.torch.save(tensors, {"rhobust": header})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dict", "list", "tuple", "tensor", "x"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@MANY
@given(JSON)
def test_a_digest_that_is_right_of_a_structure_that_is_wrong(place: Path, structure: object) -> None:
    path = place / "forged"
    path.write_bytes(forged(structure, {"00000": torch.ones(2)}))
    assert isinstance(either(lambda: read_state(path), RunError, path), dict | None)


@pytest.mark.parametrize(
    "content",
    [
        safetensors.torch.save({"a": torch.ones(2)}),
        safetensors.torch.save({"a": torch.ones(2)}, {"rhobust": "[" * 100_000}),
        safetensors.torch.save({"a": torch.ones(2)}, {"rhobust": '{"digest": "", "structure": 3}'}),
        forged("[" * 100_000, {}),
        forged({"dict": [["a", {"tensor": "00001"}]]}, {"00000": torch.ones(2)}),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 99_999_999) + b"{}",
        (lambda head: struct.pack("<Q", len(head)) + head)(
            json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
        ),
    ],
    ids=[
        "no header",
        "deep header",
        "wrong header",
        "deep",
        "no tensor",
        "long head",
        "head past the end",
        "long data",
    ],
)
def test_files_that_are_not_ours(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    in_little_memory(lambda: read_state(tmp_path / "file"), RunError)
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match="damaged or not ours"):
        read_state(tmp_path / "folder")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("preprocessing", {}),
        ("preprocessing", {"columns": [], "target": {"kind": "classes"}}),
        ("preprocessing", [1]),
        ("names", 3),
    ],
)
def test_names_and_preprocessing_that_are_none(run: Run, key: str, value: object) -> None:
    write_state(run.model_path, {**read_state(run.model_path), key: value})
    with pytest.raises(RunError, match=r"model\.safetensors does not fit the model 'linear'"):
        rhobust.load(run.path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", {}),
        ("model", [1]),
        ("model", {"1.weight": torch.ones(2, 2), "1.bias": torch.ones(2)}),
        ("model", {"1.weight": torch.ones(3, 4, dtype=torch.int64), "1.bias": torch.ones(3)}),
        ("shape", [2**30, 2**20]),
        ("shape", ["four"]),
        ("shape", 4),
        ("outputs", 2**40),
        ("outputs", -1),
        ("outputs", None),
        ("bounds", (1.0,)),
        ("bounds", 3),
        ("gamma", "high"),
        ("gamma", None),
    ],
)
def test_a_sound_file_that_does_not_fit_the_model(run: Run, key: str, value: object) -> None:
    state = read_state(run.model_path)
    write_state(run.model_path, {**state, key: value})
    in_little_memory(lambda: rhobust.load(run.path), RunError)
    write_state(run.model_path, {name: part for name, part in state.items() if name != key})
    with pytest.raises(RunError, match=rf"model\.safetensors does not fit the model 'linear': '{key}'"):
        rhobust.load(run.path)


def test_another_model_than_the_settings_name(run: Run) -> None:
    text = run.config_path.read_text()
    for name in ("mlp", "cnn"):
        run.config_path.write_text(text.replace("linear", name))
        with pytest.raises(RunError, match=f"does not fit the model '{name}'"):
            rhobust.load(run.path)


def test_spoilt_settings(run: Run) -> None:
    whole = run.config_path.read_bytes()

    @MANY
    @given(NOISE)
    def law(noise: Noise) -> None:
        run.config_path.write_bytes(spoilt(whole, noise))
        if found := either(run.config, ConfigError, ""):
            assert_buildable(found)

    law()


def test_spoilt_metrics(run: Run) -> None:
    whole, records = run.metrics_path.read_bytes(), run.metrics()

    @MANY
    @given(st.one_of(NOISE, JSON.map(lambda line: json.dumps(line).encode() + b"\n")))
    def law(noise: Noise) -> None:
        run.metrics_path.write_bytes(spoilt(whole, noise))
        found = either(run.metrics, RunError, f"{run.metrics_path} is damaged in line ")
        if found is not None:
            assert all(record.keys() == records[0].keys() for record in found)
            assert summary(run)

    law()
    shutil.rmtree(run.path / "checkpoints")
    run.metrics_path.write_bytes(b"\xff\n")
    with pytest.raises(RunError, match="is damaged in line 1"):
        run.metrics()
    assert run.restore(lambda line: None) == (0, None)  # it starts again, and needs none of it


def test_the_environment_is_for_people_to_read(run: Run) -> None:
    (run.path / "environment.json").write_bytes(b"\xff{")
    assert rhobust.load(run.path).config == run.config()


CELL = {"attack": "pgd", "epsilon": 0.1, "error": 0.5, "discarded": 0, "mean_cost": None}
FLAG = {"check": "grows", "message": "it falls"}
FOUND = {"samples": 9, "clean": 0.1, "attacked": [CELL], "flags": [FLAG], "checked": ["grows"]}
CONTENT = {"model": "m", "settings": {"seed": 0}, "environment": {"torch": "2"}, **FOUND}


def test_a_spoilt_measurement(run: Run) -> None:
    path = run.path / "evaluation.json"

    @MANY
    @given(st.one_of(NOISE, JSON.map(lambda content: json.dumps(content).encode())))
    def law(noise: Noise) -> None:
        path.write_bytes(spoilt(json.dumps(CONTENT).encode(), noise))
        assert either(lambda: kept(run, EVALUATION), RunError, path) is None  # damaged, or of another model

    law()


def test_a_spoilt_measurement_of_a_regression(run: Run) -> None:
    path, ends = run.path / "evaluation.json", [0.1, None]
    residuals = {"rmse": 0.5, "mae": 0.4, "r2": None, "loss": 0.25, "rmse_interval": ends, "mae_interval": ends}
    cell = {"attack": "apgd", "epsilon": 0.1, "residuals": residuals, "discarded": 0, "mean_cost": None}
    found = {"samples": 9, "residuals": residuals, "attacked": [cell], "flags": [FLAG], "checked": ["grows"]}
    digest = hashlib.sha256(run.model_path.read_bytes()).hexdigest()
    content = {"model": digest, "settings": {"seed": 0}, "environment": {}, **found}
    path.write_text(json.dumps(content))
    made = kept(run, EVALUATION)
    assert made is not None
    assert isinstance(made.result, RegressionEvaluation)
    assert made.result.residuals.rmse_interval == [0.1, math.inf]
    assert made.result.error("apgd", 0.1) == 0.5

    @MANY
    @given(st.sampled_from(["residuals", "attacked", "samples"]), JSON)
    def law(key: str, value: Any) -> None:
        path.write_text(json.dumps(content | {key: value}))
        either(lambda: kept(run, EVALUATION), RunError, path)

    law()


WRONG_ROWS: list[Any] = [{}, None, [3], [{}], [CELL | {"error": "x"}], [CELL | {"attack": None}]]


@pytest.mark.parametrize(
    "edited",
    [
        *({key: ...} for key in CONTENT if key not in ("flags", "checked")),
        *({"clean": wrong} for wrong in ("low", True, [0.1], math.nan, math.inf, 10**400)),
        *({"samples": wrong} for wrong in (9.5, True, None)),
        *({"attacked": wrong} for wrong in WRONG_ROWS),
        *({"flags": wrong} for wrong in ("none", [FLAG | {"check": 3}], [{"check": "grows"}])),
        *({"settings": wrong} for wrong in (3, None, ["a"])),
    ],
)
def test_a_measurement_that_holds_something_else_is_damaged(run: Run, edited: dict[str, Any]) -> None:
    path = run.path / "evaluation.json"
    content = CONTENT | {"model": hashlib.sha256(run.model_path.read_bytes()).hexdigest()}
    path.write_text(json.dumps(content | {"checksum": "of an earlier version", "more": 1}))
    made = kept(run, EVALUATION)
    assert made is not None
    shown = made.to_json()
    assert {key: shown[key] for key in content if key != "attacked"} | {"attacked": content["attacked"]} == content
    assert [{key: cell[key] for key in CELL} for cell in shown["attacked"]] == content["attacked"]
    changed = {key: value for key, value in (content | edited).items() if value is not ...}
    path.write_text(json.dumps(changed))
    with pytest.raises(RunError, match=r"evaluation\.json is damaged; delete it and measure again"):
        kept(run, EVALUATION)


def test_a_measurement_nested_too_deep(run: Run) -> None:
    path = run.path / "evaluation.json"
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(RunError, match=r"evaluation\.json is damaged"):
        kept(run, EVALUATION)


def test_the_data_need_not_be_there_to_load_a_model(run: Run) -> None:
    """Nor the device: settings that were right when the run was made are not asked again."""
    text = run.config_path.read_text()
    run.config_path.write_text(text.replace("mine.npz", "gone.npz").replace('"cpu"', '"cuda"'))
    assert rhobust.load(run.path).bounds == (-1.0, 1.0)


# Settings


@MANY
@given(st.one_of(st.text(max_size=100), st.binary(max_size=100)))
def test_any_text_as_toml(place: Path, text: str | bytes) -> None:
    path = place / "any.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="replace"))
    if found := either(lambda: Config.from_toml(path, {"radius": 1}), ConfigError, ""):
        assert_buildable(found)


@pytest.mark.parametrize("key", ["radius", "model_args"])
def test_a_dotted_key_nested_too_deep(tmp_path: Path, key: str) -> None:
    path = tmp_path / "any.toml"
    for depth in (20, 500, 20_000):
        path.write_text(f"model = 'nets.py:net'\n{key}{'.a' * depth} = 1")
        with pytest.raises(ConfigError):
            Config.from_toml(path)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "radius = 1" + "0" * 400, "seed = 1" + "0" * 19]
)
def test_toml_that_python_stumbles_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"any\.toml cannot be read"):
        Config.from_toml(path)
    key, value = text.split(" = ")
    assert parse_overrides([f"{key}={value}"]) == {key: value}
    with pytest.raises(ConfigError):
        Config.resolve(parse_overrides([f"{key}={value}"]))


def test_a_word_is_one_setting() -> None:
    assert parse_overrides(["radius=2\nepochs=3"]) == {"radius": "2\nepochs=3"}
    assert parse_overrides(["a=", "=b", "c=[1,2]"]) == {"a": "", "": "b", "c": [1, 2]}


KEYS = [
    *settings_of(Config),
    *{knob for method in methods().values() for knob in method.knobs},
    *("", "x", ".", "model_args.width", "model_args.", "model-args.a.b", "radius.a"),
]
VALUES = [
    *("0", "1", "-1", "0.5", "inf", "nan", "-inf", "1e308", "1e-320", str(2**63 - 1), "true", "[]", "{}", "1979-05-27"),
    *("l1:1", "l1:nan", "l1:-1", "lp:1.5", "lp:inf", "lp:nan", "lp:1,2", "linf", "l2:", "group-l2:", "box:1,0"),
    *("box:nan,nan", "elastic-net:1e999,0", "fixed", "adam:0", "adam:nan", "multiplicative:-1", "projected:inf"),
    *("", "é", "..", "/dev/null", "\x00", "\x7f"),
    *("{width = 64}", "{a = {b = [1, 1979-05-27]}}", "{a = nan}", "0" * 64, "a" * 64),
    *(
        "nets.py",
        ":",
        "::",
        "a:b",
        ".py:b",
        "..py:x",
        "/:/",
        "a.:b",
        "/dev/null.py:a",
        "\x00.py:a",
        "json:loads",
        "é:é",
    ),
    *methods(),
]


@MANY
@given(
    st.lists(
        st.one_of(st.text(max_size=20), st.builds("{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES))),
        max_size=4,
    )
)
def test_any_words_as_settings(words: list[str]) -> None:
    if found := either(lambda: Config.resolve({"radius": 1.0}, parse_overrides(words)), ConfigError, ""):
        assert_buildable(found)


@pytest.mark.parametrize("name", ["日本", "😀", "back\\slash", 'quo"te', "line\nbreak", "\x7f"])
def test_every_name_survives_the_settings_file(tmp_path: Path, name: str) -> None:
    made = Config.resolve({"radius": 1, "data_dir": name})
    (tmp_path / "config.toml").write_bytes(made.to_toml().encode())
    assert Config.from_toml(tmp_path / "config.toml") == made


FACTORY = b"""from torch import nn

def net(shape, outputs, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), width), nn.Linear(width, outputs))
"""


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_a_spoilt_source_of_a_model(place: Path) -> None:
    """It is one error, or a model whose outputs have the right shape."""
    path = place / "nets.py"

    @FEW
    @given(EDITS, st.sampled_from([{}, {"width": 2}, {"widht": 2}, {"width": "two"}, {"width": -1}, {"shape": 1}]))
    def law(edits: list[tuple[str, float, bytes]], args: dict[str, Any]) -> None:
        path.write_bytes(_damaged(FACTORY, edits))
        config = Config.resolve({"radius": 1, "model": f"{path}:net", "model_args": args})
        with torch.random.fork_rng():
            model = either(lambda: config.make_model(torch.Size([4]), 3), ConfigError, path)
        if model is not None:
            assert model(torch.zeros(2, 4)).shape == (2, 3)

    law()


@MANY
@given(st.text(max_size=12), st.text(max_size=6))
def test_any_name_of_a_factory(name: str, factory: str) -> None:
    for model in (f"{name}:{factory}", f"{name}.py:{factory}"):
        given = {"radius": 1, "model": model}
        if found := either(partial(Config.resolve, given), ConfigError, ""):
            assert found.model_digest


@pytest.mark.parametrize("lie", ["broken", "labels", "images", "model"])
def test_data_that_cannot_be_used_leave_nothing_behind(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=X, y=Y + (2**40 if lie == "labels" else 0))
    if lie == "broken":
        path.write_bytes(path.read_bytes()[:-30])
    if lie == "images":
        path = folder_of_images(tmp_path / "images")
        (path / "cat" / "0.png").write_bytes(b"broken")
    before = sorted(tmp_path.rglob("*"))
    words = ["train", "--data", str(path), "--out", str(tmp_path / "run"), "radius=1"]
    with pytest.raises(RhobustError):
        CliRunner().invoke(app, [*words, *(["model=cnn"] if lie == "model" else [])], catch_exceptions=False)
    assert sorted(tmp_path.rglob("*")) == before
