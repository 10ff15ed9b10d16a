"""On a GPU: the captured step is the eager step, step for step, and what cannot be captured still trains."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.ascent import Ball, ErrorAscent
from rhobust.data.batches import Batch, Batches, SampleBatches
from rhobust.data.samples import Samples
from rhobust.errors import DataError, Diverged
from rhobust.federation.messages import Task, flat
from rhobust.federation.worker import LocalSteps, Worker
from rhobust.inputs import Perturb
from rhobust.losses import cross_entropy
from rhobust.memory import Memory
from rhobust.method import find_method
from rhobust.models.catalog import build_model
from rhobust.objective import RobustObjective
from rhobust.optim import ProximalOptimizer, adam
from rhobust.regularizers import L1, Regularizer, SquaredL2
from rhobust.training.cuda_graph import CudaGraphEngine
from rhobust.training.eager import EagerEngine
from rhobust.training.engine import Engine
from rhobust.training.graph_recording import Recordings
from rhobust.training.kernel_fusion import Fusion
from rhobust.training.loop import train
from rhobust.training.observers import Observer
from rhobust.training.weight_average import WeightAverage

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU HERE: captured steps go untested")

STEPS = 50
SIZES = (32, 32, 32, 20)  # a last batch that is smaller


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=False):
        yield


def batches(count: int = STEPS) -> list[Batch]:
    draws = torch.Generator("cuda").manual_seed(1)
    found = []
    for number in range(count):
        size = SIZES[number % len(SIZES)]
        y = torch.randint(10, (size,), device="cuda", generator=draws)
        noise = torch.rand(size, 1, 28, 28, device="cuda", generator=draws)
        found.append(Batch((0.3 * noise + y[:, None, None, None] / 10 - 0.5).clamp(-1, 1), y))
    return found


class Stream(Batches):
    """These batches, one after another; they are not known beforehand."""

    def __init__(self, given: list[Batch]) -> None:
        self.given = given

    def steps(self) -> int:
        return len(self.given)

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        return iter(self.given[skip:])


def in_memory(count: int, size: int) -> SampleBatches:
    """Batches of this size, from the samples of so many others."""
    given = batches(count)
    x, y = torch.cat([batch.x for batch in given]), torch.cat([batch.y for batch in given])
    return SampleBatches(Samples(x, y), size, 0, x.device)


def eager_engine(
    method: str,
    source: Batches | None = None,
    epochs: int = 1,
    *,
    precision: torch.dtype = torch.float32,
    model: nn.Module | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adam,
    regularizer: Regularizer | None = None,
    memory: Memory | None = None,
    schedule: str = "constant",
) -> EagerEngine:
    chosen = find_method(method)
    torch.manual_seed(0)
    model = copy.deepcopy(model) if model else build_model("cnn", torch.Size([1, 28, 28]), 10)
    model = model.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    objective = RobustObjective(
        model,
        cross_entropy,
        radius=2.0 if chosen.robust else 0.0,
        maximizer=chosen.maximizer,
        gamma=chosen.gamma,
        bounds=(-1, 1),
    )
    wrapped = ProximalOptimizer(optimizer(model), objective, regularizer=regularizer, gamma_rule=chosen.gamma_rule)
    source = source or Stream(batches())
    return EagerEngine(objective, wrapped, source, epochs, precision=precision, memory=memory, schedule=schedule)


def graph_engine(method: str, source: Batches | None = None, epochs: int = 1, **how: Any) -> CudaGraphEngine:
    return CudaGraphEngine(eager_engine(method, source, epochs, **how))


def both(method: str, **how: Any) -> tuple[CudaGraphEngine, EagerEngine]:
    return graph_engine(method, **how), eager_engine(method, **how)


def theta(engine: Engine) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in engine.objective.parameters()])


def close(a: Engine, b: Engine, tolerance: float) -> bool:
    return bool((theta(a) - theta(b)).norm() <= tolerance * theta(b).norm())


class Heard(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def warned(self, message: str) -> None:
        self.said.append(message)


@pytest.mark.parametrize(
    "method",
    ["erm", "fgsm", "ifgsm", "wrm", "spgd", "spgda", "spgda-margin", "spgda-loss", "spgd-literal", "spgda-literal"],
)
def test_captured_is_eager_step_for_step(method: str) -> None:
    captured, eager = both(method)
    replayed, launched = train(captured), train(eager)
    assert captured.captured
    assert close(captured, eager, 1e-5)
    assert [record.step for record in replayed] == list(range(STEPS))
    for one, other in zip(replayed, launched, strict=True):
        for name in ("loss", "value", "gamma", "rho_eff", "stationarity"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4, abs=1e-6), (one.step, name)


def test_garbage_waits_while_a_step_is_recorded() -> None:
    """An engine is in a cycle of references, so its recordings are freed whenever the collector runs."""
    gone = graph_engine("erm", Stream(batches(8)))
    train(gone)
    assert gone.captured
    held: list[list[object]] = [[gone]]
    held[0].append(held[0])
    del gone

    def double(x: Tensor, turn: int) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            held.clear()
            [[] for _ in range(1000)]  # more than the collector waits for
        return 2 * x

    complaints: list[str] = []
    recordings = Recordings(double, torch.device("cuda"), complaints.append)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        found = [recordings.find(torch.ones(3, device="cuda")) for _ in range(5)][-1]
    finally:
        gc.set_threshold(*before)
    assert complaints == []
    assert not held
    assert gc.isenabled()
    assert found is not None
    assert found.replay(torch.full((3,), 4.0, device="cuda")).tolist() == [8, 8, 8]


def test_captured_prox_is_eager() -> None:
    captured, eager = both("spgda", regularizer=L1(1e-3))
    train(captured), train(eager)
    assert captured.captured
    assert close(captured, eager, 1e-5)
    assert (theta(captured) == 0).float().mean() > 0.01  # the prox did act


def test_captured_sgd_with_momentum_is_eager() -> None:
    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    captured, eager = both("spgda", optimizer=sgd, regularizer=L1(1e-4))
    train(captured), train(eager)
    assert captured.captured
    assert close(captured, eager, 1e-5)


def pace(one: EagerEngine, every: int) -> None:
    """Have the learning rates halved in every so many steps, as a user's schedule halves them."""
    numbered = one.numbered

    def paced(epoch: int, skip: int) -> Iterator[tuple[int, Batch]]:
        for step, batch in numbered(epoch, skip):
            for group in one.optimizer.param_groups:
                group["lr"] *= 0.5 if step % every == every - 1 else 1
            yield step, batch

    one.numbered = paced  # type: ignore[method-assign]


