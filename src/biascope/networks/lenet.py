"""LeNet: two convolutions with pooling, then fully connected layers."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from ._activations import activation_layer
from ._laws import with_law
from ._pooling import HALVING
from ._settings import require_choice, require_image_and_outputs, require_widths


def lenet(
    *,
    channels: int = 1,
    outputs: int = 1,
    image_size: int = 32,
    activation: str = "relu",
    pooling: str = "max",
    padding: str = "valid",
    hidden: tuple[int, ...] = (120, 84),
    law: str = "pytorch",
) -> nn.Module:
    """LeNet: two 5×5 convolutions, valid as published or padded to keep the side.

    | layer | output for a 32×32 image |
    |---|---|
    | convolution 5×5, activation | 6 × 28 × 28 |
    | pooling 2×2 | 6 × 14 × 14 |
    | convolution 5×5, activation | 16 × 10 × 10 |
    | pooling 2×2 | 16 × 5 × 5 |
    | linear, activation | 120 |
    | linear, activation | 84 |
    | linear | outputs |

    Every layer has a bias, and by default PyTorch's law. The 2020 paper uses max-pooling, the 2025 paper average-pooling. The code
    of the 2021 paper on linearised networks has average-pooling, padded convolutions and the law of Flax.

    Args:
        channels: Channels of the input image.
        outputs: Number of outputs.
        image_size: Side of the square input image in pixels; at least 16, or 9 without pooling; padded 4, or 1.
        activation: "relu", "gelu", "tanh" or "identity".
        pooling: "max", "average", or "none", which drops both pooling layers and widens the first linear layer to the
            16 × 24 × 24 pixels that are then left of a 32×32 image.
        padding: "valid", or "same", which pads both convolutions with zeros so that they keep the side: the first linear
            layer then reads 16 × 8 × 8 values of a 32×32 image.
        hidden: Widths of the hidden linear layers; smaller ones make the network of about 50,000 parameters of
            figure 11 of the 2025 paper, which does not print its widths.
        law: Law of the initial weights: "pytorch", or "flax" (normal with variance 1/(fan in), zero biases).

    Raises:
        ValueError: If a setting is out of its range.

    >>> sum(p.numel() for p in lenet().parameters())
    60941
    >>> sum(p.numel() for p in lenet(padding="same").parameters())
    135821

    Reference:
        LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 1998.
        Ortiz-Jiménez et al., Neural anisotropy directions, NeurIPS 2020.
        Ortiz-Jiménez et al., What can linearized neural networks actually say about generalization?, NeurIPS 2021.
    """
    require_choice("pooling", pooling, HALVING, "Pass pooling='max' for the published LeNet.")
    require_choice("padding", padding, ("valid", "same"), "Pass padding='valid' for the published LeNet.")
    lost = 4 if padding == "valid" else 0  # pixels that a 5×5 convolution takes off the side
    smallest = (9 if pooling == "none" else 16) if lost else 1 if pooling == "none" else 4
    where = f"for LeNet with pooling={pooling!r}" + ("" if lost else " and padding='same'")
    require_image_and_outputs(channels, outputs, image_size, smallest=smallest, where=where)
    require_widths("hidden", hidden, "Pass hidden=(120, 84) for the published LeNet.")

    stride = 1 if pooling == "none" else 2
    side = ((image_size - lost) // stride - lost) // stride
    pad = 2 - lost // 2  # a number and not the word, which fewer fast ways of computing know
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 6, 5, padding=pad),
        activation1=activation_layer(activation),
        pool1=HALVING[pooling](),
        conv2=nn.Conv2d(6, 16, 5, padding=pad),
        activation2=activation_layer(activation),
        pool2=HALVING[pooling](),
        flatten=nn.Flatten(),
    )
    for number, (inward, outward) in enumerate(pairwise((16 * side**2, *hidden)), start=3):
        layers[f"linear{number}"] = nn.Linear(inward, outward)
        layers[f"activation{number}"] = activation_layer(activation)
    layers["head"] = nn.Linear(hidden[-1], outputs)
    return with_law(nn.Sequential(layers), law)
