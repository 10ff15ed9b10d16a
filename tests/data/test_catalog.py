"""Data sets: the real ones where they are, and a named error for whatever is not one."""

import gzip
import hashlib
import http.server
import math
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from rhobust.data import digits
from rhobust.data.archives import MNIST, Archive
from rhobust.data.catalog import load_data
from rhobust.data.image_folder import from_folder
from rhobust.data.npz import from_npz
from rhobust.errors import ConfigError, DataError, TruncatedFile, WrongHash
from rhobust.runs.config import Config
from rhobust.runs.start import train_run

REAL = Path(os.environ.get("RHOBUST_DATA", Path(__file__).parents[3] / "shared" / "data"))


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape) + values.tobytes()


PARTS = {
    "train-images": idx(np.arange(5 * 28 * 28, dtype=np.uint8).reshape(5, 28, 28)),
    "train-labels": idx(np.array([3, 1, 4, 1, 5], dtype=np.uint8)),
    "t10k-images": idx(np.zeros((2, 28, 28), dtype=np.uint8)),
    "t10k-labels": idx(np.array([9, 2], dtype=np.uint8)),
}
TINY = replace(MNIST, mirrors=(), hashes={part: hashlib.sha256(content).hexdigest() for part, content in PARTS.items()})


def lay(folder: Path, compress: bool = True, **changed: bytes) -> Path:
    """The tiny archive as files, with some parts replaced."""
    (folder / "mnist").mkdir(parents=True, exist_ok=True)
    for part, content in {**PARTS, **{name.replace("_", "-"): value for name, value in changed.items()}}.items():
        name = f"{part}-idx{3 if 'images' in part else 1}-ubyte"
        (folder / "mnist" / f"{name}{'.gz' if compress else ''}").write_bytes(
            gzip.compress(content) if compress else content
        )
    return folder


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_user_without_a_home_needs_none_where_the_data_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert TINY.load("train", lay(tmp_path))[1].tolist() == [3, 1, 4, 1, 5]
    with pytest.raises(DataError, match="no home directory to keep downloads in; set XDG_CACHE_HOME"):
        TINY.load("train", tmp_path / "elsewhere")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_data_are_what_the_world_knows_them_to_be(name: str) -> None:
    if not (REAL / name).is_dir():
        pytest.skip(f"REAL DATA ABSENT: {REAL / name} is not there; set RHOBUST_DATA to test {name}")
    data = load_data(name, REAL)
    assert data.train.x.shape == (60000, 1, 28, 28)
    assert data.test.x.shape == (10000, 1, 28, 28)
    assert (float(data.train.x.min()), float(data.train.x.max())) == data.bounds == (-1, 1)
    counts = torch.bincount(data.train.y, minlength=10).tolist()
    assert (
        counts
        == {
            "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            "fashion-mnist": [6000] * 10,
        }[name]
    )


def test_the_digits_have_one_split_for_everybody() -> None:
    torch.manual_seed(1)
    first = digits()
    torch.manual_seed(2)
    assert torch.equal(first.test.x, digits().test.x)
    assert (len(first.train), len(first.test)) == (1437, 360)


@pytest.mark.parametrize("compress", [True, False])
def test_an_archive_gzipped_or_not(tmp_path: Path, compress: bool) -> None:
    images, labels = TINY.load("train", lay(tmp_path, compress))
    assert images[1, 0, 2] == (28 * 28 + 2) % 256
    assert labels.tolist() == [3, 1, 4, 1, 5]


@pytest.mark.parametrize(
    "damaged",
    [
        PARTS["train-images"][:-1],
        PARTS["train-images"][:10],
        PARTS["train-images"] + b"!",
        PARTS["train-images"][:-1] + b"!",
        PARTS["train-labels"] * 9,
    ],
)
def test_what_is_not_the_published_file_is_refused(tmp_path: Path, damaged: bytes) -> None:
    with pytest.raises(WrongHash, match=r"train-images-idx3-ubyte.* is not the published mnist .*SHA-256 differs"):
        TINY.load("train", lay(tmp_path, train_images=damaged))


