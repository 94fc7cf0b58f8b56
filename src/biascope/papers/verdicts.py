"""Where the papers stand: claims and statements judged today on the committed numbers."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biascope import papers
from biascope.results.claim import VERDICTS, Claim, Judgement, Statement, effort_rank
from biascope.results.estimate import Number
from biascope.results.finding import FigureOfPaper
from biascope.results.record import Record
from biascope.results.wording import snake

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Standing:
    """Where a claim stands, judged today on the committed numbers.

    Attributes:
        figure: Of which it is a claim.
        claim: As it is in the code.
        record: The committed run of the greatest effort that measured it, ``None`` if none did.
    """

    figure: FigureOfPaper
    claim: Claim
    record: Record | None

    @property
    def measured(self) -> Number | None:
        """The number that decides."""
        return None if self.record is None else self.record.statistics[self.claim.statistic]

    @property
    def judgement(self) -> Judgement:
        """Never the stored one: a tolerance changed since is applied."""
        if self.record is None:
            return Judgement("not run", counts=False)
        return self.claim.judge(self.record.statistics, self.record.effort)

    @property
    def verdict(self) -> str:
        """The verdict alone."""
        return self.judgement.verdict

    def changes(self) -> list[str]:
        """What differs from the claim as it stood when its number was measured, in words."""
        if self.record is None:
            return []
        terms = (self.claim.statistic, self.claim.comparator)
        stored = [pair for pair in self.record.claims if (pair[0].statistic, pair[0].comparator) == terms]
        if not stored:
            return ["the claim was written after its number was measured"]
        stored.sort(key=lambda pair: pair[0].statement != self.claim.statement)  # of two on one number, its own
        before = {**dataclasses.asdict(stored[0][0]), "verdict": stored[0][1]}
        now = {**dataclasses.asdict(self.claim), "verdict": self.verdict}
        return [
            f"{name.replace('_', ' ')} was {before[name]!r} when it was measured"
            for name in ("statement", "published", "tolerance", "minimum_effort", "verdict")
            if before[name] != now[name]
        ]

    def row(self) -> dict[str, Any]:
        """As ``biascope reproduce --status --json`` prints it."""
        return {
            "paper": self.figure.paper,
            "figure": self.figure.number,
            "claim": self.claim.statement,
            "statistic": self.claim.statistic,
            "effort": self.record.effort if self.record else None,
            "device": self.record.device if self.record else None,
            "published": self.claim.printed if self.claim.published is None else self.claim.published,
            "where": str(self.claim.place),
            "measured": repr(self.measured) if self.measured else None,
            "tolerance": self.claim.allowed,
            "verdict": self.verdict,
            "reason": self.judgement.reason,
            "kind": self.claim.kind,
            "post_hoc": self.claim.post_hoc,
            "statement": self.claim.of,
        }


@dataclass(frozen=True)
class Outcome:
    """Where a statement of a paper stands: what its claims say together.

    Claims with a bound of ours and claims written after the fact do not count.

    Attributes:
        paper: Id of the paper.
        statement: What the paper says.
        claims: The claims that test it by the paper's own bound.
    """

    paper: str
    statement: Statement
    claims: tuple[Standing, ...]

    @property
    def verdict(self) -> str:
        """*Not reproduced* if one claim is, else *inconclusive* if one claim is, else *reproduced* if one claim is.

        What is not reproduced stays *inconclusive* until an experiment rules our settings out as the reason.
        """
        found = {each.verdict for each in self.claims}
        if "not reproduced" in found:
            return "not reproduced" if self.statement.ruled_out else "inconclusive"
        return next((verdict for verdict in ("inconclusive", "reproduced") if verdict in found), "not run")

    @property
    def remark(self) -> str:
        """Why it is untested, or what explains that it or one of its claims is not reproduced; empty if nothing is to explain."""
        if self.verdict == "not reproduced":
            return self.statement.ruled_out
        if any(each.verdict == "not reproduced" for each in self.claims):
            return self.statement.undecided or "A claim is not reproduced, and no experiment rules our settings out."
        return "" if self.claims else self.statement.untested

    @property
    def judged(self) -> bool:
        """Whether a claim ran at its minimum effort on networks that trained; *inconclusive* may be such a judgement."""
        return any(each.judgement.counts for each in self.claims)

    def row(self) -> dict[str, Any]:
        """As ``biascope reproduce --status --json`` prints it."""
        return {
            "paper": self.paper,
            "statement": self.statement.key,
            "section": self.statement.place.section,
            "text": self.statement.text,
            "verdict": self.verdict,
            "judged": self.judged,
            "remark": self.remark,
            "claims": _keyed(self.counted),
        }

    @property
    def counted(self) -> dict[str, int]:
        """Number of its claims by verdict."""
        found = Counter(each.verdict for each in self.claims)
        return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def _keyed(counted: Mapping[str, int]) -> dict[str, int]:
    """Numbers by verdict under keys for programs: ``not_run``."""
    return {snake(verdict): number for verdict, number in counted.items()}


def outcomes(found: Sequence[Standing]) -> list[Outcome]:
    """Where every statement of the papers stands whose claims are given.

    Args:
        found: The claims, as :func:`standings` gives them.
    """
    testing: dict[tuple[str, str], list[Standing]] = {}
    known = dict.fromkeys(each.figure.paper for each in found)
    for each in found:
        if each.claim.kind == "paper" and not each.claim.post_hoc:
            testing.setdefault((each.figure.paper, each.claim.of), []).append(each)
    return [
        Outcome(paper, statement, tuple(testing.get((paper, statement.key), ())))
        for paper in known
        for statement in papers.find(paper).statements
    ]


@dataclass(frozen=True)
class Summary:
    """How many statements of a paper are reproduced; claims that do not count towards them are counted apart.

    Attributes:
        paper: Id of the paper.
        statements: Number of testable statements.
        verdicts: Number of statements by verdict.
        judged: Number of statements that were judged (:attr:`Outcome.judged`).
        apart: Claims by verdict for each group that does not count: ``"ours"``, ``"post_hoc"`` and ``"check"``.
    """

    paper: str
    statements: int
    verdicts: dict[str, int]
    judged: int
    apart: dict[str, dict[str, int]]

    def row(self) -> dict[str, Any]:
        """As ``biascope reproduce --status --json`` prints it."""
        apart = {group: _keyed(counted) for group, counted in self.apart.items()}
        return {**dataclasses.asdict(self), "verdicts": _keyed(self.verdicts), "apart": apart}


def summary(found: Sequence[Standing], statements: Sequence[Outcome]) -> list[Summary]:
    """The summary of each paper.

    Args:
        found: Claims, as :func:`standings` gives them.
        statements: Statements, as :func:`outcomes` gives them.
    """
    rows = []
    for paper in dict.fromkeys(each.figure.paper for each in found):
        own = [each for each in statements if each.paper == paper]
        apart: dict[str, Counter[str]] = {"ours": Counter(), "post_hoc": Counter(), "check": Counter()}
        for each in found:
            if each.figure.paper != paper or (each.claim.kind == "paper" and not each.claim.post_hoc):
                continue
            kind = "post_hoc" if each.claim.post_hoc and each.claim.kind != "check" else each.claim.kind
            apart[kind][each.verdict] += 1
        verdicts = Counter(each.verdict for each in own)
        ordered = {
            group: {name: counted[name] for name in VERDICTS if counted[name]} for group, counted in apart.items()
        }
        counts = {name: verdicts[name] for name in VERDICTS}
        rows.append(Summary(paper, len(own), counts, sum(each.judged for each in own), ordered))
    return rows


def summary_lines(found: Sequence[Standing], statements: Sequence[Outcome]) -> list[str]:
    """The summary as a table for a terminal, and what its columns mean."""
    rows = summary(found, statements)
    lines = ["Statements of the papers, in each paper's own terms:", ""]
    lines.append(f"  {'paper':20} {'statements':>10} {'judged':>7} " + " ".join(f"{name:>14}" for name in VERDICTS))
    for row in rows:
        counts = " ".join(f"{row.verdicts[name]:14}" for name in VERDICTS)
        lines.append(f"  {row.paper:20} {row.statements:10} {row.judged:7} {counts}")
    total, judged = sum(row.statements for row in rows), sum(row.judged for row in rows)
    if total:
        lines += ["", f"{judged} of {total} statements were judged ({100 * judged / total:.0f} %)."]
    words = {
        "ours": "Claims with a bound of ours",
        "post_hoc": "Claims written after their number was seen",
        "check": "Checks of our own code",
    }
    for group, label in words.items():
        counted: Counter[str] = Counter()
        for row in rows:
            counted.update(row.apart[group])
        if counted:
            lines.append(f"{label}: {', '.join(f'{counted[name]} {name}' for name in VERDICTS if counted[name])}.")
    return lines


def standings(*, results: Path | None = None) -> list[Standing]:
    """Where every claim of every figure of every paper stands.

    Args:
        results: The folder of committed results; by default that of the installed package.

    Raises:
        ValueError: If a committed file is damaged, naming it.
    """
    figures = [figure for name in papers.names() for figure in papers.find(name).figures]
    return [each for figure in figures for each in judged(figure, committed(figure, results=results).values())]


def judged(figure: FigureOfPaper, records: Iterable[Record]) -> list[Standing]:
    """Where each claim of a figure stands after runs given from the least effort to the greatest."""
    found = []
    for claim in figure.claims:
        measured = [record for record in records if claim.statistic in record.statistics]
        found.append(Standing(figure, claim, measured[-1] if measured else None))
    return found


def committed(figure: FigureOfPaper, *, results: Path | None = None) -> dict[str, Record]:
    """The committed runs of a figure by effort, least first; empty if there are none.

    Raises:
        ValueError: If the file is damaged, naming it.
    """
    path = committed_file(figure, results)
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_bytes())["efforts"].values()
        records = [Record.from_json(entry) for entry in entries]
    except (OSError, KeyError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must hold committed results and is damaged. Restore it from version control."
        ) from error
    return {record.effort: record for record in sorted(records, key=lambda record: effort_rank(record.effort))}


def committed_file(figure: FigureOfPaper, results: Path | None) -> Path:
    """Where the committed runs of a figure lie."""
    return (results or RESULTS) / figure.paper / f"{figure.file_name}.json"
