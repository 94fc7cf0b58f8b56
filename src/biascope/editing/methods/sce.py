"""SCE: select what differs most between models, calculate a weight for each model and tensor, erase minority signs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from biascope.editing.layer_sums import dot
from biascope.editing.methods._election import agreeing_mean, elected
from biascope.editing.methods._method import Method, MovedTensor, Rule, Slice
from biascope.editing.methods._ranks import Cut, Ranks, ranked
from biascope.editing.methods._settings import MethodSetting

_SELECT = "share of the numbers whose changes vary most between models, which is kept"


class Sce(Method):
    """The mean over the models that have the sign of the sum, with weights ``η_i = ‖m τ_i‖² / Σ_j ‖m τ_j‖²`` in each tensor.

    The mask m keeps the numbers with the largest variance over models, of those whose variance is not zero.
    """

    settings: ClassVar[tuple[MethodSetting, ...]] = (MethodSetting("select_topk", 0.1, _SELECT, 0.0, 1.0),)
    fewest = 2
    says = "Σ η_i m τ_i / Σ η_i over the models with the sign of Σ m τ_i, η_i = ‖m τ_i‖² / Σ ‖m τ_j‖², m the largest variances"
    reference = "Wan et al. (2024). FuseChat. arXiv 2408.07990."
    uniform_below = 0.0  # sum of mean squares under which all weights are equal
    tie = 0

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._uniform = self._empty = self._tensors = 0

    def rule(self, part: MovedTensor) -> Rule:
        """The weighted mean over who agrees."""
        share, count = self.values.one("select_topk", part.name), len(self.values.models)
        kept = part.numbers
        ranks = None
        if share < 1:
            varying = sum(int(values.count_nonzero()) for values in _variances(part))
            kept = int(varying * share)
            wanted = [[kept]]
            ranks = (
                ranked(lambda: ([values] for values in _variances(part)), wanted, part.dtype)
                if kept
                else Ranks(wanted, part.dtype)
            )

        def cut() -> Cut | None:
            return None if ranks is None else ranks.cut(0, 0, exact=True)

        squares, first = [0.0] * count, cut()
        for each in part.read():
            squares = [total + dot(m, m) for total, m in zip(squares, _selected(each, first), strict=True)]
        total = sum(squares)
        uniform = total / max(part.numbers, 1) < self.uniform_below or not total
        weights = [1 / count] * count if uniform else [square / total for square in squares]
        self._tensors += 1
        self._uniform += uniform and bool(total)
        self._empty += not kept
        last = cut()

        def changed(each: Slice) -> Tensor:
            moved = _selected(each, last)
            sign = elected(moved, tie=self.tie)
            scaled = [delta * weight for delta, weight in zip(moved, weights, strict=True)]
            return agreeing_mean(scaled, sign, weights)

        return changed

    def doubts(self) -> list[str]:
        """Where weights were not computed, or nothing was selected."""
        words = []
        if self._uniform:
            words.append(
                f"In {self._uniform} of {self._tensors} tensors all models have the same weight: mergekit computes none where the "
                "squares of the changes have a sum of means below 1e-6. Use sce for the paper's weights."
            )
        if self._empty:
            words.append(
                f"In {self._empty} of {self._tensors} tensors nothing is selected, so they stay those of the base."
            )
        return words


class SceOfMergekit(Sce):
    """mergekit's: equal weights where the changes are small, and a sum of zero counts as positive."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (MethodSetting("select_topk", 1.0, _SELECT, 0.0, 1.0),)
    says = "as sce, with equal weights where Σ mean(τ_i²) < 1e-6"
    reference = "mergekit 0.1.5"
    uniform_below = 1e-6
    tie = 1


def _variances(part: MovedTensor) -> Iterator[Tensor]:
    return (variance(each.deltas) for each in part.read())


def variance(moved: Sequence[Tensor]) -> Tensor:
    """The variance over models, number by number; ``torch.var`` over the first axis takes eighty times as long.

    Example:
        >>> variance([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])]).tolist()
        [1.0, 0.0]
    """
    mean, total = sum(moved[1:], moved[0]) / len(moved), torch.zeros_like(moved[0])
    for each in moved:
        total += (each - mean).square_()
    return total / len(moved)


def _selected(each: Slice, cut: Cut | None) -> list[Tensor]:
    if cut is None:
        return each.deltas
    mask = cut.kept(variance(each.deltas))
    return [torch.where(mask, delta, 0.0) for delta in each.deltas]


FORMS = {"": Sce, ":mergekit": SceOfMergekit}
