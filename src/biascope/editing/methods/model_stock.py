"""Model stock: from the base towards the mean of the models, as far as the angle between their changes says."""

from __future__ import annotations

import itertools
import math

from biascope.editing.layer_sums import dot
from biascope.editing.methods._method import Method, MovedTensor, Rule, weighted_sum


class ModelStock(Method):
    """``t · mean(τ_i)`` with ``t = N cos θ / (1 + (N − 1) cos θ)`` in each tensor, cos θ the mean cosine of two task vectors.

    A model whose tensor did not change has no angle; its cosines count as 0.
    """

    fewest = 2
    says = "t · mean(τ_i), t = N cos θ / (1 + (N − 1) cos θ), θ the angle between task vectors in a tensor"
    reference = "Jang et al. (2024). Model stock. ECCV."
    least = 0.0  # that a product of norms counts as

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._beyond = self._tensors = 0

    def rule(self, part: MovedTensor) -> Rule:
        """The mean, scaled."""
        count = len(self.values.models)
        pairs = list(itertools.combinations(range(count), 2))
        squares, dots = [0.0] * count, [0.0] * len(pairs)
        for each in part.read():
            wide = [delta.double() for delta in each.deltas]
            squares = [total + dot(delta, delta) for total, delta in zip(squares, wide, strict=True)]
            dots = [total + dot(wide[one], wide[two]) for total, (one, two) in zip(dots, pairs, strict=True)]
        cosines = [
            self._cosine(total, squares[one], squares[two]) for total, (one, two) in zip(dots, pairs, strict=True)
        ]
        cosine = sum(cosines) / len(cosines)
        divisor = 1 + (count - 1) * cosine
        ratio = count * cosine / divisor if abs(divisor) >= 1e-6 else 0.0
        self._tensors += 1
        self._beyond += ratio < 0
        return lambda each: weighted_sum(each.deltas, [ratio / count] * count)

    def _cosine(self, product: float, one: float, two: float) -> float:
        norms = max(math.sqrt(one) * math.sqrt(two), self.least)
        return max(-1.0, min(1.0, product / norms)) if norms else 0.0

    def doubts(self) -> list[str]:
        """Where it leaves the segment between base and mean."""
        if not self._beyond:
            return []
        return [
            f"In {self._beyond} of {self._tensors} tensors the task vectors point away from each other, so the result lies behind the "
            "base, away from all models."
        ]


class ModelStockOfMergekit(ModelStock):
    """mergekit's: a product of two norms below 1e-6 counts as 1e-6, which makes the cosine of small changes too small."""

    says = "as model_stock, a product of norms below 1e-6 counted as 1e-6"
    reference = "mergekit 0.1.5"
    least = 1e-6


FORMS = {"": ModelStock, ":mergekit": ModelStockOfMergekit}
