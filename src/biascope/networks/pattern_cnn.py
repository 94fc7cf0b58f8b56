"""The convolutional network of the pattern statistics paper: one layer of pattern detectors, added and subtracted."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from ._settings import require_at_least, require_image_and_outputs


class Strongest(nn.Module):
    """The largest response of each channel over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        """``(n, c, height, width)`` to ``(n, c)``."""
        # max over a dimension sends a gradient to the first of equal places; amax would share it out among them.
        return x.flatten(2).max(-1).values


class HalvesDifference(nn.Module):
    """The sum of the first half of a group of channels less that of the other half: a head that is not trained.

    Args:
        k: Half the channels of a group; there is one group for each output.
    """

    weights: Tensor

    def __init__(self, k: int) -> None:
        super().__init__()
        self.register_buffer("weights", torch.cat([torch.ones(k), -torch.ones(k)]))

    def forward(self, x: Tensor) -> Tensor:
        """``(n, outputs·2k)`` to ``(n, outputs)``."""
        return x.reshape(len(x), -1, len(self.weights)) @ self.weights


def pattern_cnn(
    *,
    channels: int = 1,
    outputs: int = 1,
    image_size: int | tuple[int, int] = 32,
    patch: int | tuple[int, int] = 4,
    k: int = 20,
    scale: float = 1e-6,
) -> nn.Module:
    """Pattern detectors, N(x) = Σ_{i≤k} [max_j σ(w_i·x[j]) − max_j σ(u_i·x[j])], with patches x[j] that do not overlap.

    Only the 2k detectors are trained; the first k have the fixed output weight +1, the others −1. With several outputs there
    are as many such networks side by side. Weights are Gaussian with a small standard deviation. Of equal responses the
    first patch has the gradient, and a response of 0 has none.

    Args:
        channels: Channels of the input image; 3 for the coloured digits.
        outputs: Number of outputs, 1 in the paper.
        image_size: Side of the input image in pixels, or its height and width; 84 for the coloured digits.
        patch: Side of a patch, or its height and width, by which those of the image can be divided; 28 for the coloured
            digits, ``(1, d)`` for images of one pattern of d numbers per row.
        k: Half the number of detectors of an output: 20 for the coloured digits, 1,000 and 10,000 for one-hot patterns.
        scale: σ_g, the standard deviation of the weights at the start.

    Raises:
        ValueError: If a setting is out of its range.

    >>> net = pattern_cnn(patch=(1, 2), image_size=(3, 2), k=1)
    >>> with torch.no_grad():
    ...     _ = net.conv.weight.copy_(torch.eye(2).reshape(2, 1, 1, 2))  # w = e_1, u = e_2
    >>> net(torch.tensor([[[[3.0, 0.0], [7.0, 0.0], [0.0, 2.0]]]])).tolist()
    [[5.0]]

    Reference:
        On the inductive bias of a CNN for distributions with orthogonal patterns, 2021, section 3.
    """
    image, tile = (value if isinstance(value, tuple) else (value, value) for value in (image_size, patch))
    for side in image:
        require_image_and_outputs(channels, outputs, side)
    for side in tile:
        require_at_least("patch", side, 1, "Pass patch=28 for the coloured digits.")
    require_at_least("k", k, 1, "Pass k=20 for the coloured digits.")
    if image[0] % tile[0] or image[1] % tile[1]:
        raise ValueError(
            f"patch must divide the image, got patches of {tile[0]} × {tile[1]} and images of {image[0]} × {image[1]}. "
            "Pass patch=28 for images of 84 × 84."
        )
    if not scale > 0:
        raise ValueError(f"scale must be above 0, got {scale}. Pass scale=1e-6, as published.")
    conv = nn.Conv2d(channels, outputs * 2 * k, tile, stride=tile, bias=False)
    nn.init.normal_(conv.weight, std=scale)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=conv, activation=nn.ReLU(), strongest=Strongest(), head=HalvesDifference(k)
    )
    return nn.Sequential(layers)
