"""The command answers what needs no torch without it, and the public names are where they are said to be."""

from __future__ import annotations

import resource
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest
from typer.testing import CliRunner

import rhobust
from rhobust.commands.app import _COMMANDS, app
from rhobust.errors import ConfigError


def seconds(*words: str) -> float:
    """Processor time of a call, in user and system: other work on the machine is no part of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_do_not_wait_for_torch(option: str) -> None:
    pairs = [(seconds("-m", "rhobust", option), seconds("-c", "import torch")) for _ in range(3)]
    answer, torch = (min(times) for times in zip(*pairs, strict=True))
    assert answer <= 0.3 * torch


def test_no_command_is_imported_for_the_list_of_them() -> None:
    program = """
import sys
from typer.testing import CliRunner
from rhobust.commands.app import app
CliRunner().invoke(app, ["--help"])
print([name for name in sys.modules if name.startswith("rhobust.commands.") or name in ("torch", "numpy")])
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['rhobust.commands.app']"


def test_the_list_has_the_first_line_of_every_command() -> None:
    shown = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    for name in _COMMANDS:
        module = import_module(f"rhobust.commands.{name}")
        command = getattr(module, name)
        described = command.info.help if name == "federation" else command.__doc__
        assert " ".join(str(described).split("\n")[0].split()) in shown
        own = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
        assert own.exit_code == 0
        assert " ".join(str(described).split("\n")[0].split()) in " ".join(own.output.split())


def test_an_unknown_command_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"did you mean .train.*known: train, federate"):
        CliRunner().invoke(app, ["trian"], catch_exceptions=False)


def test_public_names_are_found_where_they_are_said_to_be() -> None:
    homes = {name: home for home, names in rhobust._HOMES.items() for name in names}
    assert rhobust.__all__ == sorted(rhobust.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    for name in rhobust.__all__:
        found = getattr(rhobust, name)
        if name in homes:
            assert found.__module__ == f"rhobust.{homes.pop(name)}"
        else:
            assert isinstance(found, ModuleType)
    assert homes == {}
    with pytest.raises(AttributeError, match="has no attribute 'fits'"):
        rhobust.fits  # noqa: B018


def test_a_verb_stays_a_function_when_its_module_is_imported() -> None:
    for home, names in rhobust._HOMES.items():
        module = import_module(f"rhobust.{home}")
        for name in names:
            assert getattr(rhobust, name) is getattr(module, name)
