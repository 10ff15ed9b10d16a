"""Every refusal: for the right reason, with a way out, and before anything has changed."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.ascent import Ball, ErrorAscent, Identity, Maximizer, Oracle, PenalizedAscent
from rhobust.batch_norm import WAYS
from rhobust.costs import SquaredL2, SquaredLinf, SquaredLp
from rhobust.errors import ConfigError, DataError, Refused
from rhobust.losses import cross_entropy
from rhobust.runs.config import Config
from rhobust.runs.start import train_run
from rhobust.training.observers import Observer
from rhobust.validator import check_classes, check_labels, check_sign, check_start

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
MAXIMIZERS = [PenalizedAscent(steps=2), Oracle(), Ball(0.1), Identity()]
X, Y = torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 2, 1])


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    return (output[:, 0] - y).square()


class Counting(nn.Linear):
    """A linear layer that counts its passes in a buffer, so that a pass before a refusal shows."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes.add_(1)
        return super().forward(x)


def build(model: nn.Module | None = None, loss: Any = CROSS_ENTROPY, **settings: Any) -> rhobust.RobustObjective:
    torch.manual_seed(0)
    return rhobust.RobustObjective(model or Counting(), loss, **{"radius": 1.0, **settings})


@contextmanager
def nothing_changes(objective: rhobust.RobustObjective) -> Iterator[None]:
    """Parameters (gamma too), buffers, gradients, flags, modes and the generator are afterwards what they were."""

    def snapshot() -> list[Any]:
        parameters = list(objective.parameters())
        return [
            copy.deepcopy(objective.state_dict()),
            [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters],
            [parameter.requires_grad for parameter in parameters],
            [module.training for module in objective.modules()],
            torch.get_rng_state(),
        ]

    for parameter in objective.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    before = snapshot()
    yield
    torch.testing.assert_close(snapshot(), before, rtol=0, atol=0)


def refused(
    objective: rhobust.RobustObjective,
    x: Tensor,
    y: Tensor,
    match: str,
    kind: type[Exception] | tuple[type[Exception], ...] = DataError,
) -> None:
    with nothing_changes(objective), pytest.raises(kind, match=match):
        objective(x, y)


# ---------------------------------------------------------------------------------------------------------------------
# Settings


@pytest.mark.parametrize("radius", [-1.0, -1e-9, math.nan, math.inf])
def test_a_radius_that_bounds_nothing_is_refused(radius: float) -> None:
    with pytest.raises(Refused, match=rf"radius must be finite and >= 0, not {radius}.*transport cost"):
        build(radius=radius)


@pytest.mark.parametrize("gamma_min", [0.0, -1.0, math.nan, math.inf])
def test_a_floor_of_gamma_that_is_not_positive_is_refused(gamma_min: float) -> None:
    with pytest.raises(Refused, match=rf"gamma_min must be finite and > 0, not {gamma_min}.*unbounded"):
        build(gamma_min=gamma_min)


@pytest.mark.parametrize("gamma", [0.49, -1.0, math.nan, math.inf])
def test_a_gamma_that_starts_below_its_floor_is_refused(gamma: float) -> None:
    with pytest.raises(Refused, match=rf"at or above its floor gamma_min = 0\.5, not at {gamma}"):
        build(gamma=gamma, gamma_min=0.5)
    assert build(gamma=0.5, gamma_min=0.5).gamma == 0.5


@pytest.mark.parametrize("bounds", [(1.0, -1.0), (0.0, 0.0), (math.nan, 1.0), (0.0,), (0.0, 1.0, 2.0)], ids=str)
def test_bounds_that_hold_no_box_are_refused(bounds: Any) -> None:
    with pytest.raises(Refused, match=r"bounds must be two numbers \(lower, upper\) with lower < upper"):
        build(bounds=bounds)


def test_bounds_are_compared_in_the_precision_of_the_data() -> None:
    x = torch.tensor([[-0.1, 2.8]])  # in float32 both lie outside the doubles of the same name
    assert float(x[0, 0]) < -0.1
    loss = nn.CrossEntropyLoss(reduction="none")
    objective = rhobust.RobustObjective(nn.Linear(2, 2), loss, radius=1, bounds=(-0.1, 2.8))
    zeta = objective(x, torch.tensor([0])).zeta
    assert ((zeta >= -0.1) & (zeta <= 2.8)).all()
    with pytest.raises(DataError, match=r"x runs from -0\.11 to 2\.8, outside its bounds \(-0\.1, 2\.8\)"):
        objective(torch.tensor([[-0.11, 2.8]]), torch.tensor([0]))


