"""Distribution shift: errors with known answers, the worst proportions, other people's digits."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rhobust
from rhobust.data import digits
from rhobust.data.samples import DataSet, Samples
from rhobust.errors import ConfigError, DataError
from rhobust.evaluation.corruptions import CORRUPTIONS
from rhobust.evaluation.shifts import (
    EXPONENTS,
    SHIFTS,
    ShiftedError,
    ShiftEvaluation,
    class_errors,
    evaluate_shifts,
    find_shifts,
    uci_digits,
    worst_proportion_error,
)
from rhobust.models.catalog import mlp

BOUNDS = (-1.0, 1.0)


def data_set(name: str = "mine", shape: tuple[int, ...] = (1, 28, 28), count: int = 40) -> DataSet:
    x = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (count, *shape))).float()
    some = Samples(x, torch.arange(count) % 10)
    return DataSet(name, some, some, BOUNDS, classes=10)


class Brighter(nn.Module):
    """Class 1 where the mean over the image is above the threshold, else class 0."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1).mean(1) - self.threshold
        return torch.stack([-score, score], 1)


class Sharper(Brighter):
    """The same for the standard deviation over the image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1).std(1, correction=0)[:, None])


def test_the_error_of_a_model_of_mean_brightness_is_that_by_hand() -> None:
    """Ten gray images of value -0.9, -0.8, ..., 0: brightness lifts all by 2 a, so those above -2 a are wrong."""
    gray = torch.linspace(-0.9, 0, 10)
    samples = Samples(gray[:, None, None, None].expand(10, 1, 4, 4), torch.zeros(10, dtype=torch.long))
    data = DataSet("gray", samples, samples, BOUNDS, classes=2)
    found = evaluate_shifts(Brighter(0.05), data, samples, shifts=["brightness", "contrast"])
    assert found.clean == 0
    assert [cell.error for cell in found.shifted if cell.shift == "brightness"] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert found.means["contrast"] == 0  # the mean stays where it was
    assert found.mean == pytest.approx(0.3)


def test_the_error_of_a_model_of_contrast_is_that_by_hand() -> None:
    """Checkers of deviation 0.1, ..., 1: a share (1 - a) is left, so those above 0.49 / (1 - a) are still 1."""
    checkers = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(2, 2)
    samples = Samples(torch.linspace(0.1, 1, 10)[:, None, None, None] * checkers, torch.ones(10, dtype=torch.long))
    found = evaluate_shifts(
        Sharper(0.49), DataSet("checkers", samples, samples, BOUNDS, 2), samples, shifts=["contrast"]
    )
    left = [1 - amount for amount in (0.2, 0.35, 0.5, 0.65, 0.8)]
    by_hand = [sum(deviation / 10 * share < 0.49 for deviation in range(1, 11)) / 10 for share in left]
    assert [cell.error for cell in found.shifted] == by_hand == [0.6, 0.7, 0.9, 1.0, 1.0]


@pytest.mark.parametrize("exponent", [0.0, *EXPONENTS])
def test_the_worst_proportions_are_the_worst_of_all_orders(exponent: float) -> None:
    by_class = np.array([0.1, 0.0, 0.45, 0.2, 0.2, 0.9])
    weights = np.array([1 / rank**exponent for rank in range(1, 7)])
    brute_force = max(np.dot(order, weights / weights.sum()) for order in permutations(by_class))
    assert worst_proportion_error(by_class, exponent) == pytest.approx(brute_force, rel=1e-12)


def test_label_proportion_weighs_the_errors_of_the_classes_that_are_there() -> None:
    y = torch.tensor([0] * 6 + [1] * 2 + [4] * 2)
    x = torch.tensor([0.5] * 3 + [-0.5] * 3 + [0.5, 0.5, 0.5, -0.5])[:, None]  # class 1 where positive, else 0
    assert class_errors(torch.tensor([True] * 3 + [False] * 5 + [True] * 2), y).tolist() == [0.5, 0, 1]
    samples = Samples(x, y)
    data = DataSet("three of five", samples, samples, BOUNDS, classes=5)
    found = evaluate_shifts(Brighter(0.0), data, samples, shifts=["label-proportion"])
    assert found.clean == 0.5
    expected = [(1 + 0.5 * 2**-s) / (1 + 2**-s + 3**-s) for s in EXPONENTS]
    assert [cell.error for cell in found.shifted] == pytest.approx(expected)


def test_all_means_what_the_data_allow() -> None:
    assert find_shifts(["all"], data_set("mnist")) == list(SHIFTS)
    assert find_shifts(["all"], data_set("fashion-mnist")) == list(SHIFTS[:-1])
    assert find_shifts(["all"], data_set(shape=(5,))) == ["gaussian-noise", "impulse-noise", "label-proportion"]
    assert find_shifts(["blur", "gaussian-noise", "blur"], data_set()) == ["gaussian-noise", "blur"]


def test_what_the_data_do_not_allow_and_what_nobody_knows_is_refused_together() -> None:
    with pytest.raises(ConfigError) as caught:
        find_shifts(["uci-digits", "rotatoin", "blur"], data_set("wine", shape=(5,)))
    assert len(caught.value.problems) == 3
    for part in ("trained on mnist", "trained on wine", "(did you mean 'rotation'?)", "'blur' needs images", "(5,)"):
        assert part in str(caught.value)
    with pytest.raises(ConfigError, match=r"no shift is named; known: gaussian-noise.*all"):
        find_shifts([], data_set())
    with pytest.raises(ConfigError, match=r"seed must be >= 0, not -1\nbatch_size must be >= 1, not 0"):
        evaluate_shifts(Brighter(0.0), data_set(), data_set().test, seed=-1, batch_size=0)
    with pytest.raises(DataError, match="no samples"):
        evaluate_shifts(Brighter(0.0), data_set(), data_set().test[:0])


def test_uci_digits_are_laid_out_as_mnist_is() -> None:
    found = uci_digits((0.0, 3.0))
    assert found.x.shape == (1797, 1, 28, 28)
    assert (float(found.x.min()), float(found.x.max())) == (0, 3)
    assert torch.bincount(found.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    ink, place = found.x[:, 0].double(), torch.arange(28.0).double() - 14
    for side in (1, 2):
        assert ((ink.sum(side) @ place / ink.sum((1, 2))).abs() <= 0.5 + 1e-6).all()
        assert ((ink.sum(side) > 1e-6).sum(1) <= 20).all()
    raw = digits()
    cells = torch.cat([raw.train.x, raw.test.x]).double()
    assert torch.allclose(ink.sum((1, 2)) / 3, (cells + 1).sum((1, 2, 3)) / 2 * 2.5**2, rtol=0.02)  # no ink is lost


def test_uci_digits_are_measured_for_mnist_on_all_of_them_and_once() -> None:
    data = data_set("mnist")
    threshold = 0.16 * 2 - 1
    found = evaluate_shifts(Brighter(threshold), data, data.test[:7], shifts=["uci-digits"])
    other = uci_digits(BOUNDS)
    expected = ((other.x.mean((1, 2, 3)) > threshold).long() != other.y).double().mean()
    assert found.shifted == [ShiftedError("uci-digits", 1, float(expected))]
    assert found.samples == 7


def test_results_depend_on_the_seed_and_not_on_company_order_or_batches() -> None:
    data = data_set("mnist", count=50)
    model = mlp(torch.Size([1, 28, 28]), 10)
    told: list[str] = []
    whole = evaluate_shifts(model, data, data.test, done=told.append)
    assert told == [f"{cell.shift} {cell.severity}" for cell in whole.shifted]
    assert len(told) == 9 * 5 + 1
    assert whole == evaluate_shifts(model, data, data.test, shifts=SHIFTS[::-1], batch_size=7)
    for name in SHIFTS:
        alone = evaluate_shifts(model, data, data.test, shifts=[name])
        assert alone.shifted == [cell for cell in whole.shifted if cell.shift == name]
    assert whole != evaluate_shifts(model, data, data.test, seed=1)


class Recorder(nn.Module):
    """Keeps every input it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        self.seen.append(x)
        return x.flatten(1)[:, :10]


