"""Small networks and inputs that several test files measure, each a function of a seed alone."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from biascope.families.network import Network
from biascope.networks import builder
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

CPU = Run(device="cpu")
CPU64 = Run(device="cpu", precision="float64")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def network_of(build: Callable[[], nn.Module], *, seed: int = 0, readout: str | None = "first") -> Network:
    """The network that a builder gives under a seed, in float64."""
    with forked_rng(seed):
        network = Network.of(build().double())
    return network if readout is None else network.read(readout)


def input_shape(name: str, settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of one input of a network of ours under settings, with the builder's defaults for the others."""
    known = {key: parameter.default for key, parameter in inspect.signature(builder(name)).parameters.items()}
    known |= settings
    return (known["coordinates"],) if "coordinates" in known else (known["channels"], *[known["image_size"]] * 2)


def in_three_splits(x: Tensor, y: Tensor) -> Arrays:
    """160 labelled samples for training, validation and test."""
    parts = {"train": slice(0, 80), "validation": slice(80, 120), "test": slice(120, 160)}
    return Arrays({split: (x[part], y[part]) for split, part in parts.items()}, torch.float64)


def global_states() -> tuple[object, ...]:
    """The states of the three global generators, to be compared."""
    name, numbers, *position = np.random.get_state(legacy=True)
    return torch.get_rng_state().tolist(), random.getstate(), name, numbers.tolist(), position


def smooth_mlp() -> nn.Module:
    """A network with derivatives of every order, on vectors of 6 or images of 2 × 3."""
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


def tanh_network(outputs: int = 1) -> nn.Module:
    """A smooth network on vectors of 4."""
    return nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, outputs))


class BackwardOverTheBatch(torch.autograd.Function):
    """The identity, whose backward pass divides by the number of samples in the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient / len(gradient)


def normalised_network() -> nn.Module:
    """A smooth network with BatchNorm, on images of 1 × 4 × 4."""
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 1))


def relu_convnet() -> nn.Module:
    """A piecewise linear network on images of 1 × 8 × 8."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(12, 3),
    )  # fmt: skip


def batchnorm_convnet() -> nn.Module:
    """A convolutional network with BatchNorm and dropout, on images of 1 × 6 × 6."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 2)
    )


class AttentionNetwork(nn.Module):
    """One layer of self-attention on sequences of 5 × 4."""

    def __init__(self) -> None:
        super().__init__()
        self.to_all = nn.Linear(4, 12)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.to_all(x).chunk(3, dim=-1)
        weights = (query @ key.transpose(1, 2) / 2).softmax(-1)
        return self.head(self.norm(x + weights @ value).mean(1))


SHAPES = {
    smooth_mlp: (6,),
    relu_convnet: (1, 8, 8),
    batchnorm_convnet: (1, 6, 6),
    AttentionNetwork: (5, 4),
}  # of an input
every_network = pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)


class TwoInputs(nn.Module):
    """A network of an image-like and an integer input, which may be given by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.linear = nn.Linear(5, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, values: Tensor, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.linear(values)) * self.embedding(tokens))


#: A file with a network of one's own.
TINY_FILE = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2))
"""