@pytest.mark.parametrize("p", [1.0, 0.5, 2.5, math.inf, -2.0, math.nan])
def test_a_norm_whose_square_is_not_strongly_convex_is_refused(p: float) -> None:
    with pytest.raises(Refused, match=rf"strongly convex only for 1 < p <= 2, not p = {p}.*Choose p in \(1, 2\]"):
        SquaredLp(p)


@pytest.mark.parametrize("cost", [SquaredL2, SquaredLinf, lambda kappa: SquaredLp(1.5, kappa)])
@pytest.mark.parametrize("kappa", [-1.0, math.nan])
def test_a_negative_price_of_a_label_is_refused(cost: Callable[..., Any], kappa: float) -> None:
    with pytest.raises(Refused, match=rf"flipping a label, must be >= 0 .*not {kappa}"):
        cost(kappa=kappa)


@pytest.mark.parametrize(
    ("cost", "gamma_min", "needed"),
    [(SquaredL2(), 2.0, "2"), (SquaredL2(), 1.0, "2"), (SquaredLp(1.5), 3.9, "4"), (SquaredLinf(), 1e9, "inf")],
    ids=str,
)
def test_an_oracle_cannot_prove_what_gamma_min_does_not_carry(cost: Any, gamma_min: float, needed: str) -> None:
    # psi is strongly concave for gamma > L / mu: with L = 4, above 2 for mu = 2 and above 4 for mu = 1, else nowhere.
    match = rf"curvature / mu = {needed}, .*{type(cost).__name__}.*Raise gamma_min.*estimated"
    with pytest.raises(Refused, match=match):
        build(cost=cost, gamma=1e9, gamma_min=gamma_min, maximizer=Oracle(curvature=4.0))


@pytest.mark.parametrize(("cost", "gamma_min"), [(SquaredL2(), 2.001), (SquaredLp(1.5), 4.001)], ids=str)
def test_an_oracle_with_room_for_a_proof_proves(cost: Any, gamma_min: float) -> None:
    # Linear softmax: the curvature in x is at most ||W||_2^2 / 2, which is 4 here. It bounds l_1.5 too, where the unit
    # ball is smaller.
    model = nn.Linear(3, 3, bias=False)
    nn.init.eye_(model.weight).data.mul_(math.sqrt(8.0))
    objective = build(model, cost=cost, gamma=gamma_min, gamma_min=gamma_min, maximizer=Oracle(curvature=4.0))
    accuracy = objective(X, Y).accuracy
    assert accuracy is not None
    assert accuracy.kind == "proved"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Oracle(accuracy=-1.0), "accuracy must be >= 0"),
        (lambda: Oracle(accuracy=math.nan), "accuracy must be >= 0"),
        (lambda: Oracle(max_steps=0), "max_steps must be a whole number, at least 1"),
        (lambda: Oracle(curvature=-1.0), "curvature.* must be >= 0"),
        (lambda: PenalizedAscent(steps=0), "steps must be a whole number, at least 1"),
        (lambda: Oracle(accuracy="0.1"), "accuracy must be >= 0, not '0.1'"),  # type: ignore[arg-type]
        (lambda: PenalizedAscent(eta=0.0), "eta must be finite and > 0"),
        (lambda: PenalizedAscent(eta=math.nan), "eta must be finite and > 0"),
        (lambda: PenalizedAscent(eta=math.inf), "eta must be finite and > 0"),
        (lambda: Ball(epsilon=-0.1), "epsilon must be finite and >= 0"),
        (lambda: Ball(epsilon=math.inf), "epsilon must be finite and >= 0"),
        (lambda: Ball(epsilon="0.1"), "epsilon must be finite and >= 0, not '0.1'"),  # type: ignore[arg-type]
        (lambda: Ball(epsilon=0.1, norm=1), "norm 2 or infinity"),
        (lambda: Ball(epsilon=0.1, steps=0), "steps must be a whole number, at least 1"),
        (lambda: Ball(epsilon=0.1, step_size=-1.0), "step_size must be finite and > 0"),
        (lambda: rhobust.ascent.MarginAscent(cap=0.0), "cap must be > 0"),
        (lambda: rhobust.ascent.ErrorAscent(cap=None), "cap must be > 0, not None"),  # type: ignore[arg-type]
    ],
)
def test_a_maximizer_with_an_impossible_knob_is_refused(make: Callable[[], Maximizer], match: str) -> None:
    with pytest.raises(Refused, match=match):
        make()


