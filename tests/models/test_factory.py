"""Models of the user's own: found without running them, run only if they are the known ones, and checked."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import Size

from rhobust.errors import ConfigError
from rhobust.models.catalog import build_model
from rhobust.models.source import Source

NET = """
from torch import nn

def net(shape, outputs, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), width), nn.Linear(width, outputs))
"""
SHAPE = Size([1, 2, 2])


@pytest.fixture(autouse=True)
def _modules_as_before() -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    yield
    assert sys.path == path
    for name in sys.modules.keys() - before:
        del sys.modules[name]


def written(path: Path, text: str = NET) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path


def built(model: str, /, **args: object) -> torch.nn.Module:
    return build_model(model, SHAPE, 5, args, Source.parse(model).digest())


def problem(model: str, /, **args: object) -> str:
    with pytest.raises(ConfigError) as caught:
        built(model, **args)
    (only,) = caught.value.problems
    assert f"model '{model}'" in only
    return only


def test_it_is_called_with_shape_classes_and_arguments(tmp_path: Path) -> None:
    path = written(tmp_path / "nets.py")
    torch.manual_seed(3)
    made = built(f"{path}:net", width=7)
    assert [tuple(weight.shape) for weight in made.parameters()] == [(7, 4), (7,), (5, 7), (5,)]
    torch.manual_seed(3)
    again = torch.nn.Linear(4, 7)
    assert torch.equal(made[1].weight, again.weight)  # type: ignore[index]  # the probe draws nothing
    assert made.training


def test_the_digest_is_that_of_the_file_for_a_path_and_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "own_pkg_a" / "nets.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    wanted = hashlib.sha256(path.read_bytes()).hexdigest()
    for model in (f"{path}:net", "own_pkg_a.nets:net"):  # a package without __init__.py
        assert Source.parse(model).digest() == wanted
        assert isinstance(built(model), torch.nn.Sequential)


def test_no_package_is_run_to_find_a_module_nor_a_source_of_another_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    mark = f"open({str(ran)!r}, 'w').close()\n"
    written(tmp_path / "own_pkg_b" / "__init__.py", mark)
    written(tmp_path / "own_pkg_b" / "inner" / "__init__.py", mark)
    path = written(tmp_path / "own_pkg_b" / "inner" / "nets.py", mark + NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    for model in ("own_pkg_b.inner.nets:net", f"{path}:net"):
        digest = Source.parse(model).digest()
        for other, said in (
            ("0" * 64, rf"{digest}, and model_digest is 0{{64}}\. Put the file back"),
            (None, "no model_digest"),
        ):
            with pytest.raises(ConfigError, match=said):
                build_model(model, SHAPE, 5, {}, other)
        assert not ran.exists()
        build_model(model, SHAPE, 5, {}, digest)
        ran.unlink()  # it was run


def test_a_module_that_changed_since_its_import_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "own_once.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    built("own_once:net")
    written(path, NET.replace("width=3", "width=4"))
    assert "has changed since it was imported; start Python again" in problem("own_once:net")
    # A file is not imported by name: each content is a module of its own.
    assert tuple(built(f"{path}:net")[1].weight.shape) == (4, 4)  # type: ignore[index]
    written(path, NET)
    assert tuple(built(f"{path}:net")[1].weight.shape) == (3, 4)  # type: ignore[index]
    assert type(built(f"{path}:net")) is type(built(f"{path}:net"))


def test_classes_and_dataclasses_of_a_file_work(tmp_path: Path) -> None:
    path = written(
        tmp_path / "nets.py",
        """
        from __future__ import annotations
        from dataclasses import dataclass
        from torch import Size, nn

        @dataclass
        class Plan:
            width: int = 3

        class Net(nn.Module):
            def __init__(self, shape: Size, outputs: int, *, width: int = Plan().width) -> None:
                super().__init__()
                self.layer = nn.Linear(shape.numel(), outputs)

            def forward(self, x):
                return self.layer(x.flatten(1))
        """,
    )
    first, second = built(f"{path}:Net"), built(f"{path}:Net", width=2)
    assert type(first) is type(second)


def test_a_file_imports_what_lies_beside_it_and_two_folders_do_not_mix(tmp_path: Path) -> None:
    for folder, width in (("a", 3), ("b", 4)):
        written(tmp_path / folder / "own_blocks.py", f"width = {width}")
        written(tmp_path / folder / "own_parts" / "__init__.py", "from own_parts.more import bias")
        written(tmp_path / folder / "own_parts" / "more.py", f"bias = {width == 3}")
        written(
            tmp_path / folder / "nets.py",
            """
            from own_blocks import width
            from own_parts import bias
            from torch import nn

            def net(shape, outputs):
                return nn.Sequential(nn.Flatten(), nn.Linear(4, width, bias=bias), nn.Linear(width, outputs))
            """,
        )
    for folder, count in (("a", 35), ("b", 41), ("a", 35)):
        made = built(f"{tmp_path / folder / 'nets.py'}:net")
        assert sum(weight.numel() for weight in made.parameters()) == count


def test_settings_are_not_the_factory_s_to_change(tmp_path: Path) -> None:
    path = written(
        tmp_path / "nets.py",
        """
        from torch import nn

        def net(shape, outputs, widths):
            widths.append(outputs)
            return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), widths.pop()))
        """,
    )
    widths = [1, 2]
    built(f"{path}:net", widths=widths)
    assert widths == [1, 2]


BAD = """
import torch
from torch import nn
from torch.nn import Linear

three = 3
one = nn.Sequential(nn.Flatten(), nn.Linear(4, 5))

def raises(shape, outputs):
    return deeper()

