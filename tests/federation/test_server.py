"""The server checks every upload: what is not valid is named, and the round is that of the others."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from rhobust.errors import Diverged
from rhobust.federation.aggregators import Aggregator, GeometricMedian, Mean, Median, MultiKrum, TrimmedMean
from rhobust.federation.messages import Aggregate, Task, Upload
from rhobust.federation.server import QuorumLost, Server
from rhobust.federation.worker import LocalSteps
from tests.federations import CLASSES, Setting, answered, theta_gamma

# Buffers for theta and, by Adam, for gamma: there is much that a bad upload could change.
SETTING = Setting(method="spgda-literal", optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
NAMES = [f"worker-{k}" for k in range(1, 5)]
RADIUS = 0.5

Bad = Callable[[Upload], Upload | str]


def with_entry(value: float) -> Bad:
    """One number of its gradient."""

    def changed(upload: Upload) -> Upload:
        theta = upload.theta.clone()
        theta[-1] = value
        return replace(upload, theta=theta)

    return changed


BAD: dict[str, tuple[Bad, str]] = {
    "nan": (with_entry(math.nan), "its gradient or its loss is not finite"),
    "inf": (with_entry(-math.inf), "its gradient or its loss is not finite"),
    "nan gamma": (lambda u: replace(u, gamma=math.nan), "its gradient or its loss is not finite"),
    "inf gamma": (lambda u: replace(u, gamma=-math.inf), "its gradient or its loss is not finite"),
    "nan loss": (lambda u: replace(u, loss=math.nan), "its gradient or its loss is not finite"),
    "short": (lambda u: replace(u, theta=u.theta[:-1]), "its gradient has shape (66,) and type torch.float64"),
    "long": (lambda u: replace(u, theta=u.theta.repeat(2)), "its gradient has shape (134,) and type torch.float64"),
    "matrix": (lambda u: replace(u, theta=u.theta[None]), "its gradient has shape (1, 67) and type torch.float64"),
    "empty": (lambda u: replace(u, theta=u.theta[:0]), "its gradient has shape (0,) and type torch.float64"),
    "type": (lambda u: replace(u, theta=u.theta.float()), "its gradient has shape (67,) and type torch.float32"),
    "whole": (lambda u: replace(u, theta=u.theta.long()), "its gradient has shape (67,) and type torch.int64"),
    "stale": (lambda u: replace(u, round=u.round - 1), "answered for round 1"),
    "future": (lambda u: replace(u, round=u.round + 1), "answered for round 3"),
    "reason": (lambda u: "its disk is full", "its disk is full"),
    "no reason": (lambda u: "", ""),
    "gamma": (lambda u: replace(u, gamma=RADIUS + 1e-4), "is above rho: no cost is negative"),
    "samples": (lambda u: replace(u, samples=0), "it has no samples"),
    "owing": (lambda u: replace(u, samples=-3), "it has no samples"),
    "idle": (lambda u: replace(u, gradients=-1), "it reports an impossible number of gradients"),
    "busy": (lambda u: replace(u, gradients=10**20), "it reports an impossible number of gradients"),
}


def after_two_rounds(**options: Any) -> Server:
    server = replace(SETTING, **options).server()
    for _ in range(2):
        answered(server, NAMES, SETTING.uploads(server.task()))
    return server


def snapshot(server: Server) -> list[torch.Tensor | int]:
    """Everything the next round depends on."""
    found: list[torch.Tensor | int] = []

    def collect(value: object) -> None:
        if isinstance(value, dict):
            for part in value.values():
                collect(part)
        elif isinstance(value, torch.Tensor):
            found.append(value.clone())
        elif isinstance(value, int):
            found.append(value)

    collect(server.state_dict())
    return found


def same(a: list[torch.Tensor | int], b: list[torch.Tensor | int]) -> bool:
    return len(a) == len(b) > 8 and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_upload_is_dropped_and_named_and_the_round_is_the_others(kind: str, weighted: bool) -> None:
    spoil, reason = BAD[kind]
    server, others = after_two_rounds(weighted=weighted), after_two_rounds(weighted=weighted)
    uploads = SETTING.uploads(server.task())
    record = answered(server, NAMES, {**uploads, "worker-2": spoil(uploads["worker-2"])})
    rest = [name for name in NAMES if name != "worker-2"]
    alone = answered(others, rest, {name: uploads[name] for name in rest})
    assert list(record.dropped) == ["worker-2"]
    assert record.dropped["worker-2"].endswith(reason)
    assert record.workers == 3
    assert same(snapshot(server), snapshot(others))
    assert (record.loss, record.value, record.rho_eff) == (alone.loss, alone.value, alone.rho_eff)


def test_who_does_not_answer_and_who_was_not_asked() -> None:
    server, others = after_two_rounds(), after_two_rounds()
    uploads = SETTING.uploads(server.task())
    asked = ["worker-1", "worker-2", "worker-3"]
    record = answered(server, asked, {name: uploads[name] for name in ("worker-1", "worker-3", "worker-4")})
    answered(others, ["worker-1", "worker-3"], {name: uploads[name] for name in ("worker-1", "worker-3")})
    assert record.dropped == {"worker-2": "no answer", "worker-4": "was not asked"}
    assert record.workers == 2
    assert record.bytes_down == 3 * (67 * 8 + 16)  # all that were asked
    assert record.bytes_up == 3 * (67 * 8 + 40)  # all that came, valid or not
    assert same(snapshot(server), snapshot(others))


@pytest.mark.parametrize(
    "gamma", [RADIUS, RADIUS * (1 + 5e-7), 0.0, -1e6]
)  # no cost at all, the same up to rounding, just rho, a very high cost
def test_what_a_cost_can_be_counts(gamma: float) -> None:
    server = after_two_rounds()
    uploads = SETTING.uploads(server.task())
    record = answered(server, NAMES, {**uploads, "worker-2": replace(uploads["worker-2"], gamma=gamma)})
    assert record.dropped == {}
    assert record.workers == 4


@pytest.mark.parametrize("kind", BAD)
def test_without_a_good_upload_nothing_changes_and_the_next_round_works(kind: str) -> None:
    spoil, reason = BAD[kind]
    server, untouched = after_two_rounds(), after_two_rounds()
    before = snapshot(server)
    uploads = SETTING.uploads(server.task())
    with pytest.raises((QuorumLost, Diverged)) as lost:
        answered(server, NAMES, {name: spoil(upload) for name, upload in uploads.items()})
    if "not finite" in reason:  # of all of them: the fault is the training's, not a worker's
        assert isinstance(lost.value, Diverged)
    else:
        assert str(lost.value).startswith("round 2: 0 of 4 workers sent a valid upload, 1 are needed")
        assert str(lost.value).count(f"{reason}; ") + str(lost.value).endswith(f"{reason})") == 4
        assert all(f"{name}: " in str(lost.value) for name in NAMES)
    assert same(snapshot(server), before)
    answered(server, NAMES, uploads)
    answered(untouched, NAMES, uploads)
    assert server.round == 3
    assert same(snapshot(server), snapshot(untouched))


@pytest.mark.parametrize("quorum", [1, 2, 3, 4])
def test_the_quorum_is_exact(quorum: int) -> None:
    for bad in range(5):
        server = after_two_rounds(quorum=quorum)
        uploads = SETTING.uploads(server.task())
        answers = {name: "gone" if k < bad else uploads[name] for k, name in enumerate(NAMES)}
        if 4 - bad >= quorum:
            assert answered(server, NAMES, answers).workers == 4 - bad
        else:
            before = snapshot(server)
            with pytest.raises(QuorumLost, match=f"{4 - bad} of 4 workers sent a valid upload, {quorum} are needed"):
                answered(server, NAMES, answers)
            assert same(snapshot(server), before)


def test_those_who_were_not_asked_make_no_quorum() -> None:
    server = after_two_rounds(quorum=2)
    with pytest.raises(QuorumLost, match="1 of 2 workers sent a valid upload, 2 are needed"):
        answered(server, NAMES[:2], {name: SETTING.uploads(server.task())[name] for name in NAMES[1:]})


@pytest.mark.parametrize(("aggregator", "needed"), [(TrimmedMean(1), 3), (MultiKrum(0), 3)])
def test_an_aggregator_that_needs_more_than_the_quorum_is_a_lost_quorum(aggregator: Any, needed: int) -> None:
    """Not an error of its own: what catches a lost round must catch one kind of error only."""
    server = after_two_rounds(aggregator=aggregator)
    uploads, before = SETTING.uploads(server.task()), snapshot(server)
    assert answered(replace(SETTING, aggregator=aggregator).server(), NAMES, _at_round(uploads, 0)).workers == 4
    with pytest.raises(QuorumLost, match=f"2 of 4 workers sent a valid upload, {needed} are needed"):
        answered(server, NAMES, {**uploads, "worker-1": "gone", "worker-2": "gone"})
    assert same(snapshot(server), before)


@pytest.mark.parametrize(
    ("kind", "relaxes"),
    [
        *(("nan", True), ("gamma", True), ("short", True)),
        *(("stale", False), ("future", False), ("reason", False), ("unasked", False)),
    ],
)
def test_only_an_invalid_upload_of_an_asked_worker_relaxes_the_rule(kind: str, relaxes: bool) -> None:
    """A late or silent worker may be honest, and an upload that was not asked for says nothing of the asked workers."""
    setting = Setting(sizes=[12] * 3, aggregator=TrimmedMean(1))  # which needs all three
    server, literal = setting.server(), setting.server()
    literal.aggregator = TrimmedMean(0)
    uploads = setting.uploads(server.task())
    names = list(uploads)
    asked = names[:2] if kind == "unasked" else names
    bad = uploads[names[2]] if kind == "unasked" else BAD[kind][0](uploads[names[2]])
    answers = {**uploads, names[2]: bad}
    if not relaxes:
        with pytest.raises(QuorumLost, match="3 are needed"):
            answered(server, asked, answers)
        return
    assert list(answered(server, asked, answers).dropped) == [names[2]]
    answered(literal, names[:2], {name: uploads[name] for name in names[:2]})
    assert torch.equal(theta_gamma(server), theta_gamma(literal))


@pytest.mark.parametrize(("rule", "left_out"), [(MultiKrum(1), ["worker-4"]), (TrimmedMean(1), []), (Mean(), [])])
def test_whom_the_aggregator_leaves_out_is_named(rule: Aggregator, left_out: list[str]) -> None:
    """By name, though one before it was dropped; a silent worker is not counted as Byzantine, so the rule stays."""
    setting = Setting(sizes=[12] * 6, aggregator=rule)
    server = setting.server()
    uploads = setting.uploads(server.task())
    far = replace(uploads["worker-4"], theta=uploads["worker-4"].theta + 9.0)
    record = answered(server, list(uploads), {**uploads, "worker-2": "gone", "worker-4": far})
    assert (record.left_out, list(record.dropped), record.workers) == (left_out, ["worker-2"], 5)


def _at_round(uploads: dict[str, Upload], number: int) -> dict[str, Upload]:
    return {name: replace(upload, round=number) for name, upload in uploads.items()}


def test_a_number_too_large_for_the_model_is_not_finite() -> None:
    """A double that single precision has not: it must not reach gamma, nor stop the server."""
    model = torch.nn.Linear(4, CLASSES)
    setting = Setting()
    engine = setting.engine()
    objective = type(engine.objective)(model, engine.objective.loss, radius=0.5, maximizer=engine.objective.maximizer)
    optimizer = type(engine.optimizer)(torch.optim.SGD(model.parameters(), lr=0.1), objective)
    server = Server(objective, optimizer, Median())
    good = Upload(0, 0.01 * torch.ones(15), 0.1, 5, 1.0, 8)
    record = answered(server, ["a", "b"], {"a": good, "b": replace(good, gamma=-1e308)})
    assert record.dropped == {"b": "its gradient or its loss is not finite"}
    assert bool(objective.gamma.isfinite())


def test_a_gradient_whose_norm_overflows_is_dropped_and_does_not_end_the_training() -> None:
    server = after_two_rounds()
    uploads, before = SETTING.uploads(server.task()), snapshot(server)
    huge = {name: replace(u, theta=torch.full_like(u.theta, 1e308)) for name, u in uploads.items()}
    with pytest.raises(
        Diverged, match=r"no worker's gradient is finite; nothing was updated\. Lower the learning rate"
    ):
        answered(server, NAMES, huge)
    assert same(snapshot(server), before)
    record = answered(server, NAMES, uploads | {NAMES[0]: huge[NAMES[0]]})
    assert record.dropped == {NAMES[0]: "its gradient or its loss is not finite"}


@pytest.mark.parametrize("aggregator", [Median(), TrimmedMean(1), GeometricMedian()], ids=str)
def test_one_byzantine_worker_does_not_decide_the_loss_that_is_logged(aggregator: Aggregator) -> None:
    server = after_two_rounds(aggregator=aggregator)
    uploads = SETTING.uploads(server.task())
    honest = [upload.loss for upload in uploads.values()]
    record = answered(server, NAMES, uploads | {NAMES[0]: replace(uploads[NAMES[0]], loss=1e30)})
    assert not record.dropped
    assert min(honest) <= record.loss <= max(honest)


def test_a_step_that_is_not_finite_is_not_taken() -> None:
    server = after_two_rounds()
    before = snapshot(server)
    theta = torch.full_like(server.task().theta, math.nan)
    with pytest.raises(Diverged, match=r"in round 2 .* nothing was updated"):
        server.apply(Aggregate(theta, 0.0, 1.0, 1, 1, {}, 0, 0))
    assert same(snapshot(server), before)


@pytest.mark.parametrize("samples", [2**62, 10**39, 10**400])
def test_who_claims_too_many_samples_is_dropped(samples: int) -> None:
    server = after_two_rounds()
    server.weighted = True
    uploads = SETTING.uploads(server.task())
    record = answered(server, NAMES, uploads | {NAMES[0]: replace(uploads[NAMES[0]], samples=samples)})
    assert record.dropped == {NAMES[0]: "it reports more samples than there can be"}


def test_an_honest_worker_with_a_fault_does_not_relax_the_rule() -> None:
    """Four of five remain, and the rule needs three: it still tolerates the Byzantine worker among them."""
    setting = Setting(sizes=[12] * 5, aggregator=TrimmedMean(1))
    server, literal = setting.server(), setting.server()
    uploads = setting.uploads(server.task())
    names = list(uploads)
    attacked = replace(uploads[names[0]], theta=torch.full_like(uploads[names[0]].theta, 1e6))
    broken = with_entry(math.nan)(uploads[names[4]])
    answered(server, names, {**uploads, names[0]: attacked, names[4]: broken})
    answered(literal, names[:4], {**{name: uploads[name] for name in names[:4]}, names[0]: attacked})
    assert torch.equal(theta_gamma(server), theta_gamma(literal))


def test_a_task_is_a_copy() -> None:
    """Changing it does not move the server, and the server's steps do not change it."""
    server = SETTING.server()
    task = server.task()
    kept = task.theta.clone()
    answered(server, NAMES, SETTING.uploads(task))
    assert torch.equal(task.theta, kept)
    before = theta_gamma(server)
    server.task().theta.zero_()
    assert torch.equal(theta_gamma(server), before)


