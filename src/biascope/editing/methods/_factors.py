"""Methods that act on the factors A and B of LoRA adapters, or on their products cut to a rank, as PEFT does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from biascope.editing.methods._method import Factors, Method, MovedTensor, Rule, Slice, constant, weighted_sum
from biascope.editing.methods._settings import MethodSetting

RANK = MethodSetting("rank", 0.0, "rank of the merged update; 0 for the largest of the adapters", low=0.0)
_PEFT = "PEFT 0.21, add_weighted_adapter"


class FactorMethod(Method):
    """A and B of the adapters are merged separately, with weights ``√(w s)``: the result is ``B A`` of what comes out.

    A weight that only some adapters have is merged from these alone.
    """

    of_factors = True
    says = "B(τ) A(τ), merged separately"
    reference = _PEFT

    def rule(self, part: MovedTensor) -> Rule:
        """The product of merged factors."""
        here = _adapted(part)
        if not here:
            return _unchanged
        places, factors = list(here), list(here.values())
        weights = self.values.each("weight", part.name)
        if len({tuple(each.down.shape) for each in factors}) > 1:
            ranks = ", ".join(str(len(each.down)) for each in factors)
            raise ValueError(
                f"{self.values.method} merges factors of one rank, but {part.name} has the ranks {ranks}. Pass a method of another "
                "dialect, such as ties_svd:peft."
            )
        signed = [weights[place] * each.scale for place, each in zip(places, factors, strict=True)]
        roots = [math.sqrt(abs(weight)) for weight in signed]
        down = self.merged(
            [each.down for each in factors],
            [math.copysign(root, weight) for root, weight in zip(roots, signed, strict=True)],
            part.name,
            [f"{self.keys[place]}/A" for place in places],
        )
        up = self.merged([each.up for each in factors], roots, part.name, [f"{self.keys[place]}/B" for place in places])
        product = up @ down
        return constant((product.T if factors[0].turned else product).to(part.dtype))

    def merged(self, moved: Sequence[Tensor], weights: Sequence[float], tensor: str, keys: Sequence[str]) -> Tensor:
        """One of the two factors.

        Args:
            moved: Of each adapter.
            weights: Of each.
            tensor: Name of the weight.
            keys: What random numbers of each depend on.
        """
        return weighted_sum(moved, weights)


class CutMethod(Method):
    """The products ``s B A`` are merged, and the result is cut to a rank by its singular values."""

    matrices = True
    says = "the best approximation of rank r of the merged products s B A"
    reference = _PEFT

    def rule(self, part: MovedTensor) -> Rule:
        """The merged product, cut."""
        here = _adapted(part)
        if not here:
            return _unchanged
        weights, factors = self.values.each("weight", part.name), list(here.values())
        products = [(each.scale * each.up @ each.down).to(part.dtype) for each in factors]
        # In the orientation of the weight, as the order of numbers decides between equals.
        products = [
            product.T.contiguous() if each.turned else product for product, each in zip(products, factors, strict=True)
        ]
        merged = self.merged(
            products, [weights[place] for place in here], part.name, [self.keys[place] for place in here]
        )
        rank = int(self.values.one("rank", part.name)) or max(len(each.down) for each in factors)
        left, sizes, right = torch.linalg.svd(merged, full_matrices=False)
        return constant((left[:, :rank] * sizes[:rank]) @ right[:rank])

    def merged(self, moved: Sequence[Tensor], weights: Sequence[float], tensor: str, keys: Sequence[str]) -> Tensor:
        """The merged product, as in :meth:`FactorMethod.merged`."""
        return weighted_sum(moved, weights)


def _unchanged(each: Slice) -> Tensor:
    return torch.zeros_like(each.start)


def _adapted(part: MovedTensor) -> dict[int, Factors]:
    """The factors of the models that adapt a weight, by their places."""
    return {place: each for place, each in enumerate(part.factors()) if each is not None}
