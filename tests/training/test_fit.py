"""`fit`: what it refuses before the first step."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import rhobust
from rhobust.costs import Cost, SquaredL2, SquaredLinf, SquaredLp
from rhobust.data.samples import Samples
from rhobust.errors import ConfigError, DataError, Refused
from rhobust.losses import cross_entropy
from rhobust.runs.config import Config
from rhobust.runs.load import TrainedModel

X = torch.linspace(-1, 1, 24).reshape(8, 3)
Y = torch.arange(8) % 2


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"radius": None}, ConfigError, "method 'spgd' needs a radius"),
        ({"seed": -1}, ConfigError, "seed must be a whole number >= 0"),
        ({"seed": None}, ConfigError, "seed must be a whole number >= 0"),
        ({"precision": torch.float16}, ConfigError, "precision is torch.float32 or torch.bfloat16, not torch.float16"),
        ({"max_steps": 2.5}, Refused, "max_steps must be a whole number, at least 1, not 2.5"),
        ({"bounds": ("a", "b")}, Refused, "bounds must be two numbers"),
        ({"method": "erm"}, ConfigError, "method 'erm' takes no radius"),
        ({"method": "drfl"}, ConfigError, "is for data that many hold: `rhobust federate --method drfl`"),
        ({"method": "spdg"}, ConfigError, r"did you mean 'spgd'\?"),
        (
            {"steps": 3},
            ConfigError,
            "steps is a knob of fgsm, .* and spgda-literal; this method's own: accuracy, max_steps",
        ),
        ({"memori": 0.9}, ConfigError, r"unknown keyword 'memori' \(did you mean 'memory'\?\); known: .*, max_steps"),
        ({"radius": "2"}, Refused, "radius must be a number, not '2'"),
        (
            {"epochs": 0},
            ConfigError,
            "epochs must be a whole number, at least 1, not 0; or .auto., until",
        ),
        ({"epochs": 1.5}, ConfigError, "epochs must be a whole number, at least 1, not 1.5"),
        ({"batch_size": 1.5}, DataError, "batch_size must be a whole number, at least 1, not 1.5"),
        ({"regularizer": "l1:0.1"}, Refused, r"regularizer must be a Regularizer such as rhobust\.L1\(0\.1\), not 'l1"),
        ({"gamma_rule": "adam:0.1"}, Refused, "gamma_rule must be a GammaRule such as"),
        ({"model": nn.Linear(3, 2).requires_grad_(False)}, Refused, "all parameters of Linear are frozen"),
        ({"bounds": 1}, Refused, r"bounds must be two numbers \(lower, upper\)"),
        (
            {"cost": "linf"},
            Refused,
            r"cost must be a Cost, SquaredL2\(\), SquaredLp\(p\) or SquaredLinf\(\) of rhobust\.costs, not 'linf'",
        ),
        ({"loss": "mse"}, Refused, "a per-sample loss, a function"),
        ({"model": nn.Linear(3, 1)}, Refused, "one output, and a classifier needs one for each class: two for labels"),
        (
            {"data": (X[:, None], Y)},
            Refused,
            r"outputs have shape \(8, 1, 2\) for 8 samples, and cross-entropy wants \(B, classes\); .* nn\.Flatten\(\)",
        ),
        ({"data": (X, Y[:, None])}, DataError, r"y has shape \(8, 1\), and class labels are \(B,\), .*; use y\[:, 0\]"),
        ({"data": (X, nn.functional.one_hot(Y))}, DataError, r"y has shape \(8, 2\), .*; use y\.argmax\(1\)"),
        (
            {"data": (X.numpy(), Y.double().numpy())},
            DataError,
            r"y holds floating point numbers, of shape \(8,\) for outputs \(8, 2\), and cross-entropy wants whole",
        ),
        (
            {"data": (X.byte().numpy(), Y)},
            DataError,
            r"floating point, not uint8\. .*use x\.float\(\), or for an array x\.astype\('float32'\)",
        ),
        ({"data": (X, Y, Y)}, DataError, r"data must be \(x, y\), .*, not a tuple of 3"),
        ({"weights": torch.ones(7)}, DataError, r"weights must be real numbers in a tensor \(8,\), .*, not .*\(7,\)"),
        ({"weights": torch.ones(8, 1)}, DataError, r"weights must be .* tensor \(8,\), .* shape \(8, 1\)"),
        ({"weights": [1, 1, 1, -2, 1, 1, 1, 1]}, DataError, "weights must be finite and >= 0; that of sample 3 is -2"),
        ({"weights": torch.arange(8.0).log()}, DataError, "weights must be finite and >= 0; that of sample 0 is -inf"),
        ({"weights": [1, math.nan, *[1] * 6]}, DataError, "weights must be finite and >= 0; that of sample 1 is nan"),
        ({"weights": np.zeros(8)}, DataError, "all 8 weights of samples are 0: nothing counts"),
        ({"weights": "balanced"}, DataError, "weights must be 8 numbers, one for each sample; this str holds none"),
        (
            {"data": TensorDataset(X, Y), "weights": torch.ones(8)},
            DataError,
            r"weights= is for data in memory; a Dataset or a DataLoader gives triples \(x, y, weight\)",
        ),
        (
            {"data": TensorDataset(X, Y, torch.arange(8))},
            DataError,
            "the third part that the Dataset gives is the weight of a sample, of floating point, not torch.int64",
        ),
        ({"data": TensorDataset(X, Y, torch.zeros(8))}, DataError, "all 8 weights of samples are 0: nothing counts"),
        ({"model": nn.Flatten()}, Refused, "Flatten has no parameters: there is nothing to train"),
        ({"data": (X, Y.float())}, DataError, "for regression pass another loss="),
        ({"data": (X, Y[:5])}, DataError, "x has 8 samples and y has 5"),
        ({"data": DataLoader(TensorDataset(X, Y)), "batch_size": 4}, DataError, "brings its own batches"),
        ({"data": DataLoader(TensorDataset(X))}, DataError, r"pairs \(x, y\)"),
        (
            {"data": DataLoader(TensorDataset(X, Y), batch_size=9, drop_last=True)},
            DataError,
            "gives no batch in epoch 0: nothing to learn from. With drop_last=True",
        ),
        (
            {"method": "wrm", "radius": None, "gamma_rule": rhobust.ProjectedGradient(1.0)},
            ConfigError,
            "method 'wrm' does not learn gamma, so it takes no gamma_rule",
        ),
        (
            {"method": "ifgsm", "radius": None, "epsilon": 0.1, "random_start": True, "memory": 0.9},
            Refused,
            "memory and random_start both say where an ascent begins",
        ),
        ({"data": (X, (Y + 5).to(torch.uint8))}, DataError, "labels run from 5 to 6, but the model has 2 classes"),
    ],
)
def test_a_wrong_request_is_refused_and_the_model_left_alone(
    changed: dict[str, Any], kind: type[Exception], message: str
) -> None:
    request: dict[str, Any] = {"model": nn.Linear(3, 2), "data": (X, Y), "method": "spgd", "radius": 0.1, **changed}
    before = [weight.detach().clone() for weight in request["model"].parameters()]
    with pytest.raises(kind, match=message):
        rhobust.fit(**request)
    assert all(torch.equal(a, b) for a, b in zip(before, request["model"].parameters(), strict=True))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Flatten, "must be an instance of nn.Module, not the class Flatten; build one"),
        (torch.relu, "must be an instance of nn.Module, not builtin_function_or_method"),
        (lambda x: x, "must be an instance of nn.Module, not function"),
    ],
)
def test_what_is_not_a_model_is_refused(model: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        rhobust.fit(model, (X, Y), radius=0.1)


@pytest.mark.parametrize("x", [X.numpy(), X.tolist()], ids=["array", "list"])
def test_a_trained_model_takes_a_tensor(x: Any) -> None:
    model = TrainedModel(nn.Linear(3, 2), Config(), 1.0, (-1.0, 1.0), torch.Size([3]))
    with pytest.raises(
        DataError, match=rf"takes a tensor, not {type(x).__name__}; use torch\.as_tensor\(x\)\.float\(\)"
    ):
        model(x)
    assert model(torch.as_tensor(x).float()).shape == (8, 2)


def test_the_global_generator_is_left_as_it_was_and_the_seed_decides() -> None:
    weights = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2))
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(0.1)
        state = torch.get_rng_state()
        rhobust.fit(model, (X, Y), method="spgda", radius=0.1, epochs=3, seed=7)
        assert torch.equal(torch.get_rng_state(), state)
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("cost", [SquaredL2(), SquaredLp(1.5), SquaredLinf()])
def test_a_radius_that_leaves_nothing_to_learn_is_warned_of(cost: Cost) -> None:
    x = torch.cat([torch.ones(4, 3), -torch.ones(4, 3)])  # all may meet in 0
    enough = float(cost(x[:1], torch.zeros(1, 3)))
    for radius, warns in ((0.99 * enough, False), (1.01 * enough, True)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            rhobust.fit(nn.Linear(3, 2), (x, Y), method="spgda", cost=cost, radius=radius, epochs=1)
        assert ["one and the same point" in str(one.message) for one in said] == [True] * warns
        assert all(one.filename == __file__ for one in said)  # points at the caller


def test_data_that_are_sorted_are_not_taken_for_their_first_part() -> None:
    x = torch.cat([torch.zeros(1500, 3), torch.ones(1500, 3)])
    for order in (torch.arange(3000), torch.arange(3000).reshape(2, 1500).T.flatten()):  # and every other one
        y = order // 1500
        model = nn.Linear(3, 2)
        rate = torch.optim.SGD(model.parameters(), lr=1.0)  # in six steps the model has to learn something
        sizes: dict[str, Any] = {"epochs": np.int64(1), "batch_size": np.int64(500)}
        rhobust.fit(model, (x[order], y), method="spgda", radius=0.5, optimizer=rate, **sizes)


def test_a_model_that_has_learned_nothing_is_warned_of_from_the_line_that_called() -> None:
    x, y = torch.ones(400, 3), torch.arange(400) % 2
    settings: dict[str, Any] = {"method": "fgsm", "epochs": 2}
    with pytest.warns(UserWarning, match="has learned nothing. The moves of its training may hide") as said:
        rhobust.fit(nn.Linear(3, 2), (x, y), **settings)
    assert said[0].filename == __file__


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_are_whole_numbers_of_any_kind(kind: torch.dtype) -> None:
    cost = SquaredL2(kappa=1.0)
    trained = rhobust.fit(nn.Linear(3, 2), (X, Y.to(kind)), method="spgda", cost=cost, radius=0.1, epochs=1)
    assert trained.history


@pytest.mark.parametrize("radius", [np.int64(1), np.float32(0.5)])
def test_numbers_of_numpy_are_numbers(radius: Any) -> None:
    trained = rhobust.fit(nn.Linear(3, 2), (10 * X, Y), method="spgda", radius=radius, epochs=1)
    assert trained.objective.radius == radius


def test_fit_says_what_the_command_would() -> None:
    with pytest.warns(UserWarning, match="looks back over 1000 steps, and there are 2"):
        rhobust.fit(nn.Linear(3, 2), (X, Y), method="spgda", radius=0.1, epochs=2, ema=0.999)


class Rows(Dataset[tuple[Any, Any]]):
    """Rows of arrays, and targets that are numbers of Python's where y has one a sample."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.numpy(), y.numpy()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.x[index], self.y[index].tolist() if self.y.ndim == 1 else self.y[index]


