"""DELLA: drop changes at random, small ones more often; elect a sign, average, scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from biascope.editing.methods._election import agreeing_mean, elected
from biascope.editing.methods._masks import Chances, Masker
from biascope.editing.methods._method import Method, MovedTensor, Rule, Slice
from biascope.editing.methods._settings import MethodSetting
from biascope.editing.methods.dare import DareOfMergekit
from biascope.editing.methods.ties import LAMBDA, WEIGHT


class Della(Method):
    """Each row of a matrix is ranked by magnitude; entry r of n is kept with probability ``density − ε/2 + ε r/n``, and divided by it.

    Then a sign is elected by the sum, and the mean is over the models that have it. A vector is one row.
    """

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        MethodSetting("density", 0.5, "mean share of the changes that is kept", 0.0, 1.0, each=True),
        MethodSetting(
            "epsilon", 0.2, "by how much the largest change of a row is kept more often than the smallest", 0.0, 1.0
        ),
        LAMBDA,
    )
    scaled_by = "lambda"
    says = "λ · mean of the m_i τ_i / p_i that have the sign of their sum, P(m_i = 1) = p_i rising by ε with the rank in a row"
    reference = "Deep et al. (2024). DELLA-merging. arXiv 2406.11617."

    def rule(self, part: MovedTensor) -> Rule:
        """The mean over who agrees, of masked and rescaled changes."""
        densities, epsilon = self.values.each("density", part.name), self.values.one("epsilon", part.name)
        for share in densities:
            if not (epsilon / 2 <= share <= 1 - epsilon / 2):
                raise ValueError(
                    f"density must lie at least epsilon/2 = {epsilon / 2:g} from 0 and from 1, got {share:g}. Pass a smaller epsilon."
                )

        def chance(ranks: Tensor, place: int) -> Tensor:
            return densities[place] - epsilon / 2 + epsilon * (ranks + 1) / ranks.shape[-1]

        scale, rows = self.values.one("lambda", part.name), _Rows(self, part, chance)

        def changed(each: Slice) -> Tensor:
            moved = []
            for place, delta in enumerate(each.deltas):
                mask, share = rows.next(each, place)
                moved.append(torch.where(mask, delta / share.to(delta.dtype), 0.0))
            return agreeing_mean(moved, elected(moved)).mul_(scale)

        return changed


class DellaOfMergekit(DareOfMergekit):
    """mergekit's: a window of ``±ε``, rescaled to the L1 norm of the tensor, weights in the election and in the divisor."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        WEIGHT,
        MethodSetting("density", 1.0, "mean share of the changes that is kept", 0.0, 1.0, each=True),
        MethodSetting("epsilon", 0.15, "half of the range of probabilities in a row", 0.0, 1.0, each=True),
        MethodSetting("rescale", 1.0, "rescale to the L1 norm that the tensor had", flag=True),
        MethodSetting("normalize", 1.0, "divide by the sum of the agreeing weights", flag=True),
        LAMBDA,
    )
    says = "as dare_ties:mergekit, P(m_i = 1) from density − ε to density + ε with the rank in a row"
    votes = True

    def masker(self, part: MovedTensor) -> Masker:
        """The masks of a tensor, from its first slice on."""
        densities, spread = self.values.each("density", part.name), self.values.each("epsilon", part.name)
        for share, epsilon in zip(densities, spread, strict=True):
            if 0 < share < 1 and not 0 < share - epsilon <= share + epsilon < 1:
                raise ValueError(
                    f"density − epsilon and density + epsilon must lie between 0 and 1, got {share:g} and {epsilon:g}. Pass a smaller "
                    "epsilon."
                )

        def chance(ranks: Tensor, place: int) -> Tensor:
            share, epsilon = densities[place], spread[place]
            if share in (0, 1):
                return torch.full_like(ranks, share)
            return share - epsilon + 2 * epsilon * ranks / max(ranks.shape[-1] - 1, 1)

        rows = _Rows(self, part, chance)
        return lambda each, place: rows.next(each, place)[0]


class DellaLinearOfMergekit(DellaOfMergekit):
    """mergekit's ``della_linear``: without an election."""

    settings: ClassVar[tuple[MethodSetting, ...]] = tuple(
        MethodSetting("normalize", 0.0, "divide by the sum of the weights", flag=True)
        if each.name == "normalize"
        else each
        for each in DellaOfMergekit.settings
    )
    says = "as dare:mergekit, P(m_i = 1) from density − ε to density + ε with the rank in a row"
    votes = False


class _Rows:
    """Masks by the ranks in rows, cut to slices: rows are read on their own, so a slice may end within one."""

    def __init__(self, method: Method, part: MovedTensor, chance: Callable[[Tensor, int], Tensor]) -> None:
        chances = [Chances(method.seed, key, part.name) for key in method.keys]
        self._ready = [_drawn(part, place, chance, each) for place, each in enumerate(chances)]
        self._left = [(torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=part.dtype)) for _ in chances]

    def next(self, each: Slice, place: int) -> tuple[Tensor, Tensor]:
        """The mask of a model in the next slice, and the probabilities that it was drawn with."""
        masks, shares = self._left[place]
        while len(masks) < len(each.start):
            mask, share = next(self._ready[place])
            masks, shares = torch.cat([masks, mask]), torch.cat([shares, share])
        count = len(each.start)
        self._left[place] = (masks[count:], shares[count:])
        return masks[:count], shares[:count]


def _drawn(
    part: MovedTensor, place: int, chance: Callable[[Tensor, int], Tensor], chances: Chances
) -> Iterator[tuple[Tensor, Tensor]]:
    """Masks of whole rows of a model, and the probabilities that they were drawn with."""
    shape = part.shape
    columns = math.prod(shape[1:]) if len(shape) > 1 else part.numbers
    waiting = torch.zeros(0, dtype=part.dtype)
    for each in part.read():
        waiting = torch.cat([waiting, each.deltas[place]])
        whole = len(waiting) // max(columns, 1) * columns
        if whole:
            rows, waiting = waiting[:whole].view(-1, columns), waiting[whole:]
            order = rows.abs().argsort(dim=1, stable=True)
            ranks = torch.arange(columns, dtype=part.dtype).expand_as(rows)
            ranks = torch.empty_like(rows).scatter_(1, order, ranks)
            shares = chance(ranks, place)
            drawn = chances.next(whole).view(rows.shape)
            yield (drawn < shares).flatten(), shares.flatten()


FORMS = {"": Della, ":mergekit": DellaOfMergekit, "_linear:mergekit": DellaLinearOfMergekit}