@pytest.mark.parametrize("maximizer", [rhobust.ascent.MarginAscent(), rhobust.ascent.ErrorAscent(steps=(1, 3))])
def test_a_margin_is_a_classifier_s(maximizer: Maximizer) -> None:
    model, x = nn.Linear(2, 1), torch.ones(3, 2)

    def logistic(output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.softplus(-y * output[:, 0])

    numbers, signs = torch.tensor([0.5, 2.0, -1.0]), torch.tensor([1.0, -1.0, 1.0])
    objective = rhobust.RobustObjective(model, logistic, radius=0.1, maximizer=maximizer)
    for y in (numbers, numbers, numbers[:, None], torch.tensor([3, 1, 2])):  # and not only at first
        refused(objective, x, y, "for classifiers.*for regression take method 'spgda-loss'", Refused)
    assert objective(x, signs).gradients == 1
    shares = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    soft = rhobust.RobustObjective(nn.Linear(2, 2), CROSS_ENTROPY, radius=0.1, maximizer=maximizer)
    assert soft(x, shares).gradients == 1
    of_regression = rhobust.RobustObjective(model, logistic, radius=0.1, maximizer=PenalizedAscent())
    assert of_regression(x, numbers).gradients == 1


# ---------------------------------------------------------------------------------------------------------------------
# Models that let one sample of a batch see another

COUPLED = {
    "in training mode": lambda: nn.BatchNorm1d(3),
    "inside another module": lambda: nn.Sequential(nn.Identity(), nn.BatchNorm1d(3)),
}


@pytest.mark.parametrize("maximizer", MAXIMIZERS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("kind", COUPLED)
def test_a_batch_norm_that_uses_the_batch_is_refused_where_that_was_asked(kind: str, maximizer: Maximizer) -> None:
    model = nn.Sequential(nn.Linear(3, 3), COUPLED[kind]())
    what = r"layer '1(\.1)?' \(BatchNorm1d\) normalizes with the statistics of the batch"
    way_out = r".*per sample\. Use batch_norm='frozen'.*rhobust\.models\.to_group_norm\(model\)"
    refused(build(model, maximizer=maximizer, batch_norm="refuse"), X, Y, what + way_out, Refused)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_norm_without_running_statistics_is_refused_wherever_samples_move(way: str, mode: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)).train(mode)
    what = (
        r"layer '1' \(BatchNorm1d\) has no running statistics .*track_running_stats=True, or .*to_group_norm\(model\)"
    )
    for maximizer in MAXIMIZERS:
        objective = build(model, maximizer=maximizer, batch_norm=way)
        with pytest.raises(Refused, match=what):
            objective.maximum(X, Y)
        if maximizer.gradients or way != "ascent-eval":
            refused(objective, X, Y, what, Refused)
        else:  # ERM as everybody trains it
            assert objective(X, Y).value == CROSS_ENTROPY(model(X), Y).mean()


def test_another_way_is_unknown() -> None:
    with pytest.raises(Refused, match=r"unknown batch_norm 'freeze' \(did you mean 'frozen'\?\); known: ascent-eval"):
        build(batch_norm="freeze")


@pytest.mark.parametrize(
    "way", [None, True, 1, math.nan, ["frozen"], X, X.numpy(), b"frozen", "Frozen", ""], ids=lambda w: type(w).__name__
)
def test_what_is_no_way_is_one_error_everywhere(way: Any) -> None:
    with pytest.raises(Refused, match=r"^unknown batch_norm '(.|\n)*known: ascent-eval, frozen, refuse$"):
        build(batch_norm=way)
    with pytest.raises(Refused, match=r"^unknown batch_norm"):
        rhobust.fit(nn.Linear(3, 3), (X, Y), method="erm", batch_norm=way)
    with pytest.raises(ConfigError, match=r"^(unknown batch_norm|batch_norm must be text)"):
        Config.resolve({"method": "erm", "batch_norm": way})


@pytest.mark.parametrize("maximizer", MAXIMIZERS, ids=lambda m: type(m).__name__)
def test_a_batch_of_one_has_no_statistics(maximizer: Maximizer) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    what = r"layer '1' .* a batch of one sample has none\. Choose a batch size .*batch_norm='frozen'"
    refused(build(model, maximizer=maximizer), X[:1], Y[:1], what, DataError)
    assert build(model, maximizer=maximizer, batch_norm="frozen")(X[:1], Y[:1]).value.isfinite()
    assert build(model.eval(), maximizer=maximizer)(X[:1], Y[:1]).value.isfinite()


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(3).eval(), nn.GroupNorm(1, 3), nn.LayerNorm(3), nn.Dropout(0.5).eval()],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_that_treats_samples_one_by_one_is_accepted_and_does(layer: nn.Module) -> None:
    objective = build(nn.Sequential(nn.Linear(3, 3), layer, nn.Linear(3, 3)), maximizer=PenalizedAscent(steps=2))
    together = objective(X, Y)
    alone = torch.cat([objective(X[i : i + 1], Y[i : i + 1]).zeta for i in range(len(X))])
    torch.testing.assert_close(together.zeta, alone)


