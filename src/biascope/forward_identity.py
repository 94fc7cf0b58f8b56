"""WHO: what tells one forward pass from another, so that work kept for one network never serves another with the same weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from biascope.family import source_of


def forward_identity(module: nn.Module) -> str:
    """A digest of a module's layers, their settings, and the files that define all classes that are not torch's own.

    Example:
        >>> forward_identity(nn.ReLU()) == forward_identity(nn.ReLU()), forward_identity(nn.ReLU()) == forward_identity(nn.GELU())
        (True, False)
    """
    return hashlib.sha256("\n".join(_described(module)).encode()).hexdigest()[:16]


def _described(module: nn.Module) -> Iterator[str]:
    yield repr(module)
    kinds = set()
    for name, layer in module.named_modules():
        settings = {key: _said(value) for key, value in vars(layer).items() if not key.startswith("_")}
        yield f"{name} {sorted(settings.items() - {('training', 'False'), ('training', 'True')})}"
        kinds.add(type(layer))
    for kind in sorted(kinds, key=lambda each: f"{each.__module__}.{each.__qualname__}"):
        yield f"{kind.__module__}.{kind.__qualname__}"
        if not kind.__module__.startswith("torch."):
            yield source_of(kind)


def _said(value: Any) -> str:
    """A setting in words that are the same in every process."""
    if isinstance(value, bool | int | float | str | bytes | tuple | list | dict | set | frozenset | type(None)):
        return repr(value)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__qualname__)
    return f"{name} {source_of(value)}" if callable(value) else str(name)
