"""Corruptions of images, each against what its amount says."""

import numpy as np
import pytest

from rhobust.evaluation.corruptions import CORRUPTIONS, SEVERITIES, Images, corrupt, rotated, translated

BOUNDS = (-1.0, 1.0)


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def images(*shape: int, seed: int = 0) -> Images:
    return draws(seed).uniform(-1, 1, shape)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_amount_of_nothing_gives_the_image_back(name: str) -> None:
    x = images(6, 3, 7, 10)
    np.testing.assert_allclose(CORRUPTIONS[name].apply(x, 0.0, BOUNDS, draws()), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("turns", [-1, 1, 2, 3])
def test_quarter_turns_are_those_of_numpy(turns: int) -> None:
    x = images(4, 2, 9, 9)
    found = rotated(x, np.full(4, 90.0 * turns), -1.0)
    np.testing.assert_allclose(found, np.rot90(x, turns, axes=(2, 3)), atol=1e-12)


def test_half_a_turn_of_an_image_that_is_not_square() -> None:
    x = images(4, 2, 5, 12)
    np.testing.assert_allclose(rotated(x, np.full(4, 180.0), -1.0), x[:, :, ::-1, ::-1], atol=1e-12)


def test_rotation_keeps_lengths_where_the_image_is_not_square() -> None:
    """Dots three pixels above and to the right of the center of a wide image land to the left and above."""
    x, expected = np.full((2, 2, 1, 9, 15), -1.0)
    x[0, 0, 4 - 3, 7] = x[1, 0, 4, 7 + 3] = 1.0
    expected[0, 0, 4, 7 - 3] = expected[1, 0, 4 - 3, 7] = 1.0
    np.testing.assert_allclose(rotated(x, np.full(2, 90.0), -1.0), expected, atol=1e-12)


@pytest.mark.parametrize(("down", "right"), [(0, 2), (3, 0), (-1, 0), (-2, 3), (20, 0)])
def test_whole_pixels_are_rolled_and_the_edge_is_filled(down: int, right: int) -> None:
    x = images(3, 2, 8, 6)
    expected = np.pad(x, ((0, 0), (0, 0), (20, 20), (20, 20)), constant_values=-1.0)
    expected = np.roll(expected, (down, right), axis=(2, 3))[:, :, 20:-20, 20:-20]
    found = translated(x, np.full(3, float(down)), np.full(3, float(right)), -1.0)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_half_a_pixel_is_the_mean_of_neighbors() -> None:
    x = images(2, 1, 4, 5)
    before = np.concatenate([np.full((2, 1, 4, 1), -1.0), x[..., :-1]], axis=3)
    np.testing.assert_allclose(translated(x, np.zeros(2), np.full(2, 0.5), -1.0), (x + before) / 2, atol=1e-12)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_translation_moves_every_image_by_the_stated_share_in_all_directions(severity: int) -> None:
    x = np.full((200, 1, 41, 41), -1.0)
    x[:, :, 18:23, 18:23] = 1.0
    moved = corrupt("translation", severity, x, BOUNDS, draws()) + 1
    place, mass = np.arange(41) - 20, moved.sum((1, 2, 3))
    down, right = moved.sum((1, 3)) @ place / mass, moved.sum((1, 2)) @ place / mass
    np.testing.assert_allclose(np.hypot(down, right), CORRUPTIONS["translation"].amounts[severity - 1] * 41, rtol=1e-6)
    assert {(a, b) for a, b in zip(down > 0, right > 0, strict=True)} == {(a, b) for a in (0, 1) for b in (0, 1)}


@pytest.mark.parametrize("severity", SEVERITIES)
def test_rotation_is_by_the_stated_angle_to_either_side(severity: int) -> None:
    x = images(40, 1, 8, 8)
    angle = CORRUPTIONS["rotation"].amounts[severity - 1]
    left, right = (np.clip(rotated(x, np.full(40, turn), -1.0), -1, 1) for turn in (angle, -angle))
    found = corrupt("rotation", severity, x, BOUNDS, draws())
    to_left, to_right = ((found == way).all((1, 2, 3)) for way in (left, right))
    assert (to_left ^ to_right).all()
    assert 10 <= to_left.sum() <= 30  # 20 on average, deviation 3.2


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("shape", [(8, 8), (28, 28), (12, 20)])
def test_occlusion_covers_exactly_the_stated_patch(severity: int, shape: tuple[int, int]) -> None:
    x = np.ones((300, 2, *shape))
    covered = corrupt("occlusion", severity, x, BOUNDS, draws()) == -1
    height, width = (round(CORRUPTIONS["occlusion"].amounts[severity - 1] * side) for side in shape)
    rows, columns = covered.any((1, 3)), covered.any((1, 2))
    assert (rows.sum(1) == height).all()
    assert (columns.sum(1) == width).all()
    assert (covered.sum((2, 3)) == height * width).all()
    for lines in (rows, columns):  # in one piece, and both ends of the image are reached
        assert (np.abs(np.diff(lines.astype(int), axis=1)).sum(1) <= 2).all()
        assert lines[:, 0].any()
        assert lines[:, -1].any()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_has_the_stated_deviation(severity: int) -> None:
    x = np.full((50, 1, 40, 50), 3.0)
    amount = CORRUPTIONS["gaussian-noise"].amounts[severity - 1]
    noise = CORRUPTIONS["gaussian-noise"].apply(x, amount, (2.0, 6.0), draws()) - x
    assert noise.std() == pytest.approx(4 * amount, rel=5 / np.sqrt(2 * x.size))
    assert abs(noise.mean()) <= 5 * 4 * amount / np.sqrt(x.size)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulses_hit_the_stated_share_half_of_it_salt(severity: int) -> None:
    x = np.full((50, 1, 40, 50), 0.25)
    share = CORRUPTIONS["impulse-noise"].amounts[severity - 1]
    found = corrupt("impulse-noise", severity, x, BOUNDS, draws())
    slack = 5 * np.sqrt(share / 2 * (1 - share / 2) / x.size)
    assert (found == 1).mean() == pytest.approx(share / 2, abs=slack)
    assert (found == -1).mean() == pytest.approx(share / 2, abs=slack)
    assert np.isin(found, [-1, 0.25, 1]).all()


def test_blur_of_a_dot_has_the_stated_deviation_and_keeps_the_mass() -> None:
    x = np.full((1, 1, 81, 81), -1.0)
    x[..., 40, 40] = 1.0
    dot = corrupt("blur", 3, x, BOUNDS, draws())[0, 0] + 1
    place = np.arange(81) - 40
    assert dot.sum() == pytest.approx(2)
    for side in (0, 1):
        assert np.sqrt(dot.sum(side) @ place**2 / 2) == pytest.approx(81 * 0.05, rel=1e-2)


def test_contrast_keeps_the_mean_of_each_channel() -> None:
    x = images(3, 2, 5, 5) / 2 + np.array([-0.4, 0.4])[:, None, None]
    found = corrupt("contrast", 4, x, BOUNDS, draws())
    np.testing.assert_allclose(found.mean((2, 3)), x.mean((2, 3)), atol=1e-12)
    np.testing.assert_allclose(found.std((2, 3)), 0.35 * x.std((2, 3)), atol=1e-12)
