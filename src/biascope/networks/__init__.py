"""The papers' architectures: one file per network, each holding one builder of the same name.

A file put into this folder is a network from then on, unless its name starts with "_". `names` reads the folder, and `builder`
imports a file only when its network is asked for, so that importing this package does not import torch.

>>> "lenet" in names()
True
>>> sum(p.numel() for p in builder("LeNet")().parameters())
60941
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = ["builder", "names"]


def __dir__() -> list[str]:
    return __all__


def names() -> tuple[str, ...]:
    """The networks that can be built, in alphabetical order, read from the file names of this folder."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def builder(name: str) -> Callable[..., nn.Module]:
    """The function that builds the network called `name`.

    Case, hyphens, underscores and spaces do not matter: "ResNet-18", "resnet_18" and "resnet18" are one network.

    Args:
        name: One of `names()`, in any of these spellings.

    Returns:
        The builder. Its settings are keyword-only and all have defaults, so `builder(name)()` is the published network.

    Raises:
        ValueError: If no network has this name; the message gives the nearest ones.

    >>> builder("ResNet-18").__name__
    'resnet18'
    """
    known = {_letters(each): each for each in names()}
    if (found := known.get(_letters(name))) is None:
        # A loose cut-off, so that an abbreviation such as "LogReg" still finds its network.
        near = [known[each] for each in difflib.get_close_matches(_letters(name), known, n=3, cutoff=0.4)]
        remedy = f"Did you mean {' or '.join(map(repr, near))}?" if near else "Pass one of these names."
        raise ValueError(f"network must be one of {', '.join(map(repr, names()))}, got {name!r}. {remedy}")
    build: Callable[..., nn.Module] = getattr(importlib.import_module(f"{__name__}.{found}"), found)
    return build


def _letters(name: str) -> str:
    """The letters and digits of `name` in lower case: what two spellings of one network share."""
    return "".join(filter(str.isalnum, name)).lower()
