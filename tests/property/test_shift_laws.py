"""Laws of distribution shift: nothing leaves the bounds, and a higher severity is further away."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhobust.data import digits
from rhobust.evaluation.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from rhobust.evaluation.shifts import EXPONENTS, worst_proportion_error

law = settings(deadline=None, derandomize=True, max_examples=40)
NAMES = st.sampled_from(list(CORRUPTIONS))
SEEDS = st.integers(0, 10**6)
SIDES = st.integers(1, 12)


@law
@given(
    name=NAMES,
    severity=st.sampled_from(SEVERITIES),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), SIDES, SIDES),
    lower=st.floats(-10, 10),
    width=st.floats(1e-3, 100),
    seed=SEEDS,
)
def test_images_of_every_shape_stay_in_their_bounds(
    name: str, severity: int, shape: tuple[int, ...], lower: float, width: float, seed: int
) -> None:
    bounds = (lower, lower + width)
    draws = np.random.default_rng(seed)
    images = draws.uniform(*bounds, shape)
    before = images.copy()
    found = corrupt(name, severity, images, bounds, draws)
    assert found.shape == shape
    assert (found >= bounds[0]).all()
    assert (found <= bounds[1]).all()
    assert np.array_equal(images, before)  # the clean images are left as they were


@law
@given(name=NAMES, severity=st.sampled_from(SEVERITIES), lower=st.floats(-10, 10), width=st.floats(0.1, 10), seed=SEEDS)
def test_the_units_of_the_pixels_do_not_matter(name: str, severity: int, lower: float, width: float, seed: int) -> None:
    unit = np.random.default_rng(seed).random((3, 1, 8, 8))
    found = corrupt(name, severity, lower + width * unit, (lower, lower + width), np.random.default_rng(seed))
    expected = corrupt(name, severity, unit, (0.0, 1.0), np.random.default_rng(seed))
    np.testing.assert_allclose((found - lower) / width, expected, atol=1e-9)


@law
@given(name=st.sampled_from(["gaussian-noise", "impulse-noise"]), features=st.integers(1, 9), seed=SEEDS)
def test_noise_takes_samples_that_are_no_images(name: str, features: int, seed: int) -> None:
    table = np.random.default_rng(seed).uniform(-1, 1, (5, features))
    flat = corrupt(name, 3, table, (-1.0, 1.0), np.random.default_rng(seed))
    image = corrupt(name, 3, table[:, None, None, :], (-1.0, 1.0), np.random.default_rng(seed))
    assert np.array_equal(flat, image[:, 0, 0, :])


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("zoom", [1, 3])  # 8 x 8 and 24 x 24
def test_the_distance_from_the_clean_image_grows_with_the_severity(name: str, zoom: int) -> None:
    clean = np.kron(digits().test.x.double().numpy(), np.ones((zoom, zoom)))
    away = [
        float(np.abs(corrupt(name, severity, clean, (-1.0, 1.0), np.random.default_rng(severity)) - clean).mean())
        for severity in SEVERITIES
    ]
    assert away[0] > 0
    assert all(after > 1.05 * before for before, after in pairwise(away)), away


@law
@given(by_class=st.lists(st.floats(0, 1), min_size=1, max_size=12), data=st.data())
def test_no_order_is_worse_and_no_smaller_exponent_either(by_class: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(by_class))
    errors = [worst_proportion_error(np.array(by_class), exponent) for exponent in (0.0, *EXPONENTS)]
    for exponent, error in zip((0.0, *EXPONENTS), errors, strict=True):
        weights = np.array([1 / rank**exponent for rank in range(1, len(order) + 1)])
        assert error >= np.dot(order, weights) / weights.sum() - 1e-12
    assert errors[0] == pytest.approx(np.mean(by_class), abs=1e-12)
    assert all(after >= before - 1e-12 for before, after in pairwise(errors))
    assert errors[-1] <= max(by_class) + 1e-12
