"""Layers of torch by their plain formulas: their own kernels lack stacks of networks or forward mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from typing_extensions import override


class PlainRReLU(nn.RReLU):
    """RReLU, which outside of training is a leaky ReLU.

    Example:
        >>> x = torch.tensor([-3.0, 2.0])
        >>> torch.equal(PlainRReLU(0.1, 0.3).eval()(x), nn.RReLU(0.1, 0.3).eval()(x))
        True
    """

    @override
    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            return super().forward(input)
        return nn.functional.leaky_relu(input, (self.lower + self.upper) / 2, self.inplace)


class PlainWeightNorm(parametrizations._WeightNorm):
    """``g v / ‖v‖``, the norm taken over all axes but one, or over all where that is -1."""

    @override
    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        axes = None if self.dim == -1 else [axis for axis in range(weight_v.dim()) if axis != self.dim]
        norm: Tensor = torch.linalg.vector_norm(weight_v, dim=axes, keepdim=axes is not None)
        return weight_v * (weight_g / norm)


_PLAIN = {nn.RReLU: PlainRReLU, parametrizations._WeightNorm: PlainWeightNorm}


def use_plain_layers(module: nn.Module) -> None:
    """Let a module compute such layers by their plain formulas; weights and settings stay as they are."""
    for layer in module.modules():
        if plain := _PLAIN.get(type(layer)):
            layer.__class__ = plain