def test_a_cut_gzip_file_and_labels_of_another_set_have_names_too(tmp_path: Path) -> None:
    path = lay(tmp_path) / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TruncatedFile, match="compression breaks off"):
        TINY.load("train", tmp_path)
    with pytest.raises(WrongHash, match="train-labels"):
        TINY.load("train", lay(tmp_path, train_labels=PARTS["t10k-labels"]))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.binary(max_size=64))
def test_no_other_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = lay(tmp_path_factory.getbasetemp() / "any", compress=False, train_images=content)
    with pytest.raises(DataError, match="train-images"):
        TINY.load("train", folder)


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Archive, list[str]]]:
    """The tiny archive offered on loopback, and the list of what was asked for."""
    offered = lay(tmp_path / "offered") / "mnist"
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(offered))

        def log_message(self, form: str, *args: object) -> None:
            asked.append(str(args[0]))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield replace(TINY, mirrors=("http://127.0.0.1:9/", f"http://127.0.0.1:{server.server_port}/")), asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_is_nowhere_is_downloaded_once_verified_and_kept(mirror: tuple[Archive, list[str]]) -> None:
    archive, asked = mirror
    for _ in range(2):  # the second time from the cache
        assert archive.load("train", None)[1].tolist() == [3, 1, 4, 1, 5]
    assert len(asked) == 2


def test_a_download_of_something_else_leaves_nothing_behind(mirror: tuple[Archive, list[str]], tmp_path: Path) -> None:
    archive = replace(mirror[0], hashes={**TINY.hashes, "train-images": "0" * 64})
    with pytest.raises(DataError, match=r"could not be downloaded.*Put train-images-idx3-ubyte\.gz"):
        archive.load("train", None)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_without_a_network_one_message_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        replace(TINY, mirrors=("http://127.0.0.1:9/",)).load("train", tmp_path / "here")
    for part in (str(tmp_path / "here" / "mnist"), "RHOBUST_DATA", "train-images-idx3-ubyte.gz"):
        assert part in str(caught.value)


def test_npz_with_numbers_with_bytes_and_with_a_test_set(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    x = np.linspace(-2, 3, 60, dtype=np.float64).reshape(20, 3)
    np.savez(path, x=x, y=np.arange(20) % 4)
    data = from_npz(path)
    assert (len(data.train), len(data.test), data.classes, data.bounds) == (16, 4, 4, (-2.0, 3.0))
    assert torch.equal(torch.cat([data.train.x, data.test.x]).sort(0).values, torch.from_numpy(x).float())
    np.savez(path, x=x, y=np.arange(20) % 4, bounds=np.array([-5.0, 5.0]), x_test=x[:2], y_test=np.array([0, 1]))
    data = load_data(str(path), limit=7)
    assert (len(data.train), len(data.test), data.bounds) == (7, 2, (-5.0, 5.0))
    np.savez(path, x=np.array([[0, 255]] * 10, dtype=np.uint8), y=np.zeros(10, dtype=int))
    data = from_npz(path)
    assert data.bounds == (-1, 1)
    assert data.train.x[0].tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((3, 2))}, "has no array y; it has x"),
        ({"A": np.zeros((3, 2)), "B": np.zeros(3, dtype=int)}, "has no array x nor y; it has A, B$"),
        ({"X": np.zeros((3, 2)), "x": np.zeros((3, 2))}, "it has both X.npy and x.npy"),
        (
            {"x": np.eye(3), "y": np.array(list("abc")), "x_test": np.eye(3), "y_test": np.zeros(3)},
            "y must be whole",
        ),
        ({"x": np.zeros((3, 2)), "labels": np.array([{}])}, "has no array y; it has x, labels$"),
        ({f"{letter}\nz" + 99 * "z": np.zeros(1) for letter in "ab"}, "has no array x nor y; it has none$"),
        ({f"a{number}" + 99 * "z": np.zeros(1) for number in range(50)}, "it has a0z{38}, a1z{38}, .*z and 40 more$"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4, dtype=int)}, "x has 3 samples and y has 4"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, dtype=int)}, "holds 0 samples"),
        ({"x": np.full((3, 2), np.nan), "y": np.zeros(3, dtype=int)}, "NaN or infinite"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3)}, "y must be whole numbers .* for numbers set task=regression"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, -1, 2])}, "the label -1; labels count from 0"),
        ({"x": np.eye(3), "y": np.array([2, 1, 1])}, "the labels begin with 1, and nothing is of class 0"),
        ({"x": np.eye(3), "y": np.zeros(3, dtype=int), "bounds": np.array([0, 0.5])}, "does not fit the bounds"),
        (
            {
                **{"x": np.zeros((3, 2), dtype=np.uint8), "y": np.array([0, 1, 1])},
                **{"x_test": np.zeros((3, 2)), "y_test": np.array([0, 1, 1])},
            },
            "x is uint8 and x_test float64; give both in one unit",
        ),
        ({"x": np.array([{}]), "y": np.zeros(1, dtype=int)}, "cannot be read as an .npz file"),
    ],
)
def test_an_unusable_npz_is_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message):
        from_npz(path)


