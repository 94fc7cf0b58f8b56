"""The pooling layers that a network can be built with; "none" leaves an identity in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

# Pooling that halves the side of the image, rounding down.
HALVING: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {"max": lambda: nn.MaxPool2d(2), "average": lambda: nn.AvgPool2d(2), "none": nn.Identity}
)

# Pooling of the whole image into one pixel, before the head.
GLOBAL: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {"average": lambda: nn.AdaptiveAvgPool2d(1), "none": nn.Identity}
)