@pytest.mark.parametrize("shift", CORRUPTIONS)
def test_a_slice_meets_the_same_corrupted_samples_in_batches_of_any_size(shift: str) -> None:
    data = data_set(shape=(3, 6, 9), count=23)
    seen = []
    for count, batch_size in ((23, 1024), (23, 5), (11, 4)):
        recorder = Recorder().train()
        evaluate_shifts(recorder, data, data.test[:count], shifts=[shift], batch_size=batch_size)
        assert recorder.training
        shown = torch.cat(recorder.seen)
        assert shown.dtype == torch.float32
        seen.append(shown.reshape(6, count, 3, 6, 9)[:, :11])
    assert torch.equal(seen[0][0], data.test.x[:11])  # clean first
    torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(seen[2], seen[0], rtol=0, atol=1e-6)


def test_every_severity_and_every_seed_has_draws_of_its_own() -> None:
    samples = Samples(torch.zeros(5000, 10), torch.zeros(5000, dtype=torch.long))
    wide = DataSet("table", samples, samples, (-100.0, 100.0), classes=10)
    noise = []
    for seed in (0, 1):
        recorder = Recorder()
        evaluate_shifts(recorder, wide, samples, shifts=["gaussian-noise"], seed=seed, batch_size=5000)
        noise += [seen.flatten() for seen in recorder.seen[1:]]
    apart = torch.corrcoef(torch.stack(noise)) - torch.eye(10)
    assert apart.abs().max() < 5 / 50_000**0.5


def test_plain_values_with_the_mean_over_shifts_of_the_mean_over_severities() -> None:
    cells = [ShiftedError("blur", 1, 0.1), ShiftedError("blur", 2, 0.3), ShiftedError("uci-digits", 1, 0.8)]
    found = ShiftEvaluation(10, 0.1, cells)
    assert found.mean == pytest.approx(0.5)
    assert found.to_json() == {
        "task": "classification",
        "samples": 10,
        "clean": 0.1,
        "shifted": [
            {"shift": "blur", "severity": 1, "error": 0.1},
            {"shift": "blur", "severity": 2, "error": 0.3},
            {"shift": "uci-digits", "severity": 1, "error": 0.8},
        ],
        "mean": found.mean,
    }


def test_a_trained_model_errs_more_under_shift_and_more_at_severity_five_than_at_one() -> None:
    data = digits()
    torch.manual_seed(0)
    model = mlp(torch.Size([1, 8, 8]), 10)
    rhobust.fit(model, (data.train.x, data.train.y), method="erm", epochs=8)
    found = evaluate_shifts(model, data, data.test)
    assert found.clean < 0.1
    assert found.mean > found.clean + 0.05
    for name in found.means:
        errors = [cell.error for cell in found.shifted if cell.shift == name]
        assert errors[-1] > errors[0], name
