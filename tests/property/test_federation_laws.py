"""Laws of a federation: who takes part, what is random, and that faulty workers never change what the others do."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rhobust.data.catalog import load_data
from rhobust.data.partitions import partition
from rhobust.data.samples import Samples
from rhobust.federation.aggregators import GeometricMedian, Mean, Median
from rhobust.federation.federated_engine import FederatedEngine
from rhobust.federation.messages import Upload
from rhobust.federation.randomness import Stream
from rhobust.federation.server import QuorumLost, RoundDiverged, Server
from rhobust.federation.simulation import Simulation
from rhobust.federation.worker import LocalSteps
from rhobust.losses import cross_entropy
from rhobust.method import find_method
from rhobust.models.catalog import build_model
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer
from rhobust.runs.directory import Run
from rhobust.training.compose import compose
from rhobust.training.loop import train
from rhobust.training.observers import Observer
from rhobust.training.record import RoundRecord
from tests.federations import Setting, answered, theta_gamma, watched

few = settings(deadline=None, derandomize=True, max_examples=30)
seeds = st.integers(0, 2**40)
places = st.integers(0, 10**6)


def rounds_of(workers: int, asked_each: int, seed: int) -> FederatedEngine:
    setting = Setting(sizes=[1] * workers)
    return FederatedEngine(setting.server(), setting.simulation(), 5, asked_each, seed)


@few
@given(seed=seeds, number=places, asked=st.integers(1, 11))
def test_who_is_asked_depends_on_seed_and_round_alone(seed: int, number: int, asked: int) -> None:
    here, there = rounds_of(11, asked, seed), rounds_of(11, asked, seed)
    for other in (0, 1, number + 1):  # whatever was asked before, and whatever else was drawn
        next(here.asked(other))
    torch.manual_seed(number)
    np.random.default_rng(number).random(3)
    found = next(here.asked(number))
    assert found == next(there.asked(number)) == sorted(set(found))
    assert len(found) == asked
    assert set(found) <= set(here.workers.names)


def test_every_worker_is_asked_about_equally_often() -> None:
    """5 of 20 in 2,000 rounds: each is a binomial count; five deviations is one failure in 10^5 seeds."""
    rounds = rounds_of(20, 5, seed=0)
    asked = [next(rounds.asked(number)) for number in range(2000)]
    share, deviation = 2000 / 4, math.sqrt(2000 * 0.25 * 0.75)
    counts = [sum(name in names for names in asked) for name in rounds.workers.names]
    assert sum(counts) == 5 * 2000
    assert all(abs(count - share) < 5 * deviation for count in counts)
    # Rounds are independent: two in a row share 5 * 5 / 20 workers on average.
    common = [len(set(a) & set(b)) for a, b in pairwise(asked)]
    assert sum(common) / len(common) == pytest.approx(1.25, abs=0.1)
    assert len({tuple(names) for names in asked}) > 1500
    assert [next(rounds_of(20, 5, seed=1).asked(number)) for number in range(5)] != asked[:5]


@few
@given(seed=seeds, number=places, worker=places, step=st.integers(0, 9), extra=st.integers(1, 200))
def test_a_minibatch_depends_on_seed_round_worker_and_step_alone(
    seed: int, number: int, worker: int, step: int, extra: int
) -> None:
    work, count = LocalSteps(batch_size=16, seed=seed), 16 + extra
    found = work.chosen(count, number, worker, step)
    assert len(set(found.tolist())) == 16
    assert 0 <= int(found.min()) <= int(found.max()) < count
    other = LocalSteps(batch_size=16, steps=5, rate=9.0, seed=seed)  # neither of them says which samples
    other.chosen(count, number + 1, worker, step)
    torch.manual_seed(number)
    assert torch.equal(other.chosen(count, number, worker, step), found)


def test_minibatches_differ_where_anything_does_and_favour_no_sample() -> None:
    work = LocalSteps(batch_size=20, seed=0)
    base = work.chosen(100, 3, 4, 5)
    others = [
        LocalSteps(20, seed=1).chosen(100, 3, 4, 5),
        *(work.chosen(100, *place) for place in ((4, 4, 5), (3, 5, 5), (3, 4, 6), (4, 3, 5), (3, 4, 0))),
    ]
    assert not any(torch.equal(base.sort().values, other.sort().values) for other in others)
    counts = torch.cat([work.chosen(100, number, 7) for number in range(2000)]).bincount(minlength=100)
    assert ((counts - 400).abs() < 5 * math.sqrt(2000 * 0.2 * 0.8)).all()


@few
@given(seed=seeds, place=st.lists(places, min_size=1, max_size=3))
def test_every_purpose_has_a_stream_of_its_own(seed: int, place: list[int]) -> None:
    drawn = [stream.draws(seed, *place).integers(2**62, size=4).tolist() for stream in Stream]
    assert all(a != b for a, b in combinations(drawn, 2))
    assert drawn == [stream.draws(seed, *place).integers(2**62, size=4).tolist() for stream in Stream]
    assert len({stream.seed(seed, *place) for stream in Stream}) == len(Stream)
    assert all(0 <= stream.seed(seed, *place) < 2**62 for stream in Stream)


SETTING = Setting(sizes=[9, 10, 11, 12, 13])


@few
@given(asked=st.sets(st.integers(0, 4), min_size=1), seed=st.integers(0, 50))
def test_an_upload_does_not_depend_on_who_else_is_asked(asked: set[int], seed: int) -> None:
    workers, task = SETTING.simulation(), replace(SETTING.server().task(), round=seed)
    names = [workers.names[k] for k in sorted(asked)]
    together, some = workers.ask(task, workers.names), workers.ask(task, names)
    assert list(some) == names
    for name in names:
        a, b = together[name], some[name]
        assert isinstance(a, Upload)
        assert isinstance(b, Upload)
        assert torch.equal(a.theta, b.theta)
        assert replace(a, theta=b.theta) == b


Fault = Callable[[Upload], Upload | str | None]
FAULTS: list[Fault] = [
    lambda u: u,  # none
    lambda u: None,  # no answer
    lambda u: "it is ill",
    lambda u: replace(u, theta=u.theta * math.nan),
    lambda u: replace(u, theta=u.theta[1:]),
    lambda u: replace(u, theta=u.theta.float()),
    lambda u: replace(u, round=u.round + 1),
    lambda u: replace(u, gamma=math.inf),
    lambda u: replace(u, gamma=1.0),
    lambda u: replace(u, samples=0),
]
NOT_FINITE = {3, 7}


@few
@given(
    kinds=st.lists(st.integers(0, len(FAULTS) - 1), min_size=5, max_size=5),
    quorum=st.integers(1, 5),
    aggregator=st.sampled_from([Mean(), Median(), GeometricMedian()]),
    order=st.permutations(range(5)),
    weighted=st.booleans(),
)
def test_whatever_the_faulty_workers_send_the_round_is_that_of_the_others(
    kinds: list[int], quorum: int, aggregator: Any, order: list[int], weighted: bool
) -> None:
    setting = replace(SETTING, quorum=quorum, aggregator=aggregator, weighted=weighted)
    server = setting.server()
    uploads = setting.uploads(server.task())
    names = list(uploads)
    answers: dict[str, Upload | str] = {}
    for k in order:
        if (answer := FAULTS[kinds[k]](uploads[names[k]])) is not None:
            answers[names[k]] = answer
    good = [name for name, kind in zip(names, kinds, strict=True) if kind == 0]
    before = theta_gamma(server)
    if len(good) < quorum:
        with pytest.raises(RoundDiverged if set(kinds) <= NOT_FINITE else QuorumLost):
            answered(server, names, answers)
        assert torch.equal(theta_gamma(server), before)
        assert server.round == 0
        return
    record = answered(server, [names[k] for k in order], answers)
    alone = setting.server()
    answered(alone, good, {name: uploads[name] for name in good})
    assert sorted(record.dropped) == sorted(set(names) - set(good))
    assert record.workers == len(good)
    assert torch.equal(theta_gamma(server), theta_gamma(alone))
    assert server.round == 1


# --- Many workers ----------------------------------------------------------------------------------------------------


def held(*roots: object) -> int:
    """Bytes of all tensors that can be reached, each storage once."""
    storages: dict[int, int] = {}
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
            waiting.append(thing.grad)
        elif isinstance(thing, dict):
            waiting += thing.values()
        elif isinstance(thing, list | tuple):
            waiting += thing
        elif hasattr(thing, "__dict__") and not isinstance(thing, type):
            waiting += vars(thing).values()
    return sum(storages.values())


def federation(samples: Samples, workers: int, rounds: int) -> tuple[FederatedEngine, Simulation]:
    """Ten workers a round, of as many as one likes."""

    def composed() -> tuple[RobustObjective, ProximalOptimizer]:
        torch.manual_seed(0)
        model = build_model("linear", samples.x.shape[1:], 10)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return compose(model, cross_entropy, find_method("spgda"), radius=1.0, optimizer=sgd, bounds=(-1, 1))

    shares = partition("iid", samples.y, workers, 0)
    simulation = Simulation(composed()[0], samples, shares, LocalSteps(64), classes=10)
    return FederatedEngine(Server(*composed(), Mean()), simulation, rounds, asked_each=10), simulation


def test_a_thousand_workers_are_one_data_set_and_one_model() -> None:
    """One in a hundred is asked; what is held does not depend on how many there are."""
    with torch.random.fork_rng():
        samples = load_data("digits").train
        (_, ten), (rounds, thousand) = federation(samples, 10, 5), federation(samples, 1000, 5)
    data = samples.x.nbytes + samples.y.nbytes
    weights = sum(weight.nbytes for weight in thousand.objective.parameters())  # theta and gamma
    theta, sums = sum(weight.nbytes for weight in thousand.objective.model.parameters()), 2 * 8
    for workers in (ten, thousand):  # theta as it was broadcast, and the sum of its gradients
        assert held(workers) == data + weights + 2 * theta + sums
        assert sum(isinstance(part, nn.Linear) for part in workers.objective.modules()) == 1
    seen = watched(thousand)
    before = theta_gamma(rounds.server)
    records = train(rounds)
    assert [record.workers for record in records if isinstance(record, RoundRecord)] == [10] * 5
    assert 50 <= sum(seen) <= 100  # shares of one or two samples: no round touches more than those of ten
    assert not torch.equal(theta_gamma(rounds.server), before)
    assert held(thousand) == data + 2 * weights + 2 * theta + sums  # their gradients
    own = [thousand._own(k) for k in range(1000)]
    assert {len(part) for part in own} == {1, 2}
    assert {part.x.untyped_storage().data_ptr() for part in own} == {thousand.samples.x.untyped_storage().data_ptr()}
    dealt = torch.cat([torch.cat([part.x.flatten(1), part.y[:, None]], 1) for part in own])
    whole = torch.cat([samples.x.flatten(1), samples.y[:, None]], 1)
    for found, expected in zip(
        dealt.unique(dim=0, return_counts=True), whole.unique(dim=0, return_counts=True), strict=True
    ):
        assert torch.equal(found, expected)  # every sample belongs to one worker, once


@few
@given(seed=seeds, number=places, asked=st.integers(1, 11))
def test_workers_that_do_not_suffice_are_replaced_by_all_the_others_in_turn(seed: int, number: int, asked: int) -> None:
    rounds = rounds_of(11, asked, seed)
    drawn = list(rounds.asked(number))
    assert sorted(name for names in drawn for name in names) == sorted(rounds.workers.names)
    assert {len(names) for names in drawn[:-1]} <= {asked}
    assert drawn == list(rounds.asked(number))


class Warnings(Observer):
    def __init__(self) -> None:
        self.words: list[str] = []

    def warned(self, message: str) -> None:
        self.words.append(message)


@pytest.mark.parametrize("broken", ["is not connected", math.nan])
def test_an_absent_or_faulty_worker_that_is_asked_alone_does_not_end_a_training(broken: str | float) -> None:
    setting = Setting()
    workers = setting.simulation(fuse=False)
    ask = workers.ask

    def without(task: Any, asked: Any) -> Any:
        answers: dict[str, Any] = dict(ask(task, asked))
        if "worker-2" in answers:
            upload = answers["worker-2"]
            answers["worker-2"] = broken if isinstance(broken, str) else replace(upload, loss=broken)
        return answers

    workers.ask = without  # type: ignore[method-assign]
    warnings = Warnings()
    rounds = FederatedEngine(setting.server(), workers, 20, asked_each=1)
    train(rounds, observer=warnings)
    assert rounds.server.round == 20
    assert any("instead" in words for words in warnings.words)


def test_a_training_without_enough_workers_keeps_what_it_has(tmp_path: Path) -> None:
    setting = Setting()
    workers = setting.simulation(fuse=False)
    ask = workers.ask
    workers.ask = lambda task, asked: ask(task, asked) if task.round < 3 else {}  # type: ignore[method-assign]
    run = Run(tmp_path)
    run.config_path.write_text("")
    rounds = FederatedEngine(setting.server(), workers, 20, asked_each=2)
    with pytest.raises(QuorumLost, match="round 3: 0 of 2 workers sent a valid upload"):
        train(rounds, keeper=run)
    assert run.restore(lambda message: None)[0] == 3
