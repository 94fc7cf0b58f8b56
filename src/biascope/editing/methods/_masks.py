"""Random masks whose numbers depend on the seed, the model and the name of the tensor alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from biascope.editing.layer_sums import dot
from biascope.editing.methods._method import MovedTensor, Slice
from biascope.runs.randomness import generator_for

_CPU = torch.device("cpu")


class Chances:
    """Uniform numbers for one tensor of one model, given out in order.

    Example:
        >>> first, again, other = Chances(0, "a", "w"), Chances(0, "a", "w"), Chances(0, "b", "w")
        >>> values = first.next(5)
        >>> torch.equal(values, torch.cat([again.next(2), again.next(3)])), torch.equal(values, other.next(5))
        (True, False)
    """

    def __init__(self, seed: int, model: str, tensor: str) -> None:
        self._generator = generator_for(_CPU, seed, "merging mask", model, tensor)

    def next(self, count: int) -> Tensor:
        """The next of them."""
        return torch.rand(count, generator=self._generator)


Masker = Callable[[Slice, int], Tensor]  # from a slice and the place of a model to its mask; called in order


def restored_norms(part: MovedTensor, masker: Callable[[], Masker], models: int) -> list[float]:
    """By what masked changes must be multiplied to have the L1 norms of before, over a whole tensor.

    Args:
        part: The tensor.
        masker: Gives the masks from the first slice on.
        models: How many.
    """
    masks, before, after = masker(), [0.0] * models, [0.0] * models
    for each in part.read():
        for place, delta in enumerate(each.deltas):
            size = delta.abs()
            before[place] += float(size.sum(dtype=torch.float64))
            after[place] += dot(size, masks(each, place))
    return [b / a if b >= 1e-7 and a >= 1e-7 else 1.0 for b, a in zip(before, after, strict=True)]


def masked(each: Slice, masks: Masker, scales: Sequence[float]) -> list[Tensor]:
    """The changes of a slice, masked and scaled."""
    return [delta * masks(each, place).to(delta.dtype) * scales[place] for place, delta in enumerate(each.deltas)]
