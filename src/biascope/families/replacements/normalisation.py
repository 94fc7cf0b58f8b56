"""Normalisation: of each input by itself, or one affine map for all of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from biascope.families.replacements._kind import Found, FunctionCall, Kind

# Weight and bias among the arguments, and the axis of an input that they run along: the last ones, or that of the channels.
_LAYERS = {
    "layer_norm": (2, 3, False),
    "rms_norm": (2, None, False),
    "group_norm": (2, 3, True),
    "instance_norm": (3, 4, True),
}
_LABELS = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm", "group_norm": "GroupNorm", "instance_norm": "InstanceNorm"}


def _found(call: FunctionCall) -> Found | None:
    if call.name not in _LAYERS:  # BatchNorm with its running statistics is a fixed affine map already
        return None
    return Found(_LABELS[call.name], ("fixed affine map",), detail=_LAYERS[call.name])


def _fixed(call: FunctionCall) -> Any:
    (mean, spread), (weight_at, bias_at, channels) = call.moments, call.detail
    mean = 0.0 if call.name == "rms_norm" else mean
    out = (call.x - mean) / spread
    weight = call.given(weight_at, "weight")
    bias = None if bias_at is None else call.given(bias_at, "bias")

    def laid(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1, *[1] * (call.x.dim() - 2)) if channels else tensor

    out = out if weight is None else out * laid(weight)
    return out if bias is None else out + laid(bias)


KIND = Kind("normalisation", _found, {"fixed affine map": _fixed}, neutral="fixed affine map")
