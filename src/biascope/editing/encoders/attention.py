"""Attention from plain operations that every torch.func transform knows, and the mean over the tokens of a text."""

# n sequences · t tokens (and s, those attended to) · h heads · e width of one head · w width

from __future__ import annotations

import torch
from torch import Tensor


def attended(query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ + bias) v in each head, the heads joined; scaling is left to the queries.

    Args:
        query: ``(n, t, h·e)``.
        key: ``(n, s, h·e)``.
        value: ``(n, s, h·e)``.
        heads: Their number.
        bias: Added to the scores ``(n, h, t, s)``.

    Returns:
        ``(n, t, h·e)``.

    Example:
        >>> one = torch.ones(1, 2, 4)
        >>> attended(one, one, torch.tensor([[[0.0] * 4, [2.0] * 4]]), heads=2)[0, 0]
        tensor([1., 1., 1., 1.])
    """
    query, key, value = (each.reshape(*each.shape[:-1], heads, -1) for each in (query, key, value))  # (n, t, h, e)
    scores = torch.einsum("nthe,nshe->nhts", query, key)
    if bias is not None:
        scores = scores + bias
    return torch.einsum("nhts,nshe->nthe", scores.softmax(dim=-1), value).flatten(-2)


def hiding(mask: Tensor, like: Tensor) -> Tensor:
    """The bias ``(n, 1, 1, s)`` that hides tokens: 0 where ``mask (n, s)`` is true, the lowest number elsewhere.

    Example:
        >>> hiding(torch.tensor([[True, False]]), torch.zeros(1)).flatten() == 0
        tensor([ True, False])
    """
    return (~mask).to(like.dtype)[:, None, None, :] * torch.finfo(like.dtype).min


def mean_over(tokens: Tensor, mask: Tensor) -> Tensor:
    """The mean ``(n, w)`` of the tokens ``(n, t, w)`` that a mask ``(n, t)`` shows.

    Example:
        >>> mean_over(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
        tensor([[2.]])
    """
    share = mask.to(tokens.dtype)[..., None]
    return (tokens * share).sum(1) / share.sum(1).clamp_min(1)
