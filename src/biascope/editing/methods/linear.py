"""Linear: the weighted mean of weights (model soups)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from biascope.editing.methods._factors import FactorMethod
from biascope.editing.methods._method import Method, MovedTensor, Rule, Slice, weighted_sum
from biascope.editing.methods._settings import MethodSetting

WEIGHT = MethodSetting("weight", 1.0, "weight of a model", each=True)
NORMALIZE = MethodSetting("normalize", 1.0, "divide by the sum of the weights", flag=True)


class Linear(Method):
    """``Σ w_i θ_i / Σ w_i``; the base counts only if it is one of the models."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (WEIGHT, NORMALIZE)
    says = "Σ w_i θ_i / Σ w_i"
    reference = "Wortsman et al. (2022). Model soups. ICML."

    def rule(self, part: MovedTensor) -> Rule:
        """Task vectors have the same mean as weights, to fewer digits lost."""
        weights, total = self.values.each("weight", part.name), sum(self.values.each("weight", part.name))
        if self.values.one("normalize", part.name):
            if not total:
                raise ValueError(
                    f"The weights of a mean must not add up to zero, but do for {part.name}. Pass normalize=false, or other weights."
                )
            weights, total = [weight / total for weight in weights], 1.0

        def changed(each: Slice) -> Tensor:
            return weighted_sum(each.deltas, weights).add_(each.start, alpha=total - 1.0)

        return changed


class LinearOfFactors(FactorMethod):
    """PEFT's ``linear``: A and B are summed separately, so products of different models appear."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (WEIGHT,)
    says = "(Σ √(w s) B)(Σ √(w s) A), over the models that adapt the weight"


FORMS = {"": Linear, ":peft": LinearOfFactors}
