"""The activations that a network can be built with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from ._settings import require_choice

# None of them works in place: an overwritten input has no derivative under torch.func.
ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "identity": nn.Identity}
)


def activation_layer(activation: str) -> nn.Module:
    """A new layer that applies the named activation: relu max(x, 0), gelu x·Φ(x), tanh, or identity x.

    Args:
        activation: One of the keys of `ACTIVATIONS`.

    Raises:
        ValueError: If there is no such activation.

    >>> activation_layer("relu")
    ReLU()
    """
    require_choice("activation", activation, ACTIVATIONS, "Pass activation='relu' or 'gelu', as in the papers.")
    return ACTIVATIONS[activation]()
