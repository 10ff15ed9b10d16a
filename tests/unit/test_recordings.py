"""What the engine of a GPU keeps books of, with recordings that any machine can play: when to record, and what anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from rhobust.batches import SampleBatches
from rhobust.data import Samples
from rhobust.engines import captured, graphs
from rhobust.engines.captured import CapturedEngine
from rhobust.engines.local import LocalEngine
from rhobust.errors import DataError
from rhobust.losses import cross_entropy
from rhobust.methods import find_method
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer
from rhobust.trainer import Trainer

DRAWS = torch.Generator().manual_seed(0)
DATA = Samples(torch.rand(80, 4, generator=DRAWS), torch.randint(3, (80,), generator=DRAWS))


class Recording:
    """Plays the step with the learning rates of the day it was recorded and looks at no value, as a CUDA graph."""

    def __init__(self, engine: CapturedEngine, work: Callable[..., Any]) -> None:
        self.objective, self.groups, self.work = engine.objective, engine.optimizer.param_groups, work
        self.rates = [group["lr"] for group in self.groups]

    def replay(self, *batch: Tensor) -> Any:
        now = [group["lr"] for group in self.groups]
        self._put(self.rates)
        with patch.object(self.objective, "check"):
            made = self.work(*batch)
        self._put(now)
        return made

    def _put(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.groups, rates, strict=True):
            group["lr"] = rate


class Recordings(graphs.Graphs[Any]):
    def warming(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _capture(self, batch: Sequence[Tensor], turn: int) -> None:
        engine = self.work.__self__  # type: ignore[attr-defined]
        self._graphs[turn, graphs._shapes(batch)] = Recording(engine, partial(self.work, turn=turn))  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_stream", lambda device: None)
    monkeypatch.setattr(captured, "Graphs", Recordings)


def engine(kind: type[LocalEngine]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
    chosen = find_method("spgda")
    objective = RobustObjective(
        model, cross_entropy, radius=0.1, maximizer=chosen.maximizer, gamma=1.0, bounds=(0.0, 1.0)
    )
    rule = ProximalOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), objective, gamma_rule=chosen.gamma_rule)
    return kind(objective, rule)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    return [(DATA.x[at], DATA.y[at]) for at in torch.arange(80 * count // 10 * 8).remainder(80).split(8)][:count]


def trained(one: Any, rate_of: Callable[[int], float]) -> Tensor:
    for step, (x, y) in enumerate(batches(60)):
        for share, group in enumerate(one.optimizer.param_groups, start=1):  # theta's and gamma's
            group["lr"] = share * rate_of(step)
        one.step(x, y, step, 0)
    while one.flush():
        pass
    return torch.cat([part.detach().flatten() for part in one.objective.parameters()])


@pytest.mark.parametrize(
    ("rate_of", "recorded"),
    [(lambda step: 0.1, True), (lambda step: 0.1 if step < 30 else 0.02, True), (lambda step: 0.1 / (1 + step), False)],
)
def test_a_rate_that_changes_is_felt_at_once(rate_of: Callable[[int], float], recorded: bool) -> None:
    replayed = engine(CapturedEngine)
    assert torch.equal(trained(replayed, rate_of), trained(engine(LocalEngine), rate_of))
    assert replayed.captured == recorded


def test_a_rate_that_is_a_tensor_on_the_host_is_noticed() -> None:
    one, rate = engine(CapturedEngine), torch.tensor(0.1)
    for group in one.optimizer.param_groups:
        group["lr"] = rate
    for step, (x, y) in enumerate(batches(30)):
        if step == 20:
            assert one.captured
            rate.fill_(0.02)  # the same object: a recording has the number in it
            one._notice_rates()
            assert not one.captured
        one.step(x, y, step, 0)


class Noted:
    """In place of a fusion: the sizes of the batches that it is asked for."""

    def __init__(self, one: Any) -> None:
        self.sizes: list[int] = []
        self.size, self.step = 0, one.step
        one._fusion, one.step = self, self._step

    def _step(self, x: Tensor, *rest: Any) -> Any:
        self.size = len(x)
        return self.step(x, *rest)

    @contextmanager
    def applied(self) -> Iterator[None]:
        self.sizes.append(self.size)
        yield


@pytest.mark.parametrize(("start", "full"), [(0, 12), (2, 10), (4, 9)])
def test_full_batches_are_fused_whichever_comes_first(start: int, full: int) -> None:
    one = engine(CapturedEngine)
    noted = Noted(one)
    Trainer(one, SampleBatches(DATA, 32, 0, torch.device("cpu")), 6).train(start=start)  # batches of 32, 32 and 16
    assert noted.sizes == [32] * full


@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_a_compiler_broke_off_is_taken_once(late: bool) -> None:
    """Before anything was updated it is begun again without the compiler; afterwards the error is the user's."""
    one, heard, steps = engine(CapturedEngine), [], []
    noted, real, (x, y) = Noted(one), one.optimizer.step, batches(1)[0]
    one.warn = heard.append

    def step() -> None:
        steps.append(None)
        if late:
            real()
        if one._fusion is noted:
            raise RuntimeError("a kernel failed")
        real()

    one.optimizer.step = step
    if late:
        before = one.objective.model.weight.clone()
        with pytest.raises(RuntimeError, match="a kernel failed"):
            one.step(x, y, 0, 0)
        assert not torch.equal(one.objective.model.weight, before)
        assert (len(steps), heard) == (1, [])
    else:
        one.step(x, y, 0, 0)
        assert len(steps) == 2
        assert "kernels are not fused" in heard[0]


def test_other_data_are_looked_at_again() -> None:
    one = engine(CapturedEngine)
    Trainer(one, SampleBatches(DATA, 16, 0, torch.device("cpu")), 8).train()
    assert one.captured
    beyond = Samples(DATA.x + 1, DATA.y)
    with pytest.raises(DataError, match="outside its bounds"):
        Trainer(one, SampleBatches(beyond, 16, 0, torch.device("cpu")), 1).train()
