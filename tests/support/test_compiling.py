"""A compilable function is itself, but where steps are recorded it is what the compiler made of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

from rhobust.data.batches import Batch, batches_of
from rhobust.data.catalog import load_data
from rhobust.data.samples import DataSet
from rhobust.losses import cross_entropy
from rhobust.memory import Memory
from rhobust.runs.build import compose_run
from rhobust.runs.config import Config
from rhobust.support.compiling import compilable, fusing
from rhobust.training.eager import EagerEngine
from rhobust.training.kernel_fusion import Fusion


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Any]]:
    """What was handed to a compiler that adds one."""
    handed: list[Callable[..., Any]] = []

    def compile_(function: Callable[..., Tensor], *, dynamic: bool) -> Callable[..., Tensor]:
        assert not dynamic
        handed.append(function)
        return lambda *args: function(*args) + 1

    monkeypatch.setattr(torch, "compile", compile_)
    return handed


def engine_of(config: Config, data: DataSet) -> EagerEngine:
    here = torch.device("cpu")
    return EagerEngine(*compose_run(config, data, here), batches_of(data.train, 16, 0, here))


def test_it_is_compiled_once_and_only_inside(compiled: list[Callable[..., Any]]) -> None:
    doubled = compilable(lambda x: 2 * x)
    x = torch.tensor(3.0)
    assert doubled(x) == 6
    assert not compiled
    with fusing():
        assert doubled(x) == doubled(x) == 7
    assert doubled(x) == 6
    assert len(compiled) == 1


def test_it_is_compiled_for_every_radius_of_a_long_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    scaled = compilable(lambda x, radius: x * radius)
    for radius in range(1, 31):
        with fusing():
            assert scaled(torch.ones(1), 0.1 * radius) == pytest.approx(0.1 * radius)
    assert len(made) == 30


def test_where_the_compiler_fails_the_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **how: object) -> Callable[..., Tensor]:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    doubled = compilable(lambda x: 2 * x)
    with fusing():
        assert doubled(torch.tensor(3.0)) == 6


@pytest.mark.parametrize(("failure", "called_again"), [(RuntimeError, False), (Unsupported, True)])
def test_what_may_have_written_is_not_called_again(
    monkeypatch: pytest.MonkeyPatch, failure: type[RuntimeError], called_again: bool
) -> None:
    def add(x: Tensor) -> None:
        x.add_(1)

    def compile_(function: Callable[..., None], *, dynamic: bool) -> Callable[..., None]:
        def failing(x: Tensor) -> None:
            if not called_again:
                function(x)
            raise failure("a kernel failed")

        return failing

    monkeypatch.setattr(torch, "compile", compile_)
    x = torch.tensor(3.0)
    with nullcontext() if called_again else pytest.raises(RuntimeError, match="a kernel failed"), fusing():
        compilable(add, writes=True)(x)
    assert x == 4


def test_a_compiler_of_the_caller_s_sees_through_it() -> None:
    traced = torch.compile(lambda x: 1 + cross_entropy(x, torch.zeros(2).long()), backend="eager", fullgraph=True)
    x = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
    torch.testing.assert_close(traced(x), 1 + cross_entropy(x, torch.zeros(2).long()))


def test_an_error_inside_ends_it(compiled: list[Callable[..., Any]]) -> None:
    doubled = compilable(lambda x: 2 * x)
    with pytest.raises(RuntimeError, match="the model's"), fusing():
        raise RuntimeError("the model's")
    assert doubled(torch.tensor(3.0)) == 6
    assert not compiled


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler's own
@pytest.mark.parametrize("rule", ["multiplicative:0.1", "projected:0.01", "adam:0.01"])
@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("remembers", [False, True])
def test_fused_steps_are_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch, rule: str, tensors: bool, remembers: bool
) -> None:
    """Traced and run as they were traced, without a machine's compiler: the same functions, the same numbers."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda part, **how: real(part, backend="eager", **how))
    words = {"method": "spgda", "radius": 0.04, "cost": "linf", "cap": 0.3, "noise": 0.3, "steps": [1, 3]}
    words |= {"data": "digits", "model": "linear", "regularizer": "elastic-net:1e-4,1e-3", "gamma_rule": rule}
    words |= {"temper": 0.4} if remembers else {}
    config, data = Config.resolve(words), load_data("digits")
    x, y = data.train.x[:16], data.train.y[:16]
    found, moves, batch = [], list[Tensor](), Batch(x, y, torch.arange(16).flip(0))
    for fused in (False, True):
        torch.manual_seed(0)
        engine = engine_of(config, data)
        engine.memory = Memory(x, 1.0) if remembers else None
        fusion = Fusion(engine.objective)
        if tensors:
            for group in engine.optimizer.param_groups:
                group["lr"] = torch.tensor(group["lr"])
        for step in range(4):
            with fusion.applied() if fused else nullcontext():
                found.append(engine.gradient(batch, step, 0).values)
                with torch.device("meta"):  # a default of the user's
                    engine.update()
        moves += [] if engine.memory is None else [engine.memory.moves]
    torch.testing.assert_close(torch.stack(found[:4]), torch.stack(found[4:]))
    if remembers:
        torch.testing.assert_close(*moves)
        assert moves[0].abs().max() > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler's own
def test_the_prox_and_what_is_logged_of_it_are_fused_once_for_all_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    real, data = torch.compile, load_data("digits")
    monkeypatch.setattr(torch, "compile", lambda part, **how: real(part, backend="eager", **how))
    batch = Batch(data.train.x[:16], data.train.y[:16])

    def graphs(rates: list[float], **more: str) -> int:
        words = {"data": "digits", "model": "linear", "method": "spgda", "radius": 0.04, **more}
        engine = engine_of(Config.resolve(words), data)
        torch.compiler.reset()
        counters.clear()
        for step, rate in enumerate(rates):
            for group in engine.optimizer.param_groups:
                group["lr"] = rate
            with fusing():
                engine.gradient(batch, step, 0)
                engine.update()
        return int(counters["stats"]["unique_graphs"])

    plain = graphs([0.1, 0.1])
    assert plain > 0
    assert graphs([0.1, 0.1], regularizer="squared-l2:1e-3") == plain + 2
    assert graphs([0.1, 0.2, 0.3, 0.4, 0.5], regularizer="squared-l2:1e-3") == plain + 2
