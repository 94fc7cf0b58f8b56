"""Padding of convolutions: zeros, or the opposite edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F

from biascope.families.replacements._kind import Found, FunctionCall, Kind


def _found(call: FunctionCall) -> Found | None:
    if call.name not in ("conv1d", "conv2d", "conv3d") or not any(_widths(call)):
        return None
    return Found("zero padding", ("circular padding",))


def _widths(call: FunctionCall) -> list[int]:
    """Zeros before and after each axis, from the first axis to the last."""
    axes, weight = int(call.name[-2]), call.given(1, "weight")
    padding, dilation = call.given(4, "padding", 0), call.given(5, "dilation", 1)
    found: list[int] = []
    for place in range(axes):
        if padding == "same":
            whole = _at(dilation, place) * (weight.shape[2 + place] - 1)
            found += [whole // 2, whole - whole // 2]
        else:
            found += [0 if isinstance(padding, str) else _at(padding, place)] * 2
    return found


def _at(value: int | Sequence[int], place: int) -> int:
    if isinstance(value, int):
        return value
    return value[place] if len(value) > 1 else value[0]


def _circular(call: FunctionCall) -> Any:
    widths = _widths(call)
    pairs = [widths[place : place + 2] for place in range(0, len(widths), 2)][::-1]  # F.pad begins with the last axis
    padded = F.pad(call.x, [width for pair in pairs for width in pair], mode="circular")
    return call.changed(0, "input", padded).changed(4, "padding", 0).result()


KIND = Kind("padding", _found, {"circular padding": _circular}, neutral="circular padding")
