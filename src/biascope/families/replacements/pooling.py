"""Pooling: the maximum or the mean of neighbours, or one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from biascope.families.replacements._kind import Found, FunctionCall, Kind

_POOL = re.compile(r"(adaptive_)?(max|avg)_pool([123])d")
_LABELS = {"max": "max pooling", "avg": "average pooling"}
_NAMES = ("max pooling", "average pooling", "subsampling")


def _found(call: FunctionCall) -> Found | None:
    if (parts := _POOL.fullmatch(call.name)) is not None:
        if call.given(6, "return_indices", False) is True or call.given(5, "dilation", 1) not in (1, (1,), (1, 1)):
            return None
        label = _LABELS[parts[2]]
        return Found(label, tuple(name for name in _NAMES if name != label))
    if call.name == "mean" and _averaged(call):
        return Found("average pooling", ("max pooling", "subsampling"))
    return None


def _averaged(call: FunctionCall) -> tuple[int, ...]:
    """The axes of places that a mean is taken over: all of an image's, or the tokens; none for other means."""
    dims = call.given(1, "dim")
    dims = (dims,) if isinstance(dims, int) else tuple(dims) if isinstance(dims, tuple | list) else ()
    axes = tuple(sorted(dim % call.x.dim() for dim in dims))
    places = {5: (2, 3, 4), 4: (2, 3), 3: (1,)}.get(call.x.dim())
    return axes if axes == places or (call.x.dim() == 4 and axes == (1, 2)) else ()


def _maximum(call: FunctionCall) -> Any:
    if call.name == "mean":
        return call.x.amax(_averaged(call), keepdim=bool(call.given(2, "keepdim", False)))
    adaptive, _, axes = _parts(call)
    if adaptive:
        return getattr(F, f"adaptive_max_pool{axes}d")(call.x, call.given(1, "output_size"))
    kernel, stride, padding, ceil = _windows(call)
    return getattr(F, f"max_pool{axes}d")(call.x, kernel, stride, padding, ceil_mode=ceil)


def _mean(call: FunctionCall) -> Any:
    adaptive, _, axes = _parts(call)
    if adaptive:
        return getattr(F, f"adaptive_avg_pool{axes}d")(call.x, call.given(1, "output_size"))
    kernel, stride, padding, ceil = _windows(call)
    more = {} if axes == "1" else {"count_include_pad": False}
    return getattr(F, f"avg_pool{axes}d")(call.x, kernel, stride, padding, ceil_mode=ceil, **more)


def _one_of_them(call: FunctionCall) -> Tensor:
    """The middle of each window: a stride without a filter before it."""
    x = call.x
    if call.name == "mean":
        for axis in reversed(_averaged(call)):
            x = x.narrow(axis, x.shape[axis] // 2, 1)
        return x if call.given(2, "keepdim", False) else x.squeeze(_averaged(call))
    shape = call.result().shape  # rounding up or down is the pooling's own affair
    adaptive, _, axes = _parts(call)
    for place in range(int(axes)):
        axis = x.dim() - int(axes) + place
        count, size = shape[axis], x.shape[axis]
        if adaptive:
            middles = [(i * size // count + math.ceil((i + 1) * size / count) - 1) // 2 for i in range(count)]
        else:
            kernel, stride, padding = (_at(each, place) for each in _windows(call)[:3])
            middles = [min(max(i * stride - padding + (kernel - 1) // 2, 0), size - 1) for i in range(count)]
        x = x.index_select(axis, torch.tensor(middles, device=x.device))
    return x


def _parts(call: FunctionCall) -> tuple[bool, str, str]:
    parts = _POOL.fullmatch(call.name)
    assert parts is not None
    return parts[1] is not None, parts[2], parts[3]


def _windows(call: FunctionCall) -> tuple[Any, Any, Any, bool]:
    kernel = call.given(1, "kernel_size")
    place = 5 if _parts(call)[1] == "max" else 4  # max pooling has a dilation before
    stride = call.given(2, "stride")
    return (
        kernel,
        stride if stride not in (None, ()) else kernel,
        call.given(3, "padding", 0),
        bool(call.given(place, "ceil_mode", False)),
    )


def _at(value: int | Sequence[int], place: int) -> int:
    if isinstance(value, int):
        return value
    return value[place] if len(value) > 1 else value[0]


KIND = Kind(
    "pooling",
    _found,
    {"max pooling": _maximum, "average pooling": _mean, "subsampling": _one_of_them},
    neutral="subsampling",
)