HOLDERS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "tensors": lambda x, y: (x, y),
    "Samples": Samples,
    "TensorDataset": TensorDataset,
    "rows": Rows,
    "DataLoader": lambda x, y: DataLoader(TensorDataset(x, y), len(x)),
}


@pytest.mark.parametrize("of_model", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("of_data", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("holder", HOLDERS)
def test_data_are_taken_in_the_model_s_precision(holder: str, of_data: torch.dtype, of_model: torch.dtype) -> None:
    # Soft labels: cross-entropy, too, wants y in the precision of the outputs. One sample: there is but one order.
    x, soft = X[:1].to(of_data), torch.tensor([[0.25, 0.75]], dtype=of_data)  # what float32 has exactly
    found = []
    for data in (HOLDERS[holder](x, soft), (x.to(of_model), soft.to(of_model))):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(of_model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one sample is one point, for any radius
            rhobust.fit(model, data, radius=0.1, epochs=2)
        found.append(model.weight)
    assert torch.equal(*found)


@pytest.mark.parametrize("holder", HOLDERS)
def test_targets_are_taken_in_the_model_s_precision(holder: str) -> None:
    seen: set[torch.dtype] = set()

    def squared_error(output: Tensor, y: Tensor) -> Tensor:
        seen.add(y.dtype)
        return (output[:, 0] - y).square()

    rhobust.fit(
        nn.Linear(3, 1), HOLDERS[holder](X.double(), X[:, 0].double()), radius=0.1, loss=squared_error, epochs=1
    )
    assert seen == {torch.float32}


@pytest.mark.parametrize("holder", ["tensors", "Samples", "TensorDataset", "DataLoader"])
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
def test_what_is_of_lower_precision_is_the_model_s_own_affair(low: torch.dtype, holder: str) -> None:
    seen: list[tuple[torch.dtype, torch.dtype]] = []

    class Casting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((x.dtype, self.weight.dtype))
            return super().forward(x.to(self.weight.dtype))

    for of_data, of_model in ((low, torch.float32), (torch.float32, low), (torch.float64, low)):
        seen.clear()
        rhobust.fit(Casting(3, 2).to(of_model), HOLDERS[holder](X.to(of_data), Y), method="erm", epochs=1)
        assert set(seen) == {(of_data, of_model)}


@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss(reduction="none")])
def test_labels_of_pixels_are_for_a_loss_that_adds_them_up(loss: Any) -> None:
    x, y = torch.linspace(-1, 1, 200).reshape(2, 1, 10, 10), torch.arange(200).reshape(2, 10, 10) % 3
    trained = rhobust.fit(
        nn.Conv2d(1, 3, 3, padding=1), (x, y), radius=0.1, loss=lambda out, y: loss(out, y).flatten(1).mean(1), epochs=1
    )
    assert trained.history
    with pytest.raises(Refused, match=r"the loss returned shape \(2, 10, 10\) .*flatten\(1\)\.mean\(1\)"):
        rhobust.fit(nn.Conv2d(1, 3, 3, padding=1), (x, y), radius=0.1, loss=loss)


@pytest.mark.parametrize(
    ("keyword", "said"), [("lr", "the learning rate is the optimizer's"), ("device", "trained where it is")]
)
def test_settings_of_the_command_are_told_where_they_belong(keyword: str, said: str) -> None:
    settings: dict[str, Any] = {keyword: 0.1}
    with pytest.raises(ConfigError, match=said):
        rhobust.fit(nn.Linear(3, 2), (X, Y), method="erm", **settings)
    with pytest.raises(Refused, match=r"the class CrossEntropyLoss; build one: CrossEntropyLoss\(reduction='none'\)"):
        rhobust.fit(nn.Linear(3, 2), (X, Y), method="erm", loss=nn.CrossEntropyLoss)  # type: ignore[arg-type]


def test_data_that_no_number_is_large_enough_for_are_named_before_the_rate() -> None:
    told = pytest.warns(UserWarning, match="the inputs are not scaled")
    with told, pytest.raises(rhobust.errors.Diverged, match=r"at step 0 .* nothing was updated\. Scale the data"):
        rhobust.fit(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), (1e38 * X, Y), method="spgd", radius=1.0, epochs=1)


def test_a_model_that_takes_full_batches_only_is_judged_in_such_batches() -> None:
    class Rigid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Any:
            return self.layer(x.view(10, 4))

    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    data = x, (x[:, 0] > 0).long()
    optimizer = torch.optim.SGD((model := Rigid()).parameters(), lr=1e-9)
    with pytest.warns(UserWarning, match="the model has learned nothing"):
        rhobust.fit(model, data, method="erm", epochs=1, batch_size=10, optimizer=optimizer)


def test_a_judgement_that_fails_loses_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr("rhobust.training.remarks.learned_nothing", full)
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    assert len(rhobust.fit(nn.Linear(4, 2), (x, (x[:, 0] > 0).long()), method="erm", epochs=2).history) == 2


@pytest.mark.parametrize("told", [3, 9])
def test_steps_are_counted_one_by_one_whatever_a_loader_says_of_its_length(told: int) -> None:
    class Wrong(DataLoader[Any]):
        def __len__(self) -> int:
            return told

    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    loader = Wrong(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the length, too
        trained = rhobust.fit(nn.Linear(3, 2), loader, method="erm", epochs=2)
    assert [record.step for record in trained.history] == list(range(10))
