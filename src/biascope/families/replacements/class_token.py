"""The token that is read out: the first or the last one, or the mean of all."""

from __future__ import annotations

from typing import Any

from biascope.families.replacements._kind import Found, FunctionCall, Kind

_LABELS = {0: "class token", -1: "last token"}


def _found(call: FunctionCall) -> Found | None:
    if call.name != "__getitem__" or call.x.dim() != 3:
        return None
    index = call.args[1]
    if (
        not isinstance(index, tuple)
        or len(index) not in (2, 3)
        or not all(each == slice(None) for each in index[:1] + index[2:])
    ):
        return None
    if not (isinstance(index[1], int) and index[1] in _LABELS) or call.x.shape[1] < 2:
        return None
    return Found(_LABELS[index[1]], ("mean of all tokens",))


def _mean(call: FunctionCall) -> Any:
    return call.x.mean(1)


KIND = Kind("token that is read", _found, {"mean of all tokens": _mean}, neutral="mean of all tokens")
