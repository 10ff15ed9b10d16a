"""The leads: where they are the library's own step they take it, they do what they say, and their results are whole."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import leads
from benchmarks.lead import LR, TOLD, Lead, Move, Training
from rhobust.ascent import Ball, ErrorAscent, MarginAscent, Maximizer
from rhobust.averaging import WeightAverage
from rhobust.costs import SquaredLinf
from rhobust.data import Samples
from rhobust.engines.local import LocalEngine
from rhobust.losses import cross_entropy
from rhobust.margin import error_length, margin_length
from rhobust.memory import Memory
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer

DRAWS = torch.Generator().manual_seed(0)
Y = torch.arange(40) % 3
X = (0.4 * torch.randn(3, 1, 4, 4, generator=DRAWS, dtype=torch.float64))[Y]
X = (X + 0.3 * torch.randn(40, 1, 4, 4, generator=DRAWS, dtype=torch.float64)).clamp(-1, 1)
DATA, BATCH, STEPS = Samples(X, Y), 8, 24
ORDER = torch.stack([torch.randperm(40, generator=DRAWS)[:BATCH] for _ in range(STEPS)])


@dataclass(frozen=True)
class CutError(ErrorAscent):
    """The best of all lengths, cut at the cap: what the leads do."""

    def length(self, bias: Tensor, rate: Tensor, gamma: Tensor) -> Tensor:
        return error_length(bias, rate, gamma).clamp_max(self.cap)


@dataclass(frozen=True)
class CutMargin(MarginAscent):
    def length(self, bias: Tensor, rate: Tensor, gamma: Tensor) -> Tensor:
        return margin_length(bias, rate, gamma).clamp_max(self.cap)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)).double()


def training(lead: Lead) -> Training:
    return Training(lead, network(), DATA, epochs=4, batch_size=BATCH)


def engine(maximizer: Maximizer, lead: Lead) -> LocalEngine:
    model = network()
    radius = lead.radius or 1.0  # a ball has none
    objective = RobustObjective(
        model,
        cross_entropy,
        radius=radius,
        cost=SquaredLinf(),
        maximizer=maximizer,
        bounds=(-1, 1),
        noise=lead.noise,
    )
    adam = torch.optim.Adam(model.parameters(), lr=LR)
    made = LocalEngine(objective, ProximalOptimizer(adam, objective), average=WeightAverage(model, lead.averages[0]))
    made.memory = Memory(X, lead.memory) if lead.memory else None
    return made


def weights(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize(
    ("lead", "maximizer"),
    [
        (Lead("ball", epsilon=0.2), Ball(0.2)),
        (Lead("ball", epsilon=0.2, noise=0.4), Ball(0.2)),
        (Lead("error", radius=0.02), ErrorAscent()),
        (Lead("error", radius=0.02, cap=0.2), CutError(cap=0.2)),
        (Lead("error", radius=0.04, cap=0.3, noise=0.3, averages=(0.9,)), CutError(cap=0.3)),
        (Lead("margin", radius=0.02, cap=0.2, noise=0.3), CutMargin(cap=0.2)),
        (Lead("error", radius=0.04, cap=0.4, noise=0.3, steps=3), CutError(cap=0.4, steps=3)),
        (Lead("error", radius=0.04, cap=0.4, noise=0.3, every=4), CutError(cap=0.4, steps=(3, 1, 1, 1))),
        (Lead("error", radius=0.04, cap=0.4, noise=0.3, memory=0.5, way=0.5), CutError(cap=0.4)),
    ],
)
def test_a_plain_lead_is_the_step_of_the_library(lead: Lead, maximizer: Maximizer) -> None:
    ours, theirs = training(lead), engine(maximizer, lead)
    for step, at in enumerate(ORDER):
        torch.manual_seed(step)  # the leads draw more than the library
        ours.take(at)
        torch.manual_seed(step)
        theirs.step(X[at], Y[at], step, 0, at)
    assert not torch.allclose(weights(ours.model), weights(network()), atol=1e-3)
    torch.testing.assert_close(weights(ours.model), weights(theirs.objective.model), rtol=0, atol=1e-10)
    torch.testing.assert_close(ours.gamma, theirs.objective.gamma.detach(), rtol=1e-9, atol=0)
    theirs.settle()
    ours.averages[lead.averages[0]].put()
    torch.testing.assert_close(weights(ours.model), weights(theirs.objective.model), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("lead", "depths", "mean"),
    [
        (Lead("ball", epsilon=0.1, steps=2), [2] * 8, 2),
        (Lead("ball", epsilon=0.1, every=4), [3, 1, 1, 1, 3, 1, 1, 1], 1.5),
        (Lead("ball", epsilon=0.1, every=2, more=6), [6, 1, 6, 1, 6, 1, 6, 1], 3.5),
        (Lead("ball", epsilon=0.1, half="random"), [1.5] * 8, 1.5),
    ],
)
def test_climbs_are_as_deep_as_they_say(lead: Lead, depths: list[float], mean: float) -> None:
    made, seen = training(lead), list[int]()
    made.model.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    found = []
    for at in ORDER[:8]:
        made.take(at)
        found.append(sum(seen) / BATCH - 1)  # one pass is the descent
        seen.clear()
    assert found == depths
    assert lead.gradients == mean == sum(depths) / len(depths)


def test_an_incomplete_batch_is_dropped() -> None:
    made = Training(Lead("ball", epsilon=0.1), network(), DATA, epochs=2, batch_size=12)
    made.train()
    assert made.steps == 2 * (40 // 12)
    assert list(made.history) == [1, 2]
    assert made.history[1]["spent"] == pytest.approx(0.01, abs=1e-3)  # less where a pixel is at its bound


def test_a_random_fraction_spends_the_mean_of_its_square() -> None:
    """E[(a + (1 - a) u)^2] = (1 + a + a^2) / 3, for u uniform on [0, 1]."""
    inside = Samples(X / 2, Y)
    for fraction in (0.0, 0.5, 1.0):
        made = Training(Lead("ball", epsilon=0.2, fraction=fraction), network(), inside, epochs=80, batch_size=BATCH)
        made.train()
        spent = sum(told["spent"] for told in made.history.values()) / 80
        assert spent == pytest.approx(0.04 * (1 + fraction + fraction**2) / 3, rel=0.05)


def test_trust_is_halved_where_less_was_kept_and_grows_back() -> None:
    made = training(Lead("ball", epsilon=0.2, trust=math.inf))  # no promise is kept so well
    found = []
    for bar in (math.inf, math.inf, math.inf, math.inf, -math.inf, -math.inf):
        made.lead = replace(made.lead, trust=bar)
        made.take(ORDER[0])
        assert made.trust[ORDER[0]].unique().shape == (1,)
        found.append(made.trust[ORDER[0]][0].item())
    assert found == pytest.approx([0.5, 0.25, 0.125, 0.1, 0.15, 0.225])
    assert made.trust.sum().item() == pytest.approx(40 - BATCH + 0.225 * BATCH)  # the others' stays


def test_no_move_is_below_the_floor_or_above_the_cap() -> None:
    made = Training(Lead("error", radius=0.02, cap=0.12, floor=0.1), network(), Samples(X / 2, Y), 1, BATCH)
    lengths, propose = list[Tensor](), made.propose

    def watched(*asked: Any) -> Move:
        move = propose(*asked)
        lengths.append(move.length)
        return move

    made.propose = watched
    made.train()
    found = torch.cat(lengths)
    assert found.min().item() == pytest.approx(0.1)
    assert found.max().item() == pytest.approx(0.12)


def test_the_second_gradient_goes_where_the_promise_failed() -> None:
    made = training(Lead("ball", epsilon=0.2, half="failed"))
    made.faith[ORDER[0]] = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4], dtype=torch.float64)
    labels, climb = list[Tensor](), made._climb
    made._climb = lambda centers, zeta, t: (labels.append(centers.y), climb(centers, zeta, t))[1]  # type: ignore[method-assign]
    made.take(ORDER[0])
    assert torch.equal(labels[1].sort().values, Y[ORDER[0][1::2]].sort().values)


def test_blocks_are_blocks() -> None:
    made = training(Lead("ball", epsilon=0.2, noise=0.4, blocks=3))
    wave = made._blocks()
    assert wave.shape == (BATCH, 1, 4, 4)
    assert wave.unique().numel() == BATCH * 4  # 3 x 3, 3 x 1, 1 x 3 and 1 x 1 pixels
    assert (wave[..., :3, :3] == wave[..., :1, :1]).all()


RESULTS = json.loads(leads.RESULTS.read_text())


def test_the_results_have_every_lead() -> None:
    assert RESULTS["settings"] == leads.SETTINGS
    wanted = {name: (job.settings, job.evaluated) for name, job in leads.jobs().items()}
    assert {name: (run["settings"], run["evaluated"]) for name, run in RESULTS["runs"].items()} == wanted


@pytest.mark.parametrize("run", RESULTS["runs"].values(), ids=RESULTS["runs"])
def test_a_result_is_whole(run: dict[str, Any]) -> None:
    lead, history = Lead(**run["settings"]), run["history"]
    assert set(run["rows"]) == {str(decay) for decay in lead.averages}
    for row in run["rows"].values():
        assert 0 < row["clean"] < row["errors"][0]
        assert row["errors"] == sorted(row["errors"])  # the worst of all attacks never falls
        assert row["mean"] == pytest.approx(sum(row["errors"]) / 4, abs=0.06)
    assert history.keys() == {"epoch", *TOLD}
    assert all(len(values) == len(leads.LOOKS) for values in history.values())
    assert all(math.isfinite(value) for values in history.values() for value in values)
    assert run["gamma"] >= 0.999 * lead.gamma_min
    assert max(history["spent"]) <= 1.01 * max(lead.epsilon, min(lead.cap, 1.0)) ** 2


def test_the_tables_are_those_of_the_results() -> None:
    text = leads.markdown(RESULTS["runs"])
    for data in leads.DATA:
        body = [line.strip("| ").split(" | ") for line in leads.table(RESULTS["runs"], data).splitlines()[2:]]
        cleans = [float(cells[4]) for cells in body]
        assert cleans == sorted(cleans)
        rows = [
            row for key, run in RESULTS["runs"].items() if key.startswith(f"{data}/") for row in run["rows"].values()
        ]
        expected = [[row["clean"], *row["errors"]] for row in rows]
        assert sorted([float(cell) for cell in cells[4:9]] for cells in body) == sorted(expected)
        assert leads.table(RESULTS["runs"], data) in text


def test_a_table_written_out() -> None:
    lead = {"kind": "ball", "epsilon": 0.2, "every": 4, "averages": [0.9, 0.99]}
    history = {"spent": [0.01, 0.04], "promised": [2.0, 1.234], "kept": [1.9, 0.5]}
    rows = {
        "0.9": {"clean": 12.0, "errors": [20.0, 30.0, 40.0, 50.0], "mean": 35.0},
        "0.99": {"clean": 11.5, "errors": [20.1, 30.2, 40.3, 50.4], "mean": 35.25},
    }
    runs = {"mnist/ours": {"settings": lead, "history": history, "rows": rows}, "fashion-mnist/other": {}}
    assert leads.table(runs, "mnist").splitlines() == [
        "| variant | gradients | E[c] | promised / kept | clean | 0.1 | 0.2 | 0.3 | 0.4 | average |",
        "|---|---|---|---|---|---|---|---|---|---|",
        "| ours: 0.99 | 1.5 | 0.0400 | 1.234 / 0.500 | 11.50 | 20.1 | 30.2 | 40.3 | 50.4 | 35.2 |",
        "| ours: 0.9 | 1.5 | 0.0400 | 1.234 / 0.500 | 12.00 | 20.0 | 30.0 | 40.0 | 50.0 | 35.0 |",
    ]


def test_a_name_says_its_settings() -> None:
    name, settings = leads.ball(0.3, 0.4, amplitudes=True, weight_decay=0.05, averages=[0.9, 0.99], half="random")
    assert name == "ball, epsilon 0.3, noise 0.4, amplitudes, weight decay 0.05, averages 0.9 and 0.99, half random"
    assert Lead(**settings) == Lead(
        "ball", 0.3, noise=0.4, amplitudes=True, weight_decay=0.05, averages=[0.9, 0.99], half="random"
    )
