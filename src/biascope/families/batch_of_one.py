"""Gradients through batch normalisation at a batch of one, which torch computes wrongly on a CPU.

A layer after the normalisation may hand back a gradient whose numbers lie channels last: patches do so that become tokens by
``flatten(2).transpose(1, 2)``. With one input torch takes such a gradient for one that lies channels first, and the numbers get to
other channels (torch 2.13). Here the gradient is laid out anew before it gets there.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

_NORMALISATIONS = ("batch_norm", "instance_norm")  # in the names of functions, and of operators in exported graphs


class RightGradientsOfOne(TorchFunctionMode):
    """Let normalisations by the statistics of channels have right gradients at a batch of one.

    Example:
        >>> import torch
        >>> layer, x = torch.nn.BatchNorm2d(2).eval(), torch.ones(1, 2, 2, 2, requires_grad=True)
        >>> with torch.no_grad():
        ...     _ = layer.running_var.copy_(torch.tensor([1.0, 100.0]))
        >>> with RightGradientsOfOne():
        ...     tokens = layer(x).flatten(2).transpose(1, 2)
        >>> (gradient,) = torch.autograd.grad((tokens * torch.tensor([1.0, 10.0])).sum(), x)
        >>> gradient.flatten(1)
        tensor([[1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000]])
    """

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(name in getattr(func, "__name__", "") for name in _NORMALISATIONS):
            return tuple(map(_laid_out_anew, found)) if isinstance(found, tuple) else _laid_out_anew(found)
        return found


def _laid_out_anew(found: Tensor) -> Tensor:
    """The same numbers. The gradient of a flattened tensor lies in one row, and so does what is made of it."""
    return found.flatten(1).reshape(found.shape) if found.dim() > 3 else found


def is_one(inputs: Any) -> bool:
    """Whether inputs, any pytree, are a batch of one.

    Example:
        >>> import torch
        >>> is_one({"x": torch.zeros(1, 3)}), is_one(torch.zeros(2, 3))
        (True, False)
    """
    return any(isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == 1 for leaf in tree_leaves(inputs))
