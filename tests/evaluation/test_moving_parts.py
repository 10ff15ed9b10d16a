"""Attacks, evaluations and certificates of inputs of which a part moves, against a model of that part alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import rhobust
from rhobust import Perturb, certify, evaluate, fit
from rhobust.attacks.attack import ATTACKS, attack
from rhobust.costs import rows
from rhobust.errors import DataError, Refused
from rhobust.losses import cross_entropy

WORDS, LENGTH, WIDTH, CLASSES, COUNT = 24, 6, 4, 5, 60


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.out = nn.Sequential(nn.Flatten(), nn.Linear(LENGTH * WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        scores: Tensor = self.out(self.embedding(tokens) * mask[..., None])
        return scores


class Words(Dataset[Any]):
    """Items ({tokens, mask}, y)."""

    def __init__(self, x: dict[str, Tensor], y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        return {key: part[index] for key, part in self.x.items()}, self.y[index]


class Stream(IterableDataset[Any]):
    """The same, of unknown length."""

    def __init__(self, words: Words) -> None:
        self.words = words

    def __iter__(self) -> Iterator[Any]:
        return (self.words[index] for index in range(len(self.words)))


def data(masked: bool = True) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(WORDS, (COUNT, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (COUNT, 1), generator=generator)
    mask = (torch.arange(LENGTH)[None] < lengths).long() if masked else torch.ones_like(tokens)
    return {"tokens": tokens, "mask": mask}, tokens[:, 0] % CLASSES


def trained(masked: bool = True) -> Text:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Text()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with pytest.warns(UserWarning, match="still falls"):
        fit(model, data(masked), method="erm", perturb="embedding", epochs=20, optimizer=optimizer)
    return model


@pytest.fixture(scope="module")
def model() -> Text:
    return trained(masked=False)


NAMES = ["cascade", "cascade-l2", "pgd", "pgd-margin-l2", "pgd-t", "square"]


def test_an_evaluation_is_that_of_a_model_of_what_moves(model: Text) -> None:
    x, y = data(masked=False)
    asked: dict[str, Any] = {
        "attacks": ["cascade", "cascade-l2", "pgd", "pgd-t", "square"],
        "epsilons": [0.0, 0.2],
        "budgets": [0.05],
        "batch_size": 25,
        "keep": True,
    }
    found = evaluate(model, (x, y), perturb="embedding", **asked)
    alone = evaluate(model.out, (model.embedding(x["tokens"]).detach(), y), **asked)
    for cell, other in zip(found.attacked, alone.attacked, strict=True):
        assert cell == other
    assert found.error("cascade", 0.2) > found.clean
    for name, by_epsilon in found.examples.items():
        for epsilon, zeta in by_epsilon.items():
            assert torch.equal(zeta, alone.examples[name][epsilon])
    assert (found.flags, found.checked) == (alone.flags, alone.checked)
    assert found.forwarded == alone.forwarded


@pytest.mark.parametrize("name", NAMES)
def test_padding_stays_under_every_attack(name: str, model: Text) -> None:
    x, y = data()
    perturb = Perturb("embedding", mask="mask")
    found = evaluate(
        model, (x, y), perturb=perturb, attacks=[name], epsilons=[0.2], budgets=[0.05], keep=True, checks=False
    )
    z = model.embedding(x["tokens"]).detach()
    for by_epsilon in found.examples.values():
        for zeta in by_epsilon.values():
            away = zeta - z
            assert (away[x["mask"] == 0] == 0).all()
            assert away.abs().sum() > 0
    for cell in found.attacked:
        assert cell.discarded == 0
    if name in ATTACKS:
        way = ATTACKS[name](0.2)
        made = attack(model, x, y, way, loss=cross_entropy, perturb=perturb)
        size = rows(made.zeta - z).norm(dim=1) if way.ball.norm == 2 else rows(made.zeta - z).abs().amax(1)
        assert (size <= 0.2 + 1e-6).all()
        assert (away[x["mask"] == 0] == 0).all()


def test_certificates_are_those_of_a_model_of_what_moves(model: Text) -> None:
    x, y = data(masked=False)
    found = certify(model, (x, y), radii=[0.0, 0.05], perturb="embedding", batch_size=25)
    alone = certify(model.out, (model.embedding(x["tokens"]).detach(), y), radii=[0.0, 0.05], batch_size=25)
    assert [one.to_json() for one in found] == [one.to_json() for one in alone]


def test_a_linear_loss_with_a_mask_has_its_exact_worst_case() -> None:
    # sup over E ||d||^2 <= rho, d only where the mask is: E w.z + sqrt(rho) (E ||w_mask||^2)^(1/2)
    weight = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)

    class Linear(nn.Module):
        def forward(self, z: Tensor, mask: Tensor) -> Tensor:
            return (z * weight).sum(1)

    z = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(40, 3, generator=torch.Generator().manual_seed(1)) < 0.6
    (found,) = certify(
        Linear(),
        ({"z": z, "mask": mask}, torch.zeros(40, dtype=torch.float64)),
        loss=lambda out, y: out + 10,
        radii=[0.3],
        perturb=Perturb("z", mask="mask"),
    )
    exact = 10 + (z * weight).sum(1).mean() + math.sqrt(0.3) * (mask * weight.square()).sum(1).mean().sqrt()
    assert found.attained == pytest.approx(float(exact), rel=1e-3)
    assert found.bound == pytest.approx(float(exact), rel=1e-3)


def test_memory_dataset_and_loader_give_the_same_training() -> None:
    x, y = data()
    words = Words(x, y)
    perturb = Perturb("embedding", mask="mask")
    found = []
    for given, size in (
        ((x, y), 50),
        (words, 50),
        (DataLoader(words, 50), None),
        (DataLoader(Stream(words), 50), None),
    ):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Text()
        made = fit(model, given, method="spgda", radius=0.1, perturb=perturb, epochs=2, batch_size=size)
        assert made.rho_eff > 0
        found.append([float(theta.detach().sum()) for theta in model.parameters()])
    assert found[0] == found[1]  # shuffled by the same seed
    assert found[2] == found[3]  # as they come


def test_a_tuple_of_arrays_is_taken() -> None:
    x, y = data()
    model, again = Text(), Text()
    again.load_state_dict(model.state_dict())
    fit(model, (x, y), method="spgd", radius=0.1, perturb=Perturb("embedding", mask="mask"), epochs=1)
    arrays = x["tokens"].numpy(), x["mask"].numpy()
    fit(again, (arrays, y.numpy()), method="spgd", radius=0.1, perturb=Perturb("embedding", mask=1), epochs=1)
    assert torch.equal(model.embedding.weight, again.embedding.weight)


def test_a_half_trained_in_full_sees_the_same_moves_as_its_own_precision() -> None:
    x, y = data()
    model = trained()
    robust = fit(
        model,
        (x, y),
        method="spgda",
        radius=0.05,
        perturb=Perturb("embedding", mask="mask"),
        epochs=3,
        precision=torch.bfloat16,
    )
    assert 0 < robust.rho_eff < 0.2
    assert model.embedding.weight.dtype == torch.float32


def test_what_cannot_be_trained_or_attacked_is_refused() -> None:
    x, y = data()
    with pytest.raises(DataError, match=r"a dict \(with tokens, mask\) is no tensor; of inputs, perturb= names"):
        fit(Text(), (x, y), method="erm")
    with pytest.raises(DataError, match="perturb='NAME OF THE LAYER'"):
        fit(nn.Sequential(nn.Embedding(WORDS, 3)), (x["tokens"], y), method="erm")
    with pytest.raises(DataError, match="same number of samples"):
        fit(Text(), (x, y[:-1]), method="erm", perturb="embedding")
    with pytest.raises(DataError, match="same number of samples, and one at least"):
        fit(Text(), ({key: part[:0] for key, part in x.items()}, y[:0]), method="erm", perturb="embedding")
    with pytest.raises(Refused, match="perturb='embeding' names nothing"):
        fit(Text(), (x, y), method="erm", perturb="embeding")
    with pytest.raises(Refused, match="memory needs the data as tensors"):
        fit(Text(), (x, y), method="spgda", radius=1.0, perturb="embedding", memory=1.0)
    with pytest.raises(Refused, match="mask='masc' names no part of x"):
        evaluate(Text(), (x, y), perturb=Perturb("embedding", mask="masc"))
    with pytest.raises(DataError, match="is no tensor"):
        certify(Text(), (x, y), radii=[0.1])
    with pytest.raises(Refused, match="names a key"):
        rhobust.RobustObjective(Text(), cross_entropy, radius=1.0, perturb=[1])  # type: ignore[arg-type]
