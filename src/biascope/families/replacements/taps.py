"""Taps of convolution kernels: in their places, or in others."""

from __future__ import annotations

from typing import Any

import torch

from biascope.families.replacements._kind import Found, FunctionCall, Kind


def _found(call: FunctionCall) -> Found | None:
    if call.name not in ("conv1d", "conv2d", "conv3d") or call.given(1, "weight").shape[2:].numel() < 2:
        return None
    return Found("kernel", ("shuffled taps",))


def _shuffled(call: FunctionCall) -> Any:
    """One order of the taps for all kernels of the layer."""
    weight = call.given(1, "weight")
    flat = weight.flatten(2)
    order = torch.randperm(flat.shape[-1], generator=torch.Generator().manual_seed(flat.shape[-1])).to(weight.device)
    return call.changed(1, "weight", flat[..., order].reshape(weight.shape)).result()


KIND = Kind("kernel", _found, {"shuffled taps": _shuffled})
