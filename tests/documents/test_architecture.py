"""docs/architecture.md names every module, and its walks name files that exist, in the layers of the test of layers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_layers import LAYER

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "rhobust"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST = 13  # files in a walk


def tree() -> str:
    """Every module with the first sentence of its docstring, the layers from the lowest up."""

    def place(path: Path) -> tuple[int, str, str]:
        room, _, rest = str(path.relative_to(SRC)).partition("/")
        return LAYER[room.removesuffix(".py")], room if rest else "", str(path)

    modules = [path for path in SRC.rglob("*.py") if not path.name.startswith("__")]
    packages = {path.parent for path in modules if path.parent != SRC}
    lines: dict[tuple[int, str, str], str] = {}
    for path in modules:
        indented = f"    {path.name}" if path.parent != SRC else path.name
        lines[place(path)] = f"{indented:28}{sentence(path)}"
    for package in packages:
        key = place(package / "__init__.py")
        lines[key] = f"{package.name + '/':28}{sentence(package / '__init__.py')}"
    return "\n".join(lines[key].rstrip() for key in sorted(lines))


def sentence(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def walks() -> dict[str, list[str]]:
    """The files of each walk, in their order."""
    part = PAGE.partition("## Walks")[2].partition("\n## ")[0]
    return {
        section.partition("\n")[0]: re.findall(r"^\d+\. `([\w/]+\.py)`", section, flags=re.MULTILINE)
        for section in part.split("\n### ")[1:]
    }


def test_the_tree_is_that_of_the_modules() -> None:
    assert f"```text\n{tree()}\n```" in PAGE


def test_there_are_six_walks() -> None:
    assert len(walks()) == 6


@pytest.mark.parametrize("name", walks())
def test_a_walk_names_files_that_exist_each_once(name: str) -> None:
    files = walks()[name]
    assert 7 <= len(files) <= MOST
    assert len(set(files)) == len(files)
    assert [file for file in files if not (SRC / file).is_file()] == []


@pytest.mark.parametrize("name", walks())
def test_each_file_of_a_walk_is_imported_by_one_before_it_or_called_by_its_interface(name: str) -> None:
    """A hop leads to a file that an earlier one imports, or to one that implements what an earlier one calls."""
    files = walks()[name]
    for number, file in enumerate(files[1:], 1):
        module = "rhobust." + file.removesuffix(".py").replace("/", ".")
        before = "".join((SRC / earlier).read_text(encoding="utf-8") for earlier in files[:number])
        own = (SRC / file).read_text(encoding="utf-8")
        implements = ["rhobust." + earlier.removesuffix(".py").replace("/", ".") for earlier in files[:number]]
        named = module in before or f"import {module.rpartition('.')[2]}" in before
        assert named or any(other in own for other in implements) or file in HANDED_IN, file


HANDED_IN = {
    # Objects that a walk reaches by an interface: the start of the run put them together.
    "training/eager.py": "an Engine of the loop",
    "federation/federated_engine.py": "an Engine of the loop",
    "runs/directory.py": "the Keeper of the loop",
    "ascent/margin.py": "the Maximizer of the method",
    "losses.py": "the loss of the objective",
    "commands/train.py": "imported by its name",
}


def test_the_places_to_add_something_exist() -> None:
    table = PAGE.partition("## Where to add something")[2].partition("\n## ")[0]
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", table):
        assert (SRC / name).exists(), name
    for table_name, file in re.findall(r"`([A-Z_]+)` in `([\w/]+\.py)`", table):
        assert re.search(rf"^{table_name}\b", (SRC / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
