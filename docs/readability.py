"""How long are the sentences of the README and the documentation?

    python docs/readability.py             # the share of sentences with more than 25 words, page by page
    python docs/readability.py PAGE …      # of some pages, and the long sentences themselves

Prose counts: paragraphs, list items, captions, and cells of tables that end like a sentence.
Headings, code, formulas and directives do not. Inline code is one word.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONG = 25
ROOT = Path(__file__).parents[1]
_FENCED = re.compile(
    r"^(`{3,}|~{3,}|:{3,})(?!\{(?:note|tip|warning|important|admonition|dropdown)).*?^\1\s*$", re.M | re.S
)
_FORMULA = re.compile(r"\$\$.*?\$\$", re.S)
_INLINE_FORMULA = re.compile(r"\$[^$\n]+\$")
_CODE = re.compile(r"(`+).+?\1", re.S)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?])[\"”)*_]*\s+(?=[\"“(*_]*[A-Z0-9])")
_NO_END = re.compile(r"\b(?:e\.g|i\.e|et al|cf|vs|Fig|Eq|Sec|No|St)\.$")


def pages() -> list[Path]:
    """The README and every page of the documentation that is written by hand."""
    folders = (ROOT / "docs", ROOT / "docs" / "papers")
    written = (path for folder in folders for path in folder.glob("*.md") if path.name != "command_line.md")
    return [ROOT / "README.md", *sorted(written)]


def paragraphs(text: str) -> list[str]:
    """Paragraphs and list items of a page, without what is not prose."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    text = _FORMULA.sub(" ", _FENCED.sub("\n", text))
    text = _LINK.sub(r"\1", _INLINE_FORMULA.sub("formula", _CODE.sub("code", text)))
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith(("    ", "\t")) and not found[-1]:
            continue  # code: nothing stands right before it
        if line.lstrip().startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            found += [[cell] for cell in cells if re.search(r"[.!?]$", cell) or words(cell) > LONG]
            found.append([])
        elif not line.strip() or line.startswith(("#", ":::", "(", "<", "%")):
            found.append([])
        else:
            item = re.match(r"\s*([-*+]|\d+\.)\s+", line)
            if item:
                found.append([])
            found[-1].append(line[item.end() :] if item else line.strip())
    return [" ".join(lines) for lines in found if any(lines)]


def sentences(text: str) -> list[str]:
    """The sentences of a page."""
    found: list[str] = []
    for paragraph in paragraphs(text):
        parts = _END.split(paragraph)
        for index, part in enumerate(parts):
            if index and _NO_END.search(parts[index - 1]):
                found[-1] += " " + part
            else:
                found.append(part)
    return [sentence for sentence in found if re.search(r"\w", sentence)]


def words(sentence: str) -> int:
    """How many words a sentence has: what holds a letter or a digit."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def share_of_long(paths: list[Path]) -> tuple[int, int]:
    """How many sentences of some pages are long, and how many there are."""
    lengths = [words(sentence) for path in paths for sentence in sentences(path.read_text(encoding="utf-8"))]
    return sum(length > LONG for length in lengths), len(lengths)


def main() -> None:
    """Print what was asked for."""
    chosen = [Path(word) for word in sys.argv[1:]]
    for path in chosen or pages():
        long, count = share_of_long([path])
        print(f"{long:4d} of {count:4d} ({100 * long / max(count, 1):3.0f} %)  {path.name}")
        for sentence in sentences(path.read_text(encoding="utf-8")) if chosen else ():
            if words(sentence) > LONG:
                print(f"      {words(sentence)}: {sentence}")
    if not chosen:
        long, count = share_of_long(pages())
        print(f"{long:4d} of {count:4d} ({100 * long / count:.1f} %)  all pages: more than {LONG} words")


if __name__ == "__main__":
    main()