def test_the_sup_alone_is_found_for_a_model_in_training_mode_as_for_one_in_evaluation_mode() -> None:
    objective = build(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), maximizer=PenalizedAscent(steps=2))
    with nothing_changes(objective):
        training = objective.maximum(X, Y).zeta
    assert torch.equal(training, objective.eval().maximum(X, Y).zeta)


def test_the_sup_alone_is_refused_too_where_evaluation_mode_does_not_separate_the_samples() -> None:
    objective = build(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)))
    with pytest.raises(Refused, match="has no running statistics"):
        objective.maximum(X, Y)


# ---------------------------------------------------------------------------------------------------------------------
# Losses


@pytest.mark.parametrize("maximizer", MAXIMIZERS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (nn.CrossEntropyLoss(), r"\(\) for 4 samples.*use reduction='none'"),
        (lambda output, y: output, r"\(4, 3\) for 4 samples.*flatten\(1\)\.mean\(1\)"),
        (lambda output, y: output[:, :1] - y, r"\(4, 4\) for 4 samples.*broadcast against each other"),
        (lambda output, y: output.sum().reshape(1), r"\(1,\) for 4 samples.*use reduction='none'"),
    ],
    ids=["mean", "matrix", "broadcast", "one number"],
)
def test_a_loss_that_is_not_one_number_per_sample_is_refused(loss: Any, shape: str, maximizer: Maximizer) -> None:
    match = rf"the loss returned shape {shape}"
    refused(build(loss=loss, maximizer=maximizer), X, Y, match, Refused)


@pytest.mark.parametrize("maximizer", [*MAXIMIZERS, rhobust.ascent.MarginAscent()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("loss", [CROSS_ENTROPY, cross_entropy], ids=["torch's", "ours"])
@pytest.mark.parametrize(
    ("model", "y", "match"),
    [
        (nn.Flatten(0), Y, r"outputs have shape \(12,\) for 4 samples"),
        (nn.Unflatten(1, (1, 3)), Y, r"outputs have shape \(4, 1, 3\) for 4 samples"),
        (nn.Linear(3, 1), Y, "one output, and a classifier needs one for each class"),
        (nn.Linear(3, 1), torch.ones(4, 1), "one output, and a classifier needs one for each class"),  # of loss zero
        (nn.Linear(3, 3), Y[:, None], r"y has shape \(4, 1\)"),
        (nn.Linear(3, 3), torch.eye(3)[Y].long(), r"y has shape \(4, 3\)"),
        (nn.Linear(3, 3), Y.float(), r"y holds floating point numbers, of shape \(4,\) for outputs \(4, 3\)"),
        (nn.Flatten(0), Y.float(), r"y holds floating point numbers, of shape \(4,\) for outputs \(12,\)"),
    ],
)
def test_cross_entropy_is_of_one_output_for_each_class_and_one_label_for_each_sample(
    model: nn.Module, y: Tensor, match: str, loss: Any, maximizer: Maximizer
) -> None:
    objective = build(model, loss, maximizer=maximizer)
    for _ in range(2):  # and not only at first
        refused(objective, X, y, match, (Refused, DataError))


def test_a_loss_of_the_user_s_own_says_itself_what_it_takes() -> None:
    for model in (nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 3), nn.Unflatten(1, (1, 3)))):
        objective = build(model, lambda output, y: output.flatten(1).sum(1) * y[:, 0])
        assert objective(X, Y[:, None]).gradients


