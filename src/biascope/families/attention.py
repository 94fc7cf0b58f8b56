"""Attention and experts of transformers models inside a network: which implementation computes them, and what derivatives need.

A network's forward pass is a copy of the user's module, and only the copy is changed here. The library itself is asked and told
through its own registers; where it was not imported, no module can be one of its models.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

EAGER = "eager"


def attention_of(module: nn.Module) -> str:
    """The implementations of attention in a module, as its library names them: ``"sdpa"``, ``"eager"``; empty without such a model.

    Example:
        >>> attention_of(nn.Linear(2, 1))
        ''
    """
    names = (getattr(layer.config, "_attn_implementation", None) for layer in _models_in(module))
    return ", ".join(sorted({str(name) for name in names if name}))


def use_eager_attention(module: nn.Module) -> bool:
    """Let a module compute its attention step by step, in place, where its library offers that; whether anything changed."""
    before = attention_of(module)
    for model in _models_in(module):
        with contextlib.suppress(Exception):  # the library says in many ways that a model has one implementation alone
            model.set_attn_implementation(EAGER)
    return attention_of(module) != before


def replace_fused_attention(module: nn.Module) -> None:
    """Let a module compute its attention step by step where it uses kernels that torch cannot differentiate in every way.

    The plain formula of ``sdpa`` has all derivatives, and measurements ask torch for it.
    """
    if set(attention_of(module).split(", ")) - {"", EAGER, "sdpa"}:
        use_eager_attention(module)


def use_eager_experts(module: nn.Module) -> None:
    """Let a mixture of experts call them one after another, in place, where its library offers that.

    The usual kernel sorts tokens by their experts. It has no forward mode and no float64.
    """
    for model in _models_in(module):
        with contextlib.suppress(Exception):  # the library says in many ways that a model has no experts
            model.set_experts_implementation(EAGER)


def allow_stacked_masks(module: nn.Module) -> None:
    """Let masks of padding be stacked by ``vmap``, each sample with its own, in models of transformers.

    The library leaves a mask out where it hides nothing, which needs one answer for all that is stacked. Where a mask is stacked it is
    used, whatever it hides; all else is left to the library.
    """
    masks = sys.modules.get("transformers.masking_utils")  # only models of texts import it
    if masks is None or not _models_in(module):
        return
    register = masks.AttentionMaskInterface
    known = register._global_mapping
    for name in (EAGER, "sdpa"):
        if name in known and not isinstance(known[name], _StackedMask):
            register.register(name, _StackedMask(known[name]))


class _StackedMask:
    """A function of the library that makes masks, for masks that are stacked too."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        functools.update_wrapper(self, plain)
        self._plain = plain

    def __call__(self, *args: Any, **settings: Any) -> Any:
        mask = settings.get("attention_mask")
        if isinstance(mask, Tensor) and _is_stacked(mask):
            settings |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return self._plain(*args, **settings)


def _is_stacked(tensor: Tensor) -> bool:
    """Whether ``vmap`` holds a tensor, under whatever other transformations."""
    inside = torch._C._functorch
    while inside.is_functorch_wrapped_tensor(tensor):
        if inside.is_batchedtensor(tensor):
            return True
        tensor = inside.get_unwrapped(tensor)
    return False


def _models_in(module: nn.Module) -> list[Any]:
    """The models of transformers among the layers of a module."""
    library = sys.modules.get("transformers.modeling_utils")
    kind = getattr(library, "PreTrainedModel", None)
    return [] if kind is None else [layer for layer in module.modules() if isinstance(layer, kind)]