def deeper():
    raise ValueError("no such thing")

def leaves(shape, outputs):
    raise SystemExit(3)

def nothing(shape, outputs):
    pass

def short(shape):
    return one

def needs(shape, outputs, depth):
    return one

def empty(shape, outputs):
    return nn.Flatten()

def frozen(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, outputs)).requires_grad_(False)

def few(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))

def whole(shape, outputs):
    class Whole(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)).argmax(1)
    return Whole(4, outputs)

def double(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, outputs)).double()

def lazy(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))

def meta(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, outputs, device="meta"))

def narrow(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(3, outputs))

class Two(nn.Linear):
    def __init__(self, shape, outputs):
        super().__init__(4, outputs)

    def forward(self, x):
        return super().forward(x.flatten(1)), x

class Lost(nn.Linear):
    def __init__(self, shape, outputs):
        super().__init__(4, outputs)

    def forward(self, x):
        return self.nowhere(x)
"""


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("raises", "raises raised: ValueError: no such thing ({path}:13)"),
        ("leaves", "leaves raised: SystemExit: 3 ({path}:16)"),
        ("nothing", "nothing returned a NoneType; it must return a torch.nn.Module"),
        ("short", "is called as short(shape, outputs) and defined as short(shape): too many positional arguments"),
        ("needs", "defined as needs(shape, outputs, depth): missing a required argument: 'depth'"),
        ("empty", "the Flatten has no parameters to train"),
        ("frozen", "the Sequential has no parameters to train"),
        ("few", "must be floats of shape (2, 5), one for each class; they are torch.float32 of shape (2, 3)"),
        ("whole", "they are torch.int64 of shape (2,)"),
        ("double", "parameters must be float32, and '1.weight' is torch.float64; use model.float()"),
        ("lazy", "the size of '1.weight' is not known yet; give lazy layers their sizes"),
        ("meta", "'1.weight' has no values: it is on the device 'meta'"),
        ("narrow", "the model takes no batch of shape (2, 1, 2, 2): RuntimeError: mat1 and mat2 shapes cannot be"),
        ("Lost", "'Lost' object has no attribute 'nowhere' ({path}:66)"),
        ("Two", "the model returned a tuple; its output must be one tensor"),
        ("three", "three is of type int, and a factory is a function or class"),
        ("four", "has no 'four'; it defines raises, deeper, leaves"),
        ("Linear", "written in the module 'torch.nn.modules.linear', whose source the digest would not cover"),
    ],
)
def test_a_factory_that_cannot_be_used_is_one_error(tmp_path: Path, factory: str, said: str) -> None:
    path = written(tmp_path / "bad.py", BAD)
    assert said.format(path=path) in problem(f"{path}:{factory}")


def test_unknown_arguments_are_named_beside_the_known_ones(tmp_path: Path) -> None:
    model = f"{written(tmp_path / 'nets.py')}:net"
    assert "defined as net(shape, outputs, width=3): got an unexpected keyword argument 'widht'" in problem(
        model, widht=1
    )
    assert "multiple values for argument 'shape'" in problem(model, shape=1)


def test_one_model_for_two_calls_is_refused(tmp_path: Path) -> None:
    """A simulated federation builds two, and they must not share their weights."""
    more = "one = net(Size([4]), 5)\n\ndef same(shape, outputs):\n    return one\n"
    path = written(tmp_path / "nets.py", f"from torch import Size\n{NET}{more}")
    built(f"{path}:same")
    assert "same returned the same model twice" in problem(f"{path}:same")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (", "cannot be imported: SyntaxError: '(' was never closed ({folder}/nets.py:1)"),
        ("\nimport own_nowhere", "ModuleNotFoundError: No module named 'own_nowhere' ({folder}/nets.py:2)"),
        ("import own_broken", "SyntaxError: invalid syntax ({folder}/own_broken.py:1)"),
        ("import sys\nsys.exit(2)", "SystemExit: 2 ({folder}/nets.py:2)"),
        ("1 / 0", "ZeroDivisionError: division by zero ({folder}/nets.py:1)"),
        ("\x00", "SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_error_and_leaves_no_module(tmp_path: Path, text: str, said: str) -> None:
    written(tmp_path / "own_broken.py", "def f(:")
    path, before = written(tmp_path / "nets.py", text), set(sys.modules)
    for _ in range(2):
        assert said.format(folder=tmp_path) in problem(f"{path}:net")
    assert not [name for name in sys.modules.keys() - before if name.startswith(("rhobust_model", "own_"))]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nets.py", "names no factory; write nets.py:FACTORY"),
        (":net", "write FILE.py:FACTORY or PACKAGE.MODULE:FACTORY"),
        ("nets.py:", "write FILE.py:FACTORY"),
        ("nets.py:a.b", "write FILE.py:FACTORY"),
        ("some/nets:net", "write FILE.py:FACTORY"),
        ("a..b:net", "write FILE.py:FACTORY"),
        ("/no/where/nets.py:net", "/no/where/nets.py does not exist"),
        ("no_such_package.nets:net", "Python finds no module 'no_such_package.nets'; install it"),
        ("torch.no_such_module:net", "Python finds no module 'torch.no_such_module'"),
        ("sys:exit", "the module 'sys' has no file"),
        ("{folder}/dir.py:net", "dir.py is no file"),
        ("{folder}/\x00.py:net", "\x00.py"),
        ("{folder}/" + "a" * 5000 + ".py:net", "cannot be read: File name too long"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_error(tmp_path: Path, model: str, said: str) -> None:
    (tmp_path / "dir.py").mkdir()
    assert said in problem(model.format(folder=tmp_path))
