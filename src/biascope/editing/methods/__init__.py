"""Merging methods: one file each, with the form of its paper and the dialects of released code, by name.

A file put into this folder is a method from then on, unless its name starts with "_". Its table ``FORMS`` has the endings of the
names that it defines: ``""`` for the paper's form, ``":mergekit"`` for a dialect.

>>> "ties" in files(), "ties:mergekit" in names()
(True, True)
>>> method("ties").settings[0].name
'density'
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biascope.editing.methods._method import Method

__all__ = ["files", "method", "names"]


def __dir__() -> list[str]:
    return __all__


def files() -> tuple[str, ...]:
    """The methods, without their dialects, read from the file names of this folder."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def _forms() -> dict[str, type[Method]]:
    return {
        stem + ending: form
        for stem in files()
        for ending, form in importlib.import_module(f"{__name__}.{stem}").FORMS.items()
    }


def names() -> tuple[str, ...]:
    """Every method and dialect, in alphabetical order."""
    return tuple(sorted(_forms()))


def method(name: str) -> type[Method]:
    """The method or dialect of a name.

    Raises:
        ValueError: If there is none; the message gives the nearest names.
    """
    forms = _forms()
    if name not in forms:
        near = difflib.get_close_matches(name, forms, n=3, cutoff=0.4)
        remedy = f"Did you mean {' or '.join(map(repr, near))}?" if near else "Pass one of these names."
        raise ValueError(f"method must be one of {', '.join(names())}, got {name!r}. {remedy}")
    return forms[name]
