"""DRFL is central training on what the workers hold together; FedAvg, local steps and weights are what they say."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.data.batches import Batch
from rhobust.data.catalog import load_data
from rhobust.data.partitions import partition
from rhobust.data.samples import Samples
from rhobust.federation.aggregators import Clipped, Mean, Median
from rhobust.federation.messages import Task, Upload, flat, put
from rhobust.federation.server import Server
from rhobust.federation.simulation import Simulation
from rhobust.federation.worker import LocalSteps, Worker
from rhobust.models.catalog import build_model
from rhobust.optim import ProximalOptimizer
from rhobust.regularizers import L1, Regularizer, SquaredL1
from rhobust.runs.build import compose_run
from rhobust.runs.config import Config
from rhobust.runs.start import train_run
from tests.federations import Setting, answered, away, network, theta_gamma, watched

ADAM = partial(torch.optim.Adam, lr=0.01)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
SETTINGS = {
    "plain": Setting(),
    "adam": Setting(optimizer=ADAM),
    "momentum": Setting(optimizer=MOMENTUM),
    "l1": Setting(regularizer=L1(0.02)),
    "l1-adam": Setting(regularizer=L1(0.02), optimizer=ADAM),
    "squared-l1": Setting(regularizer=SquaredL1(0.001)),
    "spgda-loss": Setting(method="spgda-loss"),
    "spgda-literal": Setting(method="spgda-literal"),
    "spgd": Setting(method="spgd"),
    "margin": Setting(method="spgda-margin"),
    "errors": Setting(method="spgda", knobs={"steps": 1}),
    "tempered": Setting(method="spgda", knobs={"steps": 1, "temper": 0.4}),
    "ten-workers": Setting(sizes=[9] * 10),
    "whole-shares": Setting(sizes=[5] * 4),  # smaller than a minibatch: everything is used
}


def central(setting: Setting, rounds: int) -> Tensor:
    """One process that steps on the workers' minibatches, one after another in one batch."""
    engine = setting.engine()
    for number in range(rounds):
        batches = setting.minibatches(number)
        engine.take(Batch(torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])), number, 0)
    return theta_gamma(engine)


def federated(setting: Setting, rounds: int, **options: Any) -> Tensor:
    server, workers = setting.server(), setting.simulation(**options)
    for _ in range(rounds):
        workers.round(server, workers.names)
    return theta_gamma(server)


@pytest.mark.parametrize("name", SETTINGS)
def test_fused_is_the_loop_is_central_training(name: str) -> None:
    setting = SETTINGS[name]
    expected = central(setting, 20)
    assert away(expected, theta_gamma(setting.engine())) > 1e-2  # it went somewhere
    assert expected[-1] != 1.0  # and gamma did
    assert away(federated(setting, 20, fuse=True), expected) < 1e-10
    assert away(federated(setting, 20, fuse=False), expected) < 1e-10


def test_noise_is_each_worker_s_own_fused_or_not() -> None:
    setting = Setting(knobs={"noise": 0.3})
    asked = federated(setting, 5, fuse=True)
    assert batches(setting) == [4 * 8]
    assert away(asked, federated(setting, 5, fuse=False)) < 1e-10
    assert away(asked, federated(Setting(), 5)) > 1e-3  # it does make a difference


def test_what_is_logged_is_the_same_fused_and_not() -> None:
    setting = Setting()
    server, looped = setting.server(), setting.server()
    one, many = setting.simulation(), setting.simulation(fuse=False)
    for _ in range(3):
        a, b = one.round(server, one.names), many.round(looped, many.names)
        counts = ("step", "epoch", "gradients", "workers", "dropped", "bytes_up", "bytes_down", "errors")
        assert [getattr(a, key) for key in counts] == [getattr(b, key) for key in counts]
        for key in ("loss", "value", "gamma", "rho_eff", "stationarity"):
            assert getattr(a, key) == pytest.approx(getattr(b, key), rel=1e-10)
        assert a.value == pytest.approx(a.loss + a.gamma * (0.5 - a.rho_eff), rel=1e-12)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", ["plain", "l1-adam", "spgd", "margin", "spgda-loss"])
