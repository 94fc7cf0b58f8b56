"""Gradient hooks: derivatives ignore them, and a warning names every hook that may change a gradient."""

from __future__ import annotations

import warnings

from torch import nn

_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_LAYERS = ("_backward_hooks", "_backward_pre_hooks")


def gradient_hooks(module: nn.Module) -> list[str]:
    """The parameters and layers of a module that carry a hook on their gradient, by name.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> handle = layer.weight.register_hook(lambda gradient: 2 * gradient)
        >>> gradient_hooks(layer)
        ['weight']
    """
    parameters = [name for name, each in module.named_parameters() if _has(each, _OF_PARAMETERS)]
    layers = [name or type(module).__name__ for name, each in module.named_modules() if _has(each, _OF_LAYERS)]
    return parameters + layers


def _has(owner: object, kinds: tuple[str, ...]) -> bool:
    return any(getattr(owner, kind, None) for kind in kinds)


def remove_gradient_hooks(module: nn.Module) -> None:
    """Remove the hooks on gradients from a module that is ours, in place."""
    for owners, kinds in ((module.parameters(), _OF_PARAMETERS), (module.modules(), _OF_LAYERS)):
        for owner in owners:
            for kind in kinds:
                if hooks := getattr(owner, kind, None):
                    hooks.clear()


def leave_out_gradient_hooks(module: nn.Module, copy: nn.Module) -> None:
    """Warn about the hooks of a module, and remove them from its copy.

    Copies lose the hooks of parameters and keep those of layers, which some ways to differentiate call and others do not.
    Without them all ways agree: they give the derivatives of the forward pass.

    Args:
        module: What the user passed.
        copy: What is differentiated in its place; changed.
    """
    names = gradient_hooks(module)
    if not names:
        return
    remove_gradient_hooks(copy)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    warnings.warn(
        f"{type(module).__name__} has a gradient hook on {names[0]!r}{more}, and Biascope differentiates without hooks. "
        "Results differ from plain autograd where a hook changes a gradient. Remove the hooks with handle.remove().",
        UserWarning,
        stacklevel=3,
    )
