"""Multiplicative filter network: sinusoids of the coordinates multiplied from layer to layer, without composition."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ._settings import require_at_least, require_coordinates_and_outputs


class MultiplicativeFilters(nn.Module):
    """z₁ = sin(Ω₁r + φ₁), z_(l+1) = (W_l z_l + b_l) ∘ sin(Ω_(l+1)r + φ_(l+1)), f(r) = W z_(L+1) + b.

    Args:
        coordinates: Dimension of the input.
        outputs: Channels of the signal.
        width: Units of each layer.
        depth: L.
        scale: Spread of all frequencies together.
    """

    def __init__(self, coordinates: int, outputs: int, width: int, depth: int, scale: float) -> None:
        super().__init__()
        self.filters = nn.ModuleList(nn.Linear(coordinates, width) for _ in range(depth + 1))
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, outputs)
        reach = scale / math.sqrt(coordinates * (depth + 1))
        for each in self.filters:
            assert isinstance(each, nn.Linear)
            nn.init.uniform_(each.weight, -reach, reach)
            nn.init.uniform_(each.bias, -math.pi, math.pi)

    def forward(self, r: Tensor) -> Tensor:
        """``(n, coordinates)`` to ``(n, outputs)``."""
        first, *others = self.filters
        z = torch.sin(first(r))
        for linear, sinusoid in zip(self.linears, others, strict=True):
            z = linear(z) * torch.sin(sinusoid(r))
        values: Tensor = self.head(z)
        return values


def multiplicative_filters(
    *, coordinates: int = 2, outputs: int = 1, width: int = 256, depth: int = 3, scale: float = 256.0
) -> nn.Module:
    """Fourier multiplicative filter network, whose every output is a sum of sinusoids Σ_l ±Ω_l: one frequency of each layer.

    Initial laws, with d coordinates: frequencies U(±s/√(d(L+1))) in radians per unit of length with s = `scale`, so that a
    sum of one from each of the L+1 layers has the variance s²/3d per coordinate whatever the depth; phases U(±π); all other weights and
    biases U(±1/√(fan in)). The mean square of z_l is then 1/2 in the first layer and is divided by about 6 from each to the next.

    Args:
        coordinates: d, the dimension of the input, 1 to 6.
        outputs: Channels of the signal.
        width: Units of each layer.
        depth: L, the number of multiplications.
        scale: s, 256 as published for images on [−1, 1)².

    Raises:
        ValueError: If a setting is out of its range.

    >>> sum(p.numel() for p in multiplicative_filters().parameters())
    200705

    Reference:
        Fathony, Sahu, Willmott and Kolter, Multiplicative filter networks, ICLR 2021.
    """
    require_coordinates_and_outputs(coordinates, outputs)
    for setting, value, published in (("width", width, 256), ("depth", depth, 3)):
        require_at_least(setting, value, 1, f"Pass {setting}={published}, as published.")
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be a positive number, got {scale}. Pass scale=256.0, as published.")
    return MultiplicativeFilters(coordinates, outputs, width, depth, scale)
