"""Task arithmetic: weighted task vectors added to the base."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from biascope.editing.methods._method import Method, MovedTensor, Rule, Slice, weighted_sum
from biascope.editing.methods._settings import MethodSetting


class TaskArithmetic(Method):
    """``θ₀ + λ Σ w_i τ_i``."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        MethodSetting("weight", None, "weight of a model; a negative one negates", each=True),
        MethodSetting("normalize", 0.0, "divide by the sum of the weights", flag=True),
        MethodSetting("lambda", 1.0, "scale of the sum"),
    )
    scaled_by = "lambda"
    says = "θ₀ + λ Σ w_i τ_i"
    reference = "Ilharco et al. (2023). Editing models with task arithmetic. ICLR."

    def rule(self, part: MovedTensor) -> Rule:
        """The sum."""
        weights, scale = self.values.each("weight", part.name), self.values.one("lambda", part.name)
        if self.values.one("normalize", part.name):
            scale /= sum(weights) if abs(sum(weights)) >= 1e-8 else 1.0
        scaled = [scale * weight for weight in weights]

        def changed(each: Slice) -> Tensor:
            return weighted_sum(each.deltas, scaled)

        return changed


FORMS = {"": TaskArithmetic}
