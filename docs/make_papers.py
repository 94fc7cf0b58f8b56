"""The pages of the papers from the committed results: tables, forest plots, statements and the gallery.

    biascope reproduce PAPER FIGURE --effort laptop --keep     # or: biascope reproduce --merge FOLDER
    python docs/make_papers.py

A paper's page is written by hand; what stands between ``<!-- standing -->`` or ``<!-- claims -->`` and ``<!-- end -->`` is made here.
The pictures of figures are drawn by ``--keep`` and ``--merge``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope import papers
from biascope.papers import verdicts
from biascope.papers.verdicts import STANDINGS, Conclusion, Standing
from biascope.results import draw
from biascope.results.claim import Claim
from biascope.results.finding import FigureOfPaper
from biascope.results.record import Record
from biascope.results.wording import duration, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parent
_BLOCK = re.compile(r"(<!-- (standing|claims) -->\n).*?(<!-- end -->)", re.DOTALL)
_KINDS = {"paper": "", "ours": " (bound of ours)", "check": " (check of our own code)"}


def standing_block(paper: papers.Paper, conclusions: Sequence[Conclusion], records: Sequence[Record]) -> str:
    """Where a paper stands: how many statements at which level, what it took, and a forest plot."""
    counted = f"**{len(conclusions)} statements: {_counted(conclusions)}.**"
    return f"""
{_cell(paper.title)}

