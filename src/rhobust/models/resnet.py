"""A small residual network with BatchNorm, in the style of those for CIFAR (He et al., 2016)."""

from __future__ import annotations

from torch import Size, Tensor, nn
from torch.nn.functional import relu

_WIDTHS = (16, 32, 64)


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm, added to the input or to its projection."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out))
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(x))) + self.shortcut(x))


def resnet(shape: Size, classes: int) -> nn.Module:
    """A convolution, three blocks with 16, 32 and 64 channels, the mean over pixels, and a linear layer: ResNet-8.

    >>> sum(weight.numel() for weight in resnet(Size([3, 32, 32]), 10).parameters())
    78042
    """
    stem = nn.Sequential(nn.Conv2d(shape[0], _WIDTHS[0], 3, 1, 1, bias=False), nn.BatchNorm2d(_WIDTHS[0]), nn.ReLU())
    blocks = [
        ResidualBlock(channels, out, stride)
        for channels, out, stride in zip((_WIDTHS[0], *_WIDTHS), _WIDTHS, (1, 2, 2), strict=False)
    ]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_WIDTHS[-1], classes))
