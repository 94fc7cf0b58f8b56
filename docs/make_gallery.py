"""The pages of reproduced figures and of statements, and the tables in reproduce.md, from the committed results.

    biascope reproduce PAPER FIGURE --effort laptop --keep     # or: biascope reproduce --merge FOLDER
    python docs/make_gallery.py

The pictures beside the gallery are drawn by ``--keep`` and ``--merge``; this only writes words and tables.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from biascope import papers
from biascope.papers import verdicts
from biascope.results.claim import VERDICTS
from biascope.results.finding import FigureOfPaper
from biascope.results.record import Record
from biascope.results.wording import snake

GALLERY = Path(__file__).parent / "gallery"
HEAD = """# Gallery of reproduced figures

Made by `python docs/make_gallery.py` from the numbers in `src/biascope/papers/results`; do not edit it by hand.
[reproduce.md](../reproduce.md) says what the verdicts mean and how to run a figure yourself.
"""


def page(*, gallery: Path = GALLERY, results: Path | None = None) -> str:
    """The page in Markdown: per figure its picture, claims, verdicts, numbers and where they were measured."""
    parts = [HEAD]
    for paper in map(papers.find, papers.names()):
        runs = {figure.number: verdicts.committed(figure, results=results) for figure in paper.figures}
        standings = [each for figure in paper.figures for each in verdicts.judged(figure, runs[figure.number].values())]
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


_KINDS = {"paper": "the paper's", "ours": "ours", "check": "check"}


def _section(figure: FigureOfPaper, records: list[Record], gallery: Path) -> str:
    lines = [f"### Figure {figure.number}: {_cell(figure.title)}", ""]
    name = f"{figure.paper}-{figure.file_name}.png"
    if (gallery / name).exists():
        lines += [f"![{_cell(figure.title)}]({name})", ""]
    lines += [
        "| claim | bound | published | measured | tolerance | verdict | effort | device |",
        "|---|---|---|---|---|---|---|---|",
    ]
    notes: dict[str, None] = {}
    for standing in verdicts.judged(figure, records):
        claim, why = standing.claim, standing.judgement.reason
        bound = _KINDS[claim.kind] + (", post hoc" if claim.post_hoc else "")
        row = {
            **standing.row(),
            "bound": bound,
            "published": claim.printed,
            "verdict": f"{standing.verdict}: {why}" if why else standing.verdict,
        }
        keys = ("claim", "bound", "published", "measured", "tolerance", "verdict", "effort", "device")
        lines.append("| " + " | ".join(_cell(row[key]) for key in keys) + " |")
        notes |= {f"*{_cell(claim.statement)}* Changed: {_cell(words)}.": None for words in standing.changes()}
        if standing.record is not None:
            notes |= {_cell(note): None for note in standing.record.notes}
    lines += ["", *(f"- {note}" for note in notes)]
    for record in records:
        versions = ", ".join(f"{name} {number}" for name, number in record.versions.items())
        lines.append(
            f"- Run at {record.effort} effort on {_cell(record.device)} in {record.precision}, {record.seconds:.0f} s, "
            f"{record.date} ({_cell(versions)}). {_differences(figure, record)}"
        )
    return "\n".join([*lines, ""])


def _differences(figure: FigureOfPaper, record: Record) -> str:
    """In which settings a run differs from the published one, in one sentence."""
    if not figure.published:
        return "The published settings are not listed."
    found = record.differences(figure)
    told = [each for each in found if each.ours != "not recorded"]
    absent = _not_run(figure, record)
    silent = [each.setting for each in found if each.ours == "not recorded" and _network(each.setting) not in absent]
    parts = []
    if told:
        each = "; ".join(f"{_cell(one.setting)} {_cell(one.ours)} (published {_cell(one.published)})" for one in told)
        parts.append(f"Differs from the published settings: {each}.")
    if absent:
        parts.append(f"Did not run: {', '.join(map(_cell, absent))}.")
    if silent:
        parts.append(f"Not recorded: {', '.join(map(_cell, silent))}.")
    return " ".join(parts) or "All published settings."


def _network(setting: str) -> str:
    """The network that a setting belongs to, ``"LeNet"`` of ``"epochs: LeNet"``; empty if it belongs to all."""
    return setting.partition(": ")[2]


def _not_run(figure: FigureOfPaper, record: Record) -> list[str]:
    """Networks of the published figure of which a run has neither a setting nor a number."""
    published = dict.fromkeys(name for name in map(_network, figure.published) if name)
    known = {*map(_network, record.settings)}
    return [
        name
        for name in published
        if name not in known and not any(snake(name) in snake(number.label) for number in record.statistics.values())
    ]


STATEMENTS_HEAD = """# The papers' statements

