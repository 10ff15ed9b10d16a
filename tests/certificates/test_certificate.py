"""Certificates as a sequence, as text and as a figure."""

import math

import pytest
from matplotlib.figure import Figure

from rhobust.certificates.certificate import Certificate, Certification
from tests.drawn import legend, points

CLEAN = Certificate(0.0, 0.25, 0.25, math.inf, 0.0, 0.0, "proved")
FAR = Certificate(2.0, 1.5, 1.25, 0.125, 1.75, 2.0, "estimated", "no bound is known")
NEAR = Certificate(0.5, 0.75, 0.74, 0.5, 0.48751, 0.5, "estimated", "no bound is known")
FOUND = Certification(9, [FAR, CLEAN, NEAR])
TEXT = """\
worst expected loss in the ball of each radius around 9 samples
radius     status  bound  attained   gap  gamma  tight at
------  ---------  -----  --------  ----  -----  --------
2       estimated    1.5      1.25  0.25  0.125      1.75
0          proved   0.25      0.25     0    inf         0
0.5     estimated   0.75      0.74  0.01    0.5    0.4875

gap: bound less attained; gamma: the dual variable; tight at: the radius at which this gamma is the best
estimated, so the bound is an estimate and not a bound: no bound is known"""


def test_text_of_certificates() -> None:
    assert str(FOUND) == TEXT


def test_text_of_one_certificate() -> None:
    assert str(CLEAN).splitlines()[1:4] == [
        "radius  status  bound  attained  gap  gamma  tight at",
        "------  ------  -----  --------  ---  -----  --------",
        "0       proved   0.25      0.25    0    inf         0",
    ]
    assert "estimate" not in str(CLEAN)
    assert "not a bound: no bound is known" in str(NEAR)


def test_certificates_are_a_sequence_in_the_order_that_was_asked_for() -> None:
    first, *others = FOUND
    assert (first, others) == (FAR, [CLEAN, NEAR])
    assert (len(FOUND), FOUND[-1], FOUND[1:]) == (3, NEAR, [CLEAN, NEAR])
    assert CLEAN in FOUND
    assert FOUND.status == "estimated"


@pytest.mark.parametrize(
    ("certificates", "told", "style"),
    [
        ([FAR, CLEAN, NEAR], "dual value, estimated", "--"),
        ([CLEAN, Certificate(1.0, 0.5, 0.4, 0.1, 0.9, 1.0, "proved")], "bound, proved", "-"),
    ],
)
def test_lines_are_the_bounds_and_what_is_attained(certificates: list[Certificate], told: str, style: str) -> None:
    axes = Figure().subplots()
    assert Certification(9, certificates).plot(axes) is axes
    bound, attained = axes.get_lines()
    ordered = sorted(certificates, key=lambda one: one.radius)
    assert points(bound) == [[one.radius, one.bound] for one in ordered]
    assert points(attained) == [[one.radius, one.attained] for one in ordered]
    assert bound.get_linestyle() == style
    assert legend(axes) == [told, "attained by a distribution in the ball"]
    assert axes.get_xlabel() == "radius (average squared distance)"


def test_losses_are_drawn_from_zero_unless_one_is_below() -> None:
    axes, below = Figure().subplots(1, 2)
    NEAR.plot(axes)
    assert axes.get_ylim()[0] == 0
    Certificate(1.0, 2.0, -1.0, 0.1, 0.9, 1.0, "proved").plot(below)
    assert below.get_ylim()[0] < -1
