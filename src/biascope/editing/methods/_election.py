"""Election of a sign for each number, and the mean over the models that agree with it: what TIES and its relatives share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def elected(moved: Sequence[Tensor], *, tie: int = 0) -> Tensor:
    """The sign of ``Σ τ_i`` for each number.

    Args:
        moved: What each model contributes to the vote.
        tie: The sign of a sum of zero: 0 by the papers' formula, 1 in released code.

    Example:
        >>> elected([torch.tensor([1.0, -2.0, 1.0]), torch.tensor([0.5, 1.0, -1.0])]).tolist()
        [1.0, -1.0, 0.0]
    """
    total = moved[0].clone()
    for each in moved[1:]:
        total += each
    return torch.where(total >= 0, 1.0, -1.0).to(total.dtype) if tie else total.sign()


def agreeing_mean(moved: Sequence[Tensor], sign: Tensor, shares: Sequence[float] | None = None) -> Tensor:
    """The sum over the models whose number has the elected sign, divided by how many they are.

    Args:
        moved: What each model contributes.
        sign: The elected signs.
        shares: What each model counts for in the divisor, instead of 1; a divisor of 0 counts as 1.

    Example:
        >>> agreeing_mean([torch.tensor([1.0, -2.0, 0.0]), torch.tensor([3.0, 1.0, 0.0])], torch.tensor([1.0, -1.0, 0.0])).tolist()
        [2.0, -2.0, 0.0]
    """
    total, count = torch.zeros_like(sign), torch.zeros_like(sign)
    for place, each in enumerate(moved):
        agrees = (each.sign() == sign) & (each != 0)
        total += torch.where(agrees, each, 0.0)
        count += agrees.to(count.dtype) * (1.0 if shares is None else shares[place])
    return total / torch.where(count == 0, 1.0, count)
