"""Replacements: what may stand in place of a network's components; one file for each kind, which registers itself.

>>> "pooling" in kinds()
True
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from biascope.families.replacements._kind import Kind


@functools.cache
def kinds() -> Mapping[str, Kind]:
    """Every kind of component by its name, from the files of this folder."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    found = [importlib.import_module(f"{__name__}.{name}").KIND for name in names]
    return {kind.name: kind for kind in found}
