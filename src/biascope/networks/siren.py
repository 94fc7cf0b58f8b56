"""SIREN: a network with sine activations, from coordinates to the values of a signal."""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._settings import require_at_least, require_choice, require_coordinates_and_outputs


class Sine(nn.Module):
    """sin(ω·x): the frequency multiplies the weights and the bias of the layer before it.

    Args:
        omega: ω.
    """

    def __init__(self, omega: float) -> None:
        super().__init__()
        self.omega = omega

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return torch.sin(self.omega * x)

    def extra_repr(self) -> str:
        """ω, without which two networks of different frequencies would read the same."""
        return f"omega={self.omega:g}"


class Shift(nn.Module):
    """x + shift: a constant that is not trained.

    Args:
        shift: What is added.
    """

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return x + self.shift

    def extra_repr(self) -> str:
        """The constant."""
        return f"{self.shift:g}"


class FixedLinear(nn.Module):
    """A linear layer whose weight and bias are buffers: drawn at the start, never trained.

    Args:
        layer: The layer whose numbers it takes.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.data)
        self.register_buffer("bias", layer.bias.data)

    def forward(self, x: Tensor) -> Tensor:
        """``(n, inputs)`` to ``(n, outputs)``."""
        return F.linear(x, self.weight, self.bias)


def siren(
    *,
    coordinates: int = 2,
    outputs: int = 1,
    width: int = 256,
    depth: int = 4,
    omega: float = 30.0,
    hidden_omega: float = 30.0,
    mapping: int | None = None,
    bias: str = "zero",
    shift: float = 0.0,
    trainable_first: bool = True,
) -> nn.Module:
    """Sinusoidal representation network, z₁ = sin(ω₀(W₁r + b₁)), z_l = sin(ω(W_l z_(l−1) + b_l)), f(r) = W z_L + b + shift.

    ω₀ stands in the first layer alone and ω in the others; both multiply the bias as well. Initial laws, with d coordinates:

    | | weights | bias "zero", as published | bias "uniform", as in Sitzmann's code |
    |---|---|---|---|
    | first layer | U(±1/d) | 0 | U(±1/√d) |
    | hidden layers, head | U(±√(6/fan in)/ω) | 0 | U(±1/√(fan in)) |

    So the mapping has angular frequencies up to ω₀/d along each axis, and the head gives numbers of about 1/ω. In a wide
    network the variance v_l(r) of what the l-th sine is taken of follows, with zero biases and sinc(x) = sin(x)/x,

        v₂(r) = 1 − Π_i sinc(2ω₀r_i/d),   v_(l+1) = 1 − exp(−2v_l),   and z_l has the variance v_(l+1)/2;

    uniform ones add ω²/(3·fan in). Whatever ω₀, v tends to the root 0.797 of v = 1 − exp(−2v): what enters a sine has a
    standard deviation of 0.893, what leaves it one of 0.631. (The usual statement, 1 and √½, is about the second layer: the
    sine of a normal number is not quite arcsine distributed.) Where ω₀r is small, as in the corner at the origin of a grid
    on [0, 1), v starts small.

    With zero biases f − shift is an odd function of r at the start, and so is its gradient by the weights: on a grid around
    0, such as [−1, 1), only the biases learn the even part of a signal. On [0, 1) no two points mirror one another.

    Args:
        coordinates: d, the dimension of the input, 1 to 6.
        outputs: Channels of the signal.
        width: Units of each hidden layer.
        depth: Sine layers, the first one included.
        omega: ω₀.
        hidden_omega: ω, 30 as published.
        mapping: Units of the first layer; `width` by default.
        bias: "zero" or "uniform".
        shift: Added to the output: 0.5 in the published experiments, the middle of an image's range.
        trainable_first: Whether the first layer is trained; else its weight and bias are buffers.

    Raises:
        ValueError: If a setting is out of its range.

    >>> sum(p.numel() for p in siren().parameters())
    198401
    >>> with torch.no_grad():
    ...     siren(shift=0.5)(torch.zeros(1, 2))  # zero biases: at the origin the shift alone is left
    tensor([[0.5000]])

    Reference:
        Sitzmann et al., Implicit neural representations with periodic activation functions, NeurIPS 2020.
        Yüce, Ortiz-Jiménez et al., A structured dictionary perspective on implicit neural representations, CVPR 2022.
    """
    require_coordinates_and_outputs(coordinates, outputs)
    mapping = width if mapping is None else mapping
    for setting, value, published in (("width", width, 256), ("depth", depth, 4), ("mapping", mapping, 256)):
        require_at_least(setting, value, 1, f"Pass {setting}={published} for the published SIREN.")
    require_choice("bias", bias, ("zero", "uniform"), "Pass bias='zero', as published.")
    for setting, frequency in (("omega", omega), ("hidden_omega", hidden_omega)):
        if not 0 < frequency < math.inf:
            raise ValueError(
                f"{setting} must be a positive number, got {frequency}. Pass {setting}=30.0, as published."
            )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    widths = (coordinates, mapping, *[width] * (depth - 1))
    for number, (inward, outward) in enumerate(pairwise(widths), start=1):
        first = number == 1
        layer = _linear(inward, outward, 1 / inward if first else math.sqrt(6 / inward) / hidden_omega, bias)
        layers[f"linear{number}"] = FixedLinear(layer) if first and not trainable_first else layer
        layers[f"activation{number}"] = Sine(omega if first else hidden_omega)
    layers["head"] = _linear(widths[-1], outputs, math.sqrt(6 / widths[-1]) / hidden_omega, bias)
    if shift:
        layers["shift"] = Shift(shift)
    return nn.Sequential(layers)


def _linear(inward: int, outward: int, bound: float, bias: str) -> nn.Linear:
    """A layer with weights U(±bound); its bias has PyTorch's law, U(±1/√(fan in)), or is 0."""
    layer = nn.Linear(inward, outward)
    nn.init.uniform_(layer.weight, -bound, bound)
    if bias == "zero":
        nn.init.zeros_(layer.bias)
    return layer
