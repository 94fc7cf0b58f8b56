"""DenseNet-121 for small images: four blocks whose layers each read all the layers before them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from ._activations import activation_layer
from ._laws import with_law
from ._pooling import GLOBAL, HALVING
from ._settings import require_choice, require_image_and_outputs

_GROWTH = 32
_BLOCKS = (6, 12, 24, 16)


def densenet121(
    *,
    channels: int = 1,
    outputs: int = 1,
    image_size: int = 32,
    activation: str = "relu",
    pooling: str = "average",
    law: str = "pytorch",
) -> nn.Module:
    """DenseNet-121 with the stem for small images: a 3×3 convolution of stride 1 and no max-pool.

    | layers | output for a 32×32 image |
    |---|---|
    | convolution 3×3 | 64 × 32 × 32 |
    | 6 dense layers | 256 × 32 × 32 |
    | transition | 128 × 16 × 16 |
    | 12 dense layers | 512 × 16 × 16 |
    | transition | 256 × 8 × 8 |
    | 24 dense layers | 1024 × 8 × 8 |
    | transition | 512 × 4 × 4 |
    | 16 dense layers | 1024 × 4 × 4 |
    | BatchNorm, activation, global average pool | 1024 |
    | linear | outputs |

    A dense layer is x ↦ [x, r(x)], joined along the channels, with r = BatchNorm, activation, convolution 1×1 to 128
    channels, BatchNorm, activation, convolution 3×3 to 32 channels (growth 32, bottleneck 4 times the growth). A
    transition is BatchNorm, activation, convolution 1×1 to half the channels, average pool 2×2. No convolution has a
    bias; by default all layers have PyTorch's law.

    Args:
        channels: Channels of the input image.
        outputs: Number of outputs.
        image_size: Side of the square input image in pixels; at least 8, or 1 without pooling.
        activation: "relu", "gelu", "tanh" or "identity".
        pooling: "average", or "none", which drops the average pools of the three transitions and the global average
            pool. Every block then works at the full image size, and the linear layer reads all 1024 · image_size²
            values.
        law: Law of the initial weights: "pytorch", or "flax" (normal with variance 1/(fan in), zero biases).

    Raises:
        ValueError: If a setting is out of its range.

    >>> sum(p.numel() for p in densenet121().parameters())
    6945921

    Reference:
        Huang et al., Densely connected convolutional networks, CVPR 2017.
        Ortiz-Jiménez et al., Neural anisotropy directions, NeurIPS 2020.
    """
    require_choice("pooling", pooling, GLOBAL, "Pass pooling='average' for the published DenseNet-121.")
    transitions = len(_BLOCKS) - 1
    smallest = 1 if pooling == "none" else 2**transitions
    where = f"for DenseNet-121 with pooling={pooling!r}"
    require_image_and_outputs(channels, outputs, image_size, smallest=smallest, where=where)

    width = 2 * _GROWTH
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Conv2d(channels, width, 3, padding=1, bias=False))
    for block, depth in enumerate(_BLOCKS, start=1):
        layers[f"block{block}"] = nn.Sequential(
            *(_DenseLayer(width + layer * _GROWTH, activation) for layer in range(depth))
        )
        width += depth * _GROWTH
        if block <= transitions:
            layers[f"transition{block}"] = nn.Sequential(
                OrderedDict(
                    norm=nn.BatchNorm2d(width),
                    activation=activation_layer(activation),
                    conv=nn.Conv2d(width, width // 2, 1, bias=False),
                    pool=HALVING[pooling](),
                )
            )
            width //= 2
    layers["norm"] = nn.BatchNorm2d(width)
    layers["activation"] = activation_layer(activation)
    layers["pool"] = GLOBAL[pooling]()
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(width * (image_size**2 if pooling == "none" else 1), outputs)
    return with_law(nn.Sequential(layers), law)


class _DenseLayer(nn.Module):
    """x ↦ [x, r(x)]: new channels, computed from all channels so far, are put behind them."""

    def __init__(self, inward: int, activation: str) -> None:
        super().__init__()
        bottleneck = 4 * _GROWTH
        self.growth = nn.Sequential(
            OrderedDict(
                norm1=nn.BatchNorm2d(inward),
                activation1=activation_layer(activation),
                conv1=nn.Conv2d(inward, bottleneck, 1, bias=False),
                norm2=nn.BatchNorm2d(bottleneck),
                activation2=activation_layer(activation),
                conv2=nn.Conv2d(bottleneck, _GROWTH, 3, padding=1, bias=False),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to a batch of images."""
        return torch.cat((x, self.growth(x)), dim=1)
