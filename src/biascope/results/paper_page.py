"""SHOW: findings of papers' figures -> pictures and one self-contained HTML file; the page is ``templates/paper.html``."""

from __future__ import annotations

import base64
import contextlib
import io
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from biascope import __version__
from biascope.results import document
from biascope.results.finding import FigureOfPaper, Finding
from biascope.results.page import citation, download, rendered
from biascope.results.record import DOCUMENT, Record
from biascope.results.section import Told
from biascope.results.story import Badge, Step
from biascope.results.wording import duration, listed, natural_order
from biascope.runs.files import require_ours, write_atomically

_BACKGROUND = {False: "#fefdfb", True: "#14171d"}  # by whether it is dark; the colours of the page
_WIDTH = 1400  # pixels of the widest picture
_TONES = {"reproduced": "good", "not reproduced": "bad", "inconclusive": "fair", "not run": "open"}
MOST_CLAIMS = 4  # in a summary
_ROOM = 4_500_000  # bytes of pictures; those that do not fit stay in their folders


def picture(figure: FigureOfPaper, finding: Finding, *, dark: bool = False) -> bytes:
    """The picture of a finding as PNG."""
    drawn = figure.show(finding, dark)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)  # of an unusual name
        sharpness = min(200.0, _WIDTH / float(drawn.get_size_inches()[0]))
        drawn.savefig(buffer, format="png", dpi=sharpness, facecolor=_BACKGROUND[dark])
    return buffer.getvalue()


def write_page(folder: Path) -> Path:
    """Write ``report.html`` with every finding in a reproduce folder, whole or not at all.

    It shows what the files say: pictures, claims and the verdicts of the day they were written.

    Args:
        folder: Where ``finding.json`` files lie, at any depth; those that cannot be read are named on the page.

    Returns:
        The path of the page.
    """
    findings: list[dict[str, Any]] = []
    problems: list[str] = []
    room = _ROOM
    for path in sorted(folder.rglob(DOCUMENT), key=lambda path: natural_order(str(path.relative_to(folder)))):
        try:
            _, record = Record.parsed(path.read_bytes(), path.relative_to(folder))
        except (OSError, ValueError) as error:
            problems.append(str(error))
            continue
        pictures = {"light": "", "dark": ""}
        for theme, name in (("light", "picture.png"), ("dark", "picture-dark.png")):
            with contextlib.suppress(OSError):
                data = base64.b64encode((path.parent / name).read_bytes()).decode()
                if len(data) <= room:
                    pictures[theme] = data
                    room -= len(data)
        findings.append(_shown(f"finding-{len(findings) + 1}", record) | pictures)
    page = folder / "report.html"
    require_ours(page)
    write_atomically(page, rendered("paper.html", _content(findings, problems)))
    return page


def _content(findings: Sequence[dict[str, Any]], problems: list[str]) -> dict[str, Any]:
    records: list[Record] = [finding["record"] for finding in findings]
    papers = list(dict.fromkeys(record.paper for record in records))
    verdicts = Counter(verdict for record in records for _, verdict in record.claims)
    title = f"Reproduction of {listed([finding['where'] for finding in findings][:3])}" if findings else "Reproduction"
    title += f" and {len(findings) - 3} others" if len(findings) > 3 else ""
    return {
        "title": title,
        "kind": "reproduction",
        "badge": _badge(verdicts),
        "leading": None,
        "summary": _summary(findings, verdicts) or [Told("There are no findings yet.", "numbers", "")],
        "cautions": [],
        "contents": [
            *[(finding["id"], f"{finding['where']} ({finding['record'].effort})") for finding in findings[:8]],
            ("numbers", "Numbers"),
            ("repeat", "Repeat and cite"),
            ("settings", "Settings"),
        ],
        "live_planes": False,
        "findings": findings,
        "problems": problems,
        "downloads": _downloads(records),
        "repeats": [("Command line", "\n".join(_command(record, record.effort) for record in records))]
        if records
        else [],
        "citation": citation(papers, __version__),
        "version": __version__,
    }


def _shown(identity: str, record: Record) -> dict[str, Any]:
    """What the page says of a finding."""
    claims = [
        {
            "statement": claim.statement,
            "verdict": verdict,
            "tone": _TONES.get(verdict, "open"),
            "published": claim.printed,
            "measured": repr(record.statistics[claim.statistic])
            if claim.statistic in record.statistics
            else "not measured",
            "tolerance": claim.allowed
            + ("" if claim.counts_at(record.effort) else f"; a verdict needs at least {claim.minimum_effort} effort"),
        }
        for claim, verdict in record.claims
    ]
    facts = {"effort": record.effort, "device": record.device, "precision": record.precision, "date": record.date}
    facts |= {key: str(value) for key, value in record.settings.items()}
    facts |= {f"version of {name}": value for name, value in record.versions.items()}
    return {
        "id": identity,
        "record": record,
        "where": f"{record.paper}, {_figure(record.figure)}",
        "claims": claims,
        "run": f"Effort {record.effort}, on {record.device} in {record.precision}, {duration(record.seconds)}, {record.date}.",
        "meaning": _meaning(record),
        "steps": _steps(record),
        "numbers": [(number.label, repr(number)) for number in record.statistics.values()],
        "settings": list(facts.items()),
    }


