"""Inputs of which a part moves, against the same problem with one tensor, and what is refused."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rhobust import Perturb, ProximalOptimizer, RobustObjective, evaluate
from rhobust.ascent import Ball, ErrorAscent, Identity, Maximizer, Oracle, PenalizedAscent
from rhobust.costs import SquaredL2, SquaredLinf
from rhobust.errors import DataError, Refused, RhobustError
from rhobust.inputs import bound, called, mask_of
from rhobust.losses import cross_entropy

WORDS, LENGTH, WIDTH, CLASSES = 20, 5, 4, 3
MAXIMIZERS: dict[str, Maximizer] = {
    "erm": Identity(),
    "pgd": Ball(0.3, steps=3, random_start=True),
    "pgd-l2": Ball(0.3, 2, steps=3, random_start=True),
    "wrm": PenalizedAscent(steps=3),
    "spgd": Oracle(max_steps=4),
    "spgda": ErrorAscent(steps=2),
}


class Tail(nn.Module):
    """Class scores from embeddings and a mask: the mean of what is not padding, and a tanh layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        some = mask[..., None].to(embedded)
        mean = (embedded * some).sum(1) / some.sum(1).clamp_min(1)
        return self.out(self.hidden(mean).tanh())


class Text(nn.Module):
    """The same from token numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.tail = nn.Embedding(WORDS, WIDTH), Tail()

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.tail(self.embedding(tokens), mask)


class OfEmbeddings(nn.Module):
    """The tail with the mask of these samples fixed: a model of one tensor, which needs no `perturb`."""

    def __init__(self, tail: Tail, mask: Tensor) -> None:
        super().__init__()
        self.tail, self.mask = tail, mask

    def forward(self, embedded: Tensor) -> Tensor:
        return self.tail(embedded, self.mask)


def problem(seed: int = 0, count: int = 7) -> tuple[Text, dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Text().double()
    tokens = torch.randint(1, WORDS, (count, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (count,), generator=generator)
    mask = torch.arange(LENGTH)[None] < lengths[:, None]
    return model, {"tokens": tokens * mask, "mask": mask}, torch.randint(CLASSES, (count,), generator=generator)


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: theta.grad.clone() for name, theta in model.named_parameters() if theta.grad is not None}


@pytest.mark.parametrize(
    ("name", "cost"),
    [(name, cost) for name in MAXIMIZERS for cost in (SquaredL2(), SquaredLinf())]
    + [(name, SquaredL2(kappa=0.5)) for name in ("wrm", "spgd", "spgda")],
)
def test_the_output_of_a_submodule_moves_as_a_tensor_would(name: str, cost: Any) -> None:
    model, x, y = problem()
    settings_: dict[str, Any] = {
        "radius": 0.3,
        "cost": cost,
        "maximizer": MAXIMIZERS[name],
        "noise": 0.1,
        "bounds": (-5.0, 5.0),
    }
    torch.manual_seed(3)
    found = RobustObjective(model, cross_entropy, perturb="embedding", **settings_)(x, y)
    found.value.backward()
    through, of_embedding = grads(model.tail), model.embedding.weight.grad
    model.zero_grad()

    # Literally: the embeddings are a tensor of their own, and the move that is found for it stays fixed.
    z = model.embedding(x["tokens"])
    torch.manual_seed(3)
    mask = x["mask"]
    alone: nn.Module = OfEmbeddings(model.tail, mask)
    if cost.kappa < 1:  # every label is tried at once
        alone = _Repeated(model.tail, mask)
    other = RobustObjective(alone, cross_entropy, **settings_)(z.detach(), y)
    assert torch.equal(found.zeta, other.zeta)
    assert torch.equal(found.cost, other.cost)
    assert torch.equal(found.labels, other.labels)
    loss = cross_entropy(model.tail(z + (other.zeta - z).detach(), mask), other.labels).mean()
    loss.backward()
    for key, gradient in grads(model.tail).items():
        torch.testing.assert_close(through[key], gradient)
    assert of_embedding is not None
    torch.testing.assert_close(of_embedding, model.embedding.weight.grad)
    assert of_embedding.abs().sum() > 0


class _Repeated(OfEmbeddings):
    def forward(self, embedded: Tensor) -> Tensor:
        return self.tail(embedded, self.mask.repeat_interleave(len(embedded) // len(self.mask), 0))


@pytest.mark.parametrize("name", MAXIMIZERS)
@pytest.mark.parametrize("form", ["dict", "tuple", "negative"])
def test_a_key_or_an_index_moves_and_the_rest_stays(name: str, form: str) -> None:
    model, tokens, y = problem(1)
    z, mask = model.embedding(tokens["tokens"]).detach(), tokens["mask"]
    x: Any = {"embedded": z, "mask": mask} if form == "dict" else (z, mask)
    what: Any = {"dict": "embedded", "tuple": 0, "negative": -2}[form]
    torch.manual_seed(0)
    found = RobustObjective(model.tail, cross_entropy, radius=0.3, maximizer=MAXIMIZERS[name], perturb=what)(x, y)
    torch.manual_seed(0)
    alone = OfEmbeddings(model.tail, mask)
    other = RobustObjective(alone, cross_entropy, radius=0.3, maximizer=MAXIMIZERS[name])(z, y)
    assert torch.equal(found.zeta, other.zeta)
    assert float(found.value.detach()) == float(other.value.detach())


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(sorted(MAXIMIZERS)), seed=st.integers(0, 99), noise=st.sampled_from([0.0, 0.2]))
def test_padding_neither_moves_nor_costs(name: str, seed: int, noise: float) -> None:
    model, x, y = problem(seed)

    def solved(x: dict[str, Tensor]) -> Any:
        perturb = Perturb("embedding", mask="mask")
        return RobustObjective(
            model, cross_entropy, radius=0.3, maximizer=MAXIMIZERS[name], noise=noise, perturb=perturb
        )(x, y)

    torch.manual_seed(0)
    found = solved(x)
    away = (found.zeta - model.embedding(x["tokens"])).detach()
    assert (away[~x["mask"]] == 0).all()
    if MAXIMIZERS[name].random_start or noise:
        return  # draws depend on the shape
    longer = {key: torch.cat([part, torch.zeros_like(part[:, :3])], 1) for key, part in x.items()}
    again = solved(longer)
    torch.testing.assert_close(again.zeta[:, :LENGTH], found.zeta)
    torch.testing.assert_close(again.cost, found.cost)
    torch.testing.assert_close(again.value, found.value)


def test_positions_that_the_model_reads_stay_where_a_mask_says_so() -> None:
    # Without a mask of its own the model reads everything: only the mask of `perturb` keeps positions where they are.
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    z, y = torch.randn(5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), torch.ones(5).long()
    moves = torch.tensor([1, 0, 1, 0])
    objective = RobustObjective(
        model,
        cross_entropy,
        radius=1.0,
        maximizer=PenalizedAscent(),
        perturb=Perturb(0, mask=lambda x: moves.expand(5, 4)),
    )
    found = objective((z,), y)
    away = (found.zeta - z).abs().amax((0, 2))
    assert (away > 0).tolist() == [True, False, True, False]
    g = objective.problem((z,), y).at(z).slope  # one step is g / (2 gamma), gamma 1
    torch.testing.assert_close(found.zeta - z, g / 2)


def test_a_gradient_of_x_is_honoured_at_a_fixed_displacement() -> None:
    encoder, head = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
    raw, y = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
    objective = RobustObjective(head, cross_entropy, radius=0.2, maximizer=PenalizedAscent(steps=2), noise=0.1)
    torch.manual_seed(5)
    found = objective(encoder(raw), y)
    found.value.backward()
    assert encoder.weight.grad is not None
    trained = encoder.weight.grad.clone()
    encoder.zero_grad()
    x = encoder(raw)
    cross_entropy(head(x + (found.zeta - x).detach()), y).mean().backward()
    torch.testing.assert_close(trained, encoder.weight.grad)
    assert not found.center.requires_grad


def test_a_model_is_called_as_it_takes_its_inputs() -> None:
    class Keywords(nn.Module):
        def forward(self, a: Tensor, b: Tensor | None = None) -> str:
            return "keywords" if isinstance(a, Tensor) else "whole"

    class Whole(nn.Module):
        def forward(self, inputs: Any) -> str:
            return type(inputs).__name__

    class Everything(nn.Module):
        def forward(self, **kwargs: Tensor) -> str:
            return ",".join(kwargs)

    a, b = torch.zeros(2), torch.ones(2)
    assert called(Keywords(), {"a": a, "b": b}) == called(Keywords(), (a, b)) == "keywords"
    assert called(Everything(), {"a": a, "b": b}) == "a,b"
    assert called(Whole(), {"a": a, "b": b}) == "dict"
    assert called(Whole(), (a, b)) == "tuple"
    assert called(nn.DataParallel(Whole()), {"a": a, "b": b}) == "dict"


def test_several_outputs_are_for_the_loss_to_read() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"scores": self.head(x), "other": x}

    model = Two()
    x, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    for maximizer in (Identity(), Oracle(), ErrorAscent()):
        plain = RobustObjective(copy.deepcopy(model).head, cross_entropy, radius=0.1, maximizer=maximizer)
        two = RobustObjective(model, lambda out, y: cross_entropy(out["scores"], y), radius=0.1, maximizer=maximizer)
        assert torch.equal(two(x, y).zeta, plain(x, y).zeta)
    with pytest.raises(Refused, match="returned a dict, and cross-entropy wants one tensor"):
        RobustObjective(model, cross_entropy, radius=0.1)(x, y)
    with pytest.raises(Refused, match="returned a dict, which the loss cannot read"):
        RobustObjective(model, lambda out, y: out["score"].sum(1), radius=0.1)(x, y)


def test_a_training_by_hand_moves_the_embedding() -> None:
    model, x, y = problem(2, 40)
    before = model.embedding.weight.detach().clone()
    objective = RobustObjective(model, cross_entropy, radius=0.05, perturb=Perturb("embedding", mask="mask"))
    optimizer = ProximalOptimizer(torch.optim.Adam(model.parameters(), lr=0.02), objective)
    losses = []
    for _ in range(90):
        optimizer.zero_grad()
        surrogate = objective(x, y)
        surrogate.value.backward()
        optimizer.step()
        losses.append(float(surrogate.loss.mean()))
    assert losses[-1] < losses[0] / 2
    assert surrogate.rho_eff == pytest.approx(0.05, rel=0.3)
    used = x["tokens"][x["mask"]].unique()
    assert (model.embedding.weight - before)[used].abs().amax(1).gt(0).all()


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused, self.lstm = nn.Linear(3, 3), nn.Linear(3, 3), nn.LSTM(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x)) + self.lstm(x)[0]


X, Y = torch.zeros(4, 3), torch.zeros(4).long()
BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "nothing of that name": (
        lambda: bound(Text(), problem()[1], "embeding"),
        Refused,
        r"perturb='embeding' names nothing: x is a dict with the keys tokens, mask, and the model's submodules are emb",
    ),
    "an index too far": (lambda: bound(Tail(), (X, X), 2), Refused, "perturb=2 names nothing: x is a tuple of 2"),
    "an index of one tensor": (lambda: bound(nn.Linear(3, 1), X, 0), Refused, "x is one tensor, and .* are none"),
    "tokens": (lambda: bound(Text(), problem()[1], "tokens"), DataError, "values of torch.int64, which cannot move"),
    "unnamed": (lambda: bound(Tail(), {"a": X}, None), DataError, "name the part that does with perturb="),
    "unnamed tuple": (lambda: RobustObjective(Tail(), cross_entropy, radius=1)((X, X), Y), DataError, "a tuple of 2"),
    "lengths": (lambda: bound(Tail(), (X, X[:2]), 0), DataError, r"different numbers of samples: \{0: 4, 1: 2\}"),
    "no tensor": (
        lambda: bound(Tail(), cast(Any, {"a": X, "b": [1]}), "a"),
        DataError,
        "part 'b' of x must be a tensor .* list",
    ),
    "no dimension": (lambda: bound(Tail(), (X, torch.tensor(1)), 0), DataError, "part 1 .* without dimensions"),
    "empty": (lambda: bound(Tail(), {}, "a"), DataError, r"not a dict with the keys \(none\)"),
    "a string": (lambda: bound(Tail(), "text", "a"), DataError, "not of type str"),  # type: ignore[arg-type]
    "what": (lambda: Perturb(1.5), Refused, "names a key, an index or a submodule, not 1.5"),  # type: ignore[arg-type]
    "true": (lambda: Perturb(True), Refused, "not True"),
    "a mask of a kind": (lambda: Perturb("a", mask=2.5), Refused, "a mask is a key"),  # type: ignore[arg-type]
    "no such mask": (
        lambda: bound(Text(), problem()[1], Perturb("embedding", mask="masc")),
        Refused,
        "mask='masc' names no part of x, which is a dict with the keys tokens, mask",
    ),
    "shape of the mask": (
        lambda: bound(Text(), problem()[1], Perturb("embedding", mask=lambda x: x["mask"][:, :2])),
        Refused,
        r"the mask has shape \(7, 2\) for what moves, \(7, 5, 4\): .* such as \(7, 5\)",
    ),
    "values of the mask": (
        lambda: bound(Text(), problem()[1], Perturb("embedding", mask=lambda x: 2 * x["mask"])),
        Refused,
        "a mask holds True and False",
    ),
    "kind of the mask": (
        lambda: bound(Text(), problem()[1], Perturb("embedding", mask=lambda x: [1])),  # type: ignore[arg-type,return-value]
        Refused,
        "must be a tensor, not list",
    ),
    "called twice": (
        lambda: RobustObjective(_Twice(), cross_entropy, radius=1.0, perturb="layer")(X, Y),
        Refused,
        "submodule 'layer' was called 2 times in one pass",
    ),
    "never called": (lambda: bound(_Twice(), X, "unused"), Refused, "was called 0 times"),
    "several outputs": (lambda: bound(_Twice(), X, "lstm"), Refused, "must be one tensor to move, not tuple"),
    "not finite": (
        lambda: RobustObjective(Tail(), cross_entropy, radius=1.0, perturb=0)((X + torch.nan, X), Y),
        DataError,
        "x holds NaN",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_meant_is_refused_in_one_clear_error(case: str) -> None:
    work, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        work()


def test_a_refused_pass_leaves_no_hook() -> None:
    model = _Twice()
    with pytest.raises(Refused):
        RobustObjective(model, cross_entropy, radius=1.0, perturb="layer")(X, Y)
    assert not model.layer._forward_hooks


def test_one_dimension_of_a_mask_is_for_whole_samples() -> None:
    chosen = torch.tensor([True, False, True, False])
    function, _ = bound(Tail(), (torch.zeros(4, 5, 4), torch.ones(4, 5)), Perturb(0, mask=lambda x: chosen))
    mask = mask_of(function)
    assert mask is not None
    assert mask.shape == (4, 5, 4)
    assert mask.flatten(1).all(1).tolist() == chosen.tolist()


PARTS: list[Any] = [
    torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),
    torch.zeros(4, 3, 2),
    torch.zeros(4).long(),
    torch.ones(4, 3).bool(),
    torch.zeros(3, 3),
    torch.zeros(0, 3),
    torch.full((4, 3), torch.nan),
    torch.tensor(1.0),
    None,
    "text",
    [1.0, 2.0],
    {"nested": torch.zeros(4, 3)},
]
NAMES: list[Any] = [None, "a", "b", "layer", "layer.0", "unused", 0, 1, -1, 7, "", True, 1.5, Perturb("a", mask="b")]
MASKS: list[Any] = [None, "b", 1, "c", lambda x: x, lambda x: torch.ones(4).bool(), lambda x: torch.ones(4, 3) / 2]


class Sums(nn.Module):
    """Takes anything: the sum of the tensors that it is given, through a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Sequential(nn.Linear(3, 2)), nn.Linear(3, 2)

    def forward(self, a: Any, b: Any = None) -> Tensor:
        scores: Tensor = self.layer(a.float().reshape(len(a), -1)[:, :3])
        return scores if b is None else scores + b.float().reshape(len(b), -1).sum(1, keepdim=True)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_given_trains_or_is_refused_in_one_error(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.sampled_from(range(len(PARTS))), max_size=3).map(lambda at: [PARTS[i] for i in at]))
    form = data.draw(st.sampled_from(["tensor", "dict", "tuple", "list"]))
    x: Any = dict(zip("abc", parts, strict=False)) if form == "dict" else list(parts)
    x = tuple(x) if form == "tuple" else (parts or [None])[0] if form == "tensor" else x
    what, mask = data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(MASKS))
    problem: Exception | None = None
    try:
        perturb = what if mask is None or what is None or isinstance(what, Perturb) else Perturb(what, mask=mask)
        objective = RobustObjective(Sums(), cross_entropy, radius=0.1, maximizer=PenalizedAscent(), perturb=perturb)
        assert objective(x, torch.zeros(4).long()).value.isfinite()
    except Exception as caught:
        problem = caught
    if not isinstance(problem, RhobustError | None):  # the model's own word on what it is given
        frames = traceback.extract_tb(problem.__traceback__)
        assert any(frame.name == "forward" and frame.filename == __file__ for frame in frames), problem
    assert problem is None or 10 < len(str(problem)) < 400


