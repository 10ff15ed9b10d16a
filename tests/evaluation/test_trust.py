"""Every trust check fires on a model built to trigger it, and all are silent on an honest one."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import rhobust
from rhobust.data import digits
from rhobust.data.samples import DataSet, Samples
from rhobust.evaluation.evaluate import evaluate
from rhobust.evaluation.evaluation import Evaluation
from rhobust.evaluation.trust import CHECKS, falling, learned, outside
from rhobust.models.catalog import build_model

LOSS = partial(cross_entropy, reduction="none")


@cache
def honest(method: str) -> nn.Module:
    data = digits()
    torch.manual_seed(0)
    model = build_model("mlp", data.train.x.shape[1:], 10)
    radius = None if method == "erm" else 2.0
    train = (data.train.x, data.train.y)
    rhobust.fit(model, train, method=method, epochs=8, seed=0, bounds=data.bounds, radius=radius)
    return model.eval()


class Misled(nn.Module):
    """The honest model, value for value, whose gradient in x is multiplied by what `factor` says of x.

    Pixels of the digits are multiples of 1/8: on the grid means at a sample, off it means somewhere else.
    """

    def __init__(self, factor: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.factor = honest("erm"), factor

    def forward(self, x: Tensor) -> Any:
        there = x.detach()
        return self.model(there + self.factor(there) * (x - there))


def on_the_grid(x: Tensor) -> Tensor:
    return (8 * x == (8 * x).round()).flatten(1).all(1).to(x).reshape(-1, 1, 1, 1)


class Saturated(nn.Module):
    """The honest model, so sure of everything that cross-entropy has no slope left in single precision."""

    def forward(self, x: Tensor) -> Any:
        return 1000 * honest("erm")(x)


def judged(model: nn.Module, data: DataSet) -> Evaluation:
    found = evaluate(model, data.test, loss=LOSS, bounds=data.bounds, attacks=["fgsm", "pgd"], epsilons=[0, 0.1, 0.2])
    assert isinstance(found, Evaluation)
    return found


def raised(model: nn.Module) -> set[str]:
    return {flag.check for flag in judged(model, digits()).flags}


@pytest.mark.parametrize("method", ["erm", "spgd", "spgda"])
def test_an_honest_model_raises_no_flag(method: str) -> None:
    assert judged(honest(method), digits()).flags == []


def test_masked_gradients_raise_what_they_should() -> None:
    """No gradient at all: the random search finds what PGD cannot, and freedom does not help."""
    masked = raised(Misled(lambda x: torch.zeros(len(x), 1, 1, 1)))
    assert masked == {"unbounded", "gradients", "white-box"}


def test_saturated_logits_are_named() -> None:
    flags = {flag.check: flag.message for flag in judged(Saturated(), digits()).flags}
    assert "the logits are saturated" in flags["gradients"]


def test_a_gradient_that_is_right_at_the_sample_only_lets_one_step_beat_forty() -> None:
    assert "many-steps" in raised(Misled(lambda x: 2 * on_the_grid(x) - 1))


def test_a_gradient_that_is_wrong_at_the_sample_only_is_overfitting_to_one_step() -> None:
    """What catastrophic overfitting looks like: one step goes astray, a random start does not."""
    assert raised(Misled(lambda x: 1 - 2 * on_the_grid(x))) == {"one-step"}


def test_gradients_that_mislead_everywhere_lose_to_random_search() -> None:
    assert {"white-box", "unbounded"} <= raised(Misled(lambda x: -torch.ones(len(x), 1, 1, 1)))


def test_an_error_that_falls_as_the_ball_grows_is_flagged_and_chance_is_not() -> None:
    fooled = torch.zeros(3, 400, dtype=torch.bool)
    fooled[0, :100] = fooled[1, :140] = True
    fooled[2, 20:140] = True  # twenty fewer, none more
    flag = falling("pgd", [0.1, 0.2, 0.3], fooled)
    assert flag is not None
    assert (
        flag.message
        == "the error under pgd falls from 35.0 % at epsilon 0.2 to 30.0 % at 0.3: the attack is too weak there"
    )
    fooled[2, 140:152] = True  # twenty fewer, twelve more: a difference of two points
    assert falling("pgd", [0.1, 0.2, 0.3], fooled) is None
    assert falling("pgd", [0.3, 0.2, 0.1], fooled.flip(0)) is None  # the grid may come in any order


def test_every_flag_is_a_known_check() -> None:
    models = [Misled(lambda x: torch.zeros(len(x), 1, 1, 1)), Misled(lambda x: 2 * on_the_grid(x) - 1)]
    models += [Misled(lambda x: 1 - 2 * on_the_grid(x))]
    assert set().union(*(raised(model) for model in models)) | {"inside", "learned", "grows"} == set(CHECKS)


class Constant(nn.Module):
    """Says one class, whatever it sees, but for the first coordinate's doing."""

    def __init__(self, answer: int, heed: float = 0.0) -> None:
        super().__init__()
        self.answer, self.heed = answer, heed

    def forward(self, x: Tensor) -> Any:
        scores = self.heed * x.flatten(1)[:, :10]
        scores[:, self.answer] = 1.0
        return scores


def test_a_constant_answer_is_nothing_learned() -> None:
    data = digits()
    for answer in range(3):
        found = evaluate(Constant(answer, 1e-3), data.test, loss=LOSS, bounds=data.bounds, attacks=[], budgets=[0.01])
        (flag,) = (flag for flag in found.flags if flag.check == "learned")
        assert "is not clearly below" in flag.message
        assert "the model has learned nothing" in flag.message


