"""Byzantine attacks: their formulas by hand, and their effect on the mean and on robust aggregators."""

import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from rhobust.errors import ConfigError, DataError, Refused
from rhobust.federation.aggregators import Mean, Median, TrimmedMean
from rhobust.federation.byzantine import (
    BYZANTINE_ATTACKS,
    alie_strength,
    byzantine_uploads,
    find_byzantine_attack,
    flipped,
)

HONEST = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, -20.0]], dtype=torch.float64)
OWN = torch.tensor([[1.0, -2.0], [3.0, 4.0]], dtype=torch.float64)


def attacked(spec: str, honest: Tensor = HONEST, own: Tensor = OWN, workers: int = 5, seed: int = 0) -> Tensor:
    return byzantine_uploads(spec, honest, own, workers, torch.Generator().manual_seed(seed))


def crowd(workers: int = 10, byzantine: int = 3, size: int = 4000) -> tuple[Tensor, Tensor]:
    """Honest uploads around one direction, and the Byzantine workers' own."""
    every = torch.randn(workers, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.3
    return every[byzantine:], every[:byzantine]


def test_the_formulas_by_hand() -> None:
    assert attacked("sign-flip").tolist() == [[-1, 2], [-3, -4]]
    assert attacked("sign-flip:2.5").tolist() == [[-2.5, 5], [-7.5, -10]]
    assert attacked("label-flip").tolist() == OWN.tolist()
    torch.testing.assert_close(attacked("inner-product"), torch.tensor([[-0.3, 0.0]] * 2).double())
    torch.testing.assert_close(attacked("inner-product:4"), torch.tensor([[-12.0, 0.0]] * 2).double())
    deviation = torch.tensor([math.sqrt(8 / 3), math.sqrt(200)], dtype=torch.float64)
    torch.testing.assert_close(attacked("alie:2"), torch.tensor([3.0, 0.0]).double().sub(2 * deviation).repeat(2, 1))
    # K = 5, f = 2: one honest worker more makes the majority, so z = Phi^-1(2 / 3).
    z = NormalDist().inv_cdf(2 / 3)
    torch.testing.assert_close(attacked("alie"), torch.tensor([3.0, 0.0]).double().sub(z * deviation).repeat(2, 1))


def test_the_strength_of_alie_is_its_authors_formula() -> None:
    for workers in range(3, 60):
        for byzantine in range(1, (workers - 1) // 2 + 1):
            honest = workers - byzantine
            share = (honest - (math.floor(workers / 2 + 1) - byzantine)) / honest
            assert alie_strength(workers, byzantine) == pytest.approx(max(0.0, NormalDist().inv_cdf(share)), abs=1e-9)
    assert alie_strength(10, 5) == pytest.approx(NormalDist().inv_cdf(0.8))
    assert alie_strength(10, 7) == pytest.approx(NormalDist().inv_cdf(2 / 3))  # a majority already: as for m = 1
    assert [alie_strength(*numbers) for numbers in ((4, 1), (2, 1), (1, 1), (3, 3))] == [0, 0, 0, 0]


def test_noise_is_normal_and_as_long_as_stated() -> None:
    own = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(3)) * torch.tensor([[1.0], [50.0]])
    for spec, strength in (("noise", 10), ("noise:0.5", 0.5)):
        noise = attacked(spec, torch.zeros(0, 100_000), own)
        scaled = noise / (strength * own.norm(dim=1, keepdim=True) / math.sqrt(100_000))
        assert scaled.mean(1).abs().max() < 5 / math.sqrt(100_000)
        assert scaled.std(1).tolist() == pytest.approx([1, 1], abs=5 / math.sqrt(200_000))
        assert (scaled.abs() < 1).double().mean(1).tolist() == pytest.approx([0.6827] * 2, abs=0.01)
        assert abs(float(torch.corrcoef(scaled)[0, 1])) < 5 / math.sqrt(100_000)  # every attacker draws its own
        assert torch.corrcoef(torch.stack([scaled[0], own[0]]))[0, 1].abs() < 5 / math.sqrt(100_000)


def test_the_generator_alone_decides() -> None:
    assert torch.equal(attacked("noise", seed=1), attacked("noise", seed=1))
    assert not torch.equal(attacked("noise", seed=1), attacked("noise", seed=2))
    generator = torch.Generator().manual_seed(0)
    first, second = (byzantine_uploads("noise", HONEST, OWN, 5, generator) for _ in range(2))
    assert not torch.equal(first, second)
    for name in BYZANTINE_ATTACKS:
        if name != "noise":
            assert torch.equal(attacked(name, seed=1), attacked(name, seed=2))


@pytest.mark.parametrize("name", BYZANTINE_ATTACKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("seen", "byzantine", "size"), [(7, 3, 20), (7, 3, 1), (1, 1, 4), (0, 2, 4), (3, 0, 4)])
def test_attacked_uploads_keep_shape_and_type(
    name: str, dtype: torch.dtype, seen: int, byzantine: int, size: int
) -> None:
    honest, own = torch.ones(seen, size, dtype=dtype), torch.full((byzantine, size), 2.0, dtype=dtype)
    found = attacked(name, honest, own, 10)
    assert (found.shape, found.dtype) == (own.shape, dtype)
    assert found.isfinite().all()
    assert torch.equal(honest, torch.ones_like(honest))
    assert torch.equal(own, torch.full_like(own, 2))


def test_without_an_honest_worker_the_attackers_use_their_own_mean() -> None:
    none = torch.zeros(0, 2, dtype=torch.float64)
    torch.testing.assert_close(attacked("inner-product:1", none), -OWN.mean(0).repeat(2, 1))
    torch.testing.assert_close(attacked("alie:1", none), (OWN.mean(0) - OWN.std(0, correction=0)).repeat(2, 1))


def test_alie_hides_among_the_honest_and_still_moves_robust_aggregators() -> None:
    honest, own = crowd()
    uploads = attacked("alie", honest, own, 10)
    inside = (uploads > honest.amin(0)) & (uploads < honest.amax(0))
    assert inside.double().mean() > 0.99  # no rule can tell it from a coordinate that is honest
    every, weights = torch.cat([honest, uploads]), torch.ones(10)
    for rule in (Median(), TrimmedMean(3)):
        assert (rule(every, weights) < rule(honest, torch.ones(7))).double().mean() > 0.5
        assert rule(every, weights).mean() < rule(honest, torch.ones(7)).mean()


@pytest.mark.parametrize("strength", [0.1, 1.0, 2.0, 3.0, 10.0])
def test_the_inner_product_shrinks_and_turns_where_the_formula_says(strength: float) -> None:
    honest, own = crowd()
    every = torch.cat([honest, attacked(f"inner-product:{strength}", honest, own, 10)])
    product = Mean()(every, torch.ones(10)) @ honest.mean(0) / honest.mean(0).square().sum()
    assert product.item() == pytest.approx((10 - 3 * (1 + strength)) / 10)
    assert (product < 0) == (strength > 7 / 3)


def test_flipped_labels() -> None:
    labels = torch.tensor([0, 3, 9, 9], dtype=torch.uint8)
    assert flipped(labels, 10).tolist() == [9, 6, 0, 0]
    assert flipped(labels, 10).dtype == torch.uint8
    assert torch.equal(flipped(flipped(labels, 10), 10), labels)
    for wrong in (torch.tensor([10]), torch.tensor([-1]), torch.tensor([0.5])):
        with pytest.raises(DataError, match="whole numbers from 0 to 9"):
            flipped(wrong, 10)


def test_unknown_attacks_and_wrong_strengths_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown byzantine_attack 'sign-flop' \(did you mean 'sign-flip'\?\); known: sign-flip, no"
    ):
        find_byzantine_attack("sign-flop")
    with pytest.raises(ConfigError, match="label-flip takes no strength"):
        find_byzantine_attack("label-flip:2")
    for text in ("", "0", "-1", "nan", "inf", "much"):
        with pytest.raises(ConfigError, match=f"'noise:{text}': the strength must be a finite number > 0"):
            find_byzantine_attack(f"noise:{text}")


@pytest.mark.parametrize(
    ("honest", "own", "workers"),
    [
        (torch.ones(3, 2), torch.ones(1, 3), 5),
        (torch.ones(2), torch.ones(1, 2), 5),
        (torch.ones(3, 2), torch.ones(2), 5),
        (torch.ones(3, 2), torch.ones(2, 2), 4),
    ],
)
def test_shapes_that_do_not_fit_are_refused(honest: Tensor, own: Tensor, workers: int) -> None:
    with pytest.raises(Refused, match=f"of at most {workers} workers, not"):
        attacked("sign-flip", honest, own, workers)
