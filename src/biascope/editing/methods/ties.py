"""TIES: trim small changes, elect a sign for each number, average the models that agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from biascope.editing.methods._election import agreeing_mean, elected
from biascope.editing.methods._factors import RANK, CutMethod, FactorMethod
from biascope.editing.methods._method import Method, MovedTensor, Rule, Slice
from biascope.editing.methods._ranks import Ranks, ranked
from biascope.editing.methods._settings import MethodSetting, Values

LAMBDA = MethodSetting("lambda", 1.0, "scale of the merged task vector")
WEIGHT = MethodSetting("weight", 1.0, "weight of a model", each=True)
FREQUENCY = MethodSetting(
    "frequency", 0.0, "elect by the number of models instead of the sum of their changes", flag=True
)
KEPT = "share of the numbers with the largest changes, which is kept"


class Ties(Method):
    """The paper's: trimmed over the whole task vector, signs elected by ``sgn Σ τ``, the mean over who agrees.

    The threshold is exact: the magnitude of rank ``⌊density · d⌋`` among all d numbers of a task vector. Numbers of this magnitude
    are all kept. A sum of exactly zero elects no sign, and the base keeps its number.
    """

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        MethodSetting("density", 0.2, f"{KEPT}, of the whole task vector", 0.0, 1.0, each=True, whole=True),
        LAMBDA,
    )
    scaled_by = "lambda"
    says = (
        "λ · mean of the τ_i that have the sign of Σ τ_i, after each τ_i is trimmed to its largest density · d numbers"
    )
    reference = "Yadav et al. (2023). TIES-merging. NeurIPS."

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._ranks: Ranks | None = None
        self._wanted: list[int] = []

    def surveys(self, dtype: torch.dtype) -> int:
        """One look for sixteen bits of the threshold."""
        return 8 * dtype.itemsize // 16

    def survey(self, parts: Sequence[MovedTensor]) -> None:
        """Sixteen bits of the threshold of each model."""
        if self._ranks is None:
            wide = any(part.dtype == torch.float64 for part in parts)
            total = sum(part.numbers for part in parts)
            self._wanted = [int(share * total) for share in self.values.each("density", parts[0].name)]
            self._ranks = Ranks([[rank] for rank in self._wanted], torch.float64 if wide else torch.float32)
        for part in parts:
            for each in part.read():
                self._ranks.see(each.deltas)
        self._ranks.turn()

    def rule(self, part: MovedTensor) -> Rule:
        """The mean over who agrees, of trimmed changes."""
        assert self._ranks is not None
        cuts = [self._ranks.cut(place, 0, exact=False) for place in range(len(self._wanted))]
        scale = self.values.one("lambda", part.name)

        def changed(each: Slice) -> Tensor:
            moved = [torch.where(cut.kept(delta), delta, 0.0) for cut, delta in zip(cuts, each.deltas, strict=True)]
            return agreeing_mean(moved, elected(moved)).mul_(scale)

        return changed

    def doubts(self) -> list[str]:
        """Whether trimming left nothing."""
        empty = [name for name, rank in zip(self.values.models, self._wanted, strict=False) if not rank]
        return [f"Nothing of {name} is kept: its density is too small." for name in empty]


class TiesOfMergekit(Method):
    """mergekit's: trimmed tensor by tensor, and weights count in the election and in the divisor."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        WEIGHT,
        MethodSetting("density", 1.0, f"{KEPT}, of a tensor", 0.0, 1.0, each=True),
        MethodSetting("normalize", 1.0, "divide by the sum of the agreeing weights", flag=True),
        LAMBDA,
    )
    scaled_by = "lambda"
    says = (
        "λ Σ w_i τ_i / Σ w_i over the models whose w_i τ_i has the sign of Σ w_i τ_i (+ for 0), trimmed in each tensor"
    )
    reference = "mergekit 0.1.5"

    def rule(self, part: MovedTensor) -> Rule:
        """The weighted mean over who agrees."""
        densities = self.values.each("density", part.name)
        wanted = [kept_of(share, part.numbers) for share in densities]
        trimmed = [rank if share < 1 else 0 for share, rank in zip(densities, wanted, strict=True)]
        ranks = ranked(lambda: deltas_of(part), [[rank] for rank in trimmed], part.dtype) if any(trimmed) else None
        cuts = [
            None if share >= 1 else (ranks or Ranks([[0]] * len(wanted), part.dtype)).cut(place, 0, exact=True)
            for place, share in enumerate(densities)
        ]
        weights, scale = self.values.each("weight", part.name), self.values.one("lambda", part.name)
        normalised = bool(self.values.one("normalize", part.name))

        def changed(each: Slice) -> Tensor:
            moved = [
                delta if cut is None else torch.where(cut.kept(delta), delta, 0.0)
                for cut, delta in zip(cuts, each.deltas, strict=True)
            ]
            return consensus(moved, weights, normalised).mul_(scale)

        return changed