def test_one_worker_is_central_training_bit_for_bit(name: str, fuse: bool) -> None:
    setting = replace(SETTINGS[name], sizes=[30])
    assert torch.equal(federated(setting, 20, fuse=fuse), central(setting, 20))


def test_in_single_precision_too() -> None:
    """The real digits, float32: what is left is rounding."""
    settings = {"method": "drfl", "radius": 1, "rounds": 20, "workers": 5, "model": "mlp", "optimizer": "sgd"}
    config = Config.resolve(settings, {"learning_rate": 0.05, "batch_size": 16})
    whole = load_data("digits")
    found = []
    for fuse in (True, False):
        server = Server(*_on_digits(config), Mean())
        shares = partition("iid", whole.train.y, 5, 0)
        objective, _ = _on_digits(config)
        workers = Simulation(objective, whole.train, shares, LocalSteps(16), classes=10, fuse=fuse)
        for _ in range(20):
            workers.round(server, workers.names)
        found.append(theta_gamma(server))
    assert away(*found) < 1e-6


def test_a_model_that_draws_draws_from_its_workers_streams() -> None:
    """So a resumed round is the same round, whatever else was drawn meanwhile."""
    config = Config.resolve({"method": "drfl", "radius": 1, "workers": 5, "model": "mlp", "optimizer": "sgd"})
    whole, found = load_data("digits"), []
    for seed in (1, 2):
        (objective, optimizer), (scratch, _) = (_on_digits(config) for _ in range(2))
        for each in (objective, scratch):
            each.model.append(torch.nn.Dropout(0.5))
        workers = Simulation(scratch, whole.train, partition("iid", whole.train.y, 5, 0), LocalSteps(16), classes=10)
        server = Server(objective, optimizer, Mean())
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            workers.round(server, workers.names)
        found.append(theta_gamma(server))
    assert torch.equal(*found)


def _on_digits(config: Config) -> tuple[Any, ProximalOptimizer]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return compose_run(config, load_data("digits"), torch.device("cpu"))


@pytest.mark.parametrize("regularizer", [L1(0.02), SquaredL1(0.001)], ids=repr)
def test_a_prox_on_the_clients_is_another_algorithm(regularizer: Regularizer) -> None:
    """Each worker takes the proximal step by itself and the server averages theta: no longer central training."""
    setting = Setting(regularizer=regularizer)
    server = setting.server()
    for number in range(20):
        task, moved = server.task(), []
        for batch in setting.minibatches(number):
            worker = setting.engine()
            put(worker.objective.model, task.theta)
            with torch.no_grad():
                worker.objective.gamma.fill_(task.gamma)
            worker.take(Batch(batch.x, batch.y), number, 0)
            moved.append(theta_gamma(worker))
        put(server.objective.model, torch.stack(moved).mean(0)[:-1])
        with torch.no_grad():
            server.objective.gamma.fill_(float(torch.stack(moved).mean(0)[-1]))
    expected = central(setting, 20)
    assert away(theta_gamma(server), expected) > 1e-3
    assert away(federated(setting, 20), expected) < 1e-10


def test_the_order_of_arrival_changes_nothing() -> None:
    """Ten workers, weights that differ, bit for bit: those asked and their answers come in any order."""
    setting = Setting(sizes=[9, 10, 11, 12, 13, 14, 15, 16, 17, 18], weighted=True)
    straight, shuffled = setting.server(), setting.server()
    draws = torch.Generator().manual_seed(0)
    for _ in range(5):
        uploads = setting.uploads(straight.task())
        names = list(uploads)
        first = answered(straight, names, uploads)
        asked = [names[i] for i in torch.randperm(10, generator=draws)]
        order = [names[i] for i in torch.randperm(10, generator=draws)]
        assert answered(shuffled, asked, {name: uploads[name] for name in order}) == first
        assert torch.equal(theta_gamma(straight), theta_gamma(shuffled))


