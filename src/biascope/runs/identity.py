"""The identity of cached work: everything its numbers depend on. Cached work is reused only if none of it changed.

An identity has three components:

- *Parts* (family, data, settings) count by their content.
- *Code* counts by its compiled functions. A walk finds everything of the user's own that a function reaches, in whatever file,
  notebook cell or closure it is defined. Comments and line numbers do not count. Installed packages count by their version.
- *Outputs* and gradients of the networks on fixed inputs, near and far, are compared as well, with a tolerance. A forward
  pass may depend on what no walk can see: files, environment variables, patched functions.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from biascope.runs.cluster import device_type
from biascope.runs.code import code_of, engine_code, module_of
from biascope.runs.digest import digest
from biascope.runs.run import Run

#: For a field that follows from the other fields: it is not part of what tells one object from another.
DERIVED: Mapping[str, bool] = {"derived": True}
_WITNESSED = 4  # inputs that outputs are compared on
_MOST = 64  # numbers of a group that are written down


@runtime_checkable
class Witnessed(Protocol):
    """What gives outputs on inputs: a network, or a family by its template."""

    def witness(self, x: Any, device: torch.device) -> list[tuple[Tensor, float]] | None:
        """Outputs and gradients on a few inputs, in groups of one scale each with their relative tolerance.

        Nothing where the forward pass fails.
        """


@runtime_checkable
class Served(Protocol):
    """What serves inputs in batches: a task."""

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split."""

    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels."""


@dataclass(frozen=True)
class Identity:
    """What a piece of work is.

    Attributes:
        work: Its name.
        content: Parts, code, versions, device kind and precision, as plain JSON.
        outputs: Outputs and gradients of the networks among its parts on fixed inputs; compared with a tolerance, so not in the name.
        tolerances: How far each group of these may differ by rounding, relative to its largest number.
    """

    work: str
    content: Mapping[str, Any]
    outputs: tuple[tuple[float, ...], ...] = ()
    tolerances: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """A short digest: work with another name never shares a file."""
        text = json.dumps([self.work, self.content], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def agrees(self, outputs: Sequence[Sequence[float]]) -> bool:
        """Whether the networks behave as they did when other outputs were written down."""
        return _alike(self.outputs, outputs, self.tolerances)

    def document(self) -> dict[str, Any]:
        """As JSON, to be read by people and by the next run."""
        return {"work": self.work, **self.content, "outputs": [list(group) for group in self.outputs]}


def identity_of(
    work: str,
    run: Run,
    *,
    code: Callable[..., Any] | Sequence[Callable[..., Any]],
    at: Any = None,
    **parts: Any,
) -> Identity:
    """The identity of a piece of work. It is computed only here.

    Args:
        work: What is done, in words.
        run: Its device kind and precision count; folder and progress do not.
        code: Functions or classes that do it, Biascope's or the caller's own.
        at: Inputs, a task that serves some, or the shape of one: where the outputs of networks among the parts are compared.
        parts: What the numbers depend on: families, networks, data, settings, of any kind that :func:`described` knows.

    Raises:
        TypeError: If a part cannot be described, or there is a network and nothing to compare its outputs on.

    Example:
        >>> first = identity_of("a sum", Run(device="cpu"), code=sum, numbers=(1, 2), seed=0)
        >>> first.name == identity_of("a sum", Run(device="cpu"), code=sum, seed=0, numbers=(1, 2)).name
        True
        >>> first.name == identity_of("a sum", Run(device="cpu"), code=sum, numbers=(1, 2.0), seed=0).name
        False
    """
    networks = [part for part in parts.values() if isinstance(part, Witnessed)]
    if networks and at is None:
        raise TypeError(
            f"Cached work {work!r} depends on a network and needs inputs to compare its outputs on. Pass at=…."
        )
    # Outputs come first: a forward pass may import the modules that its code is in.
    here = run.torch_device if run.on is None else torch.device("cpu")
    outputs, tolerances = _outputs(networks, at, here)
    roots = (code,) if callable(code) else tuple(code)
    content = {
        "parts": {name: described(part) for name, part in sorted(parts.items())},
        "code": [code_of(root) if module_of(root) is None else engine_code((root,)) for root in roots],
        "versions": _versions(),
        "device": device_type(run),
        "precision": run.precision,
    }
    return Identity(work, content, outputs, tolerances)


def _outputs(
    networks: Sequence[Witnessed], at: Any, device: torch.device
) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """Some numbers of every group that every network gives on a few inputs, with mean and root mean square of all."""
    kept: list[tuple[float, ...]] = []
    tolerances: list[float] = []
    for network in networks:
        found = network.witness(_few(at), device)
        if found is None:  # the work itself says what is wrong with the network or its inputs
            found = [(torch.tensor([math.nan]), 0.0)]
        for group, tolerance in found:
            flat = group.flatten().double()
            picked = flat[:: max(1, math.ceil(flat.numel() / _MOST))]
            kept.append((*picked.tolist(), float(flat.mean()), float(flat.square().mean().sqrt())))
            tolerances.append(tolerance)
    return tuple(kept), tuple(tolerances)


def _few(at: Any) -> Any:
    """Some inputs of those given, from the first to the last; for a task, or a shape, inputs made up for it.

    A task need not be part of the work (heads of several tasks may be kept together), and the outputs must not depend on it.
    A task may serve ids as floating-point numbers. Gaussian numbers in their place would be negative ids, which no table has.
    """
    if isinstance(at, Served):
        first = at.batch(next(iter(at.sizes)), torch.zeros(1, dtype=torch.long))[0]
        ids = getattr(at, "holds_ids", False)

        def alike(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return _made_up(tuple(leaf.shape[1:]), torch.long if ids else leaf.dtype)

        return tree_map(alike, first)
    if isinstance(at, tuple) and all(isinstance(length, int) for length in at):
        return _made_up(at, torch.float32)
    return tree_map(lambda leaf: leaf[_spread(len(leaf))] if isinstance(leaf, Tensor) and leaf.dim() else leaf, at)


def _spread(count: int) -> list[int]:
    """Places from the first to the last of so many."""
    return sorted({round(place * (count - 1) / (_WITNESSED - 1)) for place in range(_WITNESSED)})


def _made_up(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Gaussian numbers; of whole ones, 0 and 1, which every vocabulary has."""
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(_WITNESSED, *shape, generator=generator)
    return torch.randint(2, (_WITNESSED, *shape), generator=generator).to(dtype)


