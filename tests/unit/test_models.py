"""Models: the sizes the paper implies, for every shape of input."""

import warnings

import pytest
import torch
from torch import Size, nn

from rhobust.errors import ConfigError
from rhobust.models import MODELS, build_model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 9, 14)])
def test_one_score_for_each_class_and_none_for_the_company(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = build_model(name, Size(shape), 7)
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
    padded, convolution = ours[0], ours[1]
    assert isinstance(padded, nn.ZeroPad2d)
    assert isinstance(convolution, nn.Conv2d)
    theirs = nn.Conv2d(1, 64, 8, padding="same")
    theirs.load_state_dict(convolution.state_dict())
    x = torch.randn(2, 1, 28, 28)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch remarks that an even kernel needs a copy
        torch.testing.assert_close(convolution(padded(x)), theirs(x))


def test_a_network_for_images_refuses_anything_else() -> None:
    with pytest.raises(ConfigError, match=r"needs images .* not samples of shape \(64,\)"):
        build_model("cnn", Size([64]), 10)