def _figure(number: str) -> str:
    return f"figure {number}" if number[:1].isdigit() or number[1:2].isdigit() else number


def _badge(verdicts: Counter[str]) -> Badge | None:
    """The verdict on all claims together: the worst of those that were decided."""
    if not verdicts:
        return None
    total, good = sum(verdicts.values()), verdicts["reproduced"]
    if not good and not verdicts["not reproduced"]:
        return Badge("no verdict yet", "open")
    text = f"{good} of {total} claims reproduced" if total > 1 else next(iter(verdicts))
    tone = "bad" if verdicts["not reproduced"] else "good" if good == total else "fair"
    return Badge(text, tone)


def _summary(findings: Sequence[dict[str, Any]], verdicts: Counter[str]) -> list[Told]:
    if not findings:
        return []
    counts = listed([f"{count} {verdict}" for verdict, count in verdicts.items()])
    many = "claim" if sum(verdicts.values()) == 1 else "claims"
    first = findings[0]
    told = [Told(f"Verdicts on {sum(verdicts.values())} {many}: {counts}.", f"{first['id']}-claims", "→\u00a0Claims")]
    small = [
        finding
        for finding in findings
        if not any(claim.counts_at(finding["record"].effort) for claim, _ in finding["record"].claims)
    ]
    if small:
        words = f"{small[0]['where']} was run with {small[0]['record'].effort} effort, which is too small for a verdict on any claim."
        told.append(Told(words, small[0]["id"], "→\u00a0Figure"))
    ordered = sorted(
        ((claim, finding) for finding in findings for claim in finding["claims"]),
        key=lambda pair: list(_TONES).index(pair[0]["verdict"]) if pair[0]["verdict"] in _TONES else 9,
    )
    # What failed first, then what held.
    ordered.sort(key=lambda pair: pair[0]["verdict"] != "not reproduced")
    for claim, finding in ordered[: MOST_CLAIMS - len(small[:1])]:
        words = f"{claim['verdict'].capitalize()}: {claim['statement']} Published: {claim['published']}; measured: {claim['measured']}."
        told.append(Told(words, f"{finding['id']}-claims", "→\u00a0Claims"))
    return told if len(told) > 2 else [*told, Told(first["run"], first["id"], "→\u00a0Picture")]


def _meaning(record: Record) -> str:
    verdicts = {verdict for _, verdict in record.claims}
    if all(not claim.counts_at(record.effort) for claim, _ in record.claims):
        return (
            f"This run only checks that the figure can be computed. At {record.effort} effort the sizes are too small for a verdict, "
            "so the numbers say nothing about the paper."
        )
    words = "A claim is reproduced if the whole interval of our number lies within its tolerance. "
    words += "Claims that are newer than their numbers are marked in the status, and decide nothing. "
    if "not reproduced" in verdicts:
        words += "A claim that is not reproduced may be wrong, or our setting may differ from the paper's. "
        words += "The notes say what is known. "
    if "inconclusive" in verdicts:
        words += "Inconclusive means that more effort is needed, not that the claim is wrong. "
    return words + "One figure reproduced does not confirm the rest of the paper."


def _steps(record: Record) -> list[Step]:
    larger = {"smoke": "laptop", "laptop": "paper"}.get(record.effort)
    steps = []
    if larger:
        steps.append(
            Step(
                f"Run it with {larger} effort. Add --dry-run first to see the expected time.", _command(record, larger)
            )
        )
    steps.append(Step("List the verdicts on every claim of this paper.", f"biascope reproduce {record.paper} --status"))
    return steps


def _command(record: Record, effort: str) -> str:
    number = f"'{record.figure}'" if " " in record.figure else record.figure
    return f"biascope reproduce {record.paper} {number} --effort {effort}"


def _downloads(records: Sequence[Record]) -> list[dict[str, str]]:
    rows = [
        {
            "paper": record.paper,
            "figure": record.figure,
            "effort": record.effort,
            "claim": claim.statement,
            "published": claim.printed,
            "measured": record.statistics.get(claim.statistic),
            "tolerance": claim.allowed,
            "verdict": verdict,
        }
        for record in records
        for claim, verdict in record.claims
    ]
    whole = document.as_document(findings=[record.as_json() for record in records])
    return [
        download("claims.csv", "Claims as CSV", document.csv_text(rows), "text/csv"),
        download("findings.json", "All numbers as JSON", whole, "application/json"),
    ]
