"""Strides of convolutions: every n-th place, or the mean of n places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F

from biascope.families.replacements._kind import Found, FunctionCall, Kind

_MOST = 4  # along an axis: a convolution at every place of a larger patch takes hundreds of times as long


def _found(call: FunctionCall) -> Found | None:
    if call.name not in ("conv1d", "conv2d", "conv3d"):
        return None
    strides = _strides(call)
    if max(strides) == 1 or max(strides) > _MOST:
        return None
    return Found(f"stride {max(strides)}", ("stride 1 and average pooling",))


def _strides(call: FunctionCall) -> tuple[int, ...]:
    axes, stride = int(call.name[-2]), call.given(3, "stride", 1)
    each: Sequence[int] = (stride,) if isinstance(stride, int) else tuple(stride)
    return tuple(each) * (axes // len(each))


def _averaged(call: FunctionCall) -> Any:
    strides = _strides(call)
    pool = getattr(F, f"avg_pool{len(strides)}d")
    return pool(call.changed(3, "stride", 1).result(), strides, strides, ceil_mode=True)


KIND = Kind("stride", _found, {"stride 1 and average pooling": _averaged})
