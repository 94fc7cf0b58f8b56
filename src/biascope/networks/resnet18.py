"""ResNet-18 for small images: a 3×3 stem, eight residual blocks and a global average pool."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from ._activations import activation_layer
from ._laws import with_law
from ._pooling import GLOBAL
from ._settings import require_choice, require_image_and_outputs

_WIDTHS = (64, 128, 256, 512)


def resnet18(
    *,
    channels: int = 1,
    outputs: int = 1,
    image_size: int = 32,
    activation: str = "relu",
    pooling: str = "average",
    batchnorm: bool = True,
    zero_residual: bool = False,
    law: str = "pytorch",
) -> nn.Module:
    """ResNet-18 with the stem for small images: a 3×3 convolution of stride 1 and no max-pool.

    | layers | output for a 32×32 image |
    |---|---|
    | convolution 3×3, BatchNorm, activation | 64 × 32 × 32 |
    | 2 residual blocks | 64 × 32 × 32 |
    | 2 residual blocks, the first of stride 2 | 128 × 16 × 16 |
    | 2 residual blocks, the first of stride 2 | 256 × 8 × 8 |
    | 2 residual blocks, the first of stride 2 | 512 × 4 × 4 |
    | global average pool | 512 |
    | linear | outputs |

    A residual block is x ↦ φ(r(x) + s(x)) with r = convolution 3×3, BatchNorm, φ, convolution 3×3, BatchNorm. The
    shortcut s is a 1×1 convolution and BatchNorm where the shape changes, else the identity. No convolution has a bias;
    by default all layers have PyTorch's law.

    Args:
        channels: Channels of the input image.
        outputs: Number of outputs.
        image_size: Side of the square input image in pixels; any size works.
        activation: φ: "relu", "gelu", "tanh" or "identity".
        pooling: "average", or "none", which drops the global average pool: the linear layer then reads all
            512 · ⌈image_size/8⌉² values. The strides of the convolutions stay.
        batchnorm: Whether BatchNorm follows each convolution. Without it the convolutions still have no bias (the
            papers do not say), so that with ReLU the network is positively homogeneous but for the bias of the head.
        zero_residual: Whether the last BatchNorm of each residual branch r starts with scale 0, so that a block starts as
            φ(s(x)), as in the code of the 2021 paper on linearised networks.
        law: Law of the initial weights: "pytorch", or "flax" (normal with variance 1/(fan in), zero biases).

    Raises:
        ValueError: If a setting is out of its range.

    >>> sum(p.numel() for p in resnet18().parameters())
    11168193
    >>> bool(resnet18(zero_residual=True).get_parameter("stage1.0.residual.norm2.weight").any())
    False

    Reference:
        He et al., Deep residual learning for image recognition, CVPR 2016.
        Ortiz-Jiménez et al., Neural anisotropy directions, NeurIPS 2020.
        Ortiz-Jiménez et al., What can linearized neural networks actually say about generalization?, NeurIPS 2021.
    """
    require_choice("pooling", pooling, GLOBAL, "Pass pooling='average' for the published ResNet-18.")
    require_image_and_outputs(channels, outputs, image_size)
    if zero_residual and not batchnorm:
        raise ValueError(
            "zero_residual must be False without BatchNorm, whose scale it sets to 0, got True. "
            "Pass batchnorm=True or zero_residual=False."
        )

    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=_convolution(channels, _WIDTHS[0], 3, 1),
        norm=_norm(_WIDTHS[0], batchnorm),
        activation=activation_layer(activation),
    )
    inward, side = _WIDTHS[0], image_size
    for stage, width in enumerate(_WIDTHS, start=1):
        stride = 1 if stage == 1 else 2
        blocks = [
            _ResidualBlock(inward, width, stride, activation, batchnorm),
            _ResidualBlock(width, width, 1, activation, batchnorm),
        ]
        if zero_residual:
            for block in blocks:
                nn.init.zeros_(block.get_parameter("residual.norm2.weight"))
        layers[f"stage{stage}"] = nn.Sequential(*blocks)
        inward, side = width, -(-side // stride)  # a padded convolution of stride 2 halves the side, rounding up
    layers["pool"] = GLOBAL[pooling]()
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(inward * (side**2 if pooling == "none" else 1), outputs)
    return with_law(nn.Sequential(layers), law)


class _ResidualBlock(nn.Module):
    """x ↦ φ(r(x) + s(x)): two 3×3 convolutions r and a shortcut s."""

    def __init__(self, inward: int, outward: int, stride: int, activation: str, batchnorm: bool) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            OrderedDict(
                conv1=_convolution(inward, outward, 3, stride),
                norm1=_norm(outward, batchnorm),
                activation=activation_layer(activation),
                conv2=_convolution(outward, outward, 3, 1),
                norm2=_norm(outward, batchnorm),
            )
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inward != outward:
            conv, norm = _convolution(inward, outward, 1, stride), _norm(outward, batchnorm)
            self.shortcut = nn.Sequential(OrderedDict(conv=conv, norm=norm))
        self.activation = activation_layer(activation)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to a batch of images."""
        out: Tensor = self.activation(self.residual(x) + self.shortcut(x))
        return out


def _convolution(inward: int, outward: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution without bias, padded so that stride 1 keeps the side."""
    return nn.Conv2d(inward, outward, kernel, stride=stride, padding=kernel // 2, bias=False)


def _norm(width: int, batchnorm: bool) -> nn.Module:
    """BatchNorm, or the identity in its place, so that weights have the same names with and without it."""
    return nn.BatchNorm2d(width) if batchnorm else nn.Identity()
