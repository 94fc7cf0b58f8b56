"""Encoder: a network from inputs to features, and what turns raw images or texts into its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from biascope.families import weights
from biascope.families.network import Network

Kind = Literal["image", "text"]


@dataclass(frozen=True)
class Encoder:
    """A network from inputs to features.

    Attributes:
        network: Features ``(n, p)`` of prepared inputs; BatchNorm uses its running statistics.
        prepare: Turns bytes of images ``(n, C, h, w)``, or a list of texts, into inputs of the network.
        name: Name for results.
        kind: What it reads: ``"image"`` or ``"text"``.
        head: Name that classifiers on this encoder have for their last layer, which is linear in the features; empty if not known.
    """

    network: Network
    prepare: Callable[[Any], Tensor]
    name: str
    kind: Kind
    head: str = ""

    def __repr__(self) -> str:
        return f"{self.name}: {self.kind} encoder, {weights.count(self.network.params):,} parameters"
