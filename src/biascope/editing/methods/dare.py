"""DARE: drop changes at random, rescale what is left, add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from biascope.editing.methods._factors import RANK, CutMethod, FactorMethod
from biascope.editing.methods._masks import Chances, Masker, masked, restored_norms
from biascope.editing.methods._method import Method, MovedTensor, Rule, Slice, weighted_sum
from biascope.editing.methods._settings import MethodSetting, Values
from biascope.editing.methods.ties import FREQUENCY, LAMBDA, WEIGHT, agreed, consensus

_KEPT = "share of the changes that is kept"
_DENSITY = MethodSetting("density", 0.1, _KEPT, 0.0, 1.0, each=True)


class Dare(Method):
    """``Σ w_i m_i τ_i / density``, each entry of the mask ``m_i`` 1 with probability density: the paper's drop rate is 1 − density."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (WEIGHT, _DENSITY)
    scaled_by = "weight"
    says = "Σ w_i m_i τ_i / density, m_i random with mean density"
    reference = "Yu et al. (2024). Language models are super Mario. ICML."

    def rule(self, part: MovedTensor) -> Rule:
        """The sum of masked changes."""
        densities = self.values.each("density", part.name)
        masks = _masker(self, part, densities)
        scales = [1 / share if share else 0.0 for share in densities]
        weights = self.values.each("weight", part.name)
        return lambda each: weighted_sum(masked(each, masks, scales), weights)

    def doubts(self) -> list[str]:
        """Whether nothing is kept."""
        return nothing_kept(self.values)


class DareOfMergekit(Method):
    """mergekit's ``dare_linear``: rescaled to the L1 norm of the tensor, instead of by 1/density."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        WEIGHT,
        MethodSetting("density", 1.0, _KEPT, 0.0, 1.0, each=True),
        MethodSetting("rescale", 1.0, "rescale to the L1 norm that the tensor had", flag=True),
        MethodSetting("normalize", 0.0, "divide by the sum of the weights", flag=True),
        LAMBDA,
    )
    scaled_by = "lambda"
    says = "λ Σ w_i m_i τ_i ‖τ_i‖₁/‖m_i τ_i‖₁ in each tensor"
    reference = "mergekit 0.1.5"
    votes = False

    def masker(self, part: MovedTensor) -> Masker:
        """The masks of a tensor, from its first slice on."""
        return _masker(self, part, self.values.each("density", part.name))

    def rule(self, part: MovedTensor) -> Rule:
        """The sum, or the elected sum, of masked and rescaled changes."""
        weights, scale = self.values.each("weight", part.name), self.values.one("lambda", part.name)
        scales = [1.0] * len(weights)
        if self.values.one("rescale", part.name):
            whole = [share >= 1 for share in self.values.each("density", part.name)]
            scales = restored_norms(part, lambda: self.masker(part), len(weights))
            scales = [1.0 if all_kept else each for all_kept, each in zip(whole, scales, strict=True)]
        masks, normalised = self.masker(part), bool(self.values.one("normalize", part.name))
        divisor = sum(weights) if normalised and abs(sum(weights)) >= 1e-8 else 1.0

        def changed(each: Slice) -> Tensor:
            moved = masked(each, masks, scales)
            if self.votes:
                return consensus(moved, weights, normalised).mul_(scale)
            return weighted_sum(moved, weights).mul_(scale / divisor)

        return changed

    def doubts(self) -> list[str]:
        """Whether nothing is kept."""
        return nothing_kept(self.values)


class DareTiesOfMergekit(DareOfMergekit):
    """mergekit's ``dare_ties``: as its ``dare_linear``, with the election of its TIES."""

    says = "as dare:mergekit, over the models that agree with the sign of the weighted sum"
    votes = True


def nothing_kept(values: Values) -> list[str]:
    """Of which models a density of 0 leaves nothing."""
    empty = [name for name, share in zip(values.models, values.largest("density"), strict=True) if share == 0]
    return [f"Nothing of {name} is kept: its density is 0." for name in empty]


def _masker(method: Method, part: MovedTensor, densities: Sequence[float]) -> Masker:
    chances = [Chances(method.seed, key, part.name) for key in method.keys]
    return lambda each, place: chances[place].next(len(each.start)) < densities[place]


_OF_PEFT = (WEIGHT, MethodSetting("density", 0.1, _KEPT, 0.0, 1.0))


class DareOfFactors(FactorMethod):
    """PEFT's ``dare_linear``: A and B are masked separately, so a product keeps density² of its terms."""

    settings: ClassVar[tuple[MethodSetting, ...]] = _OF_PEFT
    says = "Σ √(w s) m B / density times Σ √(w s) m A / density"

    def merged(self, moved: Sequence[Tensor], weights: Sequence[float], tensor: str, keys: Sequence[str]) -> Tensor:
        """One of the two factors."""
        return weighted_sum(_dropped(self, moved, tensor, keys), weights)


class DareTiesOfFactors(DareOfFactors):
    """PEFT's ``dare_ties``: as its ``dare_linear``, with the election of its TIES."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (*_OF_PEFT, FREQUENCY)
    says = "TIES, without trimming, of randomly masked B and A"

    def merged(self, moved: Sequence[Tensor], weights: Sequence[float], tensor: str, keys: Sequence[str]) -> Tensor:
        """One of the two factors."""
        by_count = bool(self.values.one("frequency", tensor))
        return agreed(_dropped(self, moved, tensor, keys), weights, by_count)


class DareCut(CutMethod):
    """PEFT's ``dare_linear_svd``: the products are masked, and the sum is cut to a rank."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (*_OF_PEFT, RANK)
    says = "Σ w m s B A / density, cut to a rank"

    def merged(self, moved: Sequence[Tensor], weights: Sequence[float], tensor: str, keys: Sequence[str]) -> Tensor:
        """The merged product."""
        return weighted_sum(_dropped(self, moved, tensor, keys), weights)


def _dropped(method: Method, moved: Sequence[Tensor], tensor: str, keys: Sequence[str]) -> list[Tensor]:
    density = method.values.one("density", tensor)
    if not density:
        raise ValueError("density must be more than 0, because the factors are divided by it, got 0. Pass density=0.1.")
    masks = [
        Chances(method.seed, key, tensor).next(each.numel()).view(each.shape) < density
        for key, each in zip(keys, moved, strict=True)
    ]
    return [torch.where(mask, each, 0.0) / density for mask, each in zip(masks, moved, strict=True)]


FORMS = {
    "": Dare,
    ":mergekit": DareOfMergekit,
    "_ties:mergekit": DareTiesOfMergekit,
    ":peft": DareOfFactors,
    "_ties:peft": DareTiesOfFactors,
    "_svd:peft": DareCut,
}
