"""Strided convolutions, computed as convolutions of stride 1 on blocks of pixels.

A GPU convolves slowly where there are few channels (an image has one) and where a stride leaves holes in the backward
pass. Both go away when a block of b x b pixels is taken for one pixel with b^2 times the channels: a stack whose
strides multiply to b has stride 1 all the way through. The weights stay those of the pixels.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, pixel_unshuffle


class BlockConv2d(nn.Conv2d):
    """A convolution with "same" padding whose result comes in blocks: (B, C b^2, H / b, W / b) for (B, C, H, W).

    b = `block`, in the order of `pixel_unshuffle`, which the next one takes as it is. `blocked` says that the input,
    too, is in blocks, of (b x stride)^2 pixels; else it is cut into them here, and its sides must be multiples of that.

    >>> plain = nn.Conv2d(1, 4, 6, stride=2, padding=2)
    >>> fast = BlockConv2d(1, 4, 6, stride=2, block=2)
    >>> _ = fast.load_state_dict(plain.state_dict())
    >>> x = torch.rand(3, 1, 16, 16)
    >>> torch.allclose(fast(x), pixel_unshuffle(plain(x), 2), atol=1e-6)
    True
    """

    bias: nn.Parameter

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int, *, block: int = 1, blocked: bool = False
    ) -> None:
        if (kernel - stride) % 2:
            raise ValueError(f"a kernel of {kernel} with stride {stride} has no equal padding on both sides")
        self.margin = (kernel - stride) // 2
        super().__init__(channels, out, kernel, stride, self.margin)
        self.block, self.blocked = block, blocked

    def forward(self, x: Tensor) -> Tensor:
        side = self.block * self.stride[0]  # of a block of the input, in pixels
        reach = -(-self.margin // side)  # blocks on either side of its own that the kernel sees
        if not self.blocked:
            x = pixel_unshuffle(x, side)
        bias = self.bias.repeat_interleave(self.block**2)
        return conv2d(_channels_last(x), _channels_last(self._on_blocks(side, reach)), bias, padding=reach)

    def _on_blocks(self, side: int, reach: int) -> Tensor:
        """The kernel once for every place in a block of the result, each where it applies, with zeros around it."""
        window = side * (2 * reach + 1)

        def margins(place: int) -> tuple[int, int]:
            start = reach * side - self.margin + place * self.stride[0]
            return start, window - self.kernel_size[0] - start

        places = range(self.block)
        placed = [pad(self.weight, (*margins(across), *margins(down))) for down in places for across in places]
        return pixel_unshuffle(torch.stack(placed, 1).flatten(0, 1), side)


def on_pixels(model: nn.Module) -> nn.Module:
    """A copy with ordinary convolutions of the same weights: slower, and what the arithmetic is counted by."""
    plain = copy.deepcopy(model)
    for name, layer in list(plain.named_modules()):
        if isinstance(layer, BlockConv2d):
            size = (layer.in_channels, layer.out_channels, layer.kernel_size[0])
            convolution = nn.Conv2d(*size, layer.stride[0], layer.margin).to(layer.weight)
            convolution.load_state_dict(layer.state_dict())
            plain.set_submodule(name, convolution)
    return plain


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