# ---------------------------------------------------------------------------------------------------------------------
# Data


@pytest.mark.parametrize("maximizer", MAXIMIZERS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_inputs_that_are_not_finite_are_refused_by_their_place(value: float, maximizer: Maximizer) -> None:
    x = X.clone()
    x[2, 1] = x[3, 0] = value
    match = r"x holds NaN or infinite values \(first in sample 2\); clean"
    refused(build(maximizer=maximizer), x, Y, match)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_targets_that_are_not_finite_are_refused_by_their_place(value: float) -> None:
    objective = build(nn.Linear(3, 1), squared_error)
    y = torch.tensor([0.0, value, 1.0, 2.0])
    refused(objective, X, y, r"y holds NaN or infinite values \(first in sample 1\); clean")


@pytest.mark.parametrize(
    ("maximizer", "kappa"),
    [*((maximizer, math.inf) for maximizer in MAXIMIZERS), (PenalizedAscent(), 1.0)],
    ids=[*(type(maximizer).__name__ for maximizer in MAXIMIZERS), "labels that may move"],
)
@pytest.mark.parametrize("label", [-1, 3, 100])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_labels_that_the_model_does_not_know_are_refused(
    first: bool, label: int, maximizer: Maximizer, kappa: float
) -> None:
    objective = build(maximizer=maximizer, cost=SquaredL2(kappa=kappa))
    if not first:
        objective(X, Y)
    y = torch.tensor([0, 1, label, 1])
    low, high = int(y.min()), int(y.max())
    refused(objective, X, y, rf"labels run from {low} to {high}, but the model has 3 classes \(0 to 2\)")


def test_whole_numbers_are_targets_like_others_where_the_model_has_one_output() -> None:
    objective = build(nn.Linear(3, 1), squared_error)
    counts = torch.tensor([5, -7, 100, 2])
    torch.testing.assert_close(objective(X, counts).value, objective(X, counts.float()).value)


def test_an_empty_batch_is_refused() -> None:
    refused(build(), X[:0], Y[:0], "the batch is empty")
    refused(build(), X[:, :0], Y, "the batch is empty, of shape")


def test_inputs_and_targets_of_different_length_are_refused() -> None:
    refused(build(), X, Y[:3], "x has 4 samples and y has 3; they must match")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_inputs_that_cannot_move_are_refused(dtype: torch.dtype) -> None:
    refused(build(), X.to(dtype), Y, rf"x must be of floating point, not {dtype}\. .*use x\.float\(\), or for an")


def test_refusals_are_value_errors_for_whoever_does_not_know_this_library() -> None:
    assert issubclass(Refused, ValueError)
    assert issubclass(DataError, ValueError)


@pytest.mark.parametrize(("radius", "cap", "told"), [(0.08, 0.3, False), (0.12, 0.3, True), (5.0, math.inf, False)])
def test_a_radius_that_the_cap_leaves_unspent_is_told_of(radius: float, cap: float, told: bool) -> None:
    x = torch.linspace(-1, 1, 40).reshape(20, 2)
    settings: dict[str, Any] = {"method": "spgda", "cost": SquaredLinf(), "radius": radius, "cap": cap, "epochs": 1}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rhobust.fit(nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), **settings)
    words = "radius 0.12 cannot be spent: with cap 0.3 no sample costs more than 0.09. Raise cap, or lower the radius"
    assert (words in [str(one.message) for one in caught]) == told


