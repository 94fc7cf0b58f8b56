"""Readouts: named rules that turn several outputs of a network into one scalar."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.runs.randomness import seed_of

READOUTS = ("first", "sum", "mean", "margin", "random", "features")


def features(module: nn.Module, forward: Callable[[], Any]) -> Tensor:
    """What enters the last linear layer of a network in a forward pass: its features, whatever the weights of that layer.

    Args:
        module: The network; the last of its linear layers is the head.
        forward: Calls it.

    Raises:
        ValueError: If it has no linear layer, or does not call the last one.

    Example:
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(2, 3))
        >>> features(network, lambda: network(torch.ones(1, 1, 2)))
        tensor([[1., 1.]])
    """
    head = next((layer for layer in reversed(list(module.modules())) if isinstance(layer, nn.Linear)), None)
    entered: list[Tensor] = []
    if head is not None:
        handle = head.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
        try:
            forward()
        finally:
            handle.remove()
    if not entered:
        raise ValueError(
            f"readout 'features' needs a network that ends in a linear layer, and {type(module).__name__} does not. Pass "
            "readout='first'."
        )
    return entered[-1].flatten(1)


def called_layers(module: nn.Module, forward: Callable[[], Any]) -> list[nn.Module]:
    """The layers that a forward pass calls, in order: modules without others in them.

    Args:
        module: The network.
        forward: Calls it.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
        >>> called_layers(network, lambda: network(torch.ones(1, 2)))
        [Linear(in_features=2, out_features=3, bias=True), Tanh()]
    """
    called: list[nn.Module] = []
    layers = [layer for layer in module.modules() if not list(layer.children())]
    handles = [layer.register_forward_hook(lambda own, *_: called.append(own)) for layer in layers]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return called


def single_output(outputs: Any) -> Any:
    """The tensor among what a network returns: the logits of a dictionary or dataclass, or the one tensor of a tuple.

    Anything else is returned as it is, for :func:`biascope.families.acceptance.accepted_outputs` to refuse.

    Example:
        >>> single_output({"loss": None, "logits": torch.ones(2)})
        tensor([1., 1.])
        >>> single_output((torch.ones(2), (torch.zeros(2), torch.zeros(2))))  # of an LSTM
        tensor([1., 1.])
    """
    if isinstance(outputs, Tensor):
        return outputs
    found: Any = None
    if isinstance(outputs, Mapping):
        found = outputs.get("logits")
    elif dataclasses.is_dataclass(outputs) or hasattr(outputs, "logits"):
        found = getattr(outputs, "logits", None)
    elif isinstance(outputs, tuple):
        tensors = [each for each in outputs if isinstance(each, Tensor)]
        found = tensors[0] if len(tensors) == 1 else None
    return found if isinstance(found, Tensor) else outputs


def read_out(outputs: Tensor, readout: str) -> Tensor:
    """One scalar per input from a network's outputs, by a named rule.

    Args:
        outputs: ``(n, p)``, ``(n,)`` or with more output axes, which are flattened.
        readout: ``"first"`` output, ``"sum"``, ``"mean"``, ``"margin"`` (largest minus second largest), ``"random"``
            (one fixed Gaussian combination) or ``"features"`` (the same combination of :func:`features`).

    Returns:
        ``(n,)``.

    Example:
        >>> read_out(torch.tensor([[1.0, 5.0, 3.0]]), "margin")
        tensor([2.])
    """
    logits = outputs.reshape(outputs.shape[0], -1)  # (n, p)
    if readout == "first":
        return logits[:, 0]
    if readout == "sum":
        return logits.sum(1)
    if readout == "mean":
        return logits.mean(1)
    if readout == "margin":
        top = logits.topk(2, dim=1).values
        return top[:, 0] - top[:, 1]
    # Drawn by NumPy, because torch draws nothing under vmap.
    combination = np.random.default_rng(seed_of(0, "readout")).standard_normal(logits.shape[1])
    return logits @ torch.from_numpy(combination).to(logits)
