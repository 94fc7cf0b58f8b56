"""Digests of tensors: by name, shape, type and value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Described(Protocol):
    """What has a shape and a type: a tensor, or one that lies in a file."""

    @property
    def shape(self) -> Sequence[int]:
        """The size of each axis."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of its entries."""


class Fingerprint:
    """A short hash of names, shapes and values that is fed tensor by tensor, in the order of their names.

    Example:
        >>> hashed = Fingerprint()
        >>> for name, tensor in {"a": torch.arange(6.0), "b": torch.ones(1)}.items():
        ...     hashed.begin(name, tensor)
        ...     for part in tensor.split(4):
        ...         hashed.add(part)
        >>> hashed.value == fingerprint({"b": torch.ones(1), "a": torch.arange(6.0)})
        True
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def begin(self, name: str, tensor: Described) -> None:
        """Announce the next tensor."""
        self._digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())

    def add(self, values: Tensor) -> None:
        """Feed the next values of the announced tensor."""
        # A tensor may say of its numbers that they are conjugated or negated, and hold them as they were.
        written = values.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # One number cut out of others counts as contiguous, and keeps the stride that it had among them.
        self._digest.update(written.as_strided((written.numel(),), (1,)).view(torch.uint8).numpy().data)

    @property
    def value(self) -> str:
        """The hash of all so far."""
        return self._digest.hexdigest()[:16]


def fingerprint(params: Mapping[str, Tensor]) -> str:
    """A short hash of names, shapes and values."""
    hashed = Fingerprint()
    for name in sorted(params):
        hashed.begin(name, params[name])
        hashed.add(params[name])
    return hashed.value


def digest(tensor: Tensor) -> str:
    """A short hash of shape, type and values, taken anew at every call: an array behind a tensor may change unseen.

    Example:
        >>> tensor = torch.zeros(2)
        >>> before = digest(tensor)
        >>> tensor.numpy()[0] = 1.0
        >>> digest(tensor) == before
        False
    """
    hashed = Fingerprint()
    hashed.begin("", tensor)
    hashed.add(tensor)
    return hashed.value
