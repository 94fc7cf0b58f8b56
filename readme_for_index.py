"""The README as a package index shows it: pictures and pages that lie beside it are named, because links to them would be broken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = r"(?!https?://|#|mailto:)([^)\s]+)"


def for_index(text: str) -> str:
    """Text without links to files."""
    text = re.sub(rf"!\[([^\]]*)\]\({_RELATIVE}\)", r"*Picture: \1 (\2 in the source code).*", text)
    return re.sub(rf"\[([^\]]*)\]\({_RELATIVE}\)", _named, text)


def _named(link: re.Match[str]) -> str:
    words, path = link[1], link[2]
    return words if words == path else f"{words} ({path})"


class ReadmeForIndex(MetadataHookInterface):
    """Gives hatchling the long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put it into the metadata of the package."""
        text = for_index(Path(self.root, "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
