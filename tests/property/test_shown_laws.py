"""Laws of results that show themselves: whatever they hold, they are printed, shown and drawn."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from matplotlib.figure import Figure
from torch import nn

from rhobust.ascent.steps import PenalizedAscent
from rhobust.attacks.cascade import STAGES
from rhobust.certificates.certificate import Certificate, Certification
from rhobust.evaluation.evaluation import AttackedError, Evaluation
from rhobust.evaluation.shifts import ShiftedError, ShiftEvaluation
from rhobust.evaluation.trust import Flag
from rhobust.losses import cross_entropy
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer, adam
from rhobust.support.display import Displayed
from rhobust.training.fit import Fit
from rhobust.training.record import Record

COUNTS = st.integers(0, 10**6)
ATTACKS = st.sampled_from(["cascade", "cascade-l2", "fgsm", "pgd", "worst", "wasserstein"]) | st.text()
WORDS = st.lists(st.text(), max_size=2)
FLOATS = st.floats()
DRAWABLE = st.floats(-1e100, 1e100) | st.sampled_from([math.inf, -math.inf, math.nan])
"""Margins around larger numbers overflow in matplotlib."""


def evaluations(floats: SearchStrategy[float]) -> SearchStrategy[Evaluation]:
    stages = st.dictionaries(st.sampled_from(STAGES), floats)
    cells = st.builds(AttackedError, ATTACKS, floats, floats, mean_cost=st.none() | floats, stages=stages)
    flags = st.lists(st.builds(Flag, st.text(), st.text()), max_size=2)
    return st.builds(Evaluation, COUNTS, floats, st.lists(cells, max_size=8), flags, WORDS)


def certificates(floats: SearchStrategy[float]) -> SearchStrategy[Certificate]:
    status = st.sampled_from(["proved", "estimated"])
    return st.builds(Certificate, *[floats] * 6, status, st.none() | st.text())


def certifications(floats: SearchStrategy[float]) -> SearchStrategy[Certification]:
    return st.builds(Certification, COUNTS, st.lists(certificates(floats), max_size=4))


SHIFTED = st.builds(ShiftedError, st.text(max_size=3), st.integers(1, 5), st.floats(-1e300, 1e300))
COSTS = st.floats(0, 1e100) | st.sampled_from([math.inf, math.nan])


def record(epoch: int, loss: float, cost: float) -> Record:
    idle: dict[str, Any] = {
        "step": 0,
        "value": loss,
        "gamma": 1.0,
        "stationarity": 0.0,
        "accuracy": None,
        "gradients": 1,
    }
    return Record(epoch=epoch, loss=loss, rho_eff=cost, **idle)


MODEL = nn.Linear(2, 2)
OBJECTIVE = RobustObjective(MODEL, cross_entropy, radius=2.0, maximizer=PenalizedAscent())
OPTIMIZER = ProximalOptimizer(adam(MODEL), OBJECTIVE)


def fits(floats: SearchStrategy[float]) -> SearchStrategy[Fit]:
    records = st.builds(record, st.integers(0, 3), floats, COSTS)
    return st.builds(Fit, st.just(OBJECTIVE), st.just(OPTIMIZER), st.lists(records, max_size=6))


SHIFTS = st.builds(ShiftEvaluation, COUNTS, FLOATS, st.lists(SHIFTED, max_size=6))


@given(st.one_of(evaluations(FLOATS), certificates(FLOATS), certifications(FLOATS), SHIFTS, fits(FLOATS)))
def test_whatever_a_result_holds_it_is_printed_and_shown(result: Displayed) -> None:
    assert isinstance(str(result), str)
    assert result._repr_html_().startswith("<div>")


@given(st.one_of(evaluations(DRAWABLE), certificates(DRAWABLE), certifications(DRAWABLE), fits(DRAWABLE)))
def test_whatever_a_result_holds_it_is_drawn(result: Any) -> None:
    axes = Figure().subplots()
    assert result.plot(axes) is axes