{counted} {_effort(records)} [What the words mean](../reproduce.md#what-the-verdicts-mean).

![Each statement's numbers against the bound that the paper sets](../gallery/{paper.name}.png)
"""


def _counted(conclusions: Sequence[Conclusion]) -> str:
    counts = {name: sum(each.verdict == name for each in conclusions) for name in STANDINGS}
    return listed([f"{count} {name}" for name, count in counts.items() if count])


def _effort(records: Sequence[Record]) -> str:
    """What the committed runs took."""
    cpu = sum(record.seconds for record in records if record.device.startswith("cpu"))
    gpu = sum(record.seconds for record in records) - cpu
    return f"The committed runs took {duration(gpu)} on a GPU and {duration(cpu)} on a CPU."


def claims_block(figures: Sequence[FigureOfPaper], standings: Sequence[Standing]) -> str:
    """Every claim of a paper in one table."""
    head = ("figure", "claim", "where in the paper", "published", "ours", "verdict", "size and recipe", "run")
    rows = [_row(each) for figure in figures for each in standings if each.figure is figure]
    return "\n" + _table(head, rows)


def _row(standing: Standing) -> tuple[str | None, ...]:
    claim, record, why = standing.claim, standing.record, standing.judgement.reason
    fitted = " (written after its number was seen)" if standing.fitted else ""
    bound = f"{claim.printed} ± {claim.tolerance:.10g}" if claim.comparator == "about" else claim.allowed
    if claim.published is not None and claim.comparator != "about":
        bound = f"{claim.printed}: {bound}"
    changes = f" Changed: {'; '.join(standing.changes())}." if standing.changes() else ""
    size = "; ".join(filter(None, (standing.level[0], *standing.level[1])))
    return (
        standing.figure.number,
        f"{claim.statement}{_KINDS[claim.kind]}{fitted}",
        " · ".join(filter(None, (str(claim.place), claim.reads))),
        bound,
        repr(standing.measured) if standing.measured else None,
        " ".join(filter(None, (f"{standing.verdict}{f': {why}' if why else ''}{changes}", standing.earlier))),
        size or None,
        f"{command(standing.figure, record)}, {record.date[:10]}{_commit(record)}, {_device(record)}"
        if record
        else None,
    )


def command(figure: FigureOfPaper, record: Record) -> str:
    """What to type to run a figure as in a record."""
    number = f'"{figure.number}"' if " " in figure.number else figure.number
    return f"biascope reproduce {figure.paper} {number} --effort {record.effort}"


def _commit(record: Record) -> str:
    return f" at {record.versions['commit']}" if "commit" in record.versions else ""


def _device(record: Record) -> str:
    return "CPU" if record.device.startswith("cpu") else "GPU"


def statements_page(conclusions: Sequence[Conclusion]) -> str:
    """All statements in one table."""
    head = ("paper", "where in the paper", "statement", "standing", "claims", "remark")
    rows = [
        (
            each.paper,
            str(each.statement.place),
            each.statement.text,
            each.verdict,
            ", ".join(f"{number} {verdict}" for verdict, number in each.counted.items()) or None,
            each.remark,
        )
        for each in conclusions
    ]
    dropped = [
        (paper.name, each.figure, each.claim, each.verdict, each.reason)
        for paper in map(papers.find, papers.names())
        for each in paper.dropped
    ]
    return f"""# The papers' statements

Made by `python docs/make_papers.py`; do not edit it by hand. [Reproduce](reproduce.md#what-the-verdicts-mean) explains the words.

Someone who did not write our claims read each paper and listed what it says that can be tested, in our words. This list is the
denominator of what is reproduced.

{_table(head, rows)}
## Claims that were withdrawn

{_table(("paper", "figure", "claim", "verdict was", "reason"), dropped)}"""


def gallery_page(gallery: Path, figures: Sequence[FigureOfPaper], runs: dict[tuple[str, str], list[Record]]) -> str:
    """Every figure that was run: its picture, what ran, and remarks."""
    parts = [
        """# Gallery of reproduced figures

Made by `python docs/make_papers.py`; do not edit it by hand. The pages of the papers have the claims and their numbers.
"""
    ]
    paper = ""
    for figure in figures:
        records = runs[figure.paper, figure.number]
        if figure.paper != paper:
            parts.append(f"## {figure.paper}\n\n[Claims and numbers](../papers/{figure.paper}.md)\n")
        paper = figure.paper
        if records:
            parts.append(_shown(figure, records, gallery))
    return "\n".join(parts)


def _shown(figure: FigureOfPaper, records: Sequence[Record], gallery: Path) -> str:
    lines = [f"### Figure {figure.number}: {_cell(figure.title)}", ""]
    if (gallery / (name := f"{figure.paper}-{figure.file_name}.png")).exists():
        lines += [f"![{_cell(figure.title)}]({name})", ""]
    for record in records:
        versions = ", ".join(f"{name} {number}" for name, number in record.versions.items())
        lines.append(
            f"- `{command(figure, record)}`: {_cell(record.device)}, {record.precision}, {duration(record.seconds)}, "
            f"{record.date[:10]} ({_cell(versions)})"
        )
    lines += [f"- {_cell(note)}" for note in dict.fromkeys(note for record in records for note in record.notes)]
    return "\n".join([*lines, ""])


def forest(conclusions: Sequence[Conclusion], dark: bool = False) -> Figure:
    """A row per statement: where the intervals of its deciding claims lie beside the bound that the paper sets."""
    shown = [each for each in conclusions if any(claim.measured for claim in each.claims)]
    picture = draw.blank(1.0 + 0.22 * len(shown), "Right of the line a number agrees with the paper.")
    picture.set_size_inches(9.0, picture.get_size_inches()[1])
    axes, palette = draw.panel(picture, dark), draw.PALETTE[dark]
    axes.axvline(0.0, color=palette.ink, linewidth=0.8)
    axes.axvspan(0.0, 1.05, color=palette.muted, alpha=0.08, linewidth=0)
    for row, outcome in enumerate(reversed(shown)):
        claims = [each for each in outcome.claims if each.measured]
        for place, each in enumerate(claims):
            height = row + 0.6 * ((place + 0.5) / len(claims) - 0.5)
            _interval(axes, each, height, palette)
    labels = [f"{_short(each.statement.text)}  ({each.verdict})" for each in reversed(shown)]
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.set(
        xlim=(-1.05, 1.05),
        ylim=(-0.7, len(shown) - 0.3),
    )
    axes.set_xticks([])
    axes.set_xlabel("← contradicts the paper · the bound · agrees with it →", fontsize=8)
    return draw.captioned("Statements of the paper, each with the intervals of its claims", picture)


def _interval(axes: Any, standing: Standing, height: float, palette: draw.Palette) -> None:
    """One claim: its interval in units of its own distance from the bound, so that rows of different units compare."""
    colour = palette.lines[1] if standing.verdict == "not reproduced" else palette.lines[0]
    if standing.verdict == "inconclusive":
        colour = palette.muted
    low, value, high = agreement(standing)
    axes.plot([low, high], [height, height], color=colour, linewidth=1.1, solid_capstyle="butt")
    axes.plot(value, height, "o", color=colour, markersize=2.6)


def agreement(standing: Standing) -> tuple[float, float, float]:
    """How far the ends and the value of a number lie on the side of a bound that agrees, between −1 and 1.

    The unit is the farthest of the three, so that a sign and a ratio remain: −0.2 to 1 straddles the bound, with most of it beyond.
    Where the bound is a distance, 1 is the published number itself.
    """
    number, claim = standing.measured, standing.claim
    assert number is not None
    ends = np.array([number.low, number.value, number.high])
    ends = np.where(np.isnan(ends), number.value, ends)
    inside = _inside(ends, claim)
    finite = np.abs(inside[np.isfinite(inside)])
    unit = claim.tolerance if claim.comparator == "about" and claim.tolerance else finite.max(initial=0.0) or 1.0
    places = list(np.clip(inside / unit, -1.0, 1.0))
    value = places[1]
    if claim.comparator == "about" and ends[0] <= float(claim.published or 0.0) <= ends[2]:
        places.append(1.0)  # the interval holds the published number
    return float(min(places)), float(value), float(max(places))


def _inside(values: np.ndarray, claim: Claim) -> np.ndarray:
    """How far values are on the side of a claim's bound that agrees with it."""
    least, greatest = claim.bounds
    if claim.comparator == "about":
        return claim.tolerance - np.abs(values - float(claim.published or 0.0))
    return values - least if np.isfinite(least) else greatest - values


def _short(text: str, most: int = 86) -> str:
    return text if len(text) <= most else text[: text.rfind(" ", 0, most)] + " …"


def _table(head: Sequence[str], rows: Sequence[Sequence[str | None]]) -> str:
    lines = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    """Text that stays in its cell and is only text."""
    words = "—" if value in (None, "") else " ".join(str(value).split())
    for sign in "\\`*_[]<>|":
        words = words.replace(sign, f"\\{sign}")
    return words


def pages(docs: Path, results: Path | None = None) -> Iterator[tuple[Path, str]]:
    """Every page that is made here or has blocks that are, and its text."""
    standings = verdicts.standings(results=results)
    conclusions = verdicts.conclusions(standings)
    found = [papers.find(name) for name in papers.names()]
    figures = [figure for paper in found for figure in paper.figures]
    runs = {(each.paper, each.number): list(verdicts.committed(each, results=results).values()) for each in figures}
    yield docs / "statements.md", statements_page(conclusions)
    yield docs / "gallery" / "README.md", gallery_page(docs / "gallery", figures, runs)
    readme = docs.parent / "README.md"
    if readme.exists():
        counted = _counted(conclusions).replace(" ", " are ", 1)
        told = f"Of {len(conclusions)} statements in six papers, {counted}."
        yield readme, _BLOCK.sub(lambda part: f"{part[1]}{told}\n{part[3]}", readme.read_text(encoding="utf-8"))
    for paper in found:
        path = docs / "papers" / f"{paper.name}.md"
        own = [each for each in conclusions if each.paper == paper.name]
        records = [record for (name, _), each in runs.items() if name == paper.name for record in each]
        blocks = {
            "standing": standing_block(paper, own, records),
            "claims": claims_block(paper.figures, [each for each in standings if each.figure.paper == paper.name]),
        }
        text = (
            path.read_text(encoding="utf-8")
            if path.exists()
            else f"# {paper.name}\n\n<!-- standing -->\n<!-- end -->\n"
        )
        yield path, _BLOCK.sub(lambda part, blocks=blocks: f"{part[1]}{blocks[part[2]]}\n{part[3]}", text)


def stale(docs: Path = DOCS, results: Path | None = None) -> list[str]:
    """The pages that are not what the committed results and the claims of today give."""
    return [
        path.name
        for path, text in pages(docs, results)
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> None:
    """Write the pages and draw the forest plots."""
    for path, text in pages(DOCS):
        path.write_text(text, encoding="utf-8")
    conclusions = verdicts.conclusions(verdicts.standings())
    for name in papers.names():
        drawn = forest([each for each in conclusions if each.paper == name])
        drawn.savefig(DOCS / "gallery" / f"{name}.png", dpi=130, facecolor="#fefdfb")


if __name__ == "__main__":
    sys.exit(main())
