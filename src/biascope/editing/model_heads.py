"""The last layer of a user's checkpoint, which a model does not share with others."""

from __future__ import annotations

import copy

import torch
from torch import nn

from biascope.editing.heads import Head, identity_head
from biascope.families.weights import Params


def headless(module: nn.Module, head: str) -> nn.Module:
    """The module without its last layer.

    Args:
        module: Changed in place.
        head: Name of the layer.
    """
    parent, _, name = head.rpartition(".")
    setattr(module.get_submodule(parent), name, nn.Identity())
    return module


def ends_with(module: nn.Module, head: str, x: torch.Tensor) -> bool:
    """Whether the outputs of a module are those of a layer: put behind the rest, any other layer would make another network.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
        >>> ends_with(network, "2", torch.ones(1, 2)), ends_with(network, "0", torch.ones(1, 2))
        (True, False)
    """
    copied, given = copy.deepcopy(module).float().eval(), []
    copied.get_submodule(head).register_forward_hook(lambda _layer, _inputs, output: given.append(output.clone()))
    with torch.no_grad():
        found = copied(x)
    if not isinstance(found, torch.Tensor):  # which others say
        return True
    return bool(given) and torch.equal(found.flatten(), given[-1].flatten())


def require_linear(module: nn.Module, head: str) -> None:
    """Refuse a name that no linear layer has."""
    known = [name for name, each in module.named_modules() if isinstance(each, nn.Linear)]
    if head not in known:
        raise ValueError(
            f"--head must name a linear layer of the network, one of {', '.join(known) or 'none'}, got {head!r}. Pass the last one."
        )


def own_head(state: Params, name: str, outputs: int, head: str | None, *, features: bool) -> Head:
    """The head that turns the network's outputs into a model's classes.

    Args:
        state: Weights of the model.
        name: Name of its file.
        outputs: How many the network gives, without that layer.
        head: Name of the layer that is the model's own, if any.
        features: Whether outputs are compared as they are.

    Returns:
        The model's own layer; an identity if the outputs are scores already. For a single output, the sign counts.

    Raises:
        ValueError: If the model has no such layer, or it does not fit.

    Example:
        >>> own_head({}, "a", 1, None, features=False)(torch.tensor([[-2.0], [3.0]])).argmax(1)
        tensor([0, 1])
    """
    if head:
        weight = state.get(f"{head}.weight")
        if weight is None or weight.dim() != 2 or weight.shape[1] != outputs:
            came = "none" if weight is None else f"{tuple(weight.shape)}"
            raise ValueError(
                f"{name} must have a matrix {head}.weight with {outputs} columns, the outputs of the network without "
                f"that layer, got {came}. Pass the last layer as --head."
            )
        if not features:
            bias = state.get(f"{head}.bias")
            scores = Head(weight.float(), torch.zeros(len(weight)) if bias is None else bias.float())
            return _two_classes(scores) if len(weight) == 1 else scores
    return _two_classes(identity_head(1)) if outputs == 1 and not features else identity_head(outputs)


def _two_classes(one: Head) -> Head:
    """A head with a single output, of which the sign counts, as one of two classes."""
    weight, bias = torch.zeros_like(one.weight), torch.zeros_like(one.bias)
    return Head(torch.cat([weight, one.weight]), torch.cat([bias, one.bias]))
