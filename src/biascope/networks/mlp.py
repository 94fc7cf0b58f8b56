"""Multi-layer perceptron: fully connected layers, whose gradient covariance is isotropic at initialisation."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from ._activations import activation_layer
from ._laws import with_law
from ._settings import numbers_of_input, require_widths


def mlp(
    *,
    channels: int = 1,
    outputs: int = 1,
    image_size: int = 32,
    activation: str = "relu",
    hidden: tuple[int, ...] = (500, 500, 500),
    law: str = "pytorch",
    inputs: int | None = None,
) -> nn.Module:
    """Multi-layer perceptron on the pixels, or on any numbers, h_l = φ(W_l h_(l-1) + b_l) with h_0 = x, and f(x) = W h_L + b.

    The default of three hidden layers of 500 units is the network of the 2020 paper; `hidden=(100, 100)` is that of the
    2025 paper. By default, weights and biases have PyTorch's law, uniform on ±1/√(fan in).

    Args:
        channels: Channels of the input image.
        outputs: Number of outputs.
        image_size: Side of the square input image in pixels.
        activation: φ: "relu", "gelu", "tanh" or "identity".
        hidden: Widths of the hidden layers, from the input on.
        law: Law of the initial weights: "pytorch", or "flax" (normal with variance 1/(fan in), zero biases).
        inputs: Numbers of one input that is no square image; by default those of the image.

    Raises:
        ValueError: If a setting is out of its range, or `hidden` is empty.

    >>> sum(p.numel() for p in mlp().parameters())
    1014001
    >>> sum(p.numel() for p in mlp(hidden=(100, 100)).parameters())
    112701

    Reference:
        Ortiz-Jiménez et al., Neural anisotropy directions, NeurIPS 2020, figure S20.
        Geometric inductive biases of deep networks, 2025, appendix A.12.1.
    """
    size = numbers_of_input(inputs, channels, outputs, image_size)
    require_widths("hidden", hidden, "Pass hidden=(500, 500, 500), or build logistic_regression for no hidden layer.")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (inward, outward) in enumerate(pairwise((size, *hidden)), start=1):
        layers[f"linear{number}"] = nn.Linear(inward, outward)
        layers[f"activation{number}"] = activation_layer(activation)
    layers["head"] = nn.Linear(hidden[-1], outputs)
    return with_law(nn.Sequential(layers), law)
