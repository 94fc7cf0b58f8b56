"""Iso-C: the sum of the task vectors with all singular values made equal."""

from __future__ import annotations

from typing import ClassVar

import torch

from biascope.editing.methods._method import Method, MovedTensor, Rule, constant, weighted_sum
from biascope.editing.methods._settings import MethodSetting
from biascope.editing.methods.ties import LAMBDA
from biascope.editing.methods.tsv_m import mean_rule


class IsoC(Method):
    """``λ σ̄ U Vᵀ`` for ``Σ τ_i = U S Vᵀ`` with mean singular value σ̄. What is no matrix gets the mean."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (LAMBDA,)
    matrices = True
    scaled_by = "lambda"
    says = "λ σ̄ U Vᵀ for Σ τ_i = U S Vᵀ, σ̄ the mean of S; vectors: λ · mean(τ_i)"
    reference = "Marczak et al. (2025). No task left behind. ICML."

    def rule(self, part: MovedTensor) -> Rule:
        """The change, whole."""
        scale, count = self.values.one("lambda", part.name), len(self.values.models)
        if len(part.shape) != 2 or not part.numbers:
            return mean_rule(count, scale)
        left, sizes, right = torch.linalg.svd(weighted_sum(part.deltas(), [1.0] * count), full_matrices=False)
        known = sizes > sizes[0] * max(part.shape) * torch.finfo(part.dtype).eps
        # Where the sum has no singular value, U and V are arbitrary: a direction that no task moved stays unmoved.
        return constant(scale * sizes.mean() * (left[:, known] @ right[known]))


FORMS = {"": IsoC}