def _alike(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], tolerances: Sequence[float]) -> bool:
    """Whether numbers agree, each group to a tolerance of its own scale."""
    if [len(group) for group in first] != [len(group) for group in second]:
        return False
    for one, two, tolerance in zip(first, second, tolerances, strict=True):
        values = np.array(one, dtype=np.float64)
        known = np.abs(values[np.isfinite(values)])
        scale = float(known.max(initial=0.0))
        if not np.allclose(values, np.array(two, dtype=np.float64), rtol=0.0, atol=tolerance * scale, equal_nan=True):
            return False
    return True


# ---- parts --------------------------------------------------------------------------------------------------------


def described(value: Any) -> Any:
    """A value as plain JSON that is the same in every process, and another for every other content.

    Numbers and words stand for themselves; tensors, arrays and functions for a digest; dataclasses for their fields, except those
    marked :data:`DERIVED`; an object with a property ``identity`` for that; any other for its class and what it holds.

    Raises:
        TypeError: If its content cannot be told, so that work resting on it must not be kept.

    Example:
        >>> described((1, 1.0, {"b": None, "a": True})), described(torch.zeros(2)) == described(torch.zeros(2, 1))
        ([1, 1.0, {'a': True, 'b': None}], False)
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Tensor):
        return digest(value)
    if isinstance(value, np.ndarray | np.generic):
        return digest(torch.as_tensor(np.ascontiguousarray(value)))
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(described(item)) for item in value)
    if isinstance(value, range | slice | torch.dtype | torch.device | Path):
        return str(value)
    if hasattr(type(value), "identity"):
        return described(value.identity)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if not field.metadata.get("derived")]
        return {"kind": type(value).__qualname__} | {
            field.name: described(getattr(value, field.name)) for field in fields
        }
    if callable(value) or hasattr(value, "__dict__"):
        return code_of(value)
    raise TypeError(
        f"Cached work cannot depend on a {type(value).__qualname__}: its content cannot be read. Pass a description of it."
    )


def content_of(value: Any) -> str:
    """A short digest of a value's content, for keys.

    Example:
        >>> content_of({"x": torch.zeros(2)}) == content_of({"x": torch.zeros(2)})
        True
    """
    return hashlib.sha256(json.dumps(described(value), sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _versions() -> dict[str, str]:
    from biascope import __version__

    # Torch says more of itself than its package does: the build that it is.
    libraries = {name: importlib.metadata.version(name) for name in ("numpy", "scipy")}
    return {"biascope": __version__, "torch": str(torch.__version__), **libraries}
