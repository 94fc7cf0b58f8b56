"""Models of the field's libraries by name: ``timm:resnet18``, ``hf:FOLDER``. One file for each kind; its name is the prefix.

A file defines ``EXAMPLE`` and ``named(rest, asked)``, which returns a :class:`NamedModel`. What a model takes and gives is
asked of its library; there is no table of architectures here.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

from biascope.families.named_model import PLAIN, TEXT_SETTINGS, Asked, NamedModel

KINDS = tuple(
    sorted(
        path.stem.replace("_", "-")
        for path in Path(__file__).parent.glob("*.py")
        if "\nEXAMPLE = " in path.read_text(encoding="utf-8")
    )
)


def kind_of(source: str) -> str:
    """The kind of a model named by a library, ``""`` for any other.

    Example:
        >>> kind_of("open_clip:ViT-B-32"), kind_of("hf:folder"), kind_of("network.pt2"), kind_of("file.py:build")
        ('open-clip', 'hf', 'exported', '')
    """
    prefix = source.partition(":")[0].replace("_", "-")
    return prefix if prefix in KINDS else "exported" if source.endswith(".pt2") else ""


def named(source: str, asked: Asked) -> NamedModel:
    """The model of that name.

    Raises:
        ValueError: If its library is missing, or has no such model.
    """
    kind = kind_of(source)
    rest = source if source.endswith(".pt2") and ":" not in source else source.partition(":")[2]
    if not rest:
        raise ValueError(f"A model must be named after {source}, got nothing. Type for example {example_of(kind)}.")
    if asked.text != PLAIN and kind not in ("hf", "hf-config", "peft"):
        raise ValueError(f"{source} is no model of texts, so it has no {', '.join(TEXT_SETTINGS)}. Leave them out.")
    return cast(NamedModel, _file_of(kind).named(rest, asked))


def example_of(kind: str) -> str:
    """How a model of a kind is named."""
    return str(_file_of(kind).EXAMPLE)


def _file_of(kind: str):  # type: ignore[no-untyped-def]  # a module
    return importlib.import_module(f"{__name__}.{kind.replace('-', '_')}")
