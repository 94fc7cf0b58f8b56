"""Attention: weights that depend on the tokens, or the same weight for each of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from biascope.families.replacements._kind import Found, FunctionCall, Kind

_MASKED = 80.0  # below the largest score of a row, a score is a mask: models add −100, −10⁴ or −∞


def _found(call: FunctionCall) -> Found | None:
    attends = call.name in ("scaled_dot_product_attention", "multi_head_attention_forward")
    if call.name == "softmax":
        attends = call.x.dim() in (3, 4, 5) and call.given(1, "dim") in (-1, call.x.dim() - 1)
    return Found("attention", ("uniform attention",)) if attends else None


def _uniform(call: FunctionCall) -> Any:
    """Queries of zero: every score is the same, and masks stay."""
    if call.name == "scaled_dot_product_attention":
        return call.changed(0, "query", torch.zeros_like(call.given(0, "query"))).result()
    if call.name == "softmax":
        scores = call.x
        masked = scores < scores.amax(-1, keepdim=True) - _MASKED
        return call.changed(0, "input", torch.where(masked, scores, torch.zeros_like(scores))).result()
    return _without_queries(call).result()


def _without_queries(call: FunctionCall) -> FunctionCall:
    """The joint call of ``nn.MultiheadAttention`` with projections of queries that are zero."""
    width = call.given(3, "embed_dim_to_check")
    keep = torch.ones(3 * width, dtype=torch.bool)
    keep[:width] = False
    for place, name in ((5, "in_proj_weight"), (6, "in_proj_bias")):
        if isinstance(tensor := call.given(place, name), Tensor):
            kept = keep.to(tensor.device).reshape(-1, *[1] * (tensor.dim() - 1))
            call = call.changed(place, name, tensor * kept)
    if isinstance(tensor := call.keywords.get("q_proj_weight"), Tensor):
        call = call.changed(99, "q_proj_weight", torch.zeros_like(tensor))
    return call


KIND = Kind("attention", _found, {"uniform attention": _uniform}, neutral="uniform attention")
