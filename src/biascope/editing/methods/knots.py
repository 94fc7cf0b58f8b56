"""KnOTS: TIES in the basis that all task matrices share, for adapters and other matrices of low rank."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from biascope.editing.methods._election import agreeing_mean, elected
from biascope.editing.methods._method import Method, MovedTensor, Rule, constant
from biascope.editing.methods._ranks import ranked
from biascope.editing.methods._settings import MethodSetting
from biascope.editing.methods.ties import KEPT, LAMBDA


class Knots(Method):
    """``U · TIES(Σ V_1, …, Σ V_T)`` for ``[τ_1, …, τ_T] = U Σ [V_1, …, V_T]``.

    TIES is the paper's, except that it trims each matrix on its own. What is no matrix is merged by TIES as it is.
    """

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        MethodSetting("density", 0.2, f"{KEPT}, of a tensor", 0.0, 1.0),
        LAMBDA,
    )
    matrices = True
    scaled_by = "lambda"
    says = "λ U TIES(Σ V_i) for [τ_1, …, τ_T] = U Σ [V_1, …, V_T], trimmed in each tensor"
    reference = "Stoica et al. (2025). Model merging with SVD to tie the KnOTS. ICLR."

    def rule(self, part: MovedTensor) -> Rule:
        """The change, whole."""
        deltas, scale, density = (
            part.deltas(),
            self.values.one("lambda", part.name),
            self.values.one("density", part.name),
        )
        if len(part.shape) != 2 or not part.numbers:
            return constant(scale * trimmed_mean(deltas, density)) if deltas else constant(torch.zeros(part.shape))
        left, aligned = shared_basis(deltas)
        return constant(scale * left @ trimmed_mean(aligned, density)) if left.shape[1] else constant(0 * deltas[0])


def shared_basis(deltas: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """U, and ``Σ V_i`` of each task, without the directions that no task has.

    Example:
        >>> left, aligned = shared_basis([torch.eye(2), torch.tensor([[0.0, 2.0], [0.0, 0.0]])])
        >>> [torch.allclose(left @ each, whole, atol=1e-6) for each, whole in zip(aligned, [torch.eye(2)], strict=False)]
        [True]
    """
    left, sizes, right = torch.linalg.svd(torch.cat(deltas, 1), full_matrices=False)
    known = sizes > sizes[0] * max(right.shape) * torch.finfo(sizes.dtype).eps
    return left[:, known], list((sizes[known, None] * right[known]).split(deltas[0].shape[1], 1))


def trimmed_mean(moved: list[Tensor], density: float) -> Tensor:
    """TIES of some tensors."""
    columns = [each.flatten() for each in moved]
    ranks = ranked(lambda: [columns], [[int(density * len(each))] for each in columns], columns[0].dtype)
    kept = [torch.where(ranks.cut(place, 0, exact=False).kept(each), each, 0.0) for place, each in enumerate(columns)]
    return agreeing_mean(kept, elected(kept)).view(moved[0].shape)


FORMS = {"": Knots}
