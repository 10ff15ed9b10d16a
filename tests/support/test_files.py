"""States on disk: what goes in comes out, equal states are equal bytes, and damage is always found."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rhobust.errors import RunError
from rhobust.support.files import LOCK, exclusive, write_atomically
from rhobust.support.state_files import read_state, write_state

STATE: dict[str, Any] = {
    "scalar": torch.tensor(1.5),
    "empty": torch.zeros(0, 3),
    "half": torch.ones(2, 2, dtype=torch.bfloat16),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "nested": {0: {"betas": (0.9, 0.999), "flags": [True, None, "text"]}, "step": torch.tensor(3.0)},
    "limit": float("inf"),
}


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


def test_round_trip_keeps_types_keys_and_values(tmp_path: Path) -> None:
    write_state(tmp_path / "state", STATE)
    assert_equal(read_state(tmp_path / "state"), STATE)


def test_equal_states_are_equal_bytes(tmp_path: Path) -> None:
    contents = set()
    for name in "abcdef":
        write_state(tmp_path / name, STATE)
        contents.add((tmp_path / name).read_bytes())
    assert len(contents) == 1


def test_what_would_need_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot write a function without pickling it"):
        write_state(tmp_path / "state", {"hook": lambda: None})
    assert not list(tmp_path.iterdir())


@settings(derandomize=True, deadline=None, max_examples=150)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_any_flipped_bit_or_cut_is_found(
    tmp_path_factory: pytest.TempPathFactory, position: float, bit: int, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("damage") / "state"
    write_state(path, STATE)
    content = bytearray(path.read_bytes())
    place = int(position * len(content))
    if cut:
        path.write_bytes(content[:place])
    else:
        content[place] ^= 1 << bit
        path.write_bytes(content)
    with pytest.raises(RunError, match="damaged"):
        read_state(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere does not exist"):
        read_state(tmp_path / "nowhere")


def test_a_link_is_followed_and_a_pipe_is_written_into(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("before")
    link.symlink_to(target)
    write_atomically(link, b"after")
    assert (link.is_symlink(), target.read_text()) == (True, "after")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"through")
    assert (os.read(reader, 100), pipe.is_fifo()) == (b"through", True)
    os.close(reader)
    with pytest.raises(IsADirectoryError) as problem:
        write_atomically(tmp_path, b"")
    assert problem.value.filename == str(tmp_path)


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    write_state(tmp_path / "a", STATE)
    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(RunError, match="may not be read by this user"):
        read_state(tmp_path / "a")


def test_what_goes_to_a_piped_standard_output_goes_there() -> None:
    write = "from pathlib import Path; from rhobust.support.files import write_atomically as w"
    code = f"{write}; w(Path('/dev/stdout'), b'here')"
    words = [sys.executable, "-c", f"{code}; print(' and there')"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "here and there\n"


def test_a_link_to_itself_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(tmp_path / "a", b"")


def test_a_directory_is_written_by_one_at_a_time(tmp_path: Path) -> None:
    path, before = tmp_path / "new", threading.enumerate()
    with exclusive(path):
        with (
            pytest.raises(RunError, match="is being written by another process; wait for it, or stop it"),
            exclusive(path),
        ):
            pytest.fail("two at a time")
        with exclusive(tmp_path):  # another directory is another matter
            pass
    with exclusive(path):
        pass
    assert [file.name for file in path.iterdir()] in ([LOCK], [])
    assert threading.enumerate() == before


def test_an_error_while_a_directory_is_held_comes_through_and_lets_go(tmp_path: Path) -> None:
    with pytest.raises(KeyError), exclusive(tmp_path):
        raise KeyError
    with exclusive(tmp_path):
        pass


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from rhobust.support.files import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process"), exclusive(tmp_path):
            pytest.fail("two at a time")
        other.kill()
    with exclusive(tmp_path):
        pass