def batches(setting: Setting, asked: slice = slice(None), **options: Any) -> list[int]:
    workers = setting.simulation(**options)
    seen = watched(workers)
    workers.round(setting.server(), workers.names[asked])
    return seen


RANDOM = Setting(method="ifgsm", radius=None, knobs={"random_start": True})


@pytest.mark.parametrize(
    ("setting", "asked", "options"),
    [
        (Setting(), slice(None), {}),
        (Setting(), slice(1, 3), {}),
        (Setting(sizes=[12, 8, 30]), slice(None), {}),  # shares differ, minibatches do not
        (Setting(sizes=[12, 5, 12]), slice(None, None, 2), {}),  # the small one is not asked
        (Setting(sizes=[5, 5]), slice(None), {}),
        (replace(RANDOM, knobs={"random_start": False}), slice(None), {}),
    ],
)
def test_equal_minibatches_are_one_batch(setting: Setting, asked: slice, options: dict[str, Any]) -> None:
    count = len(range(*asked.indices(len(setting.sizes))))
    assert batches(setting, asked, **options) == [count * min(8, setting.sizes[0])]


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        (Setting(), {"fuse": False}),
        (Setting(), {"byzantine": 1}),
        (Setting(), {"byzantine": 1, "attack": "label-flip"}),
        (Setting(sizes=[12, 5, 12, 12]), {}),
        (Setting(weighted=True), {}),
        (Setting(work=LocalSteps(8, steps=2, seed=3)), {}),
        (Setting(aggregator=Median()), {}),
        (Setting(aggregator=Clipped(Mean())), {}),
        (RANDOM, {}),
    ],
)
def test_what_is_not_one_batch_goes_worker_by_worker(setting: Setting, options: dict[str, Any]) -> None:
    """Then the round is the literal one: each worker's own upload, then the server's step."""
    expected = [min(8, size) for size in setting.sizes for _ in range(setting.work.steps)]
    assert batches(setting, **options) == expected
    if not options.get("byzantine"):
        server = setting.server()
        answered(server, [f"worker-{k}" for k in range(1, 5)], setting.uploads(server.task()))
        assert torch.equal(theta_gamma(server), federated(setting, 1, **options))


def test_random_starts_are_the_workers_own() -> None:
    """They depend neither on the global generator nor on who else is asked."""
    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        found.append(federated(RANDOM, 3))
    assert torch.equal(*found)
    assert not torch.equal(found[0], federated(replace(RANDOM, work=LocalSteps(8, seed=4)), 3))
    work, task = LocalSteps(8, seed=3), RANDOM.server().task()
    same, objective = Setting(sizes=[8]).own()[0], RANDOM.engine().objective  # nothing else is random: all are used
    places = [(0, 0, work), (0, 1, work), (1, 0, work), (0, 0, LocalSteps(8, seed=4))]
    starts = [Worker(objective, w).upload(same, replace(task, round=r), k).theta for r, k, w in places]
    assert not any(torch.equal(a, b) for a, b in combinations(starts, 2))
    workers = RANDOM.simulation()
    together = workers.ask(task, workers.names)
    for name in workers.names:
        assert _same(workers.ask(task, [name])[name], together[name])


def _same(a: Upload | str, b: Upload | str) -> bool:
    assert isinstance(a, Upload)
    assert isinstance(b, Upload)
    return torch.equal(a.theta, b.theta) and replace(a, theta=b.theta) == b


def gradient(objective: Any, batch: Samples, theta: Tensor, gamma: float) -> tuple[Tensor, float]:
    """Of the mean psi at (theta, gamma), by autograd alone."""
    put(objective.model, theta)
    with torch.no_grad():
        objective.gamma.fill_(gamma)
    value = objective(batch.x, batch.y).value
    *parts, price = torch.autograd.grad(value, [*objective.model.parameters(), objective.gamma])
    return torch.cat([part.flatten() for part in parts]), float(price)


