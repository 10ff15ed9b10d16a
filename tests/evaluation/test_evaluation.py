"""An evaluation as text and as a figure."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from rhobust.evaluation.evaluation import AttackedError, Evaluation
from rhobust.evaluation.shifts import ShiftedError, ShiftEvaluation
from rhobust.evaluation.trust import Flag
from tests.drawn import legend, points

STAGES = {"clean": 0.1, "untargeted": 0.3, "targeted": 0.3, "refined": 0.35, "restarted": 0.35}
FOUND = Evaluation(
    100,
    0.1,
    [
        AttackedError("cascade", 0.0, 0.1),
        AttackedError("cascade", 0.2, 0.35, stages=STAGES),
        AttackedError("fgsm", 0.2, 0.25),
        AttackedError("worst", 0.2, 0.25),
        AttackedError("wasserstein", 0.5, 0.4, mean_cost=0.49876),
    ],
    checked=["learned", "inside"],
)
TEXT = """\
clean error 10.00 % (95 % interval 5.5-17.4) on 100 samples

cascade: error in percent, and what each stage adds
epsilon  error  95 % interval  clean  untargeted  targeted  refined  restarted
-------  -----  -------------  -----  ----------  --------  -------  ---------
0        10.00       5.5-17.4
0.2      35.00      26.4-44.7  10.00      +20.00     +0.00    +5.00      +0.00

attacks by name: error in percent, and its 95 % interval
epsilon       fgsm      worst
-------  ---------  ---------
0.2          25.00      25.00
         17.5-34.3  17.5-34.3

wasserstein attack: error in percent
budget  average transport cost  error  95 % interval
------  ----------------------  -----  -------------
0.5                     0.4988  40.00      30.9-49.8

passed checks: learned, inside"""


def test_text_of_an_evaluation() -> None:
    assert str(FOUND) == TEXT


def test_a_failed_check_is_named_and_passed_ones_are_not() -> None:
    found = Evaluation(9, 0.5, [], [Flag("learned", "the model has learned nothing")], ["learned", "inside"])
    assert str(found).splitlines()[1:] == ["failed check (learned): the model has learned nothing"]


def test_weak_attacks_alone_are_said_to_be_weak() -> None:
    found = Evaluation(9, 0.5, [AttackedError("fgsm", 0.1, 0.5)], checked=["inside"])
    assert str(found).splitlines()[-2:] == [
        "only weak attacks were run (fgsm): stronger ones, such as cascade, find more",
        "not checked: 9 samples do not tell whether the model has learned anything",
    ]


def test_the_samples_that_are_wrong_are_not_in_the_repr() -> None:
    assert "ffff" not in repr(AttackedError("pgd", 0.1, 1.0, wrong="ffff"))


def test_lines_and_bands_are_the_errors_and_their_intervals() -> None:
    axes = Figure().subplots()
    assert FOUND.plot(axes) is axes
    clean, *lines = axes.get_lines()
    assert clean.get_ydata() == pytest.approx([10, 10])
    drawn = {line.get_label(): points(line) for line in lines}
    assert drawn == {"cascade": [[0, 10], [0.2, 35]], "fgsm": [[0.2, 25]], "worst": [[0.2, 25]]}
    assert legend(axes) == ["clean", *drawn]
    band = axes.collections[0]
    corners = {tuple(corner) for corner in np.asarray(band.get_paths()[0].vertices).round(9).tolist()}
    ends = [(epsilon, 100 * end) for epsilon in (0.0, 0.2) for end in FOUND.interval("cascade", epsilon)]
    assert corners == {(epsilon, round(end, 9)) for epsilon, end in ends}
    assert np.asarray(band.get_facecolor())[0, :3] == pytest.approx(to_rgb(lines[0].get_color()))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("perturbation size epsilon", "error, %")


def test_epsilons_are_drawn_in_their_order() -> None:
    axes = Figure().subplots()
    Evaluation(9, 0.0, [AttackedError("pgd", 0.3, 0.9), AttackedError("pgd", 0.1, 0.2)]).plot(axes)
    assert axes.get_lines()[1].get_xdata() == pytest.approx([0.1, 0.3])


def test_the_wasserstein_attack_alone_is_drawn_against_its_budget() -> None:
    axes = Figure().subplots()
    Evaluation(9, 0.0, [AttackedError("wasserstein", 0.5, 0.4)]).plot(axes)
    assert points(axes.get_lines()[1]) == [[0.5, 40]]
    assert axes.get_xlabel() == "budget (average squared distance)"


def test_text_of_shifts() -> None:
    errors = [ShiftedError("blur", 1, 0.25), ShiftedError("blur", 2, 0.75), ShiftedError("uci-digits", 1, 0.7)]
    assert (
        str(ShiftEvaluation(20, 0.125, errors))
        == """\
error in percent on 20 shifted samples, by severity; clean: 12.50
shift                 1      2   mean
----------------  -----  -----  -----
blur              25.00  75.00  50.00
uci-digits        70.00         70.00
mean over shifts                60.00"""
    )
