"""Logistic regression: the linear network, which prefers no direction of input space."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from ._laws import with_law
from ._settings import numbers_of_input


def logistic_regression(
    *, channels: int = 1, outputs: int = 1, image_size: int = 32, law: str = "pytorch", inputs: int | None = None
) -> nn.Module:
    """Logistic regression on the pixels, or on any numbers, f(x) = W x + b with x ∈ R^D and D = channels · image_size².

    The logits are returned as they are; the logistic function belongs to the loss. By default, W and b have PyTorch's
    law, uniform on ±1/√D.

    Args:
        channels: Channels of the input image.
        outputs: Number of logits.
        image_size: Side of the square input image in pixels.
        law: Law of the initial weights: "pytorch", or "flax" (normal with variance 1/(fan in), zero biases).
        inputs: Numbers of one input that is no square image; by default those of the image.

    Raises:
        ValueError: If a setting is out of its range.

    >>> sum(p.numel() for p in logistic_regression().parameters())
    1025

    Reference:
        Ortiz-Jiménez et al., Neural anisotropy directions, NeurIPS 2020, figure 1.
    """
    size = numbers_of_input(inputs, channels, outputs, image_size)
    layers = OrderedDict(flatten=nn.Flatten(), head=nn.Linear(size, outputs))
    return with_law(nn.Sequential(layers), law)
