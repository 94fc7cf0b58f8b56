"""Logistic regression: the linear network, which prefers no direction of input space."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from ._settings import require_image_and_outputs


def logistic_regression(*, channels: int = 1, outputs: int = 1, image_size: int = 32) -> nn.Module:
    """Logistic regression on the pixels, f(x) = W x + b with x ∈ R^D and D = channels · image_size².

    The logits are returned as they are; the logistic function belongs to the loss. W and b have PyTorch's default law,
    uniform on ±1/√D.

    Args:
        channels: Channels of the input image.
        outputs: Number of logits.
        image_size: Side of the square input image in pixels.

    Raises:
        ValueError: If a setting is not a whole number of at least 1.

    >>> sum(p.numel() for p in logistic_regression().parameters())
    1025

    Reference:
        Ortiz-Jiménez et al., Neural anisotropy directions, NeurIPS 2020, figure 1.
    """
    require_image_and_outputs(channels, outputs, image_size)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(channels * image_size**2, outputs)))
