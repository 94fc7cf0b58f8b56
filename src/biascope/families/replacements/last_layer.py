"""The law of the last layer: its own, or the normal law."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from biascope.families.replacements._kind import Found, FunctionCall, Kind


def _found(call: FunctionCall) -> Found | None:
    if call.name != "linear" or not isinstance(weight := call.given(1, "weight"), Tensor) or weight.dim() != 2:
        return None
    return Found("last layer", ("normal weights without a bias",))


def _normal(call: FunctionCall) -> Any:
    """As many normal numbers, in the order of the weights and of their second moment: both networks stay as alike as they can."""
    weight = call.given(1, "weight")
    ranks = weight.detach().flatten().argsort().argsort().cpu()
    seed = int(hashlib.sha256(ranks.numpy().tobytes()).hexdigest()[:12], 16)  # another one for each draw
    numbers = (
        torch.randn(ranks.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).sort().values
    )
    size = weight.detach().double().square().mean().sqrt()
    normal = numbers[ranks].to(size.device).mul(size).reshape(weight.shape).to(weight)
    return call.changed(1, "weight", normal).changed(2, "bias", None).result()


KIND = Kind(
    "last layer", _found, {"normal weights without a bias": _normal}, neutral="normal weights without a bias", last=True
)
