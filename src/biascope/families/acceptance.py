"""The requirements on a user's network and on its outputs. Whatever the user's code raises becomes one sentence."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from biascope.families.tape import TapeError, as_copies_are
from biascope.families.weights import state_of
from biascope.runs.failures import FOREIGN, reason_of
from biascope.runs.memory import is_of_the_device


def module_built(name: str, build: Callable[[], object]) -> nn.Module:
    """The network that a user's builder returns; a failure becomes one sentence.

    Raises:
        ValueError: If it raises an error, ends the program, or returns something else than a module.
    """
    try:
        module = build()
    except (ValueError, TapeError):  # a sentence already, or the recorder's word that it cannot follow
        raise
    except FOREIGN as error:
        told = reason_of(error) if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{name} must build without errors, but it raised {told}. Fix the error above.") from error
    if not isinstance(module, nn.Module):
        remedy = "Return its module()" if isinstance(module, torch.export.ExportedProgram) else "Return the network"
        raise ValueError(f"{name} must return a torch.nn.Module, got {type(module).__name__}. {remedy}.")
    return as_copies_are(module)


def require_measurable(module: nn.Module, name: str) -> None:
    """Refuse modules whose weights cannot be copied, moved or differentiated.

    Raises:
        ValueError: With the layer or weight that is in the way, and what to do.

    Example:
        >>> require_measurable(nn.LazyLinear(3), "mine")
        Traceback (most recent call last):
        ...
        ValueError: mine must have weights of known shape, but weight has no shape yet. Run one forward pass in the builder.
    """
    for place, layer in module.named_modules():
        where = place or type(layer).__name__
        if isinstance(layer, torch.jit.ScriptModule):
            raise ValueError(
                f"{name} must be a plain torch.nn.Module, but {where} is compiled by torch.jit. Pass the module it was made from."
            )
    for key, tensor in state_of(module).items():
        if nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"{name} must have weights of known shape, but {key} has no shape yet. Run one forward pass in the builder."
            )
        if tensor.is_meta:
            raise ValueError(
                f"{name} must have weights with values, but {key} is on the meta device. Build it on the CPU."
            )
        if tensor.layout is not torch.strided:
            raise ValueError(f"{name} must have dense weights, but {key} is {tensor.layout}. Store it with to_dense().")


def copied(module: nn.Module, name: str) -> nn.Module:
    """A private copy of a module. What it keeps of an earlier call is copied as numbers, without the way they were computed.

    Raises:
        ValueError: If it cannot be copied, naming the attribute that cannot.
    """
    require_measurable(module, name)
    kept = [leaf for layer in module.modules() for leaf in tree_leaves(list(vars(layer).values()))]
    computed = [leaf for leaf in kept if isinstance(leaf, Tensor) and not leaf.is_leaf]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # what torch says to itself of graphs that it exported
            return copy.deepcopy(module, {id(tensor): tensor.detach().clone() for tensor in computed})
    except FOREIGN as error:
        raise ValueError(
            f"{name} must be copyable, but {_uncopyable(module) or 'it'} is not ({reason_of(error)}). Create it in forward, "
            "or keep it outside of the module."
        ) from error


def _uncopyable(module: nn.Module) -> str:
    """The attribute of a module that cannot be copied."""
    for place, layer in module.named_modules():
        for key, value in vars(layer).items():
            if key.startswith("_") and isinstance(value, dict):  # where torch keeps parameters, buffers and layers
                continue
            try:
                copy.deepcopy(value)
            except FOREIGN:
                return f"{place}.{key}" if place else key
    return ""


def shape_of(x: Any) -> str:
    """The shape of one input in words, any pytree.

    Example:
        >>> shape_of(torch.zeros(2, 3, 8, 8)), shape_of((torch.zeros(2, 5), torch.zeros(2, 7)))
        ('3×8×8', '5 and 7')
    """
    return " and ".join("×".join(map(str, leaf.shape[1:])) for leaf in tree_leaves(x) if isinstance(leaf, Tensor))


def accepted_outputs(outputs: object, x: Any, name: str) -> Tensor:
    """The outputs of a first forward pass, checked to be measurable.

    Raises:
        ValueError: If they are no real numbers, or no row for each input.

    Example:
        >>> accepted_outputs(torch.ones(2, 3), torch.zeros(2, 5), "mine").shape
        torch.Size([2, 3])
        >>> accepted_outputs(torch.ones(3, 2), torch.zeros(2, 5), "mine")
        Traceback (most recent call last):
        ...
        ValueError: mine must return a row of outputs for each of 2 inputs, got shape 3×2. Put the inputs along the first axis.
    """
    if not isinstance(outputs, Tensor):
        parts = f" with {', '.join(map(str, outputs))}" if isinstance(outputs, dict) else ""
        raise ValueError(
            f"{name} must return one tensor, got {type(outputs).__name__}{parts}. Wrap it to return the logits."
        )
    if not outputs.is_floating_point():
        raise ValueError(f"{name} must return real numbers, got {outputs.dtype}. Return real scores, such as logits.")
    if outputs.layout is not torch.strided:
        raise ValueError(f"{name} must return a dense tensor, got {outputs.layout}. Return it with to_dense().")
    count = next(len(leaf) for leaf in tree_leaves(x) if isinstance(leaf, Tensor))
    if not outputs.ndim or len(outputs) != count or not outputs.numel():
        each = "its input" if count == 1 else f"each of {count} inputs"
        got = f"shape {'×'.join(map(str, outputs.shape))}" if outputs.ndim else "one number"
        raise ValueError(
            f"{name} must return a row of outputs for {each}, got {got}. Put the inputs along the first axis."
        )
    return outputs


@contextlib.contextmanager
def differentiated(name: str) -> Iterator[None]:
    """A first derivative of a user's network; any error becomes one sentence.

    Raises:
        ValueError: If it fails.
    """
    try:
        yield
    except ValueError:
        raise
    except FOREIGN as error:
        if is_of_the_device(error):
            raise
        raise ValueError(
            f"{name} must be differentiable by torch.func, but that failed with: {reason_of(error)}. Remove torch.autograd, "
            ".item() and .numpy() from forward."
        ) from error
