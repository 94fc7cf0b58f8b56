"""VGG11: eight 3×3 convolutions with five poolings, then three fully connected layers."""

from __future__ import annotations

from collections import OrderedDict
from math import sqrt

from torch import nn

from ._activations import activation_layer
from ._pooling import HALVING
from ._settings import require_choice, require_image_and_outputs

# The widths of the convolutions between one pooling and the next (configuration A of the VGG paper).
_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(
    *,
    channels: int = 1,
    outputs: int = 1,
    image_size: int = 32,
    activation: str = "relu",
    pooling: str = "max",
    batchnorm: bool = True,
) -> nn.Module:
    """VGG11 for small images.

    | layers | output for a 32×32 image |
    |---|---|
    | convolution 3×3, pooling | 64 × 16 × 16 |
    | convolution 3×3, pooling | 128 × 8 × 8 |
    | 2 convolutions 3×3, pooling | 256 × 4 × 4 |
    | 2 convolutions 3×3, pooling | 512 × 2 × 2 |
    | 2 convolutions 3×3, pooling | 512 × 1 × 1 |
    | linear, activation, dropout | 512 |
    | linear, activation, dropout | 512 |
    | linear | outputs |

    Each convolution keeps the side (padding 1), has a bias, and is followed by BatchNorm (if any) and the activation.
    Convolution weights are N(0, 2/(k²·out)) with k = 3 and out the number of filters, and their biases zero; the linear
    layers have PyTorch's default law. Dropout drops half of its inputs, in training mode only. It follows the activation, as
    in the released code of the second reference.

    Args:
        channels: Channels of the input image.
        outputs: Number of outputs.
        image_size: Side of the square input image in pixels; at least 32, or 1 without pooling.
        activation: "relu", "gelu", "tanh" or "identity".
        pooling: "max", "average", or "none", which drops all five poolings. The first linear layer then reads all
            512 · image_size² values, which for a 32×32 image makes it 268 million parameters.
        batchnorm: Whether BatchNorm follows each convolution. The convolutions have a bias either way.

    Raises:
        ValueError: If a setting is out of its range.

    >>> sum(p.numel() for p in vgg11().parameters())
    9750657

    Reference:
        Simonyan and Zisserman, Very deep convolutional networks for large-scale image recognition, ICLR 2015.
        Ortiz-Jiménez et al., Neural anisotropy directions, NeurIPS 2020.
    """
    require_choice("pooling", pooling, HALVING, "Pass pooling='max' for the published VGG11.")
    smallest = 1 if pooling == "none" else 2 ** len(_STAGES)
    where = f"for VGG11 with pooling={pooling!r}"
    require_image_and_outputs(channels, outputs, image_size, smallest=smallest, where=where)

    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inward, number = channels, 0
    for stage, widths in enumerate(_STAGES, start=1):
        for width in widths:
            number += 1
            layers[f"conv{number}"] = _convolution(inward, width)
            layers[f"norm{number}"] = nn.BatchNorm2d(width) if batchnorm else nn.Identity()
            layers[f"activation{number}"] = activation_layer(activation)
            inward = width
        layers[f"pool{stage}"] = HALVING[pooling]()
    layers["flatten"] = nn.Flatten()
    inward *= (image_size if pooling == "none" else image_size // 2 ** len(_STAGES)) ** 2
    for number in (9, 10):  # counted on from the eight convolutions
        layers[f"linear{number}"] = nn.Linear(inward, 512)
        layers[f"activation{number}"] = activation_layer(activation)
        layers[f"dropout{number}"] = nn.Dropout()
        inward = 512
    layers["head"] = nn.Linear(inward, outputs)
    return nn.Sequential(layers)


def _convolution(inward: int, outward: int) -> nn.Conv2d:
    """A 3×3 convolution with the published law: weights N(0, 2/(9·outward)), biases zero."""
    convolution = nn.Conv2d(inward, outward, 3, padding=1)
    nn.init.normal_(convolution.weight, std=sqrt(2 / (9 * outward)))
    if convolution.bias is not None:  # always; the test is for the type checker
        nn.init.zeros_(convolution.bias)
    return convolution
