"""How parameters enter a forward pass: recorded calls of layer functions, with inputs and output gradients.

One forward pass and one backward pass with respect to *activations* give, for every call of a linear map, a convolution,
a normalisation or an embedding, its input ``A_i`` and the gradient ``B_i`` of the scalar output by the call's output, for
each sample ``i``. All that the tangent kernel needs of such a layer follows from the two, and no weight gradient is formed.
Functions are recorded, not modules: a module that is called twice, or whose weight another function uses too, is seen as
what it is.
"""

# n samples · S positions · C channels · p outputs

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from biascope.derivatives.gradients import plain_attention
from biascope.families.inputs import cloned, on_tensors
from biascope.families.network import Network
from biascope.families.weights import Params

# What a function tells of a parameter without computing with it.
_HARMLESS = {"size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "type", "__get__"}
_ATTRIBUTES = {
    "shape",
    "dtype",
    "device",
    "layout",
    "ndim",
    "requires_grad",
    "is_cuda",
    "grad",
    "is_quantized",
    "names",
}


@dataclass
class Call:
    """One call of a layer function.

    Attributes:
        kind: ``"linear"``, ``"convolution"``, ``"embedding"``, ``"normalisation"``; or ``"differentiation"`` for a parameter
            that entered otherwise, whose per-sample gradients are then held as ``gradient``.
        weight: Name of the parameter that is its weight, if one is.
        bias: Name of the parameter that is its bias, if one is.
        inputs: What it read; of an embedding the ids.
        settings: Its other arguments by name.
        gradient: Gradient of the summed scalar outputs with respect to its output.
    """

    kind: str
    weight: str | None
    bias: str | None
    inputs: Tensor
    settings: Mapping[str, Any]
    gradient: Tensor

    def without(self, names: Container[str | None]) -> Call:
        """The call as one that did not use some parameters."""
        weight, bias = (None if name in names else name for name in (self.weight, self.bias))
        return dataclasses.replace(self, weight=weight, bias=bias)

    def takes(self, grad: Tensor) -> None:
        """Keep the gradient of the output (a backward hook)."""
        self.gradient = grad.detach()


def _signature(*names: str) -> inspect.Signature:
    """Of a function written in C++, which cannot be inspected."""
    kinds = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in names]
    return inspect.Signature(kinds)


_CONVOLUTION = _signature("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_KINDS: dict[Any, tuple[str, inspect.Signature]] = {
    F.linear: ("linear", _signature("input", "weight", "bias")),
    F.conv1d: ("convolution", _CONVOLUTION),
    F.conv2d: ("convolution", _CONVOLUTION),
    F.embedding: ("embedding", inspect.signature(F.embedding)),
    F.batch_norm: ("normalisation", inspect.signature(F.batch_norm)),
    F.layer_norm: ("normalisation", inspect.signature(F.layer_norm)),
    F.group_norm: ("normalisation", inspect.signature(F.group_norm)),
}