def stepped(engine: Any, theta: Tensor, gamma: float) -> None:
    """The optimizer's step on a gradient."""
    parts = theta.split([weight.numel() for weight in engine.objective.model.parameters()])
    for weight, part in zip(engine.objective.model.parameters(), parts, strict=True):
        weight.grad = part.reshape(weight.shape).clone()
    engine.objective.gamma.grad = torch.tensor(gamma, dtype=torch.float64)
    engine.optimizer.step()


@pytest.mark.parametrize("steps", [2, 5])
def test_local_steps_upload_the_mean_along_the_path(steps: int) -> None:
    setting = Setting(work=LocalSteps(8, steps=steps, rate=0.3, seed=3), optimizer=MOMENTUM)
    engine, scratch = setting.engine(), setting.engine().objective
    for number in range(6):
        start, gamma = flat(engine.objective.model), float(engine.objective.gamma.detach())
        uploads = []
        for worker in range(4):
            theta, path = start.clone(), []
            for step in range(steps):
                scratch.turn = number * steps + step
                g, price = gradient(scratch, setting.minibatches(number, step)[worker], theta, gamma)
                theta -= 0.3 * g
                path.append(torch.cat([g, g.new_tensor([price])]))
            uploads.append(torch.stack(path).mean(0))
        mean = torch.stack(uploads).mean(0)
        stepped(engine, mean[:-1], float(mean[-1]))
    assert away(federated(setting, 6), theta_gamma(engine)) < 1e-13
    one = replace(setting, work=LocalSteps(8, steps=1, rate=0.3, seed=3))
    assert away(federated(one, 6), theta_gamma(engine)) > 1e-3


def test_weights_by_samples_are_the_weighted_mean() -> None:
    setting = Setting(sizes=[4, 40, 9, 1], weighted=True, optimizer=MOMENTUM)
    engine, scratch = setting.engine(), setting.engine().objective
    server, workers = setting.server(), setting.simulation()
    for number in range(10):
        theta, gamma = flat(engine.objective.model), float(engine.objective.gamma.detach())
        found = []
        for batch in setting.minibatches(number):
            scratch.turn = number
            found.append(gradient(scratch, batch, theta, gamma))
        mean = sum(n * g for n, (g, _) in zip(setting.sizes, found, strict=True)) / 54
        price = sum(n * p for n, (_, p) in zip(setting.sizes, found, strict=True)) / 54
        record = workers.round(server, workers.names)
        assert record.rho_eff == pytest.approx(0.5 - price, rel=1e-9)
        losses = []
        for batch in setting.minibatches(number):
            scratch.turn = number
            losses.append(float(scratch(batch.x, batch.y).loss.mean()))
        assert record.loss == pytest.approx(
            sum(n * loss for n, loss in zip(setting.sizes, losses, strict=True)) / 54, rel=1e-9
        )
        stepped(engine, torch.as_tensor(mean), price)
    assert away(theta_gamma(server), theta_gamma(engine)) < 1e-10
    assert away(federated(replace(setting, weighted=False), 10), theta_gamma(engine)) > 1e-3


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
@pytest.mark.parametrize("fuse", [True, False])
def test_the_server_steps_as_torch_does_on_the_mean_gradient(optimizer: Any, fuse: bool) -> None:
    """ERM, so that nothing of ours is left in the reference."""
    setting = Setting(method="erm", radius=None, optimizer=optimizer)
    model = network()
    reference = optimizer(model.parameters())
    for number in range(20):
        reference.zero_grad()
        for batch in setting.minibatches(number):
            (F.cross_entropy(model(batch.x), batch.y) / 4).backward()
        reference.step()
    assert away(federated(setting, 20, fuse=fuse)[:-1], flat(model)) < 1e-10


