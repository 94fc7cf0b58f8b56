"""Files of weights that several test files write, and what they compare in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from biascope.families import weights
from biascope.families.checkpoint import Checkpoint

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Trap:
    """Would make a folder when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def saved(folder: Path, name: str, params: weights.Params) -> Checkpoint:
    """A checkpoint of weights in a folder."""
    weights.save(params, folder / f"{name}.safetensors")
    return Checkpoint.open(folder / f"{name}.safetensors")


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are the same to the bit: signs of zeros and all."""
    one, two = (each.contiguous().view(BITS[each.element_size()]) for each in (first, second))
    return first.dtype == second.dtype and torch.equal(one, two)