class InPlace(nn.Module):
    """Changes what it is given, as a first layer nn.ReLU(inplace=True) does, and adds positions to embeddings."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.layer, self.out, self.copies = nn.Linear(3, 3), nn.Linear(3, 2), copies

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone() if self.copies else x
        hidden = self.layer(x.relu_())
        hidden = hidden + 0.1 if self.copies else hidden.add_(0.1)
        scores: Tensor = self.out(hidden.relu())
        return scores


@pytest.mark.parametrize("what", [None, "layer", 0])
@pytest.mark.parametrize("name", MAXIMIZERS)
def test_a_model_that_works_in_place_gives_what_a_copying_one_does(name: str, what: Any) -> None:
    torch.manual_seed(0)
    one, other = InPlace(copies=False), InPlace(copies=True)
    other.load_state_dict(one.state_dict())
    z = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    before, y, found = z.clone(), torch.arange(8) % 2, []
    for model in (one, other):
        torch.manual_seed(2)
        objective = RobustObjective(model, cross_entropy, radius=0.1, maximizer=MAXIMIZERS[name], perturb=what)
        surrogate = objective((z,) if what == 0 else z, y)
        surrogate.value.backward()
        found.append(surrogate)
        if what != "layer":
            assert torch.equal(z, before)
    assert torch.equal(found[0].zeta, found[1].zeta)
    for name_, gradient in grads(one).items():
        torch.testing.assert_close(gradient, grads(other)[name_])
    moves = what if what == "layer" else None
    for attack_name in ("cascade", "pgd", "pgd-t", "square"):
        asked: dict[str, Any] = {"perturb": moves, "attacks": [attack_name], "epsilons": [0.0, 0.3], "checks": False}
        errors = [evaluate(model, (before.clone(), y), **asked).attacked for model in (one, other)]
        assert errors[0] == errors[1]