@pytest.mark.parametrize(("kappa", "told"), [(math.inf, True), (1.0, False)])
def test_flips_that_have_a_price_may_spend_what_the_cap_leaves(kappa: float, told: bool) -> None:
    cost = SquaredLinf(kappa=kappa)
    objective = rhobust.RobustObjective(
        nn.Linear(2, 2), cross_entropy, radius=0.12, cost=cost, maximizer=ErrorAscent(cap=0.3)
    )
    assert (objective.unreachable_radius is not None) == told


def test_a_federation_is_told_too(tmp_path: Path) -> None:
    heard: list[str] = []

    class Ear(Observer):
        def warned(self, message: str) -> None:
            heard.append(message)

    settings = {
        "method": "drfl",
        "cost": "linf",
        "radius": 0.12,
        "cap": 0.3,
        "model": "linear",
        "rounds": 1,
        "workers": 2,
    }
    train_run(tmp_path / "run", Config.resolve(settings), Ear())
    assert [message for message in heard if message.startswith("radius 0.12 cannot be spent")]


def test_one_gradient_of_an_oracle_is_told_to_move_nothing() -> None:
    objective = rhobust.RobustObjective(nn.Linear(2, 2), cross_entropy, radius=0.1, maximizer=Oracle(max_steps=1))
    assert objective.unreachable_radius is not None
    assert "with max_steps 1 the one gradient measures the start and moves nothing" in objective.unreachable_radius
    x = torch.linspace(-1, 1, 8).reshape(4, 2)
    assert objective(x, torch.tensor([0, 1, 0, 1])).rho_eff == 0


def test_a_slope_that_is_no_number_has_no_accuracy() -> None:
    model = nn.Linear(2, 2, bias=False)
    objective = rhobust.RobustObjective(model, lambda out, _: out.square().sum(1).sqrt(), radius=0.1)
    found = objective.maximum(torch.zeros(2, 2), torch.zeros(2))
    assert found.accuracy is not None
    assert found.accuracy.gap.tolist() == [math.inf, math.inf]


def test_under_autocast_nothing_is_proved() -> None:
    model = nn.Linear(4, 3)
    oracle = Oracle(curvature=1.0)
    objective = rhobust.RobustObjective(model, cross_entropy, radius=0.1, maximizer=oracle, gamma=2.0, gamma_min=1.5)
    x, y = torch.zeros(5, 4), torch.zeros(5, dtype=torch.long)
    exact = objective.maximum(x, y).accuracy
    with torch.autocast("cpu", torch.bfloat16):
        rounded = objective.maximum(x, y).accuracy
    assert exact is not None
    assert rounded is not None
    assert (exact.kind, rounded.kind) == ("proved", "estimated")


def test_numbers_in_a_later_batch_are_no_classes_either() -> None:
    settings: dict[str, Any] = {"radius": 0.1, "maximizer": ErrorAscent()}
    objective = rhobust.RobustObjective(nn.Linear(2, 1), lambda out, y: (out[:, 0] - y).square(), **settings)
    x = torch.ones(2, 2)
    objective(x, torch.ones(2))
    with pytest.raises(Refused, match="y does not hold classes"):
        objective(x, torch.tensor([7.3, 1.0]))


def test_answers_that_are_no_tensors_are_named() -> None:
    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    with pytest.raises(Refused, match="the model returned a tuple"):
        rhobust.RobustObjective(Pair(2, 2), cross_entropy, radius=0.1)(x, y)
    with pytest.raises(Refused, match="the loss returned a float"):
        rhobust.RobustObjective(nn.Linear(2, 2), lambda out, y: 1.0, radius=0.1)(x, y)  # type: ignore[arg-type, return-value]
    with pytest.raises(DataError, match="a dimension for the samples"):
        rhobust.RobustObjective(nn.Linear(2, 2), cross_entropy, radius=0.1)(torch.tensor(1.0), torch.tensor(1))


def test_while_a_step_is_recorded_no_value_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhobust.validator.capturing", lambda tensor: True)
    unreadable = torch.tensor([7.3, 1.0], device="meta")  # has no values that could be read
    check_classes(unreadable, torch.zeros(2, 1, device="meta"), cross_entropy)
    check_sign(unreadable)
    check_labels(unreadable, 2)
    check_start(unreadable, unreadable)
