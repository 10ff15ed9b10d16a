"""The loop, with a toy for an engine: resumption, signals, divergence, and records that come in bunches."""

from __future__ import annotations

import copy
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from rhobust.errors import Diverged, Halted, Refused
from rhobust.objective import RobustObjective
from rhobust.training.engine import Engine, Warn
from rhobust.training.loop import Every, train
from rhobust.training.observers import Observer
from rhobust.training.record import Record
from rhobust.training.stopping_rule import StoppingRule

OBJECTIVE = RobustObjective(nn.Linear(1, 1), lambda output, y: output[:, 0] - y, radius=0.5)
WAYS = [(1, 0), (4, 0), (64, 0), (1, 1), (4, 2)]  # how many records are read at once, and how many are held back


class Toy(Engine):
    """Four epochs of ten steps: each mixes its place into a number, and a record has the number as its loss.

    Records are read `window` at once, and the last `lag` are held back.
    """

    def __init__(
        self, window: int = 1, lag: int = 0, lengths: Sequence[int] = (10,) * 4, *, known: bool = True
    ) -> None:
        self.objective, self.window, self.lag, self.lengths = OBJECTIVE, window, lag, lengths
        self.epochs = len(lengths)
        self.epoch_steps, self.total = (lengths[0], sum(lengths)) if known else (None, None)
        self.number, self.taken, self.settled = 1, 0, False
        self.unread: list[Record] = []
        self.before: dict[int, Callable[[], object]] = {}  # what happens at the beginning of a step
        self.bad: int | None = None  # the step that diverges
        self.elsewhere: int | None = None  # after so many steps another process is told to stop
        self.asked = 0  # how often the processes agreed

    def epoch(self, number: int, skip: int, warn: Warn) -> Iterator[Sequence[Record]]:
        for place in range(skip, self.lengths[number]):
            self.before.get(self.taken, lambda: None)()
            self.number = (31 * self.number + 100 * number + place) % 10_007
            self.unread.append(self._record(number))
            self.taken += 1
            yield self._read(self.window) if len(self.unread) >= self.window + self.lag else ()

    def flush(self) -> Sequence[Record]:
        return self._read(len(self.unread))

    def anywhere(self, flag: bool) -> bool:
        self.asked += 1
        return flag or self.taken == self.elsewhere

    def settle(self) -> None:
        self.number, self.settled = -1, True

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number, self.taken = state["number"], state["taken"]

    def _record(self, epoch: int) -> Record:
        numbers: dict[str, Any] = dict.fromkeys(("value", "gamma", "rho_eff", "stationarity"), 1.0)
        loss = math.nan if self.taken == self.bad else float(self.number)
        return Record(step=self.taken, epoch=epoch, loss=loss, accuracy=None, gradients=1, **numbers)

    def _read(self, count: int) -> list[Record]:
        read, self.unread = self.unread[:count], self.unread[count:]
        for place, record in enumerate(read):
            if math.isnan(record.loss):
                raise Diverged(f"at step {record.step}", read[:place])
        return read


