"""What a merge and its sources changed, layer by layer: inner products of the changes, read slice by slice."""

# l layers · c changes: of the output first, if it is at hand, then of each source

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from biascope.editing.adapters import Zero
from biascope.editing.layer_sums import LayerSums, dot
from biascope.editing.stream import is_vector
from biascope.editing.vectors import difference, widened
from biascope.families import weights
from biascope.families.checkpoint import SLICE, Checkpoint
from biascope.runs.run import Run


@dataclass(frozen=True, eq=False)
class Changes:
    """Sums over the numbers of each layer.

    Attributes:
        names: The tensors that were compared.
        layers: Names of their layers.
        numbers: ``(l,)`` how many numbers were compared.
        base_squares: ``(l,)`` ‖θ₀‖².
        base_dots: ``(l, c)`` ⟨θ₀, τ⟩.
        products: ``(l, c, c)`` ⟨τ_i, τ_j⟩.
        changed: ``(l, c)`` how many numbers are other than 0.
        sums: ``(l,)`` ‖T‖², with T the weighted sum of the sources.
        lost: ``(l,)`` ‖round(θ₀ + T) − θ₀ − T‖², rounded to the type of the output.
        stirred: ``(l,)`` how many numbers of round(θ₀ + T) differ from round(θ₀).
        precision: The type of the output.
    """

    names: tuple[str, ...]
    layers: tuple[str, ...]
    numbers: np.ndarray
    base_squares: np.ndarray
    base_dots: np.ndarray
    products: np.ndarray
    changed: np.ndarray
    sums: np.ndarray
    lost: np.ndarray
    stirred: np.ndarray
    precision: str

    def at(self, places: Sequence[int]) -> Changes:
        """The same of some of the changes."""
        return replace(
            self,
            base_dots=self.base_dots[:, places],
            products=self.products[:, places][:, :, places],
            changed=self.changed[:, places],
        )


@dataclass
class Broken:
    """Numbers that are not finite, by the name of what holds them."""

    found: dict[str, tuple[str, int]] = field(default_factory=dict)

    def without(self, values: Tensor, whose: str, tensor: str) -> Tensor:
        """Values with 0 in the place of what is not finite, which is counted."""
        # A sum is quicker than a look at each number, and not finite if one of them is not.
        if math.isfinite(float(values.sum(dtype=weights.working_type(values.dtype)))):
            return values
        known = values.isfinite()
        if count := int((~known).sum()):
            first, before = self.found.get(whose, (tensor, 0))
            self.found[whose] = first, before + count
        return torch.where(known, values, 0.0)


def changes_of(
    base: Checkpoint | None,
    output: Checkpoint | None,
    sources: Sequence[Checkpoint],
    coefficients: Sequence[float],
    broken: Broken,
    *,
    run: Run,
) -> Changes | None:
    """How an output and its sources differ from a base, or how the updates of adapters relate to each other.

    Args:
        base: θ₀, or none if all are updates.
        output: What was written.
        sources: Under the names of the base: whole weights, or task vectors and updates of adapters.
        coefficients: The weight of each source in T.
        broken: Counts what is not finite; it is taken as unchanged.
        run: Shows progress.

    Returns:
        The sums; none if nothing can be compared.
    """
    models = [*([] if output is None else [output]), *sources]
    given = [*([] if output is None else [0.0]), *coefficients]
    tensors = models[0].tensors if base is None else base.tensors
    names = [name for name, tensor in tensors.items() if _is_compared(name, tuple(tensor.shape), tensor.dtype, models)]
    if not any(math.prod(tensors[name].shape) for name in names):
        return None
    sums, types = LayerSums(), set[torch.dtype]()
    with run.tracked("comparing", sum(math.prod(tensors[name].shape) for name in names)) as advance:
        for name in names:
            parts = [None if isinstance(each.tensors[name], Zero) else each.slices(name) for each in models]
            written = (base or models[0]) if output is None or is_vector(output) else output
            types.add(end_type := written.tensors[name].dtype)
            starts, size = None if base is None else base.slices(name), math.prod(tensors[name].shape)
            for begin in range(0, size, SLICE):
                length = min(SLICE, size - begin)
                start = torch.zeros(length) if starts is None else broken.without(next(starts), "", name)
                wide = start.to(weights.working_type(start.dtype))
                deltas = []
                for model, slices in zip(models, parts, strict=True):
                    vector = base is None or is_vector(model)
                    # Of an adapter, factors are counted, and not their product.
                    counted = Broken() if vector else broken
                    part = None if slices is None else counted.without(next(slices), model.name, name)
                    if part is not None:
                        part = (widened(part) if vector else difference(wide, part)).to(wide.dtype)
                    deltas.append(part)
                sums.add(name, _row(wide, deltas, given, end_type))
                advance(length)
    return _changes(names, sums, len(models), types)


def count_broken(checkpoint: Checkpoint, names: Sequence[str], whose: str, broken: Broken, *, run: Run) -> None:
    """Count the numbers of some tensors that are not finite."""
    with run.tracked(f"reading {whose}", sum(math.prod(checkpoint.tensors[name].shape) for name in names)) as advance:
        for name in names:
            for part in checkpoint.slices(name):
                if part.dtype in weights.EDITABLE:
                    broken.without(part, whose, name)
                advance(len(part))


def _is_compared(name: str, shape: tuple[int, ...], dtype: torch.dtype, models: Sequence[Checkpoint]) -> bool:
    if dtype not in weights.EDITABLE or any(name not in model.tensors for model in models):
        return False
    found = [model.tensors[name] for model in models]
    return all(tuple(each.shape) == shape and each.dtype in weights.EDITABLE for each in found)


def _row(start: Tensor, deltas: Sequence[Tensor | None], given: Sequence[float], end_type: torch.dtype) -> list[float]:
    moving = [(delta, weight) for delta, weight in zip(deltas, given, strict=True) if delta is not None and weight]
    row = [float(len(start)), dot(start, start), 0.0, 0.0, 0.0]
    if moving:
        edit = torch.zeros_like(start)
        for delta, weight in moving:
            edit.add_(delta, alpha=weight)
        end = (start + edit).to(end_type)
        error = end.to(start.dtype) - start - edit
        row[2:] = [dot(edit, edit), dot(error, error), float((end != start.to(end_type)).sum())]
    row += [0.0 if delta is None else dot(start, delta) for delta in deltas]
    row += [0.0 if delta is None else float(delta.count_nonzero()) for delta in deltas]
    pairs = itertools.combinations_with_replacement(deltas, 2)
    return row + [0.0 if one is None or two is None else dot(one, two) for one, two in pairs]


def _changes(names: Sequence[str], sums: LayerSums, count: int, types: set[torch.dtype]) -> Changes:
    layers, columns = sums.by_layer()
    numbers, base_squares, edits, lost, stirred = columns[:, :5].T
    products = np.zeros((len(layers), count, count))
    upper = np.triu_indices(count)
    products[:, upper[0], upper[1]] = products[:, upper[1], upper[0]] = columns[:, 5 + 2 * count :]
    return Changes(
        names=tuple(names),
        layers=layers,
        numbers=numbers.astype(int),
        base_squares=base_squares,
        base_dots=columns[:, 5 : 5 + count],
        products=products,
        changed=columns[:, 5 + count : 5 + 2 * count].astype(int),
        sums=edits,
        lost=lost,
        stirred=stirred.astype(int),
        precision=" and ".join(sorted(str(each).removeprefix("torch.") for each in types)),
    )
