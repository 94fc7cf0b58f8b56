"""Sums over the numbers of each layer: what is known of task vectors, and of their pairs."""

# l layers · m models · p pairs of models

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biascope.editing.vectors import TaskVector
from biascope.families import weights
from biascope.families.network import Network


class LayerSums:
    """Sums by layer, in float64."""

    def __init__(self) -> None:
        self._rows: dict[str, np.ndarray] = {}

    def add(self, name: str, row: Sequence[float]) -> None:
        """Add what belongs to a parameter to the sums of its layer."""
        layer, more = weights.layer_of(name), np.array(row, np.float64)
        self._rows[layer] = self._rows[layer] + more if layer in self._rows else more

    def by_layer(self, *, sort: bool = True) -> tuple[tuple[str, ...], np.ndarray]:
        """Layers, by the numbers in their names or in the order they came, and their sums ``(layer, column)``."""
        layers = sorted(self._rows, key=_by_number) if sort else list(self._rows)
        return tuple(layers), np.array([self._rows[layer] for layer in layers])


def comparison(start: Tensor, deltas: Sequence[Tensor]) -> list[float]:
    """One row of sums for :func:`compared`: a part of θ₀, and what models moved there, all flat.

    Example:
        >>> comparison(torch.tensor([3.0, 4.0]), [torch.tensor([1.0, 0.0]), torch.tensor([-2.0, 1.0])])
        [2.0, 25.0, 1.0, 5.0, 1.0, 2.0, -2.0, 1.0, 1.0]
    """
    pairs = list(itertools.combinations(deltas, 2))
    signs = [one.sign() * two.sign() for one, two in pairs]
    row = [len(start), dot(start, start), *(dot(delta, delta) for delta in deltas)]
    row += [int(delta.count_nonzero()) for delta in deltas]
    row += [dot(one, two) for one, two in pairs]
    row += [int(sign.count_nonzero()) for sign in signs] + [int((sign < 0).sum()) for sign in signs]
    return [float(number) for number in row]


def compared(columns: np.ndarray, models: int) -> dict[str, np.ndarray]:
    """What sums of :func:`comparison` say of so many models, by the names of :data:`biascope.editing.merge_result.WEIGHT_AXES`."""
    pairs = models * (models - 1) // 2
    cuts = np.cumsum([1, 1, models, models, pairs, pairs])
    numbers, norms, moved, changed, dots, shared, conflicts = np.split(columns, cuts, axis=1)
    return {
        "numbers": numbers[:, 0].astype(int),
        "base_norms": np.sqrt(norms[:, 0]),
        "task_norms": np.sqrt(moved),
        "changed": changed.astype(int),
        "dots": dots,
        "shared": shared.astype(int),
        "conflicts": conflicts.astype(int),
    }


def dot(first: Tensor, second: Tensor) -> float:
    """The inner product of flat tensors, in float64."""
    return float(torch.dot(first.double(), second.double()))


def _by_number(layer: str) -> list[tuple[int, str]]:
    return [(len(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", layer)]


def sums_by_layer(encoder: Network, vectors: Mapping[str, TaskVector]) -> dict[str, Any]:
    """Norms, inner products and sign conflicts of task vectors, in the order of the network's layers."""
    own, sums = list(vectors.values()), LayerSums()
    for name in own[0].deltas:
        start, *deltas = (
            tensor.flatten().double().cpu()
            for tensor in (encoder.params[name], *(vector.deltas[name] for vector in own))
        )
        sums.add(name, [*(dot(start, delta) for delta in deltas), *comparison(start, deltas)])
    layers, columns = sums.by_layer(sort=False)
    along, others = np.split(columns, [len(own)], axis=1)
    return {"layers": layers, "base_dots": along, **compared(others, len(own))}