Made by `python docs/make_gallery.py`; do not edit it by hand.

Someone who did not write our claims read each paper and listed what it says that can be tested, in our words. This list is the
denominator of what is reproduced. [reproduce.md](reproduce.md) explains the verdicts. [The gallery](gallery/README.md) shows the
numbers behind them. A statement is *not reproduced* if one of its claims is not and an experiment rules our settings out; the
remark names the experiment. Without one it is *inconclusive*. It is *not run* if no claim with the paper's own bound has run.
"""


def statements_page(*, results: Path | None = None) -> str:
    """The page in Markdown: per paper its statements with verdicts, and the claims that were withdrawn."""
    standings = verdicts.standings(results=results)
    outcomes = verdicts.outcomes(standings)
    parts = [STATEMENTS_HEAD]
    for paper in map(papers.find, papers.names()):
        own = [each for each in outcomes if each.paper == paper.name]
        parts.append(f"## {paper.name}\n\n{_cell(paper.title)}\n\n{standing_table(paper.name, results=results)}\n")
        rows = ["| section | statement | verdict | claims | remark |", "|---|---|---|---|---|"]
        for each in own:
            counted = ", ".join(f"{number} {verdict}" for verdict, number in each.counted.items())
            cells = (each.statement.place, each.statement.text, each.verdict, counted or None, each.remark)
            rows.append("| " + " | ".join(map(_cell, cells)) + " |")
        parts.append("\n".join([*rows, ""]))
        if paper.dropped:
            rows = [
                "### Claims that were withdrawn",
                "",
                "| figure | claim | verdict was | reason |",
                "|---|---|---|---|",
            ]
            rows += [
                "| " + " | ".join(map(_cell, (each.figure, each.claim, each.verdict, each.reason))) + " |"
                for each in paper.dropped
            ]
            parts.append("\n".join([*rows, ""]))
    return "\n".join(parts)


def standing_table(paper: str, *, results: Path | None = None) -> str:
    """How many statements of a paper are reproduced, as a table in Markdown; other claims apart."""
    standings = [each for each in verdicts.standings(results=results) if each.figure.paper == paper]
    (row,) = verdicts.summary(standings, verdicts.outcomes(standings))
    lines = ["| | " + " | ".join(VERDICTS) + " |", "|---" * (len(VERDICTS) + 1) + "|"]
    groups: list[tuple[str, dict[str, int]]] = [(f"the paper's {row.statements} statements", row.verdicts)]
    groups += [
        ("claims with a bound of ours", row.apart["ours"]),
        ("claims written after the fact", row.apart["post_hoc"]),
    ]
    groups += [("checks of our own code", row.apart["check"])]
    for label, counted in groups:
        if any(counted.values()):
            lines.append(f"| {label} | " + " | ".join(str(counted.get(verdict, 0)) for verdict in VERDICTS) + " |")
    lines += ["", f"{row.judged} of {row.statements} statements were judged."]
    return "\n".join(lines)


REPRODUCE = GALLERY.parent / "reproduce.md"
_BLOCK = re.compile(r"(<!-- verdicts of (\w+): made by make_gallery.py -->\n).*?(<!-- end of verdicts -->)", re.DOTALL)


def with_tables(text: str, *, results: Path | None = None) -> str:
    """A page whose blocks between ``<!-- verdicts of PAPER … -->`` and ``<!-- end of verdicts -->`` hold the tables of today."""
    return _BLOCK.sub(
        lambda found: f"{found[1]}\n{standing_table(found[2], results=results)}\n\n{found[3]}",
        text,
    )


def _cell(value: Any) -> str:
    """Text that stays in its cell and is only text."""
    words = "—" if value is None else " ".join(str(value).split())
    for sign in "\\`*_[]<>|":
        words = words.replace(sign, f"\\{sign}")
    return words


def _pages(gallery: Path, results: Path | None) -> dict[Path, str]:
    """Every page that is made here, by its place."""
    return {
        gallery / "README.md": page(gallery=gallery, results=results),
        gallery.parent / "statements.md": statements_page(results=results),
    }


def is_up_to_date(*, gallery: Path = GALLERY, results: Path | None = None) -> bool:
    """Whether the pages are what the committed results and the claims of today give."""
    pages = _pages(gallery, results)
    if gallery == GALLERY:
        text = REPRODUCE.read_text(encoding="utf-8")
        pages[REPRODUCE] = with_tables(text, results=results)
    return all(path.exists() and path.read_text(encoding="utf-8") == text for path, text in pages.items())


def main() -> None:
    """Write the pages."""
    GALLERY.mkdir(exist_ok=True)
    for path, text in _pages(GALLERY, None).items():
        path.write_text(text, encoding="utf-8")
    REPRODUCE.write_text(with_tables(REPRODUCE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
