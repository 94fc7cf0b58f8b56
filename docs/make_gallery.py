"""The page of reproduced figures, docs/gallery/README.md, from the committed results.

    biascope reproduce PAPER FIGURE --effort laptop --keep     # or: biascope reproduce --merge FOLDER
    python docs/make_gallery.py

The pictures beside the page are drawn by ``--keep`` and ``--merge``; this only writes words and tables.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from biascope import papers
from biascope.papers import reproduce as reproduction
from biascope.results.claim import VERDICTS, FigureOfPaper, Record

GALLERY = Path(__file__).parent / "gallery"
HEAD = """# Gallery of reproduced figures

Made by `python docs/make_gallery.py` from the numbers in `src/biascope/papers/results`; do not edit it by hand.
[reproduce.md](../reproduce.md) says what the verdicts mean and how to run a figure yourself.
"""


def page(*, gallery: Path = GALLERY, results: Path | None = None) -> str:
    """The page in Markdown: per figure its picture, claims, verdicts, numbers and where they were measured."""
    parts = [HEAD]
    for paper in map(papers.find, papers.names()):
        runs = {figure.number: reproduction.committed(figure, results=results) for figure in paper.figures}
        standings = [
            each for figure in paper.figures for each in reproduction.judged(figure, runs[figure.number].values())
        ]
        counted = Counter(each.verdict for each in standings)
        counts = ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict])
        parts.append(f"## {paper.name}\n\n{_cell(paper.title)}\n\nClaims: {counts}.\n")
        shown = [figure for figure in paper.figures if runs[figure.number]]
        parts += [_section(figure, list(runs[figure.number].values()), gallery) for figure in shown]
        absent = [figure for figure in paper.figures if not runs[figure.number]]
        if absent:
            listed = "\n".join(f"- Figure {figure.number}: {_cell(figure.title)}" for figure in absent)
            parts.append(f"### Not run yet\n\n{listed}\n")
    return "\n".join(parts)


def _section(figure: FigureOfPaper, records: list[Record], gallery: Path) -> str:
    lines = [f"### Figure {figure.number}: {_cell(figure.title)}", ""]
    name = f"{figure.paper}-{figure.file_name}.png"
    if (gallery / name).exists():
        lines += [f"![{_cell(figure.title)}]({name})", ""]
    lines += [
        "| claim | published | measured | tolerance | verdict | effort | device |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: dict[str, None] = {}
    for standing in reproduction.judged(figure, records):
        row = {**standing.row(), "published": standing.claim.printed}
        keys = ("claim", "published", "measured", "tolerance", "verdict", "effort", "device")
        lines.append("| " + " | ".join(_cell(row[key]) for key in keys) + " |")
        notes |= {f"*{_cell(standing.claim.statement)}* Changed: {_cell(words)}.": None for words in standing.changes()}
        if standing.record is not None:
            notes |= {_cell(note): None for note in standing.record.notes}
    lines += ["", *(f"- {note}" for note in notes)]
    for record in records:
        versions = ", ".join(f"{name} {number}" for name, number in record.versions.items())
        lines.append(
            f"- Run at {record.effort} effort on {_cell(record.device)} in {record.precision}, {record.seconds:.0f} s, "
            f"{record.date} ({_cell(versions)})."
        )
    return "\n".join([*lines, ""])


def _cell(value: Any) -> str:
    """Text that stays in its cell and is only text."""
    words = "—" if value is None else " ".join(str(value).split())
    for sign in "\\`*_[]<>|":
        words = words.replace(sign, f"\\{sign}")
    return words


def is_up_to_date(*, gallery: Path = GALLERY, results: Path | None = None) -> bool:
    """Whether the page is what the committed results and the claims of today give."""
    path = gallery / "README.md"
    return path.exists() and path.read_text(encoding="utf-8") == page(gallery=gallery, results=results)


def main() -> None:
    """Write the page."""
    GALLERY.mkdir(exist_ok=True)
    (GALLERY / "README.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