class Kept:
    """A run directory's part: what was logged, and the checkpoints by their step."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self.records = list(records)
        self.states: dict[int, dict[str, Any]] = {}

    def log(self, record: Record) -> None:
        self.records.append(record)

    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        assert step not in self.states  # each once
        assert len(self.records) == step  # no step before it is missing in the metrics, and none after it is there
        self.states[step] = copy.deepcopy(state)

    @property
    def steps(self) -> list[int]:
        return [record.step for record in self.records]


class Heard(Observer):
    def __init__(self) -> None:
        self.total: int | None = -1
        self.records: list[Record] = []

    def started(self, steps: int | None, start: int, radius: float | None) -> None:
        self.total = steps

    def stepped(self, record: Record) -> None:
        self.records.append(record)


def whole(**how: Any) -> Kept:
    """An probing training, whose records are read one by one."""
    kept = Kept()
    train(Toy(**how), keeper=kept)
    return kept


def resumed(kept: Kept, step: int, every: Every | None = None) -> Kept:
    """The rest of a training, from one of its checkpoints."""
    engine, rest = Toy(), Kept(kept.records[:step])
    engine.load_state_dict(kept.states[step])
    train(engine, start=step, every=every, keeper=rest)
    assert engine.settled
    return rest


@pytest.mark.parametrize(("window", "lag"), WAYS)
@pytest.mark.parametrize(
    ("checkpoint", "steps"), [(None, [10, 20, 30, 40]), (7, [7, 14, 21, 28, 35]), (20, [20, 40]), (1, range(1, 41))]
)
def test_it_goes_on_from_any_checkpoint_as_if_nothing_had_happened(
    window: int, lag: int, checkpoint: int | None, steps: Sequence[int]
) -> None:
    every, kept, engine = Every(checkpoint=checkpoint), Kept(), Toy(window, lag)
    history = train(engine, every=every, keeper=kept)
    assert kept.steps == list(range(40))
    assert kept.records == history == whole().records
    assert list(kept.states) == list(steps)
    assert all(state["number"] == kept.records[step - 1].loss for step, state in kept.states.items())  # not settled
    assert engine.settled
    for step in steps:
        rest = resumed(kept, step, every)
        assert rest.records == kept.records
        assert rest.states == {later: state for later, state in kept.states.items() if later > step}


@pytest.mark.parametrize(("window", "lag"), WAYS)
@pytest.mark.parametrize(
    ("every", "steps"),
    [(Every(), [10]), (Every(checkpoint=5), [5, 10, 15]), (Every(checkpoint=100), []), (Every(judge=18), [10])],
)
def test_what_came_before_a_divergence_is_logged_and_nothing_is_kept_after(
    window: int, lag: int, every: Every, steps: list[int]
) -> None:
    engine, kept, heard = Toy(window, lag), Kept(), Heard()
    engine.bad = 17
    with pytest.raises(Diverged, match="at step 17"):
        train(engine, every=every, keeper=kept, observer=heard, judge=lambda: {"clean": 0.5})
    assert kept.records == heard.records == whole().records[:17]
    assert list(kept.states) == steps
    assert not engine.settled


@pytest.mark.parametrize(("window", "lag"), WAYS)
@pytest.mark.parametrize(("checkpoint", "steps"), [(None, [3, 8, 10]), (4, [4, 8])])
def test_a_stream_of_unknown_length_is_taken_to_its_end(
    window: int, lag: int, checkpoint: int | None, steps: list[int]
) -> None:
    engine, kept, heard = Toy(window, lag, (3, 5, 2), known=False), Kept(), Heard()
    train(engine, every=Every(checkpoint=checkpoint), keeper=kept, observer=heard)
    assert kept.steps == list(range(10))
    assert [record.epoch for record in kept.records] == [0] * 3 + [1] * 5 + [2] * 2
    assert list(kept.states) == steps
    assert heard.total is None
    assert engine.settled


def test_a_stream_of_unknown_length_has_no_place_to_go_on_from() -> None:
    with pytest.raises(Refused, match="cannot start at step 3: the stream does not tell how many steps"):
        train(Toy(known=False), start=3)


def halt() -> None:
    raise Halted("the quorum is lost")


@pytest.mark.parametrize(("window", "lag"), WAYS)
def test_what_halts_a_training_is_raised_after_a_checkpoint(window: int, lag: int) -> None:
    engine, kept = Toy(window, lag), Kept()
    engine.before[13] = halt
    with pytest.raises(Halted, match="the quorum is lost"):
        train(engine, keeper=kept)
    assert list(kept.states) == [10, 13]
    assert not engine.settled
    assert resumed(kept, 13).records == whole().records


def test_a_training_that_is_halted_where_it_begins_keeps_nothing_new() -> None:
    engine, kept = Toy(), Kept()
    engine.before[0] = halt
    with pytest.raises(Halted):
        train(engine, keeper=kept)
    assert kept.states == {}


@pytest.mark.parametrize(("window", "lag"), WAYS[1:3])
def test_a_halt_among_unread_steps_that_diverged_keeps_none_of_them(window: int, lag: int) -> None:
    engine, kept = Toy(window, lag), Kept()
    engine.bad, engine.before[15] = 12, halt
    with pytest.raises((Halted, Diverged)):
        train(engine, keeper=kept)
    assert kept.records == whole().records[:12]
    assert list(kept.states) == [10]


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that interrupts, whatever the tests were started by."""
    before = signal.signal(request.param, signal.default_int_handler)
    yield request.param
    assert signal.getsignal(request.param) is signal.default_int_handler  # as it was
    signal.signal(request.param, before)


@pytest.mark.parametrize(("window", "lag"), WAYS)
def test_a_signal_waits_for_its_step_and_a_checkpoint(number: signal.Signals, window: int, lag: int) -> None:
    engine, kept = Toy(window, lag), Kept()
    engine.before[13] = lambda: signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt):
        train(engine, every=Every(checkpoint=1000), keeper=kept)
    assert list(kept.states) == [14]
    assert not engine.settled
    assert resumed(kept, 14).records == whole().records


def test_a_signal_while_a_step_is_noted_takes_no_further_one(number: signal.Signals) -> None:
    class Signals(Observer):
        def stepped(self, record: Record) -> None:
            if record.step == 13:
                signal.raise_signal(number)

    kept = Kept()
    with pytest.raises(KeyboardInterrupt):
        train(Toy(), every=Every(checkpoint=1000), keeper=kept, observer=Signals())
    assert list(kept.states) == [14]


def test_without_a_place_to_keep_it_a_training_is_interrupted_at_once(number: signal.Signals) -> None:
    engine = Toy()
    engine.before[13] = lambda: signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt):
        train(engine)
    assert engine.taken == 13


@pytest.mark.parametrize(("window", "lag"), WAYS)
def test_what_stops_another_process_stops_this_one(window: int, lag: int) -> None:
    engine, kept = Toy(window, lag), Kept()
    engine.elsewhere = 13
    with pytest.raises(KeyboardInterrupt):
        train(engine, every=Every(checkpoint=1000), keeper=kept)
    assert list(kept.states) == [13]
    # Once a step, and where the one epoch ended: a process that asks more often than the others waits for ever.
    assert engine.asked == 13 + 1
    assert resumed(kept, 13).records == whole().records


