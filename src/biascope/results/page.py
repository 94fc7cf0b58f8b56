"""SHOW: what all pages share: the template environment, the glossary, files to download, and the size that a page states of itself."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biascope.results import draw
from biascope.results.glossary import Glossary
from biascope.results.registry import SOURCES

if TYPE_CHECKING:
    from jinja2 import Environment

_GLOSSARY: ContextVar[Glossary] = ContextVar("glossary")  # of the page that is being written
_SIZE = "00.00 MB"  # where the size will stand, and as long


def rendered(template: str, content: Mapping[str, Any]) -> bytes:
    """A page from a template and what it shows; its glossary has the terms that were used, its footer its own size."""
    glossary = Glossary()
    palette = {"light": draw.PALETTE[False]._asdict(), "dark": draw.PALETTE[True]._asdict()}
    known = {"glossary": glossary, "palette": palette, "size": _SIZE, **content}
    before = _GLOSSARY.set(glossary)
    try:
        page = _environment().get_template(template).render(known).encode()
    finally:
        _GLOSSARY.reset(before)
    start, _, end = page.rpartition(_SIZE.encode())
    megabytes = f"{len(page) / 1e6:.2f} MB".rjust(len(_SIZE))
    return start + megabytes.encode() + end


@functools.cache
def _environment() -> Environment:
    """Templates are compiled once in a process, which takes longer than to fill them."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context

    @pass_context  # what a template itself says is marked on every page too, not once when it is compiled
    def glossed(context: object, text: str) -> object:
        return _GLOSSARY.get().mark(text)

    style: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, **style)
    environment.filters |= {"hash": _hash, "glossed": glossed}
    return environment


def download(name: str, words: str, text: str, kind: str) -> dict[str, str]:
    """A file that the page itself holds, as its link needs it."""
    size = len(text.encode())
    data = base64.b64encode(text.encode()).decode()
    shown = f"{size / 1000:.0f} kB" if size >= 10_000 else f"{size / 1000:.1f} kB"
    return {"name": name, "words": f"{words}, {shown}", "address": f"data:{kind};charset=utf-8;base64,{data}"}


def citation(papers: Sequence[str], version: str) -> str:
    """What to cite: the papers by their ids, and this software."""
    known = [SOURCES[paper] for paper in dict.fromkeys(papers) if paper in SOURCES]
    return "\n".join(
        [*known, f"Biascope, version {version}: a microscope for inductive bias. The Biascope developers."]
    )


def _hash(script: str) -> str:
    """What the page's security policy names its one script by; the policy runs no other."""
    return base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()
