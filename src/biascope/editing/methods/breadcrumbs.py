"""Model breadcrumbs: cut the largest and the smallest changes of each tensor, add the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from biascope.editing.methods._method import Method, MovedTensor, Rule, Slice, weighted_sum
from biascope.editing.methods._ranks import Cut, Ranks, ranked
from biascope.editing.methods._settings import MethodSetting
from biascope.editing.methods.ties import LAMBDA, WEIGHT, consensus, deltas_of


class Breadcrumbs(Method):
    """``Σ w_i m_i τ_i``: the mask keeps the magnitudes between the quantiles β and γ of a tensor."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        MethodSetting("weight", 0.3, "weight of a model", each=True),
        MethodSetting("beta", 0.85, "share of the smallest changes of a tensor, which is cut", 0.0, 1.0, each=True),
        MethodSetting(
            "gamma",
            0.993,
            "share of the changes of a tensor that is not among the largest, which are cut",
            0.0,
            1.0,
            each=True,
        ),
    )
    scaled_by = "weight"
    says = "Σ w_i m_i τ_i, m_i = 1 between the quantiles β and γ of |τ_i| in a tensor"
    reference = "Davari and Belilovsky (2024). Model breadcrumbs. ECCV."

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._empty: dict[str, int] = {}
        self._tensors = 0

    def kept(self, part: MovedTensor) -> list[tuple[int, int]]:
        """For each model, how many of the largest changes are cut, and how many are cut or kept."""
        pairs = zip(self.values.each("beta", part.name), self.values.each("gamma", part.name), strict=True)
        return [
            (part.numbers - round(high * part.numbers), part.numbers - round(low * part.numbers)) for low, high in pairs
        ]

    def masks(self, part: MovedTensor) -> list[Cut]:
        """For each model two cuts: what is not kept at the top, and what is kept or above."""
        wanted = self.kept(part)
        self._tensors += 1
        for name, (top, low) in zip(self.values.models, wanted, strict=True):
            self._empty[name] = self._empty.get(name, 0) + (top >= low)
        ranks = [[top, low if low > top else 0] for top, low in wanted]
        found = ranked(lambda: deltas_of(part), ranks, part.dtype) if any(map(any, ranks)) else Ranks(ranks, part.dtype)
        return [found.cut(place, k, exact=True) for place in range(len(wanted)) for k in (0, 1)]

    def rule(self, part: MovedTensor) -> Rule:
        """The sum of what is kept."""
        cuts, weights = self.masks(part), self.values.each("weight", part.name)
        return lambda each: weighted_sum(_between(each, cuts), weights)

    def doubts(self) -> list[str]:
        """Where nothing is left."""
        return [
            f"Nothing of {name} is kept in {count} of {self._tensors} tensors: the shares that are cut leave less than one number."
            for name, count in self._empty.items()
            if count
        ]


class BreadcrumbsOfMergekit(Breadcrumbs):
    """mergekit's settings: the share that is kept, and the share of the largest that is cut."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        WEIGHT,
        MethodSetting("density", 1.0, "share of the changes of a tensor that is kept", 0.0, 1.0, each=True),
        MethodSetting("gamma", 0.01, "share of the largest changes, which is cut", 0.0, 1.0, each=True),
        MethodSetting("rescale", 0.0, "rescale to the L1 norm that the tensor had", flag=True),
        MethodSetting("normalize", 0.0, "divide by the sum of the weights", flag=True),
        LAMBDA,
    )
    scaled_by = "lambda"
    says = "λ Σ w_i m_i τ_i, m_i = 1 for a share density of the changes below the largest share gamma of a tensor"
    reference = "mergekit 0.1.5"
    votes = False

    def kept(self, part: MovedTensor) -> list[tuple[int, int]]:
        """A density of 1 keeps all; if the largest cannot be cut without going below the density, fewer of them are."""
        count, wanted = part.numbers, []
        for density, gamma in zip(
            self.values.each("density", part.name), self.values.each("gamma", part.name), strict=True
        ):
            kept = count if density >= 1 else int(density * count)
            below = max(0, count - kept - int(gamma * count))
            wanted.append((count - below - kept, count - below))
        return wanted

    def rule(self, part: MovedTensor) -> Rule:
        """The sum, or the elected sum, of what is kept."""
        weights, scale = self.values.each("weight", part.name), self.values.one("lambda", part.name)
        scales = [1.0] * len(weights)
        if self.values.one("rescale", part.name):
            cuts, before, after = self.masks(part), [0.0] * len(weights), [0.0] * len(weights)
            for each in part.read():
                for place, kept in enumerate(_between(each, cuts)):
                    before[place] += float(each.deltas[place].abs().sum(dtype=torch.float64))
                    after[place] += float(kept.abs().sum(dtype=torch.float64))
            scales = [b / a if b >= 1e-7 and a >= 1e-7 else 1.0 for b, a in zip(before, after, strict=True)]
        cuts, normalised = self.masks(part), bool(self.values.one("normalize", part.name))
        divisor = sum(weights) if normalised and abs(sum(weights)) >= 1e-8 else 1.0

        def changed(each: Slice) -> Tensor:
            moved = [kept * by for kept, by in zip(_between(each, cuts), scales, strict=True)]
            if self.votes:
                return consensus(moved, weights, normalised).mul_(scale)
            return weighted_sum(moved, weights).mul_(scale / divisor)

        return changed


class BreadcrumbsTiesOfMergekit(BreadcrumbsOfMergekit):
    """mergekit's ``breadcrumbs_ties``: with the election of its TIES."""

    says = "as breadcrumbs:mergekit, over the models that agree with the sign of the weighted sum"
    votes = True


def _between(each: Slice, cuts: Sequence[Cut]) -> list[Tensor]:
    return [
        torch.where(low.kept(delta) & ~top.kept(delta), delta, 0.0)
        for delta, top, low in zip(each.deltas, cuts[::2], cuts[1::2], strict=True)
    ]


FORMS = {"": Breadcrumbs, ":mergekit": BreadcrumbsOfMergekit, "_ties:mergekit": BreadcrumbsTiesOfMergekit}