@pytest.mark.parametrize(("window", "lag"), WAYS)
def test_errors_are_on_the_record_of_the_step_they_were_measured_after(window: int, lag: int) -> None:
    engine, kept = Toy(window, lag), Kept()
    train(engine, every=Every(judge=6), keeper=kept, judge=lambda: {"clean": float(engine.number)})
    assert kept.steps == list(range(40))
    judged = {record.step: record.errors["clean"] for record in kept.records if record.errors}
    assert list(judged) == [5, 11, 17, 23, 29, 35, 39]  # after every six, and at the end
    assert judged == {step: kept.records[step].loss for step in judged}


class Settling(Toy):
    """A value that falls to a noisy floor, for a rule that ends the training there."""

    def _record(self, epoch: int) -> Record:
        value = math.exp(-epoch / 5) + 2e-3 * (self.number % 97) / 97
        return replace(super()._record(epoch), value=value)


@pytest.mark.parametrize("log", [1, 7])
@pytest.mark.parametrize("checkpoint", [None, 7, 10])
@pytest.mark.parametrize(("window", "lag"), WAYS)
def test_a_training_that_settles_ends_at_the_same_step_from_any_checkpoint(
    window: int, lag: int, checkpoint: int | None, log: int
) -> None:
    lengths = (10,) * 400

    def trained(engine: Toy, step: int, rule: StoppingRule) -> dict[int, dict[str, Any]]:
        kept = States()
        train(engine, start=step, every=Every(log, checkpoint), keeper=kept, stop=rule)
        assert engine.settled
        assert engine.taken == last
        return kept.states

    class States(Kept):
        def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
            self.states[step] = copy.deepcopy(state)

    one_by_one = Settling(lengths=lengths)
    train(one_by_one, stop=StoppingRule())
    last = one_by_one.taken
    assert 32 * 10 < last < 4000  # there was a choice
    assert last % 10 == 0
    states = trained(Settling(window, lag, lengths), 0, StoppingRule())
    for step in {*[*states][::9], max(states)}:
        engine, rule = Settling(1, 0, lengths), StoppingRule()
        engine.load_state_dict(states[step])
        rule.load_state_dict(states[step]["stop"])
        trained(engine, step, rule)


def test_the_limit_is_told_where_nothing_ended_the_training_before() -> None:
    class Ends(Heard):
        said: list[str] = []  # noqa: RUF012

        def __init__(self, number: int | None) -> None:
            super().__init__()
            self.number, self.said = number, []

        def warned(self, message: str) -> None:
            self.said.append(message)

        def epoch_ended(self, number: int, model: nn.Module) -> bool:
            return number == self.number

    for number, said in ((None, 1), (2, 0)):
        ends = Ends(number)
        train(Toy(), observer=ends, stop=StoppingRule())
        assert ends.total is None
        assert len(ends.said) == said
    assert len(ends.records) == 30


@pytest.mark.parametrize(("window", "lag"), WAYS)
def test_an_observer_is_asked_when_it_has_seen_every_step_of_the_epoch(window: int, lag: int) -> None:
    class Counts(Heard):
        def epoch_ended(self, number: int, model: nn.Module) -> bool:
            assert len(self.records) == 10 * (number + 1)
            assert model is OBJECTIVE.model
            return number == 2

    engine, kept = Toy(window, lag), Kept()
    train(engine, keeper=kept, observer=Counts())
    assert engine.taken == 30
    assert engine.settled
    assert list(kept.states) == [10, 20, 30]


def test_what_ends_the_training_of_one_process_ends_all() -> None:
    class Told(Toy):
        def anywhere(self, flag: bool) -> bool:
            if not self.taken % 10:
                flags.append(flag)
            return self.taken == 30 and len(flags) == 6  # where the third epoch ended, the other one's observer said so

    flags: list[bool] = []
    engine = Told()
    train(engine)
    assert engine.taken == 30
    assert flags == [False] * 6  # after the last step of each epoch, and where it ended


def test_errors_are_measured_only_where_both_a_judge_and_an_interval_are_given() -> None:
    def judge() -> dict[str, float]:
        raise AssertionError

    train(Toy(), judge=judge)
    train(Toy(), every=Every(judge=6))


@pytest.mark.parametrize(("window", "lag"), WAYS)
def test_a_record_with_errors_is_logged_whatever_else_is_not(window: int, lag: int) -> None:
    engine, heard, logged = Toy(window, lag), Heard(), Kept()
    every = Every(log=15, checkpoint=1000, judge=20)
    history = train(engine, every=every, keeper=logged, observer=heard, judge=lambda: {"clean": 0.5})
    assert logged.records == history
    assert [(record.step, record.errors) for record in history] == [
        *((0, {}), (15, {}), (19, {"clean": 0.5})),
        *((30, {}), (39, {"clean": 0.5})),
    ]
    assert [record.step for record in heard.records] == list(range(40))  # an observer sees every one