@pytest.mark.parametrize("every", [1, 20])
def test_a_learning_rate_that_changes_is_felt_by_captured_steps(every: int) -> None:
    captured, eager = both("spgda")
    for one in (captured.eager, eager):
        pace(one, every)
    train(captured), train(eager)
    assert captured.captured == (every == 20)  # in every step: never worth recording
    assert close(captured, eager, 1e-5)


@pytest.mark.parametrize("schedule", ["cosine", "one-cycle"])
@pytest.mark.parametrize("regularizer", [None, L1(1e-4)])
def test_a_schedule_does_not_cost_the_graph(schedule: str, regularizer: Regularizer | None) -> None:
    """Its rates are read from the device; the eager twin is given plain numbers."""
    captured, eager = both("spgda", schedule=schedule, regularizer=regularizer)
    assert eager.schedule is not None
    eager.schedule.kept = [None] * len(eager.schedule.kept)
    train(captured), train(eager)
    assert captured.captured
    assert close(captured, eager, 1e-5)
    straight, _ = both("spgda", regularizer=regularizer)
    train(straight)
    assert not close(captured, straight, 1e-3)


def test_a_checkpoint_of_a_scheduled_training_goes_on_as_if_nothing_had_happened() -> None:
    source = in_memory(20, 64)
    straight, first, second = (graph_engine("spgda", source, 4, schedule="one-cycle") for _ in range(3))
    train(straight)
    first.epochs = 2
    done = len(train(first))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, start=done)
    assert second.captured
    assert close(second, straight, 1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # the compiler's own
def test_what_is_fused_does_not_depend_on_the_batch_that_comes_first() -> None:
    fused: list[str] = []

    class Noted(Fusion):
        @contextmanager
        def applied(self) -> Iterator[None]:
            fused.append("once more")
            yield

    source = in_memory(3, 64)  # 96: one whole batch and half of one
    captured = graph_engine("erm", source, 2, precision=torch.bfloat16)
    captured._fusion = Noted(captured.objective)
    train(captured, start=1)
    assert len(fused) == 1  # of a short, a full and a short one


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize(("method", "regularizer"), [("spgda", None), ("spgd", None), ("spgda", SquaredL2(1e-3))])
def test_bfloat16_stays_near_float32(method: str, regularizer: Regularizer | None) -> None:
    half = graph_engine(method, precision=torch.bfloat16, regularizer=regularizer)
    full = graph_engine(method, regularizer=regularizer)
    lowered, exact = train(half), train(full)
    assert all(part.dtype == torch.float32 for part in half.objective.parameters())
    difference = (theta(half) - theta(full)).norm() / (theta(full) - theta(eager_engine(method))).norm()
    assert difference < 0.5  # of the way gone: Adam turns rounding of small gradients into steps of full size
    assert lowered[0].loss == pytest.approx(exact[0].loss, rel=1e-2)
    assert lowered[-1].gamma == pytest.approx(exact[-1].gamma, rel=0.3)  # six of its steps: it is still on its way


def test_captured_average_is_eager() -> None:
    captured, eager = both("spgda")
    for one in (captured.eager, eager):
        one.ema = WeightAverage(one.objective.model, 0.9)
    train(captured), train(eager)
    assert captured.captured
    assert close(captured, eager, 1e-5)


def test_random_starts_differ_from_replay_to_replay() -> None:
    captured = graph_engine("erm", Stream(batches(1) * 12))
    captured.objective.maximizer = Ball(0.3, random_start=True)
    captured.eager.optimizer.base.param_groups[0]["lr"] = 0.0  # theta stays, so a new loss is a new start
    losses = {record.loss for record in train(captured)}
    assert captured.captured
    assert len(losses) == 12


class Reader(nn.Module):
    """A model that reads a value back."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

    def forward(self, x: Tensor) -> Tensor:
        scale = 1.0 if float(x.detach().abs().max()) <= 1 else 0.5
        output: Tensor = scale * self.body(x)
        return output


def test_a_model_that_cannot_be_captured_trains_eagerly_and_says_why() -> None:
    captured, eager = both("spgda", model=Reader())
    heard = Heard()
    records = train(captured, observer=heard)
    train(eager)
    assert [record.step for record in records] == list(range(STEPS))
    assert not captured.captured
    assert close(captured, eager, 1e-6)
    assert len(heard.said) == 1
    assert "one by one" in heard.said[0]
    assert torch.rand(2, device="cuda").isfinite().all()  # the generator survived the attempt


def test_an_optimizer_that_counts_on_the_host_is_named() -> None:
    heard = Heard()
    captured = graph_engine("spgda", Stream(batches(8)), optimizer=lambda model: torch.optim.Adam(model.parameters()))
    train(captured, observer=heard)
    assert heard.said
    assert "capturable=True" in heard.said[0]


def test_a_step_that_diverges_leaves_the_weights_of_the_last_look() -> None:
    source = in_memory(20, 32)  # all are looked at once: what comes later may be no number
    captured = graph_engine("spgda", source)
    done = len(train(captured))
    before, further = theta(captured), list(source.epoch(1))[:10]
    further[5] = further[5]._replace(x=further[5].x * math.nan)
    for step, batch in enumerate(further, start=done):
        assert captured.take(batch, step, 1) == []
    with pytest.raises(Diverged, match=rf"at step {done + 5} .* from before step {done}") as caught:
        captured.flush()
    assert [record.step for record in caught.value.records] == list(range(done, done + 5))
    assert torch.equal(theta(captured), before)


@pytest.mark.parametrize("spoil", [lambda x, y: (x + 2, y), lambda x, y: (x, y + 10), lambda x, y: (x * math.nan, y)])
def test_a_batch_that_is_wrong_is_refused_also_when_replaying(
    spoil: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> None:
    data = batches(24)
    captured = graph_engine("spgda", Stream(data))
    train(captured)
    before = theta(captured)
    with pytest.raises(DataError):
        captured.take(Batch(*spoil(data[0].x, data[0].y)), 24, 0)
    assert torch.equal(theta(captured), before)


def test_a_checkpoint_in_the_middle_goes_on_as_if_nothing_had_happened() -> None:
    source = in_memory(20, 64)
    straight, first, second = (graph_engine("spgd-literal", source, epochs) for epochs in (4, 2, 4))
    records, done = train(straight), len(train(first))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, start=done)
    assert close(second, straight, 1e-6)
    assert [record.step for record in records] == list(range(2 * done))


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_worker_s_captured_steps_are_its_eager_ones(noise: float) -> None:
    """Local steps of FedAvg and more, with the worker's own draws; the last share is smaller than a minibatch."""
    whole = in_memory(12, 32).samples
    work = LocalSteps(batch_size=32, steps=3, rate=0.05, seed=3)
    shares = [whole[:200], whole[200:300], whole[300:320]]
    said: list[str] = []
    objectives = [eager_engine("spgda").objective for _ in range(2)]
    for objective in objectives:
        objective.noise = noise
    captured, eager = Worker(objectives[0], work, said.append), Worker(objectives[1], work)
    eager._recordings = None
    theta_0 = flat(objectives[0].model)
    for number in range(6):
        task = Task(number, theta_0 * (1 - 0.01 * number), 0.5)
        for k, share in enumerate(shares):
            one, other = captured.upload(share, task, k), eager.upload(share, task, k)
            assert (one.theta - other.theta).norm() <= 1e-5 * other.theta.norm(), (number, k)
            assert (one.gamma, one.loss) == pytest.approx((other.gamma, other.loss), rel=1e-5)
            taken = [objectives[0].maximizer.on(3 * number + step).gradients for step in range(3)]
            assert one.gradients == other.gradients == sum(taken)
    assert captured._recordings
    assert not said


def test_captured_noise_is_eager_noise() -> None:
    captured, eager = both("spgda")
    for one in (captured, eager):
        one.objective.noise = 0.3
        torch.manual_seed(5)
        train(one)
    assert captured.captured
    assert close(captured, eager, 1e-5)


def test_captured_turns_are_eager_turns() -> None:
    """Both depths are captured, each for both shapes of batch."""
    captured, eager = both("spgda")
    for one in (captured, eager):
        one.objective.maximizer = ErrorAscent(steps=(1, 1, 3))
    replayed, launched = train(captured), train(eager)
    assert sorted({turn for turn, _ in captured._recordings._recordings}) == [0, 2]
    assert close(captured, eager, 1e-5)
    assert [record.gradients for record in replayed] == [record.gradients for record in launched]
    assert [record.gradients for record in replayed][:6] == [1, 1, 3, 1, 1, 3]


def test_captured_memory_is_eager_memory() -> None:
    source = in_memory(20, 64)
    one, other = Memory(source.samples.x, 1.0), Memory(source.samples.x, 1.0)
    captured, eager = graph_engine("spgda", source, 4, memory=one), eager_engine("spgda", source, 4, memory=other)
    for each in (captured, eager):
        each.objective.temper = 0.4
        train(each)
    assert captured.captured
    assert close(captured, eager, 1e-5)
    torch.testing.assert_close(one.moves, other.moves, rtol=2e-3, atol=1e-3)
    assert one.moves.abs().max() > 0


def test_engines_made_in_turn_keep_no_memory() -> None:
    """The matrix libraries hold on to tens of megabytes for every stream that they have met."""
    left = []
    for _ in range(3):
        train(graph_engine("spgda", Stream(batches(8))))
        gc.collect()
        left.append(torch.cuda.memory_allocated())
    assert left[2] == left[1]


def residual() -> nn.Module:
    torch.manual_seed(0)
    return build_model("resnet", torch.Size([1, 28, 28]), 10)


def buffers(engine: Engine) -> dict[str, Tensor]:
    return dict(engine.objective.model.named_buffers())


@pytest.mark.parametrize("way", ["ascent-eval", "frozen"])
@pytest.mark.parametrize("method", ["erm", "fgsm", "spgd", "spgda", "spgda-loss"])
def test_captured_batch_norm_is_eager(method: str, way: str) -> None:
    """Weights, running statistics and the number of batches, which each replay counts once."""
    captured, eager = both(method, model=residual(), source=Stream(batches(24)))
    for one in (captured, eager):
        one.objective.batch_norm = way
        one.objective.own_loop.silent = True
    heard = Heard()
    train(captured, observer=heard), train(eager)
    assert captured.captured, heard.said
    assert close(captured, eager, 1e-3)
    for name, found in buffers(captured).items():
        expected = buffers(eager)[name]
        if name.endswith("num_batches_tracked"):
            assert int(found) == int(expected) == (24 if way == "ascent-eval" else 0)
        else:
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


def test_a_captured_average_has_the_running_statistics_of_an_eager_one() -> None:
    captured, eager = both("erm", model=residual(), source=Stream(batches(24)))
    for one in (captured.eager, eager):
        one.ema = WeightAverage(one.objective.model, 0.9)
        train(captured if one is captured.eager else eager)
    assert captured.captured
    assert close(captured, eager, 1e-3)
    torch.testing.assert_close(
        buffers(captured)["0.1.running_mean"], buffers(eager)["0.1.running_mean"], rtol=1e-2, atol=1e-3
    )


def test_a_step_that_diverges_leaves_the_running_statistics_of_the_last_look() -> None:
    source = in_memory(20, 32)  # all are looked at once: what comes later may be no number
    captured = graph_engine("erm", source, model=residual())
    done = len(train(captured))
    before = {name: part.clone() for name, part in buffers(captured).items()}
    further = list(source.epoch(1))[:10]
    further[5] = further[5]._replace(x=further[5].x * math.nan)
    for step, batch in enumerate(further, start=done):
        captured.take(batch, step, 1)
    with pytest.raises(Diverged):
        captured.flush()
    assert captured.captured
    for name, part in buffers(captured).items():
        assert torch.equal(part, before[name]), name


def test_batch_norm_in_bfloat16_is_captured() -> None:
    half = graph_engine("erm", Stream(batches(24)), model=residual(), precision=torch.bfloat16)
    full = graph_engine("erm", Stream(batches(24)), model=residual())
    train(half), train(full)
    assert half.captured
    assert all(part.dtype in (torch.float32, torch.int64) for part in buffers(half).values())
    moved = buffers(full)["0.1.running_mean"]
    torch.testing.assert_close(buffers(half)["0.1.running_mean"], moved, rtol=0.1, atol=0.02)


class Words(nn.Module):
    """Class scores from the mean embedding of the words that are no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(50, 16), nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        some = mask[..., None].float()
        scores: Tensor = self.out((self.embedding(tokens) * some).sum(1) / some.sum(1).clamp_min(1))
        return scores


@pytest.mark.parametrize("method", ["erm", "spgd", "spgda", "spgda-loss"])
def test_captured_moves_of_an_embedding_are_eager(method: str) -> None:
    draws = torch.Generator("cuda").manual_seed(2)
    given = []
    for number in range(24):
        tokens = torch.randint(50, (SIZES[number % len(SIZES)], 7), device="cuda", generator=draws)
        lengths = 1 + torch.randint(7, (len(tokens), 1), device="cuda", generator=draws)
        mask = torch.arange(7, device="cuda")[None] < lengths
        given.append(Batch({"tokens": tokens, "mask": mask}, tokens[:, 0] % 10))
    torch.manual_seed(0)
    captured, eager = both(method, model=Words(), source=Stream(given))
    for one in (captured, eager):
        one.objective.bounds, one.objective.perturb = None, Perturb("embedding", mask="mask")
    heard = Heard()
    replayed, launched = train(captured, observer=heard), train(eager)
    assert captured.captured, heard.said
    assert close(captured, eager, 1e-4)
    assert [record.rho_eff for record in replayed] == pytest.approx(
        [record.rho_eff for record in launched], rel=1e-3, abs=1e-6
    )


def test_a_replayed_training_settles_where_it_is_looked_at_and_where_it_is_not() -> None:
    """Evaluation mode and draws of an observer leave no trace, and an end is exact with records in bunches."""

    class Looks(Heard):
        def epoch_ended(self, number: int, model: nn.Module) -> None:
            model.eval()
            torch.rand(3, device="cuda")

    class Ends(Heard):
        def epoch_ended(self, number: int, model: nn.Module) -> bool:
            return number == last

    x = torch.rand(200, 1, 28, 28, generator=torch.Generator().manual_seed(0)).cuda()
    y = (x[:, 0, 0, 0] > 0.5).long()
    found = []
    for observer in (Heard(), Looks()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 2)).cuda()
        fitted = rhobust.fit(
            model, (x, y), method="spgda", radius=0.5, epochs="auto", optimizer=adam(model, 0.01), observer=observer
        )
        found.append((fitted.history, torch.cat([theta.detach().reshape(-1) for theta in model.parameters()])))
        assert not [words for words in observer.said if "captured" in words or "limit" in words]
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    last = found[0][0][-1].epoch
    assert 31 <= last < 5000
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 2)).cuda()
    how: dict[str, Any] = {"method": "spgda", "radius": 0.5, "epochs": 10_000, "optimizer": adam(model, 0.01)}
    assert rhobust.fit(model, (x, y), observer=Ends(), **how).history == found[0][0]
