"""Names of the axes of an input, as the first layer that takes the input itself has them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from biascope.results.axes import Axis

_SAMPLE = "sample"


def _of_recurrence(layer: Any) -> tuple[str, ...]:
    return (_SAMPLE, "time", "feature") if layer.batch_first else ("time", _SAMPLE, "feature")


def _of_attention(layer: Any) -> tuple[str, ...]:
    batch_first = getattr(layer, "batch_first", True)
    return (_SAMPLE, "position", "feature") if batch_first else ("position", _SAMPLE, "feature")


#: What layers call the axes of what they take.
_TAKEN: dict[type[nn.Module], Callable[[Any], tuple[str, ...]]] = {
    nn.Conv1d: lambda layer: (_SAMPLE, "channel", "time"),
    nn.Conv2d: lambda layer: (_SAMPLE, "channel", "height", "width"),
    nn.RNNBase: _of_recurrence,
    nn.MultiheadAttention: _of_attention,
    nn.Linear: lambda layer: (_SAMPLE, "position", "feature"),
}


def axes_by_layers(run: Callable[[Tensor], Any], module: nn.Module, x: Tensor) -> tuple[Axis, ...]:
    """Axes of an input with one or two axes; none where no layer takes the input as it is, or with its axes in another order.

    Args:
        run: The forward pass.
        module: Whose layers it calls.
        x: Inputs ``(n, …)``.
    """
    if x.dim() == 2:
        return (Axis("feature"),)
    if x.dim() != 3 or min(x.shape) < 1:
        return ()
    found: list[tuple[Axis, ...]] = []

    def look(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        taken = next((each for each in (*arguments, *keywords.values()) if isinstance(each, Tensor)), None)
        names = next((name(layer) for kind, name in _TAKEN.items() if isinstance(layer, kind)), None)
        if found or taken is None or names is None:
            return
        if (named := _on_input(names, taken, x)) is not None:
            found.append(named)

    with contextlib.suppress(Exception), torch.no_grad(), _watched(module, look):  # a failure is reported elsewhere
        run(x)
    return found[0] if found else ()


@contextlib.contextmanager
def _watched(module: nn.Module, look: Callable[..., None]) -> Iterator[None]:
    handles = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in module.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _on_input(names: tuple[str, ...], taken: Tensor, x: Tensor) -> tuple[Axis, ...] | None:
    """Names of a view's axes, on the axes of the input that it views; they are told by their strides."""
    if taken.data_ptr() != x.data_ptr() or sorted(taken.shape) != sorted(x.shape) or len(names) != taken.dim():
        return None
    own = {(length, stride): place for place, (length, stride) in enumerate(zip(x.shape, x.stride(), strict=True))}
    found = [""] * x.dim()
    for name, key in zip(names, zip(taken.shape, taken.stride(), strict=True), strict=True):
        if key not in own:
            return None
        found[own[key]] = name
    return tuple(map(Axis, found[1:])) if found[0] == _SAMPLE else None