def test_names_of_arrays_may_be_capital_and_labels_may_be_text(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.array(["dog", "cat"] * 10)
    np.savez(tmp_path / "small.npz", x=x, y=(y == "dog").astype(int), x_test=x[:3], y_test=np.array([2, 1, 0]))
    np.savez(tmp_path / "large.npz", X=x, Y=y, X_test=x[:3], Y_test=np.array(["owl", "dog", "cat"]))
    small, large = (load_data(str(tmp_path / f"{name}.npz")) for name in ("small", "large"))
    assert (small.train.digest(), small.test.digest()) == (large.train.digest(), large.test.digest())
    assert (small.test.names, large.test.names, large.classes) == ((), ("cat", "dog", "owl"), 3)


@pytest.mark.parametrize("y", [np.array([0.5, -2.0, 7.0]), np.array([[0.5], [-2], [7]]), np.array([3, -1, 900])])
def test_the_numbers_of_a_regression_are_kept(tmp_path: Path, y: NDArray[Any]) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.eye(3), y=y, x_test=np.eye(3), y_test=y)
    data = from_npz(path, "regression")
    assert (data.task, data.classes, data.outputs) == ("regression", 0, 1)
    assert data.train.y.tolist() == data.test.y.tolist() == y.ravel().tolist()
    assert data.train.y.dtype == torch.float32


def test_a_sample_may_have_several_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.eye(10), y=np.arange(20.0).reshape(10, 2))
    data = from_npz(tmp_path / "mine.npz", "regression")
    assert (data.outputs, tuple(data.train.y.shape), tuple(data.test.y.shape)) == (2, (8, 2), (2, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.array(["a", "b", "c"])}, "y must be numbers, .* for a regression, not <U1"),
        ({"y": np.zeros((3, 2, 2))}, "y must be numbers"),
        ({"y": np.zeros((3, 0))}, "y must be numbers"),
        ({"y": np.array([1.0, math.nan, 2.0])}, "y holds NaN or infinite values"),
        ({"y": np.array([1.0, 1e300, 2.0])}, "y holds NaN or infinite values"),
        ({"y": np.full(3, 2.5)}, "every y is 2.5; there is nothing to predict"),
        ({"y": np.arange(2.0)}, "x has 3 samples and y has 2"),
        ({"x": np.ones((1, 3)), "y": np.ones(1)}, "holds 1 samples"),
        ({"y": np.arange(3.0), "x_test": np.eye(3), "y_test": np.eye(3)}, "has 1 numbers in y, and 3 in y_test"),
    ],
)
def test_numbers_that_cannot_be_learned_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **({"x": np.eye(3)} | arrays))
    with pytest.raises(DataError, match=message):
        from_npz(path, "regression")


def test_a_single_array_is_told_from_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(ConfigError, match="there is no such"):
        load_data(str(path))
    np.save(path, np.zeros((3, 2)))
    with pytest.raises(ConfigError, match=r"a \.npy file holds one array; an \.npz is needed: .*x=x, y=y") as caught:
        load_data(str(path))
    assert str(path) in str(caught.value)


