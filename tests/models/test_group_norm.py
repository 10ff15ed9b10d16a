"""Models converted to GroupNorm: the same weights, samples apart, and the model itself left as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Size, nn

import rhobust
from rhobust.errors import Refused
from rhobust.models import to_group_norm
from rhobust.models.resnet import resnet


def sequential(model: nn.Module) -> nn.Sequential:
    assert isinstance(model, nn.Sequential)
    return model


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (12, 3), (16, 4), (30, 6), (64, 16), (128, 32), (256, 32), (2048, 32)],
)
def test_the_groups_divide_the_channels_and_have_four_of_them_or_more(channels: int, groups: int) -> None:
    converted = to_group_norm(nn.BatchNorm2d(channels))
    assert isinstance(converted, nn.GroupNorm)
    assert converted.num_groups == groups


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.BatchNorm1d, (5, 8)),
        (nn.BatchNorm1d, (5, 8, 7)),
        (nn.BatchNorm2d, (5, 8, 6, 7)),
        (nn.BatchNorm3d, (5, 8, 2, 3, 4)),
    ],
)
def test_a_converted_layer_is_the_formula_with_the_layer_s_weights(kind: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer: Any = kind(8, eps=0.01).double()
    nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    x = torch.randn(shape, dtype=torch.float64)
    grouped = x.reshape(5, 2, -1)
    unit = (grouped - grouped.mean(2, keepdim=True)) / (grouped.var(2, keepdim=True, correction=0) + 0.01).sqrt()
    by_channel = (8, *[1] * (len(shape) - 2))
    expected = unit.reshape(shape) * layer.weight.reshape(by_channel) + layer.bias.reshape(by_channel)
    torch.testing.assert_close(to_group_norm(layer)(x), expected)


def test_a_converted_model_has_the_weights_and_treats_every_sample_by_itself() -> None:
    torch.manual_seed(0)
    model: Any = resnet(Size([3, 16, 16]), 5)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    model[1].first[1].weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    converted = to_group_norm(model)
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in converted.modules())
    assert [name for name, _ in converted.named_parameters()] == [name for name, _ in model.named_parameters()]
    for one, other in zip(converted.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one is not other
        assert one.requires_grad == other.requires_grad
    x = torch.randn(4, 3, 16, 16)
    for _ in range(2):  # in training mode and in evaluation mode alike
        scores = converted(x)
        torch.testing.assert_close(converted(x[1:2]), scores[1:2])
        converted.eval()
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())


def test_what_a_layer_lacks_its_conversion_lacks_and_a_shared_layer_stays_shared() -> None:
    shared = nn.BatchNorm1d(8, affine=False, track_running_stats=False)
    model = nn.Sequential(shared, nn.Linear(8, 8), shared, nn.LayerNorm(8)).eval()
    converted = sequential(to_group_norm(model))
    assert converted[0] is converted[2]
    assert converted[0].weight is None
    assert not converted[0].training
    assert isinstance(converted[3], nn.LayerNorm)


def test_a_model_without_batch_norm_is_copied_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    converted = to_group_norm(model)
    assert str(converted) == str(model)
    for one, other in zip(converted.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one is not other


def test_a_layer_that_waits_for_its_first_batch_is_refused() -> None:
    with pytest.raises(Refused, match="layers that do not know their sizes yet: run one batch"):
        to_group_norm(nn.Sequential(nn.LazyBatchNorm1d()))


@pytest.mark.parametrize("model", [None, nn.BatchNorm2d, "resnet", torch.ones(2), lambda x: x])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(Refused, match=r"to_group_norm takes a model, an nn\.Module, not "):
        to_group_norm(model)


def test_the_root_knows_the_models() -> None:
    assert rhobust.models.to_group_norm is to_group_norm
