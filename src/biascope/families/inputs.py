"""Inputs of networks: any pytree of tensors that share a leading axis over samples. What is no tensor goes with each of them."""

# n samples

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def on_tensors(change: Callable[[Tensor], Any], x: Any) -> Any:
    """The inputs with every tensor changed.

    Example:
        >>> on_tensors(lambda tensor: 2 * tensor, {"x": torch.ones(1), "flag": True})
        {'x': tensor([2.]), 'flag': True}
    """
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, x)


def is_real(leaf: Any) -> bool:
    """Whether something among the inputs holds real numbers, by which a network can be differentiated."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def cloned(x: Any) -> Any:
    """A copy of the inputs: a network may work in place on what it is given."""
    return on_tensors(torch.clone, x)


def taken(x: Any, which: slice | Tensor) -> Any:
    """Some of the samples; a tensor without an axis goes with each of them.

    Example:
        >>> taken((torch.arange(4), torch.tensor(7)), torch.tensor([3, 0]))
        (tensor([3, 0]), tensor(7))
    """

    def some(tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return tensor
        return tensor[which.to(tensor.device) if isinstance(which, Tensor) else which]

    return on_tensors(some, x)


def placed(x: Any, device: torch.device | None, dtype: torch.dtype, *, copy: bool = False) -> Any:
    """The inputs on a device, real numbers in a type, without the graph that they may come from.

    Args:
        x: Inputs.
        device: The device; ``None`` leaves them where they are.
        dtype: Of real numbers; others keep theirs.
        copy: Whether tensors are copied where nothing changes.
    """

    def put(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, dtype if is_real(tensor) else tensor.dtype, copy=copy)

    return on_tensors(put, x)


def sample_count(x: Any) -> int:
    """How many samples there are.

    Raises:
        ValueError: If tensors disagree, or there is none.
    """
    sizes = {leaf.shape[0] for leaf in tree_leaves(x) if isinstance(leaf, Tensor) and leaf.dim()}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"Inputs must share one leading axis over at least one sample, got {sorted(sizes)}. Pass x[None] for one."
        )
    return int(sizes.pop())
