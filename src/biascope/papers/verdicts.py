"""Where the papers stand: claims and statements judged today on the committed numbers, each with the level of its run."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biascope import papers
from biascope.papers.levels import LEVELS, level
from biascope.results.claim import VERDICTS, Claim, Judgement, Statement, effort_rank
from biascope.results.estimate import Number
from biascope.results.finding import FigureOfPaper
from biascope.results.record import Record
from biascope.results.wording import snake

RESULTS = Path(__file__).parent / "results"
_MOST = 3  # differences of a run that a remark tells
FITTED, PART = "fitted after the fact", "in part"
#: The setting of a committed run that names the seeds of earlier runs of its figure; its own are none of them.
SEEN = "seeds seen before"
#: Where a statement can stand. What holds is told by its level (:mod:`biascope.papers.levels`).
STANDINGS = (*LEVELS, FITTED, PART, "not reproduced", "inconclusive", "not run")


@dataclass(frozen=True)
class Standing:
    """Where a claim stands, judged today on the committed numbers.

    Attributes:
        figure: Of which it is a claim.
        claim: As it is in the code.
        record: The committed run that decides it (:func:`judged`), ``None`` if none measured it.
        seen: The run of a greater effort whose number had been seen when the claim was written or got its bound; then the other run
            decides.
    """

    figure: FigureOfPaper
    claim: Claim
    record: Record | None
    seen: Record | None = None

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

    @property
    def level(self) -> tuple[str, tuple[str, ...]]:
        """How near the run came to the published experiment, and what differs; of a claim that was not run, nothing."""
        return ("", ()) if self.record is None else level(self.figure, self.claim, self.record)

    @property
    def _before(self) -> tuple[Claim, str] | None:
        """The claim as it stood when its number was measured, and its verdict then."""
        terms = (self.claim.statistic, self.claim.comparator)
        stored = (
            [pair for pair in self.record.claims if (pair[0].statistic, pair[0].comparator) == terms]
            if self.record
            else []
        )
        return min(stored, key=lambda pair: pair[0].statement != self.claim.statement, default=None)  # of two, its own

    @property
    def fitted(self) -> bool:
        """Whether the claim or its bound was written after its number had been seen.

        A claim that is marked so in the sheet was tested again if the run has seeds that no earlier run had, and the claim stood as
        it does now when the run was made.
        """
        if self.record is None:
            return self.claim.post_hoc
        if self._before is None or self._before[0].tolerance != self.claim.tolerance:
            return True
        return self._before[0].post_hoc or (self.claim.post_hoc and SEEN not in self.record.settings)

    @property
    def decides(self) -> bool:
        """Whether the claim decides about its statement: by the paper's own bound, fixed before its number was seen."""
        return self.claim.kind == "paper" and not self.fitted

    @property
    def earlier(self) -> str:
        """What a run of a greater effort had found before the claim was written or got its bound; empty if none had."""
        if self.seen is None:
            return ""
        number = self.seen.statistics[self.claim.statistic]
        return (
            f"Seen before the claim or its bound was written, {self.seen.effort} effort with other seeds: {number!r}."
        )

    def changes(self) -> list[str]:
        """What differs from the claim as it stood when its number was measured, in words."""
        if self.record is None:
            return []
        if self._before is None:
            return ["the claim was written after its number was measured"]
        before = {**dataclasses.asdict(self._before[0]), "verdict": self._before[1]}
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
            "post_hoc": self.fitted,
            "level": self.level[0],
            "differences": list(self.level[1]),
            "statement": self.claim.of,
        }


@dataclass(frozen=True)
class Conclusion:
    """Where a statement of a paper stands: what its claims say together.

    Attributes:
        paper: Id of the paper.
        statement: What the paper says.
        claims: The claims that decide (:attr:`Standing.decides`).
        seen: The paper's claims that were written after their numbers had been seen.
    """

    paper: str
    statement: Statement
    claims: tuple[Standing, ...]
    seen: tuple[Standing, ...] = ()

    @property
    def verdict(self) -> str:
        """One of :data:`STANDINGS`.

        =======================  ==========================================================================================
        *not reproduced*         one claim is not, and an experiment rules our settings out as the reason
        *inconclusive*           one claim is, or is not reproduced without such an experiment
        a level                  all claims hold; the level is that of the weakest run
        *in part*                some claims hold, and others were not run
        *fitted after the fact*  no claim decides, and all that were written after their numbers were seen hold
        *not run*                otherwise
        =======================  ==========================================================================================
        """
        found = {each.verdict for each in self.claims}
        if "not reproduced" in found:
            return "not reproduced" if self.statement.ruled_out else "inconclusive"
        if "inconclusive" in found:
            return "inconclusive"
        if found == {"reproduced"}:
            return max((each.level[0] for each in self.claims), key=LEVELS.index)
        if "reproduced" in found:
            return PART
        fitted = {each.verdict for each in self.seen}
        return FITTED if not self.claims and fitted == {"reproduced"} else "not run"

    @property
    def remark(self) -> str:
        """What explains the verdict: the experiment, what is not shown, how far the runs went. Empty if nothing is to explain."""
        if self.verdict == "not reproduced":
            return self.statement.ruled_out
        if any(each.verdict == "not reproduced" for each in self.claims):
            return self.statement.undecided or "A claim is not reproduced, and no experiment rules our settings out."
        if self.verdict == PART:
            return f"Of {len(self.claims)} claims {self.counted['reproduced']} hold; the others were not run."
        if self.verdict in ("reduced", "transferred"):
            weakest = (each.level[1] for each in self.claims if each.level[0] == self.verdict)
            words = list(dict.fromkeys(phrase for each in weakest for phrase in each))
            return f"With {'; '.join(words[:_MOST])}{f'; {len(words) - _MOST} more' if len(words) > _MOST else ''}."
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


