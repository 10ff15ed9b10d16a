"""Certificates against worst cases known exactly, and the rules of what they may call proved."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize_scalar
from torch import Tensor, nn

from rhobust.ascent.inner_problem import Problem
from rhobust.certificates.certificate import Certificate
from rhobust.certificates.certify import certify
from rhobust.certificates.exact import LinearSup, curvature_bound
from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, DataError, Refused
from rhobust.losses import Huber, PerSampleLoss, Quantile, cross_entropy
from rhobust.models.catalog import build_model
from rhobust.runs.config import Config
from rhobust.runs.load import TrainedModel
from tests.problems import (
    NORMS,
    Norm,
    generator,
    known,
    length,
    linear_loss,
    linear_model,
    logistic_sup,
    margin_sup,
    normal,
    relu_network,
    softmax_sup,
    squared_error,
    uniform,
)

RADII = [1e-4, 0.01, 0.3, 2.0, 50.0]
SQUARED = nn.MSELoss(reduction="none")
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
BOX = (-1.0, 1.0)

each_norm = pytest.mark.parametrize("norm", NORMS, ids=str)
each_seed = pytest.mark.parametrize("seed", range(3))


def regression(seed: int, features: int = 4) -> tuple[nn.Sequential, Samples, Tensor]:
    draws = generator(seed)
    theta, x = normal(draws, features), normal(draws, 30, features)
    return nn.Sequential(linear_model(theta), nn.Flatten(0)), Samples(x, x @ theta + normal(draws, 30)), theta


def classification(seed: int, classes: int, scale: float = 1.0, samples: int = 12) -> tuple[nn.Linear, Samples]:
    draws = generator(seed)
    model = linear_model(scale * normal(draws, classes, 4))
    x = (0.5 * normal(draws, samples, 4)).clamp(*BOX)
    return model, Samples(x, torch.randint(0, classes, (samples,), generator=draws))


def regression_worst(samples: Samples, theta: Tensor, norm: Norm, rho: float) -> float:
    mse = float((samples.y - samples.x @ theta).square().mean())
    return (math.sqrt(mse) + math.sqrt(rho) * float(length(theta, norm.q))) ** 2


def log_minimum(value: Callable[[float], float], low: float, high: float) -> float:
    """min over gamma of a convex function, on a log scale."""
    found = minimize_scalar(
        lambda log: value(math.exp(log)), bounds=(math.log(low), math.log(high)), options={"xatol": 1e-11}
    )
    return float(found.fun)


class TestExact:
    """Linear models without a box: bound = attained = the worst case."""

    @each_norm
    @each_seed
    def test_regression(self, norm: Norm, seed: int) -> None:
        model, samples, theta = regression(seed)
        for found in certify(model, samples, loss=SQUARED, radii=RADII, cost=norm.cost):
            exact = regression_worst(samples, theta, norm, found.radius)
            assert found.bound == pytest.approx(exact, rel=2e-9)
            assert found.attained == pytest.approx(exact, rel=2e-9)
            assert found.status == "proved"
            s, mse = float(length(theta, norm.q)) ** 2, regression_worst(samples, theta, norm, 0.0)
            assert found.gamma == pytest.approx(s + math.sqrt(mse * s / found.radius), rel=1e-3)

    @each_seed
    def test_regression_by_the_oracle(self, seed: int) -> None:
        # A loss of the caller's own is not recognized; its curvature makes the oracle's answer a proof.
        model, samples, theta = regression(seed)
        radii = [1e-4, 0.01, 0.3, 2.0]
        certificates = certify(
            model[0], samples, loss=squared_error, radii=radii, curvature=2 * float(theta.square().sum())
        )
        for found in certificates:
            exact = regression_worst(samples, theta, NORMS[0], found.radius)
            assert exact * (1 - 1e-12) <= found.bound <= exact * (1 + 2e-6)
            assert found.attained <= exact * (1 + 1e-12)
            assert found.status == "proved"

    @each_norm
    @pytest.mark.parametrize("exact", [True, False], ids=["no residual at all", "one residual"])
    def test_regression_without_residuals(self, norm: Norm, exact: bool) -> None:
        # The sup is 0 at every sample for each gamma above s^2, and yet all can be moved: the worst case is rho s^2.
        model, samples, theta = regression(0)
        y = samples.x @ theta
        y[0] += 0.0 if exact else 1.0
        for found in certify(model, Samples(samples.x, y), loss=SQUARED, radii=RADII, cost=norm.cost):
            worst = regression_worst(Samples(samples.x, y), theta, norm, found.radius)
            assert found.attained == pytest.approx(worst, rel=1e-8)
            assert found.bound == pytest.approx(worst, rel=1e-8)
            assert found.spent <= found.radius
            assert found.status == "proved"

    @pytest.mark.parametrize("norm", NORMS[:3], ids=str)
    @each_seed
    def test_linear_loss(self, norm: Norm, seed: int) -> None:
        model, samples, theta = regression(seed)
        certificates = certify(model[0], samples, loss=linear_loss, radii=RADII, cost=norm.cost, curvature=0.0)
        for found in certificates:
            clean = float((samples.x @ theta + samples.y).mean())
            exact = clean + math.sqrt(found.radius) * float(length(theta, norm.q))
            assert found.bound == pytest.approx(exact, rel=1e-6, abs=1e-6)
            assert found.attained == pytest.approx(exact, rel=1e-6, abs=1e-6)
            assert found.status == "proved"

    @each_norm
    @pytest.mark.parametrize("loss", [cross_entropy, CROSS_ENTROPY], ids=["function", "module"])
    def test_two_classes(self, norm: Norm, loss: PerSampleLoss) -> None:
        # From radii that want gamma > s^2/8, where psi is concave, to radii where samples split in two.
        model, samples = classification(seed=1, classes=2, scale=3.0)
        theta = (model.weight[1] - model.weight[0]).detach()
        s, margins = float(length(theta, norm.q)), ((2 * samples.y - 1) * (samples.x @ theta)).tolist()

        def dual(gamma: float, rho: float) -> float:
            return gamma * rho + float(np.mean([margin_sup(-margin, s, gamma) for margin in margins]))

        radii = [1e-3, 0.05, 0.5, 20.0]
        for found in certify(model, samples, loss=loss, radii=radii, cost=norm.cost):
            exact = log_minimum(partial(dual, rho=found.radius), found.gamma / 3, found.gamma * 3)
            assert found.bound == pytest.approx(exact, rel=1e-7)
            assert found.attained == pytest.approx(found.bound, rel=2e-9)
            assert found.bound <= dual(found.gamma * 3, found.radius)
            assert found.bound <= dual(found.gamma / 3, found.radius)
            assert found.status == "proved"

    def test_two_classes_in_the_concave_region_by_the_root(self) -> None:
        model, samples = classification(seed=2, classes=2)
        theta = (model.weight[1] - model.weight[0]).detach()
        s, margins = float(theta.norm()), ((2 * samples.y - 1) * (samples.x @ theta)).tolist()
        (found,) = certify(model, samples, loss=cross_entropy, radii=[0.05])
        assert found.gamma > s * s / 8
        sup = np.mean([logistic_sup(margin, s, found.gamma) for margin in margins])
        assert found.bound == pytest.approx(found.gamma * 0.05 + sup, rel=1e-9)

    def test_one_confident_sample_splits_in_two(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # One sample of margin 20: at the best gamma, staying and crossing are worth the same, and neither spends rho.
        model = linear_model(torch.tensor([[0.0], [1.0]], dtype=torch.float64))
        samples = Samples(torch.tensor([[20.0]], dtype=torch.float64), torch.tensor([1]))
        solved: list[float] = []
        solve = LinearSup.solve

        def counted(self: LinearSup, problem: Problem, *given: Any) -> tuple[Tensor, Tensor]:
            solved.append(float(problem.gamma))
            return solve(self, problem, *given)

        monkeypatch.setattr(LinearSup, "solve", counted)
        (found,) = certify(model, samples, loss=cross_entropy, radii=[5.0])
        assert 1 < len(solved) < 20  # from a guess nine orders of magnitude off
        exact = log_minimum(lambda gamma: 5 * gamma + margin_sup(-20.0, 1.0, gamma), 1e-3, 1.0)
        assert found.bound == pytest.approx(exact, rel=1e-7)
        assert found.gap <= 1e-8 * found.bound
        assert found.spent == pytest.approx(5.0, rel=1e-12)
        assert found.rho_hat != pytest.approx(5.0, rel=0.5)

    def test_a_layer_with_a_hook_is_not_taken_for_linear(self) -> None:
        model = linear_model(torch.tensor([[0.0], [1.0]], dtype=torch.float64))
        samples = Samples(torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([1]))
        (plain,) = certify(model, samples, loss=cross_entropy, radii=[0.1])
        model.register_forward_hook(lambda module, inputs, output: 3 * output)
        (hooked,) = certify(model, samples, loss=cross_entropy, radii=[0.1])
        assert (plain.status, hooked.status) == ("proved", "estimated")

    @each_seed
    def test_tight_at_rho_hat(self, seed: int) -> None:
        model, samples = classification(seed, classes=2, scale=2.0)
        (first,) = certify(model, samples, loss=cross_entropy, radii=[0.7], accuracy=0.3)  # a rough gamma
        (found,) = certify(model, samples, loss=cross_entropy, radii=[first.rho_hat])
        sup = first.bound - first.gamma * first.radius
        assert found.gap <= 2e-9 * found.bound
        assert found.bound == pytest.approx(first.gamma * first.rho_hat + sup, rel=1e-8)

    @pytest.mark.parametrize("margin", [200.0, 1e-9])
    def test_tiny_and_huge_margins_are_found(self, margin: float) -> None:
        # All loss gradients vanish at the samples, in float32 exactly: nothing to guess gamma from.
        model = linear_model(torch.tensor([[0.0], [1.0]])).float()
        samples = Samples(torch.full((4, 1), margin), torch.ones(4, dtype=torch.long))
        (found,) = certify(model, samples, loss=cross_entropy, radii=[1.0])
        exact = log_minimum(lambda gamma: gamma + margin_sup(-margin, 1.0, gamma), 1e-6, 10.0)
        assert found.bound == pytest.approx(exact, rel=1e-5)
        assert found.gap <= 1e-5 * found.bound


class TestProved:
    """Linear softmax in a box, by the oracle with its proved gap."""

    @pytest.mark.parametrize("bounds", [None, BOX])
    @each_seed
    def test_equals_the_dual_where_concave(self, bounds: tuple[float, float] | None, seed: int) -> None:
        model, samples = classification(seed, classes=3, samples=6)
        weight, least = model.weight.detach().numpy(), known(curvature_bound(model, cross_entropy)) / 2

        def dual(gamma: float, rho: float) -> float:
            pairs = zip(samples.y.tolist(), samples.x.numpy(), strict=True)
            return gamma * rho + float(np.mean([softmax_sup(weight, y, z, gamma, bounds) for y, z in pairs]))

        for found in certify(model, samples, loss=cross_entropy, radii=[0.001, 0.01], bounds=bounds):
            assert found.gamma > 1.02 * least
            exact = log_minimum(partial(dual, rho=found.radius), found.gamma / 1.02, found.gamma * 1.02)
            assert exact * (1 - 1e-10) <= found.bound <= exact * (1 + 2e-6)
            assert found.gap <= 1e-5 * found.bound
            assert found.status == "proved"

    @pytest.mark.parametrize("cost", [SquaredL2(), SquaredLp(1.5)], ids=["l2", "l1.5"])
    def test_stays_valid_beyond_the_concave_region_and_with_too_few_steps(self, cost: Cost) -> None:
        model, samples = classification(seed=5, classes=3, scale=3.0)
        radii = [0.01, 0.3, 3.0]
        settings: dict[str, Any] = {"loss": cross_entropy, "radii": radii, "cost": cost, "bounds": BOX}
        good, hasty = certify(model, samples, **settings), certify(model, samples, max_steps=1, **settings)
        least = known(curvature_bound(model, cross_entropy)) / cost.strong_convexity
        for precise, rough in zip(good, hasty, strict=True):
            assert precise.gamma > least
            assert rough.gamma > least
            assert rough.bound >= precise.attained
            assert precise.bound >= rough.attained
            assert rough.status == precise.status == "proved"
        assert hasty[0].bound > good[0].bound + 1e-4  # the missing accuracy is in the bound
        assert good[-1].gamma == pytest.approx(least, rel=0.02)
        assert good[-1].spent > 2 * good[-1].rho_hat  # what is attained is sought below that gamma too


class TestCurvature:
    @pytest.mark.parametrize("classes", [2, 3, 7])
    def test_softmax_hessians_stay_below(self, classes: int) -> None:
        model, samples = classification(seed=0, classes=classes, samples=40)
        bound = known(curvature_bound(model, cross_entropy))

        def top(x: Tensor, y: Tensor) -> float:
            hessian = torch.autograd.functional.hessian(lambda z: cross_entropy(model(z[None]), y[None])[0], x)
            return float(torch.linalg.eigvalsh(hessian)[-1])

        tops = [top(x, y) for x, y in zip(samples.x, samples.y, strict=True)]
        assert max(tops) <= bound * (1 + 1e-12)
        if classes == 2:  # reached where both are equally likely: at the origin, for there is no bias
            assert top(torch.zeros(4, dtype=torch.float64), samples.y[0]) == pytest.approx(bound, rel=1e-12)

    def test_does_not_see_what_the_classes_share(self) -> None:
        model, _ = classification(seed=0, classes=3)
        shifted = linear_model(model.weight.detach() + 100.0)
        assert curvature_bound(shifted, cross_entropy) == pytest.approx(curvature_bound(model, cross_entropy))

    def test_regression(self) -> None:
        model, _, theta = regression(0)
        assert curvature_bound(model, SQUARED) == pytest.approx(2 * float(theta.square().sum()))

    @pytest.mark.parametrize(
        ("model", "loss"),
        [
            (nn.Sequential(nn.Linear(4, 3), nn.ReLU()), cross_entropy),
            (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), cross_entropy),
            (nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)), cross_entropy),
            (nn.Sequential(), cross_entropy),
            (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), cross_entropy),
            (nn.Linear(4, 3), lambda output, y: cross_entropy(output, y)),
            (nn.Linear(4, 3), nn.CrossEntropyLoss()),
            (nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="none", weight=torch.ones(3))),
            (nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="none", ignore_index=1)),
            (nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)),
            (nn.Linear(4, 3), nn.L1Loss(reduction="none")),
            (nn.Linear(4, 1), nn.MSELoss()),
        ],
    )
    def test_unknown_where_not_certain(self, model: nn.Module, loss: PerSampleLoss) -> None:
        assert curvature_bound(model, loss) is None

    def test_of_the_linear_model_by_name(self) -> None:
        model = build_model("linear", torch.Size([1, 2, 2]), 3)
        bound = known(curvature_bound(model, cross_entropy))
        assert bound > 0
        assert (
            curvature_bound(TrainedModel(model, Config(), 1.0, BOX, torch.Size([3])), cross_entropy) == bound
        )  # as it is loaded


class TestStatus:
    def one(self, model: nn.Module, samples: Samples, **settings: Any) -> Certificate:
        (found,) = certify(model, samples, **{"loss": cross_entropy, "radii": [0.1], **settings})
        return found

    def test_network_is_estimated(self) -> None:
        _, samples = classification(0, 3)
        assert self.one(relu_network(generator(0), 4), samples).status == "estimated"

    def test_estimate_moves_confident_samples(self) -> None:
        # Margins from 10 to 30, where the loss has no slope to speak of: ascent alone would find the clean loss.
        draws = generator(0)
        theta = normal(draws, 2, 4)
        way = theta[1] - theta[0]
        x = uniform(draws, 10, 30, 12)[:, None] * way / way.square().sum()
        samples = Samples(x, torch.ones(12, dtype=torch.long))
        exact = self.one(linear_model(theta), samples, radii=[2.0])
        found = self.one(nn.Sequential(linear_model(theta), nn.Identity()), samples, radii=[2.0])
        assert (exact.status, found.status) == ("proved", "estimated")
        assert found.bound == pytest.approx(exact.bound, rel=1e-2)
        assert found.attained <= exact.bound * (1 + 1e-9)

    def test_given_curvature_is_taken(self) -> None:
        _, samples = classification(0, 3)
        model = nn.Sequential(linear_model(normal(generator(0), 3, 4)), nn.Identity())
        exact = known(curvature_bound(model[0], cross_entropy))
        assert self.one(model, samples).status == "estimated"
        assert self.one(model, samples, curvature=exact) == self.one(model[0], samples)
        assert self.one(model[0], samples, curvature=100 * exact).gamma > 50 * exact  # wins over what is known

    def test_cost_without_curvature_of_its_own_proves_only_what_is_exact(self) -> None:
        three, two = classification(0, 3), classification(0, 2)
        assert self.one(*three, cost=SquaredLinf()).status == "estimated"
        anywhere, boxed = (self.one(*two, cost=SquaredLinf(), bounds=bounds) for bounds in (None, BOX))
        assert (anywhere.status, boxed.status) == ("proved", "proved")
        assert boxed.attained <= boxed.bound <= anywhere.bound * (1 + 1e-9)  # what holds anywhere holds in the box

    def test_probabilities_as_labels_are_not_taken_for_classes(self) -> None:
        model, samples = classification(0, 3)
        soft = 5 * nn.functional.one_hot(samples.y, 3).double()  # five times the curvature
        assert self.one(model, Samples(samples.x, soft)).status == "estimated"

    def test_radius_zero_is_the_clean_loss_of_any_model(self) -> None:
        _, samples = classification(0, 3)
        model = relu_network(generator(0), 4)
        found = self.one(model, samples, radii=[0.0])
        clean = float(cross_entropy(model(samples.x), samples.y).mean().detach())
        assert found == Certificate(0.0, clean, clean, math.inf, 0.0, 0.0, "proved")
        assert json.loads(json.dumps(found.to_json(), allow_nan=False))["gamma"] is None

    def test_json(self) -> None:
        found = self.one(*classification(0, 2))
        plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
        gap = plain.pop("gap")
        assert Certificate(**plain) == found
        assert gap == found.gap

    def test_nothing_is_proved_under_autocast(self) -> None:
        model, samples = classification(0, 2)
        model, samples = model.float(), Samples(samples.x.float(), samples.y)
        assert self.one(model, samples).status == "proved"
        with torch.autocast("cpu", torch.bfloat16):
            for radius in (0.0, 0.1):
                found = self.one(model, samples, radii=[radius])
                assert (found.status, found.reason) == ("estimated", "autocast rounds the outputs")

    def test_the_reason_is_said(self) -> None:
        model, samples = classification(0, 2)
        assert self.one(model, samples).reason is None
        loss = nn.CrossEntropyLoss(reduction="none")
        loss.register_forward_hook(lambda module, inputs, output: 1.1 * output)
        assert self.one(model, samples, loss=loss).reason == "a module (CrossEntropyLoss) has a hook"
        own: nn.Module = nn.CrossEntropyLoss(reduction="none")
        own.forward = lambda output, y: 1.1 * nn.functional.cross_entropy(output, y, reduction="none")
        assert self.one(model, samples, loss=own).reason == "the forward of a module (CrossEntropyLoss) was replaced"
        compiled, _ = classification(0, 2)
        compiled.__dict__["_compiled_call_impl"] = lambda x: 3 * x  # where `module.compile()` puts its own
        assert self.one(compiled, samples).reason == "a module (Linear) was compiled"
        called: nn.Module = nn.CrossEntropyLoss(reduction="none")
        called.__dict__["_call_impl"] = lambda output, y: 1.1 * nn.functional.cross_entropy(output, y, reduction="none")
        assert self.one(model, samples, loss=called).reason == "the forward of a module (CrossEntropyLoss) was replaced"
        assert "no bound on the curvature" in str(self.one(relu_network(generator(0), 4), samples).reason)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((nn.Module, name) for name in ("__call__", "_wrapped_call_impl", "_call_impl")),
        *((kind, "forward") for kind in (nn.Linear, nn.Flatten, nn.Sequential)),
        *((kind, "forward") for kind in (nn.CrossEntropyLoss, nn.MSELoss, nn.L1Loss, nn.HuberLoss)),
        *((kind, "__call__") for kind in (Huber, Quantile)),
        *((nn.functional, name) for name in ("linear", "cross_entropy", "mse_loss", "l1_loss", "huber_loss")),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_nothing_is_proved_while_what_a_proof_rests_on_is_replaced(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, samples = classification(0, 2)
    (before,) = certify(model, samples, loss=cross_entropy, radii=[0.1])
    known = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: known(*given, **named))
    (found,) = certify(model, samples, loss=cross_entropy, radii=[0.1])
    assert (before.status, found.status) == ("proved", "estimated")
    assert str(found.reason).endswith(f".{name} was replaced")


class TestRequest:
    def test_order_repeats_and_progress(self) -> None:
        model, samples = classification(0, 2)
        told: list[str] = []
        found = certify(model, samples, loss=cross_entropy, radii=[2, 0, 0.1, 2.0], done=told.append)
        assert [c.radius for c in found] == [2, 0, 0.1, 2]
        assert found[0] == found[3]
        assert told == ["radius 0.1", "radius 2"]

    def test_batches_do_not_matter(self) -> None:
        model, samples = classification(0, 3)
        whole, parts = (
            certify(model, samples, loss=cross_entropy, radii=[0.01, 0.2], bounds=BOX, batch_size=size)
            for size in (100, 5)
        )
        for a, b in zip(whole, parts, strict=True):
            assert a.bound == pytest.approx(b.bound, rel=1e-5)
            assert a.attained == pytest.approx(b.attained, rel=1e-2)

    def test_more_accuracy_is_had_for_the_asking(self) -> None:
        _, samples = classification(0, 3)
        model = relu_network(generator(3), 4)
        rough, fine = (
            certify(model, samples, loss=cross_entropy, radii=[0.5], bounds=BOX, accuracy=accuracy, max_steps=steps)[0]
            for accuracy, steps in ((0.2, 1), (1e-5, 50))
        )
        assert rough.gap <= 0.2 * rough.bound
        assert fine.gap < 0.1 * rough.gap
        assert fine.attained > rough.attained

    def test_work_for_a_network_is_a_few_hundred_passes_in_all(self) -> None:
        draws = generator(0)
        model = relu_network(draws, 8)
        samples = Samples(normal(draws, 64, 8).clamp(*BOX), torch.randint(0, 3, (64,), generator=draws))
        calls = []
        model.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0])))
        found = certify(model, samples, loss=cross_entropy, radii=[0.01, 0.1, 0.5, 1.0, 3.0], bounds=BOX)
        assert sum(calls) / 64 <= 600
        assert all(c.gap <= 0.01 * c.bound for c in found)

    def test_model_is_left_as_it_was(self) -> None:
        draws = generator(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)).double()
        samples = Samples(normal(draws, 10, 4), torch.randint(0, 3, (10,), generator=draws))
        model.train()
        model[0].weight.requires_grad_(False)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        state = torch.get_rng_state()
        first, second = (certify(model, samples, loss=cross_entropy, radii=[0.1]) for _ in range(2))
        assert first == second  # evaluation mode: no dropout
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), state)
        assert all(module.training for module in model.modules())
        assert [weight.requires_grad for weight in model.parameters()] == [False] + [True] * 5
        assert all(weight.grad is None for weight in model.parameters())

    @pytest.mark.parametrize(
        ("settings", "error", "says"),
        [
            ({"radii": []}, ConfigError, "radii is empty"),
            ({"radii": [0.1, -1.0, math.nan]}, ConfigError, "not -1.0\n.*not nan"),
            ({"radii": [math.inf]}, ConfigError, "finite"),
            ({"curvature": -1.0}, ConfigError, "curvature"),
            ({"cost": SquaredL2(kappa=1.0)}, Refused, "kappa"),
            ({"bounds": (1.0, -1.0)}, Refused, "bounds"),
            ({"bounds": (-0.01, 0.01)}, DataError, "outside its bounds"),
            ({"accuracy": 0.0}, Refused, "accuracy"),
            ({"batch_size": 0}, Refused, "batch_size"),
            ({"max_steps": 0, "bounds": BOX}, Refused, "max_steps"),
            ({"loss": nn.CrossEntropyLoss()}, Refused, "reduction='none'"),
            ({"loss": lambda output, y: output[:, 0] / 0}, DataError, "not finite at sample 0"),
        ],
    )
    def test_refusals(self, settings: dict[str, Any], error: type[Exception], says: str) -> None:
        model, samples = classification(0, 2)
        with pytest.raises(error, match=says):
            certify(model, samples, **{"loss": cross_entropy, "radii": [0.1], **settings})

    def test_refuses_no_samples_and_wrong_labels(self) -> None:
        model, samples = classification(0, 2)
        for x, y in ((samples.x[:0], samples.y[:0]), (samples.x, samples.y[:5]), (samples.x, samples.y + 1)):
            with pytest.raises(DataError):
                certify(model, Samples(x, y), loss=cross_entropy, radii=[0.1], batch_size=4)


def test_margin_sup_reference_is_a_maximum() -> None:
    """The reference used above, against itself on a finer grid: it decides what exact means."""
    for gamma in (0.05, 0.4, 3.0):
        t = np.linspace(0, 60, 400001)
        gains = np.logaddexp(0, -20 + 4 * t) - gamma * t * t
        assert margin_sup(-20.0, 4.0, gamma) >= gains.max() - 1e-12
    assert all(a >= b for a, b in pairwise([margin_sup(-2.0, 1.0, g) for g in (0.1, 0.2, 0.4)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [24.0, 30.0, 36.0, 42.0])
def test_a_proved_bound_is_finite_however_sure_the_model_is(scale: float, dtype: torch.dtype) -> None:
    # So sure that no slope is left at the samples: a first gamma that is guessed from it is that where proofs begin.
    corners = torch.tensor([[1.0, 0.0], [-0.5, 0.866], [-0.5, -0.866]])
    model = linear_model(scale * corners).to(dtype)
    y = torch.arange(30) % 3
    (found,) = certify(model, Samples(corners[y].to(dtype), y), loss=CROSS_ENTROPY, radii=[0.1])
    assert found.status == "proved"
    assert found.attained <= found.bound < scale**2


@pytest.mark.parametrize("radius", [1e-310, 1e300])
def test_a_radius_whose_square_is_no_number_is_refused(radius: float) -> None:
    model, samples = classification(0, 3)
    with pytest.raises(ConfigError, match=r"must be 0 or between 1e-100 and 1e\+100"):
        certify(model, samples, loss=CROSS_ENTROPY, radii=[radius])


class TestCornersOfABox:
    """A linear model in a box: moving samples to their worst corners, each with a probability, is attained."""

    @staticmethod
    def mixture(model: nn.Module, samples: Samples, loss: PerSampleLoss, cost: Cost, radius: float) -> float:
        """The best of all distributions that leave a sample or move it to a corner: a knapsack, filled by its rates."""
        corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).to(samples.x)] * samples.x.shape[1])
        corners = corners.reshape(-1, samples.x.shape[1])
        with torch.no_grad():
            clean = loss(model(samples.x), samples.y)  # (B,)
            moved = torch.stack([loss(model(corner.expand_as(samples.x)), samples.y) for corner in corners], 1)
        price = torch.stack([cost(samples.x, corner.expand_as(samples.x)) for corner in corners], 1)  # (B, corners)
        count, size = moved.shape
        found = linprog(
            -(moved - clean[:, None]).flatten().numpy(),
            A_ub=np.vstack([price.flatten().numpy(), np.kron(np.eye(count), np.ones(size))]),
            b_ub=[radius * count, *[1.0] * count],
            bounds=(0, None),
        )
        return float(clean.mean()) - found.fun / count

    @pytest.mark.parametrize("cost", [SquaredL2(), SquaredLp(1.5), SquaredLinf()], ids=repr)
    @pytest.mark.parametrize("kind", ["classes", "squared", "absolute"])
    @pytest.mark.parametrize("seed", range(4))
    def test_no_estimate_is_below_the_corners(self, kind: str, cost: Cost, seed: int) -> None:
        draws = generator(seed)
        x = (2 * torch.rand(4, 3, generator=draws) - 1).double()
        losses = {"classes": nn.CrossEntropyLoss, "squared": nn.MSELoss, "absolute": nn.L1Loss}
        loss: nn.Module = losses[kind](reduction="none")
        model = nn.Sequential(nn.Linear(3, 2 if kind == "classes" else 1)).double()
        y = torch.randint(2, (4,), generator=draws)
        if kind != "classes":
            model.append(nn.Flatten(0))
            y = torch.randn(4, generator=draws).double()
        with torch.no_grad():
            for theta in model.parameters():
                theta.copy_(10 ** (seed - 1) * torch.randn(theta.shape, generator=draws))
        for radius in (0.05, 0.5):
            (found,) = certify(model, Samples(x, y), loss=loss, radii=[radius], cost=cost, bounds=(-1.0, 1.0))
            exact = self.mixture(model, Samples(x, y), loss, cost, radius)
            assert found.bound >= exact * (1 - 1e-9)
            assert found.attained >= 0.99 * exact

    @pytest.mark.parametrize("cost", [SquaredL2(), SquaredLinf()], ids=repr)
    def test_a_regression_without_residuals_attains_its_corners(self, cost: Cost) -> None:
        model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Flatten(0)).double()
        nn.init.constant_(model.get_parameter("0.weight"), 3.0)
        samples = Samples(torch.zeros(1, 1).double(), torch.zeros(1).double())
        (found,) = certify(
            model, samples, loss=nn.MSELoss(reduction="none"), radii=[0.25], cost=cost, bounds=(-1.0, 1.0)
        )
        assert found.attained == pytest.approx(2.25, rel=1e-6)  # 9 E z^2 with E z^2 = 0.25
        assert found.bound >= found.attained
