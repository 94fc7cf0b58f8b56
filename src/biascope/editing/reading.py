"""How a user's models and samples are read: settings that travel together from the command line to the check of a merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reading:
    """How a user's models and samples are read.

    Attributes:
        model: The network: an encoder's name, a network's, ``path/to/file.py:build``; ``None`` for a base that is a folder.
        settings: For its builder.
        input: Shape of one input as ``1x32x32``; smaller images are centred in it.
        head: A last linear layer that every model has of its own, such as ``"head"``; it is not merged. Models on an encoder may
            also have one under the encoder's usual name.
        features: Whether outputs are features, which are compared as they are.
        pixels: ``"own"`` (standardised over the set's training images), ``"unit"`` (from 0 to 1) or ``"MEAN:SPREAD"``, one number
            for each channel or one for all.
        split: Where samples are taken from; by default test, validation or train, the first that there is.
        samples: Samples of each set at most.
        unrelated: Whether models may have another base.
        seed: Random seed for the choice of samples.
    """

    model: str | None = None
    settings: Mapping[str, Any] | None = None
    input: str = ""
    head: str | None = None
    features: bool = False
    pixels: str = "own"
    split: str | None = None
    samples: int = 1000
    unrelated: bool = False
    seed: int = 0

    @property
    def choice(self) -> dict[str, Any]:
        """The choice of samples."""
        return {"points": self.samples, "split": self.split, "seed": self.seed}