@pytest.mark.parametrize(("errors", "flagged"), [(30, True), (26, True), (18, False), (0, False)])
def test_chance_is_not_learning(errors: int, flagged: bool) -> None:
    """Always 0 errs on 30 of 100. A model that errs on 26 of them is not two deviations ahead."""
    y = torch.zeros(100, dtype=torch.long)
    y[:30] = 1
    wrong = torch.zeros(100, dtype=torch.bool)
    wrong[:errors] = True
    flags, made = learned(wrong, Samples(y, y))
    assert ([flag.check for flag in flags] == ["learned"]) is flagged
    assert made == {"learned"}


def test_learning_is_judged_only_where_a_perfect_model_would_pass() -> None:
    y = torch.zeros(100, dtype=torch.long)
    y[:4] = 1
    assert learned(torch.zeros(100, dtype=torch.bool), Samples(y, y)) == ([], set())
    wrong = torch.zeros(100, dtype=torch.bool)
    wrong[:4] = True  # as often as the constant answer, on samples of its own
    assert learned(wrong.roll(4), Samples(y, y)) == ([], set())


@pytest.mark.parametrize("rare", [0, 4])
def test_a_model_that_is_clearly_worse_than_a_constant_has_learned_nothing_however_rare_the_other_classes(
    rare: int,
) -> None:
    y = torch.zeros(1000, dtype=torch.long)
    y[:rare] = 1
    (flag,), made = learned(y == 0, Samples(y, y))
    assert flag.message.startswith(
        f"the clean error, {(1000 - rare) / 10:.1f} %, is not clearly below {rare / 10:.1f} %"
    )
    assert made == {"learned"}


def test_results_that_were_not_counted_are_flagged() -> None:
    flag = outside("pgd-l2", 0.5, 3)
    assert flag is not None
    assert flag.check == "inside"
    assert flag.message.startswith("3 results of pgd-l2 at epsilon 0.5 lie outside")
    assert outside("pgd-l2", 0.5, 0) is None


def test_gradients_that_are_not_numbers_are_no_slope() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, slope: Tensor) -> Tensor:
            return slope * torch.nan

    data = digits()
    model = nn.Sequential(honest("erm"))
    broken = type("BrokenModel", (nn.Module,), {"forward": lambda self, x: model(Broken.apply(x))})()
    found = evaluate(broken, data.test[:40], loss=LOSS, bounds=data.bounds, attacks=["pgd-l2"], epsilons=[0.5])
    assert {"gradients", "inside"} <= {flag.check for flag in found.flags}


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({"attacks": ["pgd"], "epsilons": [0.0, 0.1]}, set(CHECKS)),
        ({"attacks": ["pgd"], "epsilons": [0.0]}, {"learned", "inside", "gradients"}),
        ({"attacks": ["pgd-l2"], "epsilons": [0.1, 0.2]}, {"learned", "grows", "inside", "gradients"}),
        ({"attacks": [], "budgets": [0.1]}, {"learned", "inside", "gradients"}),
        ({"attacks": ["pgd"], "epsilons": [0.0, 0.1], "checks": False}, {"learned", "grows", "inside"}),
    ],
)
def test_only_checks_that_were_made_are_claimed(asked: dict[str, Any], made: set[str]) -> None:
    data = digits()
    assert set(evaluate(honest("erm"), data.test[:20], loss=LOSS, bounds=data.bounds, **asked).checked) == made


def test_where_the_model_is_never_right_no_slope_was_looked_at() -> None:
    data, model = digits(), honest("erm")
    wrong = Samples(data.test.x[:20], (model(data.test.x[:20]).argmax(1) + 1) % 10)
    found = evaluate(model, wrong, loss=LOSS, bounds=data.bounds, attacks=["pgd"], epsilons=[0.1])
    assert found.clean == 1
    assert "gradients" not in found.checked


@pytest.mark.parametrize("bounds", [None, (-1.0, math.inf)])
def test_a_model_is_free_to_move_where_the_box_has_no_end(bounds: tuple[float, float] | None) -> None:
    data = digits()
    found = evaluate(honest("erm"), data.test[:40], loss=LOSS, bounds=bounds, attacks=["pgd"], epsilons=[0.1])
    assert not found.flags


def test_inputs_that_are_all_alike_are_evaluated() -> None:
    samples = Samples(torch.zeros(6, 4), torch.arange(6) % 3)
    found = evaluate(nn.Linear(4, 3), samples, loss=LOSS, attacks=["pgd"], epsilons=[0.1])
    assert "unbounded" in found.checked


class Stepwise(nn.Module):
    """The honest model on rounded pixels: no gradient at all."""

    def __init__(self) -> None:
        super().__init__()
        self.honest = honest("erm")  # trained here: an evaluation has no gradients

    def forward(self, x: Tensor) -> Any:
        return self.honest((8 * x.detach()).round() / 8)


def test_a_model_without_gradients_is_named_and_searched() -> None:
    data = digits()
    settings: dict[str, Any] = {"loss": LOSS, "bounds": data.bounds, "attacks": ["square"], "epsilons": [0.0, 0.2]}
    found = evaluate(Stepwise(), data.test, **settings)
    assert found.error("square", 0.2) > found.clean
    assert [flag.check for flag in found.flags] == ["gradients"]
    assert "no gradient in the inputs" in found.flags[0].message


def test_data_that_are_sorted_by_class_hide_nothing() -> None:
    data = digits()
    order = data.test.y.sort().indices
    masked = Misled(lambda x: torch.zeros(len(x), 1, 1, 1))
    settings: dict[str, Any] = {"loss": LOSS, "bounds": data.bounds, "attacks": ["pgd"], "epsilons": [0.0, 0.2]}
    found = evaluate(masked, data.test[order], **settings)
    assert "unbounded" in {flag.check for flag in found.flags}
