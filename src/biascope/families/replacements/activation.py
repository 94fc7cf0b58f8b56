"""Activations: a function of each number, or none."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from biascope.families.replacements._kind import Found, FunctionCall, Kind

_LABELS = {
    **dict.fromkeys(("relu", "relu_", "clamp_min"), "ReLU"),
    **{"gelu": "GELU", "silu": "SiLU", "silu_": "SiLU", "elu": "ELU", "elu_": "ELU", "selu": "SELU", "relu6": "ReLU6"},
    **{"leaky_relu": "leaky ReLU", "leaky_relu_": "leaky ReLU", "tanh": "tanh", "sigmoid": "sigmoid", "mish": "Mish"},
    **{
        "softplus": "softplus",
        "hardswish": "hard swish",
        "hardtanh": "hard tanh",
        "hardtanh_": "hard tanh",
        "celu": "CELU",
    },
}


def _found(call: FunctionCall) -> Found | None:
    if (label := _LABELS.get(call.name)) is None:
        return None
    return Found(label, tuple(name for name in ("linear", "GELU", "ReLU") if name != label)[:2])


def _linear(call: FunctionCall) -> Any:
    return call.x + 0


def _gelu(call: FunctionCall) -> Any:
    return F.gelu(call.x)


def _relu(call: FunctionCall) -> Any:
    return F.relu(call.x)


KIND = Kind("activation", _found, {"linear": _linear, "GELU": _gelu, "ReLU": _relu}, neutral="linear")
