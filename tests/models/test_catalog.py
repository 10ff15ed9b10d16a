"""Models: the sizes the paper implies, for every shape of input."""

import warnings

import pytest
import torch
from torch import Size, nn

from rhobust.errors import ConfigError
from rhobust.models.block_convolution import BlockConv2d, on_pixels
from rhobust.models.catalog import MODELS, build_model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 9, 14)])
def test_one_score_for_each_class_and_none_for_the_company(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = build_model(name, Size(shape), 7).eval()
    x = torch.randn(3, *shape)
    scores = model(x)
    assert scores.shape == (3, 7)
    torch.testing.assert_close(model(x[1:2]), scores[1:2])


@pytest.mark.parametrize(("name", "weights"), [("cnn", 771_658), ("cnn-elu", 771_658), ("cnn-stride1", 1_712_458)])
def test_the_paper_s_network_has_the_weights_that_its_layers_imply(name: str, weights: int) -> None:
    """(64 * 64 + 64) + (128 * 64 * 36 + 128) + (128 * 128 * 25 + 128) + (128 * pixels * 10 + 10)."""
    model = build_model(name, Size([1, 28, 28]), 10)
    assert sum(weight.numel() for weight in model.parameters()) == weights


def test_same_padding_is_torch_s_own_where_torch_has_it() -> None:
    """torch knows padding='same' for stride 1 only."""
    torch.manual_seed(0)
    ours = build_model("cnn-stride1", Size([1, 28, 28]), 10)
    padded, convolution, *_ = ours.children()
    assert isinstance(padded, nn.ZeroPad2d)
    assert isinstance(convolution, nn.Conv2d)
    theirs = nn.Conv2d(1, 64, 8, padding="same")
    theirs.load_state_dict(convolution.state_dict())
    x = torch.randn(2, 1, 28, 28)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch remarks that an even kernel needs a copy
        torch.testing.assert_close(convolution(padded(x)), theirs(x))


@pytest.mark.parametrize("name", ["cnn", "resnet"])
def test_a_network_for_images_refuses_anything_else(name: str) -> None:
    with pytest.raises(ConfigError, match=r"needs images .* not samples of shape \(64,\)"):
        build_model(name, Size([64]), 10)


@pytest.mark.parametrize("name", ["cnn", "cnn-elu"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 12, 20), (1, 8, 8)])
def test_a_network_on_blocks_is_the_network_on_pixels(name: str, shape: tuple[int, ...]) -> None:
    """Its classes, and its gradients in the image and in every weight."""
    torch.manual_seed(0)
    fast = build_model(name, Size(shape), 7).double()
    plain = on_pixels(fast)
    assert any(isinstance(layer, BlockConv2d) for layer in fast.modules())
    assert not any(isinstance(layer, BlockConv2d) for layer in plain.modules())
    assert list(plain.state_dict()) == list(fast.state_dict())
    x = torch.randn(3, *shape, dtype=torch.float64)
    found = []
    for model in (fast, plain):
        inputs = x.clone().requires_grad_()
        scores = model(inputs)
        (scores * torch.arange(7)).sum().backward()
        found.append([scores, inputs.grad, *(weight.grad for weight in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_only_whole_blocks_are_taken_for_pixels() -> None:
    model = build_model("cnn", Size([1, 27, 28]), 7)
    assert not any(isinstance(layer, BlockConv2d) for layer in model.modules())


def test_blocks_refuse_a_kernel_that_cannot_be_padded_equally() -> None:
    with pytest.raises(ValueError, match="a kernel of 5 with stride 2 has no equal padding"):
        BlockConv2d(1, 4, 5, 2)
