"""What the engine of a GPU keeps books of, with recordings that any machine can play: when to record, and what anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from rhobust.data.batches import Batch, Batches, LoaderBatches, SampleBatches
from rhobust.data.samples import Samples
from rhobust.errors import DataError, Diverged
from rhobust.losses import cross_entropy
from rhobust.method import find_method
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer
from rhobust.training import cuda_graph
from rhobust.training import graph_recording as recording
from rhobust.training.cuda_graph import CudaGraphEngine
from rhobust.training.eager import EagerEngine
from rhobust.training.engine import Engine
from rhobust.training.loop import train

DRAWS = torch.Generator().manual_seed(0)
DATA = Samples(torch.rand(80, 4, generator=DRAWS), torch.randint(3, (80,), generator=DRAWS))


class HostRecording:
    """Plays the step with the learning rates of the day it was recorded and looks at no value, as a CUDA graph."""

    def __init__(self, engine: CudaGraphEngine, work: Callable[..., Any]) -> None:
        self.objective, self.groups, self.work = engine.objective, engine.eager.optimizer.param_groups, work
        self.rates = [group["lr"] for group in self.groups]

    def replay(self, *batch: Tensor) -> Any:
        now = [group["lr"] for group in self.groups]
        self._put(self.rates)
        with patch.object(self.objective, "_check"):
            made = self.work(*batch)
        self._put(now)
        return made

    def _put(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.groups, rates, strict=True):
            group["lr"] = rate


class HostRecordings(recording.Recordings[Any]):
    @contextmanager
    def warming(self) -> Iterator[None]:
        yield

    def _capture(self, batch: Sequence[Tensor], turn: int) -> None:
        engine = self.work.__self__  # type: ignore[attr-defined]
        self._recordings[turn, recording._shapes(batch)] = HostRecording(engine, partial(self.work, turn=turn))  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_stream", lambda device: None)
    monkeypatch.setattr(cuda_graph, "Recordings", HostRecordings)


def eager(batches: Batches, epochs: int = 1) -> EagerEngine:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
    chosen = find_method("spgda")
    objective = RobustObjective(
        model, cross_entropy, radius=0.1, maximizer=chosen.maximizer, gamma=1.0, bounds=(0.0, 1.0)
    )
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return EagerEngine(objective, ProximalOptimizer(sgd, objective, gamma_rule=chosen.gamma_rule), batches, epochs)


def of(samples: Samples, size: int) -> SampleBatches:
    return SampleBatches(samples, size, 0, torch.device("cpu"))


def recorded(size: int, epochs: int = 1) -> Any:
    return CudaGraphEngine(eager(of(DATA, size), epochs))


def weights(one: Engine) -> Tensor:
    return torch.cat([part.detach().flatten() for part in one.objective.parameters()])


def pace(one: EagerEngine, rate_of: Callable[[int], float]) -> None:
    """Have learning rates set before every step, as a user's schedule sets them."""
    numbered = one.numbered

    def paced(epoch: int, skip: int) -> Iterator[tuple[int, Batch]]:
        for step, batch in numbered(epoch, skip):
            for share, group in enumerate(one.optimizer.param_groups, start=1):  # theta's and gamma's
                group["lr"] = share * rate_of(step)
            yield step, batch

    one.numbered = paced  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("rate_of", "captured"),
    [(lambda step: 0.1, True), (lambda step: 0.1 if step < 30 else 0.02, True), (lambda step: 0.1 / (1 + step), False)],
)
def test_a_rate_that_changes_is_felt_at_once(rate_of: Callable[[int], float], captured: bool) -> None:
    replayed, launched = recorded(8, 6), eager(of(DATA, 8), 6)  # sixty steps
    for one in (replayed.eager, launched):
        pace(one, rate_of)
    assert [record.step for record in train(replayed)] == [record.step for record in train(launched)]
    assert torch.equal(weights(replayed), weights(launched))
    assert replayed.captured == captured


def test_a_rate_that_is_a_tensor_on_the_host_is_noticed() -> None:
    one, rate = recorded(8, 3), torch.tensor(0.1)
    for group in one.eager.optimizer.param_groups:
        group["lr"] = rate
    steps = (taken for number in range(3) for taken in one.epoch(number, 0, print))
    for _ in range(20):
        next(steps)
    assert one.captured
    rate.fill_(0.02)  # the same object: a recording has the number in it
    next(steps)
    assert not one.captured


class Noted:
    """In place of a fusion: the sizes of the batches that it is asked for."""

    def __init__(self, one: Any) -> None:
        self.sizes: list[int] = []
        self.size, self.take = 0, one.take
        one._fusion, one.take = self, self._take

    def _take(self, batch: Batch, *rest: Any) -> Any:
        self.size = len(batch.x)
        return self.take(batch, *rest)

    @contextmanager
    def applied(self) -> Iterator[None]:
        self.sizes.append(self.size)
        yield


@pytest.mark.parametrize(("start", "full"), [(0, 12), (2, 10), (4, 9)])
def test_full_batches_are_fused_whichever_comes_first(start: int, full: int) -> None:
    one = recorded(32, 6)  # batches of 32, 32 and 16
    noted = Noted(one)
    train(one, start=start)
    assert noted.sizes == [32] * full


@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_a_compiler_broke_off_is_taken_once(late: bool) -> None:
    """Before anything was updated it is begun again without the compiler; afterwards the error is the user's."""
    one, heard, steps = recorded(8), list[str](), list[None]()
    noted, real = Noted(one), one.eager.optimizer.step

    def step() -> None:
        steps.append(None)
        if late:
            real()
        if one._fusion is noted:
            raise RuntimeError("a kernel failed")
        real()

    one.eager.optimizer.step = step
    if late:
        before = weights(one)
        with pytest.raises(RuntimeError, match="a kernel failed"):
            next(one.epoch(0, 0, heard.append))
        assert not torch.equal(weights(one), before)
        assert (len(steps), heard) == (1, [])
    else:
        next(one.epoch(0, 0, heard.append))
        assert len(steps) == 2
        assert "kernels are not fused" in heard[0]


@pytest.mark.parametrize(("whole", "taken"), [(True, 3), (False, 8)])
def test_what_a_replay_cannot_look_at_is_looked_at_before(whole: bool, taken: int) -> None:
    """All the data before the first replay, where they are in memory; else every batch before its own."""
    at = list(of(DATA, 8).epoch(0))[8].at  # three steps warm up, and this one would be the sixth replay
    assert at is not None
    beyond = DATA.x.clone()
    beyond[at[0]] += 1
    source: Batches = of(Samples(beyond, DATA.y), 8)
    if not whole:
        pairs: Any = [(batch.x, batch.y) for batch in source.epoch(0)]
        source = LoaderBatches(DataLoader(pairs, batch_size=None), torch.device("cpu"))
    found = list[object]()
    with pytest.raises(DataError, match="outside its bounds"):
        found.extend(CudaGraphEngine(eager(source)).epoch(0, 0, print))
    assert len(found) == taken


def test_a_window_that_diverges_gives_its_sound_records_and_the_weights_before_it() -> None:
    one = recorded(8, 2)
    train(one)
    before, batch = weights(one), next(of(DATA, 8).epoch(2))
    for step in range(20, 27):
        assert one.take(batch if step != 24 else batch._replace(x=batch.x * torch.nan), step, 2) == []
    with pytest.raises(Diverged, match=r"at step 24 .* from before step 20") as caught:
        one.flush()
    assert [record.step for record in caught.value.records] == [20, 21, 22, 23]
    assert torch.equal(weights(one), before)
    assert one.flush() == []