def conclusions(found: Sequence[Standing]) -> list[Conclusion]:
    """Where every statement of the papers stands whose claims are given.

    Args:
        found: The claims, as :func:`standings` gives them.
    """
    testing: dict[tuple[str, str], list[Standing]] = {}
    known = dict.fromkeys(each.figure.paper for each in found)
    for each in found:
        if each.claim.kind == "paper":
            testing.setdefault((each.figure.paper, each.claim.of), []).append(each)
    return [
        Conclusion(
            paper,
            statement,
            claims=tuple(each for each in testing.get((paper, statement.key), ()) if each.decides),
            seen=tuple(each for each in testing.get((paper, statement.key), ()) if not each.decides),
        )
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
        judged: Number of statements that were judged (:attr:`Conclusion.judged`).
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


def summary(found: Sequence[Standing], statements: Sequence[Conclusion]) -> list[Summary]:
    """The summary of each paper.

    Args:
        found: Claims, as :func:`standings` gives them.
        statements: Statements, as :func:`conclusions` gives them.
    """
    rows = []
    for paper in dict.fromkeys(each.figure.paper for each in found):
        own = [each for each in statements if each.paper == paper]
        apart: dict[str, Counter[str]] = {"ours": Counter(), "post_hoc": Counter(), "check": Counter()}
        for each in found:
            if each.figure.paper != paper or each.decides:
                continue
            kind = "post_hoc" if each.fitted and each.claim.kind != "check" else each.claim.kind
            apart[kind][each.verdict] += 1
        verdicts = Counter(each.verdict for each in own)
        ordered = {
            group: {name: counted[name] for name in VERDICTS if counted[name]} for group, counted in apart.items()
        }
        counts = {name: verdicts[name] for name in STANDINGS}
        rows.append(Summary(paper, len(own), counts, sum(each.judged for each in own), ordered))
    return rows


def summary_lines(found: Sequence[Standing], statements: Sequence[Conclusion]) -> list[str]:
    """The summary as a table for a terminal, a column per paper."""
    rows = summary(found, statements)
    table = [["", *(row.paper for row in rows)], ["statements", *(str(row.statements) for row in rows)]]
    table += [[name, *(str(row.verdicts[name] or "·") for row in rows)] for name in STANDINGS]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["Statements of the papers, in each paper's own terms:", ""]
    lines += [
        "  "
        + "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    ]
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
    """Where each claim of a figure stands after runs given from the least effort to the greatest.

    The run of the greatest effort that measured a claim decides it. If the claim or its bound was written after that number had been
    seen, a run of less effort decides, provided that it has other seeds, the claim stood before it, and its effort is enough.
    """
    runs = list(records)
    found = []
    for claim in figure.claims:
        standing = Standing(figure, claim, None)
        for record in (each for each in reversed(runs) if claim.statistic in each.statistics):
            one, first = Standing(figure, claim, record, standing.record), standing.record
            if first is None or (claim.counts_at(record.effort) and _new(record, first) and not one.fitted):
                standing = one
            if not standing.fitted:
                break
        found.append(standing)
    return found


def _new(one: Record, other: Record) -> bool:
    """Whether two runs are known to have no seed in common."""
    return bool(seeds(one) and seeds(other)) and not seeds(one) & seeds(other)


def seeds(record: Record) -> set[int]:
    """The seeds of a run; empty if it does not record them: its settings can have their number instead."""
    one, many = record.settings.get("seed"), record.settings.get("seeds")
    return {each for each in (one, *(many if isinstance(many, list) else ())) if isinstance(each, int)}


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
