"""Positions: an embedding that is added to tokens or to scores, or a rotation by the place; or none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from biascope.families.replacements._kind import Found, FunctionCall, Kind

_MASKED = -1e4  # numbers below are masks


def _found(call: FunctionCall) -> Found | None:
    if call.name in ("cos", "sin") and "rotary" in type(call.module).__name__.lower():
        return Found("rotary positions", ("no positions",), key="rotary", depends=False, scaled=False)
    if call.name not in ("add", "add_", "__radd__") or len(call.args) < 2:
        return None
    operands = call.args[:2]
    if not all(isinstance(each, Tensor) for each in operands):
        return None
    fixed = [not each.requires_grad for each in operands]
    if sum(fixed) != 1:
        return None
    added, tokens = operands[fixed.index(True)], operands[fixed.index(False)]
    if tokens.dim() < 3 or added.dim() < 2 or added.shape[-2] < 2 or added.shape[-2:] != tokens.shape[-2:]:
        return None
    if float(added.min()) < _MASKED or not bool(added.any()):
        return None
    return Found("positions", ("no positions",), detail=fixed.index(False))


def _none(call: FunctionCall) -> Any:
    if call.name == "cos":
        return torch.ones_like(call.result())
    if call.name == "sin":
        return torch.zeros_like(call.result())
    return call.args[call.detail] + 0


KIND = Kind("positions", _found, {"no positions": _none}, neutral="no positions")