def test_a_folder_of_images_per_class(tmp_path: Path) -> None:
    for label, name in enumerate(["cat", "dog", "owl"]):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("L", (6, 4), color=50 * label + number).save(tmp_path / name / f"{number}.png")
        (tmp_path / name / "notes.txt").write_text("not an image")
    data = load_data(str(tmp_path))
    assert data.train.x.shape == (12, 1, 4, 6)
    assert data.classes == 3
    for x, y in zip(data.train.x, data.train.y, strict=True):
        assert round(float((x[0, 0, 0] + 1) * 127.5)) // 50 == int(y)
    Image.new("RGB", (6, 4)).save(tmp_path / "owl" / "color.png")
    with pytest.raises(DataError, match=r"differ in size or color.*color\.png"):
        from_folder(tmp_path)
    (tmp_path / "owl" / "color.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"color\.png cannot be read as an image"):
        from_folder(tmp_path)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_an_image_is_seen_as_its_camera_was_held(tmp_path: Path, suffix: str) -> None:
    """Orientation 6: what is kept as the left column is the top row."""
    pixels, exif = np.zeros((8, 16, 3), dtype=np.uint8), Image.Exif()
    pixels[:, :8], exif[274] = 255, 6
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.{suffix}", exif=exif)
    x = from_folder(tmp_path).train.x
    assert x.shape[1:] == (3, 16, 8)
    assert x[:, :, :7].min() > 0.9
    assert x[:, :, 9:].max() < -0.9


def png(channels: int, depth: int) -> bytes:
    """A gray or colored image of 3 x 2, with or without an alpha channel; Pillow writes none of 16 bits in color."""
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = (b"\0" + bytes(range(3 * channels * depth // 8))) * 2

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 3, 2, depth, color, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff(depth: int) -> bytes:
    """The same in color as a TIFF, one channel after the other."""
    size, lists = 6 * depth // 8, 8 + 2 + 10 * 12 + 4  # bytes of a channel; where lists of three are, after the tags
    tags = {256: 3, 257: 2, 258: lists, 259: 1, 262: 2, 273: lists + 12, 277: 3, 278: 2, 279: lists + 24, 284: 2}
    directory = [struct.pack("<HHII", tag, 4, 3 if value >= lists else 1, value) for tag, value in tags.items()]
    three = [depth] * 3 + [lists + 36 + size * channel for channel in range(3)] + [size] * 3
    content = struct.pack("<9I", *three) + bytes(range(3 * size))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(directory) + bytes(4) + content


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("gray.png", partial(png, 1)),
        ("gray-alpha.png", partial(png, 2)),
        ("color.png", partial(png, 3)),
        ("color-alpha.png", partial(png, 4)),
        ("color.tif", tiff),
    ],
)
def test_bits_that_would_be_cut_off_are_refused_in_gray_and_in_color(
    tmp_path: Path, name: str, make: Callable[[int], bytes]
) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        (tmp_path / label / name).write_bytes(make(8))
    assert from_folder(tmp_path).train.x.shape[2:] == (2, 3)
    (tmp_path / "dog" / name).write_bytes(make(16))
    with pytest.raises(DataError, match=rf"dog/{name} .* more than 8 bits a channel; save it with 8, or use an \.npz"):
        from_folder(tmp_path)


def test_an_unknown_name_lists_the_known_ones_and_the_other_ways(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown data set 'minst' \(did you mean 'mnist'\?\).*\.npz file"):
        load_data("minst")
    with pytest.raises(DataError, match="one folder of images for each class"):
        load_data(str(tmp_path))


def test_what_leaves_nothing_to_tell_apart_is_said_so(tmp_path: Path) -> None:
    path, y = tmp_path / "mine.npz", np.arange(10) % 2
    np.savez(path, x=np.ones((10, 2)), y=y)
    with pytest.raises(DataError, match="every number in x is 1"):
        from_npz(path)
    np.savez(path, x=np.eye(10), y=y, bounds=np.array([9.0, -9.0]))
    with pytest.raises(DataError, match="lower < upper"):
        from_npz(path)
    np.savez(path, x=np.eye(10), y=np.zeros(10, dtype=int))
    with pytest.raises(DataError, match="the labels are of one class only"):
        train_run(tmp_path / "run", Config.resolve({"data": str(path), "method": "erm"}))
    assert not (tmp_path / "run").exists()