def consensus(moved: Sequence[Tensor], weights: Sequence[float], normalised: bool) -> Tensor:
    """Mergekit's sum over the models that agree with the sign of the weighted sum, divided by their weights if that is wanted."""
    moved = [each * weight for each, weight in zip(moved, weights, strict=True)]
    sign = elected(moved, tie=1)
    if normalised:
        return agreeing_mean(moved, sign, weights)
    return sum((torch.where(each.sign() == sign, each, 0.0) for each in moved), torch.zeros_like(sign))


def kept_of(share: float, numbers: int) -> int:
    """How many numbers of a tensor a density keeps in mergekit: at least one, unless it is 0.

    Example:
        >>> kept_of(0.2, 11), kept_of(0.01, 11), kept_of(0.0, 11)
        (2, 1, 0)
    """
    return max(1, int(share * numbers)) if share > 0 and numbers else 0


def deltas_of(part: MovedTensor) -> Iterator[list[Tensor]]:
    """The task vectors of a tensor, slice by slice."""
    return (each.deltas for each in part.read())


def trimmed(moved: Tensor, density: float) -> Tensor:
    """PEFT's trimming: the largest ``⌊density · d⌋`` numbers of a tensor."""
    if density >= 1:
        return moved
    flat = moved.flatten()
    ranks = ranked(lambda: [[flat]], [[int(density * len(flat))]], flat.dtype)
    return torch.where(ranks.cut(0, 0, exact=True).kept(flat), flat, 0.0).view(moved.shape)


def agreed(moved: Sequence[Tensor], weights: Sequence[float], by_count: bool) -> Tensor:
    """PEFT's election, without weights, and mean over the models that agree, of weighted changes."""
    sign = elected([each.sign() for each in moved] if by_count else moved, tie=1)
    agrees = [(each.sign() == sign).to(each.dtype) for each in moved]
    total = sum(
        (each * weight * agree for each, weight, agree in zip(moved, weights, agrees, strict=True)),
        torch.zeros_like(sign),
    )
    return total / sum(agrees, torch.zeros_like(sign)).clamp(min=1.0)


_OF_PEFT = (WEIGHT, MethodSetting("density", 0.2, f"{KEPT}, of a tensor", 0.0, 1.0), FREQUENCY)


class TiesOfFactors(FactorMethod):
    """PEFT's ``ties``: A and B are trimmed, elected and averaged separately."""

    settings: ClassVar[tuple[MethodSetting, ...]] = _OF_PEFT
    says = "TIES of B times TIES of A, each with weights √(w s); election without weights, a tie becomes +"

    def merged(self, moved: Sequence[Tensor], weights: Sequence[float], tensor: str, keys: Sequence[str]) -> Tensor:
        """One of the two factors."""
        return _by_peft(self.values, moved, weights, tensor)


class TiesCut(CutMethod):
    """PEFT's ``ties_svd``: TIES of the products, cut to a rank."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (*_OF_PEFT, RANK)
    says = "TIES of the products s B A, election without weights, cut to a rank"

    def merged(self, moved: Sequence[Tensor], weights: Sequence[float], tensor: str, keys: Sequence[str]) -> Tensor:
        """The merged product."""
        return _by_peft(self.values, moved, weights, tensor)


def _by_peft(values: Values, moved: Sequence[Tensor], weights: Sequence[float], tensor: str) -> Tensor:
    kept = [trimmed(each, values.one("density", tensor)) for each in moved]
    return agreed(kept, weights, bool(values.one("frequency", tensor)))


FORMS = {"": Ties, ":mergekit": TiesOfMergekit, ":peft": TiesOfFactors, "_svd:peft": TiesCut}
