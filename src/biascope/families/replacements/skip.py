"""Skip connections: a module's input added to what it computed of it, or not."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from biascope.families.replacements._kind import Found, FunctionCall, Kind


def _found(call: FunctionCall) -> Found | None:
    if call.name not in ("add", "add_", "__radd__") or len(call.args) < 2:
        return None
    one, two = call.args[:2]
    if not (isinstance(one, Tensor) and isinstance(two, Tensor)) or one.shape != two.shape:
        return None
    if not (one.requires_grad and two.requires_grad):  # an embedding, which does not depend on the input
        return None
    for known in (call.inputs, call.shortcuts):
        which = [any(operand is tensor for tensor in known) for operand in (one, two)]
        if sum(which) == 1:
            return Found("skip connection", ("no skip connection",), detail=1 - which.index(True))
    return None


def _off(call: FunctionCall) -> Any:
    return call.args[call.detail] + 0


KIND = Kind("skip connection", _found, {"no skip connection": _off}, neutral="no skip connection")