class _Recorder(TorchFunctionMode):
    """Sees every torch function that a forward pass calls with one of the parameters."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.raw: set[str] = set()
        self._names = {id(tensor): name for name, tensor in params.items()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        used = {
            self._names[id(leaf)]
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor) and id(leaf) in self._names
        }
        if not used or _only_asks(func):
            return func(*args, **kwargs)
        call = self._call(func, args, kwargs)
        recognised = {call.weight, call.bias} - {None} if call is not None else set()
        if call is None or recognised != used or (call.weight == call.bias):
            self.raw |= used
            return func(*args, **kwargs)
        output: Tensor = func(*args, **kwargs)
        if not torch.is_grad_enabled():
            return output  # nothing flows back to it
        if not output.requires_grad:
            # The first layer: nothing before it has a gradient. A copy, so that it may be changed in place later.
            output = output.detach().requires_grad_().clone()
        output.register_hook(call.takes)  # type: ignore[no-untyped-call]
        call.gradient = output.new_zeros(()).expand(output.shape)  # stays where nothing flows back to it
        self.calls.append(call)
        return output

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        kind, signature = _KINDS.get(func, ("", None))
        if signature is None:
            return None
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        weight, bias = given.pop("weight", None), given.pop("bias", None)
        inputs = given.pop("input")
        if not isinstance(inputs, Tensor) or not _plain(kind, given, inputs, weight):
            return None
        if is_batchedtensor(inputs):  # the network maps over its samples: their axis is hidden from every rule
            return None
        named = [None if part is None else self._names.get(id(part)) for part in (weight, bias)]
        given["function"] = func
        given["kernel"] = tuple(weight.shape) if isinstance(weight, Tensor) else ()
        # Not copied: a network that overwrites what a layer has read cannot be differentiated by that layer's weight.
        read = inputs.detach()
        return Call(kind, named[0], named[1], read, given, read)


def _only_asks(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name != "__get__":
        return name in _HARMLESS
    return getattr(getattr(func, "__self__", None), "__name__", "") in _ATTRIBUTES


def _plain(kind: str, settings: Mapping[str, Any], inputs: Tensor, weight: Any) -> bool:
    """Whether a call does what its kind says, to a batch, and no more."""
    if kind == "convolution" and inputs.dim() != weight.dim():
        return False
    if kind == "linear" and inputs.dim() < 2:
        return False
    if kind == "embedding":
        return settings["max_norm"] is None and not settings["scale_grad_by_freq"] and not settings["sparse"]
    return not (kind == "normalisation" and settings.get("training"))  # samples of a batch then see one another


Signature = tuple[tuple[str, str, float], ...]


@dataclass(frozen=True)
class Uses:
    """How the parameters of a network entered one forward pass.

    Attributes:
        calls: Calls of layer functions, in the order of the pass.
        raw: Parameters that entered otherwise, also those that entered both ways.
        outputs: What the network gave, ``(n, p)``.
    """

    calls: list[Call]
    raw: frozenset[str]
    outputs: Tensor

    def of(self, name: str) -> list[tuple[Call, str]]:
        """The calls that a parameter entered, and as what."""
        return [(call, role) for call in self.calls for role in ("weight", "bias") if getattr(call, role) == name]

    def signature(self, name: str, samples: int) -> Signature:
        """How a parameter entered: the kinds of its calls, and the batch rows that each read per sample."""
        if name in self.raw:
            return ()
        return tuple((call.kind, role, len(call.inputs) / samples) for call, role in self.of(name))


def layer_uses(
    network: Network, x: Any, output: int | None = None, differentiated: Sequence[str] = (), *, backward: bool = True
) -> Uses:
    """How the parameters of a network enter its scalar output on a batch, with the gradients of every layer's output.

    Args:
        network: One network.
        x: Inputs ``(n, …)``, any pytree.
        output: Which of several outputs is the scalar; ``None`` for a network with one.
        differentiated: Parameters whose per-sample gradients are to be found by automatic differentiation.
        backward: Whether gradients are wanted; without them the calls tell what the layers read.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1)).read("first")
        >>> [(call.kind, call.gradient) for call in layer_uses(network, torch.ones(1, 2)).calls]
        [('linear', tensor([[1.]]))]
    """
    params = {name: tensor.detach() for name, tensor in network.params.items()}
    recorder = _Recorder(params)
    # Where inputs of a batch would influence one another they go through the network one by one, under vmap.
    recorder.raw |= params.keys() if network.couples_inputs else set()
    with torch.enable_grad(), plain_attention(), _uncompiled():
        with recorder if not network.couples_inputs else contextlib.nullcontext():
            outputs = network.apply(params, network.buffers, cloned(x))
        scalar = scalars(outputs, output).sum()
        if backward and scalar.requires_grad:
            torch.autograd.backward(scalar)
    calls = recorder.calls
    if differentiated:
        gradients = _sample_gradients(network, differentiated, x, output)
        calls = [call.without(gradients) for call in calls]  # a bias may follow a rule where its weight does not
        calls += [
            Call("differentiation", name, None, found, {"kernel": params[name].shape or (1,)}, found)
            for name, found in gradients.items()
        ]
    return Uses(calls, frozenset(recorder.raw), outputs.detach().reshape(len(outputs), -1))


def _uncompiled() -> contextlib.AbstractContextManager[object]:
    """Functions of ``torch.compile`` as they were written: the compiler would else translate the recorder too."""
    compiler = "torch._dynamo" in sys.modules  # whose import takes long
    return torch.compiler.set_stance("force_eager") if compiler else contextlib.nullcontext()


def _sample_gradients(network: Network, names: Sequence[str], x: Any, output: int | None) -> dict[str, Tensor]:
    """Gradients of each sample's scalar output by some parameters, ``(n, numbers)`` each."""

    def scalar(chosen: Params, one: Any) -> Tensor:
        alone = on_tensors(lambda tensor: tensor.unsqueeze(0), one)
        return scalars(network.apply({**network.params, **chosen}, network.buffers, alone), output).squeeze(0)

    chosen = {name: network.params[name].detach() for name in names}
    count = next(len(leaf) for leaf in tree_leaves(x) if isinstance(leaf, Tensor) and leaf.dim())
    with plain_attention(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        try:
            found: Params = vmap(grad(scalar), in_dims=(None, 0), randomness="same")(chosen, cloned(x))
        except RuntimeError:  # recurrent layers and functions with a backward pass of their own cannot be mapped
            each = [_plain_gradients(scalar, chosen, on_tensors(itemgetter(i), cloned(x))) for i in range(count)]
            found = {name: torch.stack([gradients[name] for gradients in each]) for name in names}
    return {name: tensor.detach().reshape(count, -1) for name, tensor in found.items()}


def _plain_gradients(scalar: Callable[[Params, Any], Tensor], chosen: Params, one: Any) -> Params:
    """The gradient by plain autograd, which takes every network that can be trained."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in chosen.items()}
    with torch.enable_grad():
        value = scalar(leaves, one)
    if not value.requires_grad:  # this sample uses none of them
        return {name: torch.zeros_like(tensor) for name, tensor in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def scalars(outputs: Tensor, output: int | None) -> Tensor:
    """One number per input of a network's outputs.

    Raises:
        ValueError: If there are several and none was chosen.
    """
    logits = outputs.reshape(outputs.shape[0], -1)
    if output is None and logits.shape[1] != 1:
        raise ValueError(
            f"The network must have one output per input, but has {logits.shape[1]}. Choose a readout, or pass "
            "kernel='trace' or kernel='each'."
        )
    return logits[:, output or 0]