def test_sizes_are_the_bytes_that_travel() -> None:
    task = Task(0, torch.zeros(7, dtype=torch.float32), 1.0)
    assert task.size == 7 * 4 + 2 * 8  # theta; round and gamma
    assert Upload(0, task.theta, 0.0, 1, 0.0, 0).size == 7 * 4 + 5 * 8  # theta; five numbers


def test_a_state_taken_and_put_back_goes_on_bit_for_bit() -> None:
    straight, stopped = after_two_rounds(), after_two_rounds()
    fresh = SETTING.server()
    fresh.load_state_dict(stopped.state_dict())
    assert fresh.round == 2
    for server in (straight, fresh):
        for _ in range(3):
            answered(server, NAMES, SETTING.uploads(server.task()))
    assert same(snapshot(straight), snapshot(fresh))


def test_a_byzantine_worker_never_sees_the_server_s_model() -> None:
    """The workers' objective is another: what they do to it stays with them."""
    setting = Setting()
    server, workers = setting.server(), setting.simulation(byzantine=1)
    before = theta_gamma(server)
    workers.ask(server.task(), workers.names)
    assert torch.equal(theta_gamma(server), before)


def test_a_worker_with_few_samples_uses_them_all_and_says_how_many() -> None:
    work = LocalSteps(batch_size=8)
    assert work.chosen(5, 0, 0).tolist() == [0, 1, 2, 3, 4]
    assert work.chosen(8, 3, 1).tolist() == list(range(8))
    uploads = Setting(sizes=[5, 12]).uploads(Setting().server().task())
    assert [upload.samples for upload in uploads.values()] == [5, 12]
