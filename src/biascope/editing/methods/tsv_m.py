"""TSV-M: the largest singular vectors of each task, made orthogonal to those of the others."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from biascope.editing.methods._method import Method, MovedTensor, Rule, constant, weighted_sum
from biascope.editing.methods._settings import MethodSetting
from biascope.editing.methods.ties import LAMBDA


class TsvM(Method):
    """``U⊥ Σ V⊥ᵀ``: the ``⌊r/T⌋`` largest singular triplets of each of T task matrices side by side, U and V made orthogonal.

    The orthogonal matrix nearest to U is its polar factor. Triplets of zero, and directions that tasks have in common, add no others.
    What is no matrix gets the mean.
    """

    settings: ClassVar[tuple[MethodSetting, ...]] = (LAMBDA,)
    matrices = True
    scaled_by = "lambda"
    says = "λ U⊥ Σ V⊥ᵀ of the ⌊r/T⌋ largest singular triplets of each task, U⊥ and V⊥ polar factors; vectors: λ · mean(τ_i)"
    reference = "Gargiulo et al. (2025). Task singular vectors. CVPR."

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._empty: list[str] = []

    def rule(self, part: MovedTensor) -> Rule:
        """The change, whole."""
        scale, deltas = self.values.one("lambda", part.name), part.deltas()
        if len(part.shape) != 2 or not part.numbers:
            return mean_rule(len(self.values.models), scale)
        rank = min(part.shape) // len(deltas)
        if not rank:
            self._empty.append(part.name)
            return constant(torch.zeros(part.shape, dtype=part.dtype))
        triplets = [torch.linalg.svd(delta, full_matrices=False) for delta in deltas]
        left = torch.cat([u[:, :rank] for u, _, _ in triplets], 1)
        sizes = torch.cat([s[:rank] for _, s, _ in triplets])
        right = torch.cat([v[:rank] for _, _, v in triplets])
        # Where a task has no singular value, its vectors are arbitrary: they must not turn those of the others.
        known = sizes > sizes.max() * max(part.shape) * torch.finfo(part.dtype).eps
        return constant(scale * (polar(left[:, known]) * sizes[known]) @ polar(right[known]))

    def doubts(self) -> list[str]:
        """Where a task gets no singular vector."""
        if not self._empty:
            return []
        return [
            f"{len(self._empty)} matrices, such as {self._empty[0]}, stay those of the base: their rank is smaller than the number of "
            f"models, {len(self.values.models)}, so each gets 0 singular vectors."
        ]


def polar(matrix: Tensor) -> Tensor:
    """The matrix with orthonormal columns, or rows, that is nearest to a matrix; without the directions that the matrix lacks.

    Example:
        >>> torch.allclose(polar(torch.tensor([[2.0, 0.0], [0.0, -3.0]])), torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        True
    """
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    known = sizes > 8 * max(matrix.shape) * torch.finfo(matrix.dtype).eps  # of unit vectors, the same in several tasks
    nearest: Tensor = left[:, known] @ right[known]
    return nearest


def mean_rule(models: int, scale: float) -> Rule:
    """The scaled mean of the task vectors."""
    return lambda each: weighted_sum(each.deltas, [scale / models] * models)


FORMS = {"": TsvM}
