"""EfficientNet-Lite: inverted residual blocks without squeeze-and-excitation, ReLU6; features are the pooled last layer."""

# n images · c channels · h, w pixels

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 1280
# repeats, kernel, stride of the first, expansion, channels in, channels out
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
# Of the second moment that a residual branch adds, at random weights: nine of them in sequence then stay below ReLU6's bound.
_RESIDUAL_GAIN = 0.5


@dataclass(frozen=True)
class _Shape:
    kernel: int
    stride: int
    expansion: int
    inputs: int
    outputs: int


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 without its last linear layer: images ``(n, 3, h, w)`` to features ``(n, 1280)``.

    | layers | output for a 224×224 image |
    |---|---|
    | convolution 3×3, stride 2 | 32 × 112 × 112 |
    | 16 blocks: 1×1 to more channels, 3×3 or 5×5 in each channel, 1×1 back | 320 × 7 × 7 |
    | convolution 1×1 | 1280 × 7 × 7 |
    | mean over pixels | 1280 |

    Every convolution is followed by BatchNorm and, but for the last of a block, ReLU6. Padding is "same" as TensorFlow has it:
    where a stride of 2 leaves an odd number of pixels to pad, the one more is at the right and at the bottom. Names are
    those of the package that publishes the weights. Random weights follow He's law, var = 2/fan-in before ReLU6 and 1/fan-in
    (a half of it in residual branches) otherwise: with BatchNorm at its initial statistics, PyTorch's default law would let
    the signal vanish.

    Example:
        >>> sum(p.numel() for p in efficientnet_lite0().parameters())  # 4,652,008 with the classifier of 1,000
        3371008

    Reference:
        Tan & Le, EfficientNet: rethinking model scaling for convolutional neural networks, ICML 2019; Lite0 of its released code.
    """
    return _EfficientNet(width=1.0, depth=1.0)


def efficientnet_lite2() -> nn.Module:
    """EfficientNet-Lite2 without its last linear layer: like Lite0, with 1.1 times the channels and 1.2 times the blocks.

    Channels are multiples of 8. The first and the last layer have those of Lite0, and the first and the last stage its one block.

    Example:
        >>> sum(p.numel() for p in efficientnet_lite2().parameters())  # 6,092,072 with the classifier of 1,000
        4811072

    Reference:
        As for :func:`efficientnet_lite0`; Lite2 of its released code.
    """
    return _EfficientNet(width=1.1, depth=1.2)


def _stages(width: float, depth: float) -> list[tuple[int, int, int, int, int, int]]:
    """:data:`STAGES` of a network with more channels and blocks."""
    scaled = []
    for place, (repeats, kernel, stride, expansion, inputs, outputs) in enumerate(STAGES):
        at_an_end = place in (0, len(STAGES) - 1)
        before = inputs if place == 0 else _channels(inputs, width)
        more = repeats if at_an_end else ceil(repeats * depth)
        scaled.append((more, kernel, stride, expansion, before, _channels(outputs, width)))
    return scaled


def _channels(count: int, width: float) -> int:
    """Channels times a width, rounded to a multiple of 8 that is not below nine tenths of it."""
    wanted = count * width
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


class _EfficientNet(nn.Module):
    def __init__(self, *, width: float, depth: float) -> None:
        super().__init__()
        stages = _stages(width, depth)
        shapes = [
            _Shape(kernel, stride if first else 1, expansion, inputs if first else outputs, outputs)
            for repeats, kernel, stride, expansion, inputs, outputs in stages
            for first in (True, *[False] * (repeats - 1))
        ]
        self._conv_stem = _convolution(3, 32, 3, 2, gain=2)
        self._bn0 = _norm(32)
        self._blocks = nn.ModuleList([_Block(shape) for shape in shapes])
        self._conv_head = _convolution(stages[-1][-1], FEATURES, 1, 1, gain=2)
        self._bn1 = _norm(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(n, 1280)``."""
        x = F.relu6(self._bn0(self._conv_stem(_same(x, 3, 2))))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean((-2, -1))


class _Block(nn.Module):
    """More channels, a convolution in each, fewer channels; added to the input where the shapes allow it."""

    def __init__(self, shape: _Shape) -> None:
        super().__init__()
        self._shape = shape
        inside = shape.inputs * shape.expansion
        if shape.expansion != 1:
            self._expand_conv = _convolution(shape.inputs, inside, 1, 1, gain=2)
            self._bn0 = _norm(inside)
        self._depthwise_conv = _convolution(inside, inside, shape.kernel, shape.stride, gain=2, groups=inside)
        self._bn1 = _norm(inside)
        self._residual = shape.stride == 1 and shape.inputs == shape.outputs
        self._project_conv = _convolution(inside, shape.outputs, 1, 1, gain=_RESIDUAL_GAIN if self._residual else 1)
        self._bn2 = _norm(shape.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        inside = x
        if self._shape.expansion != 1:
            inside = F.relu6(self._bn0(self._expand_conv(x)))
        inside = self._depthwise_conv(_same(inside, self._shape.kernel, self._shape.stride))
        out: Tensor = self._bn2(self._project_conv(F.relu6(self._bn1(inside))))
        return x + out if self._residual else out


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, *, gain: float, groups: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    nn.init.normal_(layer.weight, std=sqrt(gain / (inputs // groups * kernel**2)))
    return layer


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """The image with as many zeros around it as make the convolution's output ⌈side/stride⌉ wide."""
    height, width = (max(0, (-(-side // stride) - 1) * stride + kernel - side) for side in x.shape[-2:])
    return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
