"""The laws that the initial weights of a network can have: PyTorch's default, or that of Flax."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ._settings import require_choice

LAWS = ("pytorch", "flax")
_CUT = 2.0  # where Flax cuts the normal law off, in standard deviations
_INSIDE = math.erf(_CUT / math.sqrt(2))  # probability of what is left
#: Standard deviation of a standard normal number given that it lies within the cut.
_STANDARD_DEVIATION = math.sqrt(1 - _CUT * math.sqrt(2 / math.pi) * math.exp(-(_CUT**2) / 2) / _INSIDE)

Built = TypeVar("Built", bound=nn.Module)


def with_law(network: Built, law: str) -> Built:
    """The network with new initial weights by the named law.

    ============  ==================================================================  ==========================
    law           weights of linear layers and convolutions                           their biases
    ============  ==================================================================  ==========================
    "pytorch"     uniform on ±1/√(fan in), variance 1/(3·fan in)                      uniform on ±1/√(fan in)
    "flax"        normal, cut off at two standard deviations, variance 1/(fan in)     zero
    ============  ==================================================================  ==========================

    Normalisation layers start with scale 1 and shift 0 under both laws, and are left as they are.

    Args:
        network: A new network, with PyTorch's default law.
        law: One of `LAWS`.

    Raises:
        ValueError: If there is no such law.

    >>> layer = with_law(nn.Linear(400, 200), "flax")
    >>> bool(abs(400 * layer.weight.var() - 1) < 0.02), bool(layer.bias.any())
    (True, False)
    """
    require_choice("law", law, LAWS, "Pass law='pytorch' for PyTorch's default, or law='flax' as in the code of 2021.")
    if law == "flax":
        for layer in network.modules():
            if isinstance(layer, nn.Linear | _ConvNd):
                lecun_normal_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return network


def lecun_normal_(weight: Tensor) -> Tensor:
    """Fill a weight in place with normal numbers cut off at two standard deviations, of variance 1/(fan in).

    The numbers are Φ⁻¹ of uniform ones. PyTorch's own function draws again what it cuts off, a random number of times; this one
    draws each number once, so a stack of networks can be drawn at a time.

    Reference:
        Klambauer et al., Self-normalizing neural networks, NeurIPS 2017; the default of Flax, `lecun_normal`.
    """
    with torch.no_grad():
        weight.uniform_(-_INSIDE, _INSIDE).erfinv_()
        return weight.mul_(math.sqrt(2 / weight[0].numel()) / _STANDARD_DEVIATION)
