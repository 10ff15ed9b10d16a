"""Axes: the caller's are left where they are, and without any a figure of pyplot's is made, once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from rhobust.certificates.certificate import Certificate
from rhobust.errors import Refused
from rhobust.evaluation.evaluation import AttackedError, Evaluation

RESULTS: list[Evaluation | Certificate] = [
    Evaluation(9, 0.1, [AttackedError("pgd", 0.1, 0.5)]),
    Certificate(0.5, 0.7, 0.6, 0.5, 0.4, 0.5, "proved"),
]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    pyplot.close("all")


@pytest.mark.parametrize("result", RESULTS)
def test_given_axes_leave_pyplot_alone(result: Evaluation | Certificate) -> None:
    before = pyplot.get_fignums()
    axes = Figure().subplots()
    assert result.plot(axes) is axes
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize("result", RESULTS)
def test_without_axes_one_figure_is_made_which_a_notebook_shows(result: Evaluation | Certificate) -> None:
    before = pyplot.get_fignums()
    axes = result.plot()
    (number,) = set(pyplot.get_fignums()) - set(before)
    assert pyplot.figure(number) is axes.figure
    assert pyplot.gca() is axes


@pytest.mark.parametrize("wrong", ["axes", Figure(), Figure().subplots(1, 2)])
def test_what_is_no_axes_is_refused(wrong: Any) -> None:
    with pytest.raises(Refused, match=r"axes must be one matplotlib Axes, .*, not (str|Figure|ndarray)"):
        RESULTS[0].plot(wrong)


def run(program: str) -> str:
    """What a program prints on a machine without a screen."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MPLBACKEND")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_is_imported_for_drawing_until_something_is_drawn() -> None:
    program = "import sys, rhobust; rhobust.fit, rhobust.evaluate, rhobust.certify; print('matplotlib' in sys.modules)"
    assert run(program) == "False"


def test_a_figure_is_made_without_a_screen() -> None:
    program = """
from rhobust.errors import Refused
from rhobust.evaluation.evaluation import Evaluation
figure = Evaluation(9, 0.1, []).plot().figure
figure.canvas.draw()
print(len(figure.axes))
"""
    assert run(program) == "1"