@pytest.mark.parametrize(
    ("shared", "weights", "steps"), [("iid", "equal", 3), ("iid", "equal", 1), ("sizes:zipf", "samples", 5)]
)
def test_fedavg_is_the_literal_algorithm(tmp_path: Path, shared: str, weights: str, steps: int) -> None:
    """From theta every worker takes H steps of plain SGD; the server averages theta. Real digits, by the settings."""
    settings = {"method": "fedavg", "rounds": 6, "workers": 4, "local_steps": steps}
    more = {"local_learning_rate": 0.2, "partition": shared, "weights": weights, "batch_size": 16, "seed": 7}
    more |= {"model": "linear", "train_samples": 300}
    config = Config.resolve(settings, more)
    run = train_run(tmp_path / "run", config)
    train = load_data("digits", limit=300).train
    parts = [train[share] for share in partition(shared, train.y, 4, 7)]
    importance = [len(part) if weights == "samples" else 1 for part in parts]
    work = LocalSteps(16, steps, 0.2, seed=7)  # only for its choice of samples
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = build_model("linear", train.x.shape[1:], 10)
    for number in range(6):
        moved = [_local_sgd(model, part, work, number, k) for k, part in enumerate(parts)]
        mean = sum(n * theta for n, theta in zip(importance, moved, strict=True)) / sum(importance)
        put(model, torch.as_tensor(mean))
    found = build_model("linear", train.x.shape[1:], 10)
    found.load_state_dict(run.trained()["model"])
    assert away(flat(found), flat(model)) < 1e-6


def _local_sgd(model: nn.Module, own: Samples, work: LocalSteps, number: int, worker: int) -> Tensor:
    local = copy.deepcopy(model)
    sgd = torch.optim.SGD(local.parameters(), lr=work.rate)
    for step in range(work.steps):
        batch = own[work.chosen(len(own), number, worker, step)]
        sgd.zero_grad()
        F.cross_entropy(local(batch.x), batch.y).backward()
        sgd.step()
    return flat(local)


def test_a_worker_s_answer_depends_on_the_task_alone() -> None:
    """Whatever its model held before, and whichever workers were asked before."""
    setting = Setting()
    workers, task = setting.simulation(), setting.server().task()
    before = workers.ask(task, workers.names)
    other = Task(task.round, 100 * task.theta, 7.0)
    workers.ask(other, workers.names[::-1])
    after: Mapping[str, Upload | str] = workers.ask(task, workers.names[::-1])
    names: Sequence[str] = workers.names
    assert all(_same(before[name], after[name]) for name in names)


def test_byzantine_workers_attack_theta_and_gamma_as_named_and_honest_workers_are_unchanged() -> None:
    setting = Setting()
    task, truth = setting.server().task(), setting.uploads(setting.server().task())
    *honest, last = list(truth)
    mean = torch.stack([truth[name].theta for name in honest]).mean(0)
    turned = [Samples(own.x, 2 - own.y) for own in setting.own()]
    expected = {
        "sign-flip:4": (-4 * truth[last].theta, -4 * truth[last].gamma),
        "inner-product:3": (-3 * mean, -3 * sum(truth[name].gamma for name in honest) / 3),
        "label-flip": gradient(
            setting.engine().objective, turned[3][setting.work.chosen(12, 0, 3)], task.theta, task.gamma
        ),
    }
    for attack, (theta, gamma) in expected.items():
        workers = setting.simulation(byzantine=1, attack=attack)
        found = workers.ask(task, workers.names)
        assert all(_same(found[name], truth[name]) for name in honest)
        attacked = found[last]
        assert isinstance(attacked, Upload)
        assert away(attacked.theta, theta) < 1e-12
        assert attacked.gamma == pytest.approx(gamma, rel=1e-12)
        assert away(attacked.theta, truth[last].theta) > 0.1
