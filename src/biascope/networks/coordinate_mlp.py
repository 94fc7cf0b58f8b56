"""A perceptron on coordinates, with or without Fourier features: ReLU MLP, Fourier feature network, positional encoding."""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import pairwise

import torch
from torch import Tensor, nn

from ._activations import activation_layer
from ._settings import require_at_least, require_choice, require_coordinates_and_outputs

ENCODINGS = ("none", "gaussian", "single", "positional")


class FourierFeatures(nn.Module):
    """γ(r) = [sin(2πBr), cos(2πBr)], with frequencies that are a buffer: drawn with the weights, never trained.

    Args:
        frequencies: B, one row for each pair of features, in cycles per unit of length.
    """

    frequencies: Tensor

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.register_buffer("frequencies", frequencies)

    def forward(self, r: Tensor) -> Tensor:
        """``(n, coordinates)`` to ``(n, 2·rows)``: all sines, then all cosines."""
        phases = 2 * math.pi * (r @ self.frequencies.T)
        return torch.cat([phases.sin(), phases.cos()], -1)


def coordinate_mlp(
    *,
    coordinates: int = 2,
    outputs: int = 1,
    width: int = 256,
    depth: int = 3,
    activation: str = "relu",
    encoding: str = "none",
    features: int = 256,
    sigma: float = 10.0,
    frequency: float = 1.0,
    octaves: int = 8,
) -> nn.Module:
    """Perceptron on encoded coordinates, z₀ = γ(r), z_l = φ(W_l z_(l−1) + b_l), f(r) = W z_L + b.

    | encoding | γ(r) | rows of B |
    |---|---|---|
    | "none": the ReLU MLP | r | |
    | "gaussian": the Fourier feature network (FFN) | [sin, cos](2πBr) | `features`, of N(0, σ²) numbers |
    | "single" | [sin, cos](2πf₀r) | f₀e_i, one for each coordinate |
    | "positional" | [sin, cos](2π·2ᵏf₀r), k < `octaves` | 2ᵏf₀e_i |

    B is drawn anew for each initialisation and stays as it is in training. Weights are N(0, 1/fan in) cut off at two standard
    deviations (whose variance is then 0.774/fan in) and biases 0: the law of the published networks, not PyTorch's.

    Args:
        coordinates: d, the dimension of the input, 1 to 6.
        outputs: Channels of the signal.
        width: Units of each hidden layer.
        depth: Hidden layers: 3 behind an encoding, as published; the published ReLU MLP of the kernel figures has 4.
        activation: φ: "relu", "gelu", "tanh" or "identity".
        encoding: γ: "none", "gaussian", "single" or "positional".
        features: Frequencies of the Gaussian encoding; twice as many features.
        sigma: σ, their spread in cycles per unit of length.
        frequency: f₀ of the encodings "single" and "positional", in cycles per unit of length; 0.5 for NeRF's sin(2ᵏπr).
        octaves: Powers of two of the positional encoding.

    Raises:
        ValueError: If a setting is out of its range.

    >>> [sum(p.numel() for p in coordinate_mlp(encoding=encoding).parameters()) for encoding in ("none", "gaussian")]
    [132609, 263169]
    >>> coordinate_mlp(coordinates=1, encoding="single")[0](torch.tensor([[0.25]])).round(decimals=4).tolist()
    [[1.0, -0.0]]

    Reference:
        Tancik et al., Fourier features let networks learn high frequency functions in low dimensional domains, NeurIPS 2020.
        Mildenhall et al., NeRF, ECCV 2020.
    """
    require_coordinates_and_outputs(coordinates, outputs)
    for setting, value, published in (("width", width, 256), ("depth", depth, 3), ("features", features, 256)):
        require_at_least(setting, value, 1, f"Pass {setting}={published}, as published.")
    require_at_least("octaves", octaves, 1, "Pass octaves=8.")
    require_choice("encoding", encoding, ENCODINGS, "Pass encoding='gaussian' for the Fourier feature network.")
    for setting, scale in (("sigma", sigma), ("frequency", frequency)):
        if not 0 < scale < math.inf:
            raise ValueError(f"{setting} must be a positive number, got {scale}. Pass {setting}=1.0.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = coordinates
    if encoding != "none":
        if encoding == "gaussian":
            rows = torch.empty(features, coordinates).normal_(std=sigma)
        else:
            powers = range(octaves if encoding == "positional" else 1)
            rows = torch.cat([frequency * 2.0**power * torch.eye(coordinates) for power in powers])
        layers["encoding"] = FourierFeatures(rows)
        inputs = 2 * len(rows)
    for number, (inward, outward) in enumerate(pairwise((inputs, *[width] * depth)), start=1):
        layers[f"linear{number}"] = _linear(inward, outward)
        layers[f"activation{number}"] = activation_layer(activation)
    layers["head"] = _linear(width, outputs)
    return nn.Sequential(layers)


def _linear(inward: int, outward: int) -> nn.Linear:
    """A layer with weights N(0, 1/fan in) cut off at two standard deviations and no bias at the start."""
    layer, within = (
        nn.Linear(inward, outward),
        math.erf(math.sqrt(2)),
    )  # the share of a normal law within two deviations
    with torch.no_grad():
        # By the inverse of the distribution function: drawing whole stacks again until all are within takes ten times as long.
        layer.weight.uniform_(-within, within).erfinv_().mul_(math.sqrt(2 / inward))
    nn.init.zeros_(layer.bias)
    return layer
