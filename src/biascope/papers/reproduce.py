"""A paper's figure run and judged: what was found is kept, and merged into the committed results that say where claims stand."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from biascope import papers
from biascope.papers import selection
from biascope.results import store
from biascope.results.claim import VERDICTS, Claim, Judgement, Statement, effort_rank
from biascope.results.estimate import Number
from biascope.results.finding import FigureOfPaper, Finding
from biascope.results.paper_page import picture, write_page
from biascope.results.record import DOCUMENT, FORMAT, Record
from biascope.results.result import now, software
from biascope.results.wording import snake
from biascope.runs.files import make_writable, name_for_file, require_ours, write_atomically
from biascope.runs.run import Run

FOLDER = Path("biascope-runs") / "reproduce"
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Reproduction:
    """A figure that was run.

    Attributes:
        record: Its numbers, claims and verdicts.
        finding: With the arrays.
        folder: Where ``finding.json``, its arrays and ``picture.png`` lie.
        page: The report of everything reproduced so far; ``None`` where Jinja is not installed.
    """

    record: Record
    finding: Finding
    folder: Path
    page: Path | None

    def standings(self) -> list[Standing]:
        """Where each claim of the figure stands after this run alone."""
        return judged(papers.figure(self.record.paper, self.record.figure), [self.record])


def reproduce(
    paper: str, number: str, *, effort: str = "laptop", run: Run | None = None, networks: Sequence[str] = ()
) -> Reproduction:
    """Run a figure of a paper and judge its claims.

    The figure keeps its trials in ``FOLDER/PAPER/NUMBER-EFFORT``, so that an interrupted run goes on where it was; its
    finding is written there too, numbers first: a picture that cannot be drawn costs no number.

    Args:
        paper: Id of the paper.
        number: Of the figure.
        effort: ``"smoke"``, ``"laptop"`` or ``"paper"``.
        run: Device, precision, and FOLDER, which is ``biascope-runs/reproduce`` if it has none.
        networks: Networks to run the figure for, if not for all. Merging then keeps the committed numbers of the others.

    Returns:
        The finding with its verdicts, and where it lies.

    Raises:
        ValueError: If there is no such paper, figure, effort or network.
    """
    effort_rank(effort)
    figure, run = papers.figure(paper, number), run or Run()
    networks = selection.require(figure, networks, effort)
    root = run.folder or FOLDER
    folder = root / figure.paper / "-".join([figure.file_name, effort, *map(name_for_file, networks)])
    require_ours(*(folder / name for name in (DOCUMENT, "picture.png", "picture-dark.png")))
    make_writable(folder)
    circumstances: dict[str, Any] = run.describe()
    with _timed(folder / "seconds.json", ", ".join(circumstances.values())) as seconds:
        finding = figure(effort, dataclasses.replace(run, folder=folder), networks)
    if networks:
        finding = dataclasses.replace(finding, settings={**finding.settings, selection.KEY: list(networks)})
    circumstances |= {"seconds": round(seconds[0], 1), "versions": software(), "date": now()}
    record = Record.of(figure, finding, effort, circumstances)
    finding = record.finding(finding.arrays)  # as it can be read back, so that a picture never rests on more

    for name in ("picture.png", "picture-dark.png"):  # never of another run
        (folder / name).unlink(missing_ok=True)
    store.write(folder, {"record": record.as_json()}, finding.arrays, name=DOCUMENT)
    if _installed("matplotlib"):
        write_atomically(folder / "picture.png", picture(figure, finding))
        write_atomically(folder / "picture-dark.png", picture(figure, finding, dark=True))
    return Reproduction(record, finding, folder, write_page(root) if _installed("jinja2") else None)


@contextlib.contextmanager
def _timed(path: Path, how: str) -> Iterator[list[float]]:
    """Yields a list that will hold the seconds spent in this way, earlier attempts that were cut short included."""
    spent: list[float] = []
    begin = time.perf_counter()
    try:
        yield spent
    finally:
        try:
            known = dict(json.loads(path.read_text()))
            before = float(known.get(how, 0.0))
        except (OSError, ValueError, TypeError):  # none yet, or damaged: it only tells what a figure costs
            known, before = {}, 0.0
        spent.append(before + time.perf_counter() - begin)
        write_atomically(path, _written(known | {how: spent[0]}))


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
    path = _committed_file(figure, results)
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


def _committed_file(figure: FigureOfPaper, results: Path | None) -> Path:
    return (results or RESULTS) / figure.paper / f"{figure.file_name}.json"


@dataclass(frozen=True)
class Merged:
    """What became of one finding that was to be merged.

    Attributes:
        source: The file.
        outcome: ``"new"``, ``"replaced"``, ``"added"`` (to the numbers of other networks), ``"kept"`` (what is committed is as good
            or newer) or ``"refused"``.
        words: What happened and why.
    """

    source: str
    outcome: str
    words: str


def merge(source: Path | str, *, results: Path | None = None, gallery: Path | None = None) -> list[Merged]:
    """Take findings made elsewhere into the committed results.

    One entry per figure and effort is kept: a newer run replaces an older one of the same effort, and never one of
    another effort. A run for some networks replaces their numbers alone (:func:`united`). The picture is drawn again from
    the arrays where the finding has the greatest effort of its figure. That of some networks goes below the earlier one, unless it has
    all numbers of the earlier run.

    Args:
        source: A reproduce folder, or a ``.tar.gz`` of one; nothing but findings and arrays is read from it.
        results: Where to; by default the committed results of the source checkout that this package runs from.
        gallery: Where pictures go; with the default results ``docs/gallery`` of the checkout, otherwise nowhere.

    Returns:
        What became of each finding; damaged and foreign files are named as refused.

    Raises:
        ValueError: If the source holds no finding, or there is nowhere to merge it.
    """
    results, drawn_into = destination(results)
    gallery = gallery or drawn_into
    outcomes = []
    # Oldest first: of several networks that were run one after the other, none is then older than what is committed.
    for name, finding, beside in sorted(_findings(Path(source)), key=lambda each: _date_of(each[1])):
        try:
            outcomes.append(Merged(name, *_merge_one(name, finding, beside, results, gallery)))
        except Exception as error:  # a damaged file or a picture that fails must not keep the others out
            told = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            outcomes.append(Merged(name, "refused", told))
    if not outcomes:
        raise ValueError(
            f"{source} must hold findings, and has no finding.json. Pass a folder that biascope reproduce wrote."
        )
    return outcomes


def destination(results: Path | None = None) -> tuple[Path, Path | None]:
    """Where findings are merged, and where their pictures go.

    Raises:
        ValueError: If no results are named and the package runs from no source checkout.
    """
    if results is not None:
        return results, None
    if (root := checkout()) is None:
        raise ValueError(
            "Findings are merged into a source checkout, and this biascope is installed without one. Pass --results FOLDER."
        )
    return RESULTS, root / "docs" / "gallery" if (root / "docs").is_dir() else None


def checkout() -> Path | None:
    """The source checkout that this package runs from, ``None`` if it was installed without one."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "src" / "biascope").is_dir() else None


def _findings(source: Path) -> Iterator[tuple[str, bytes, Mapping[str, bytes]]]:
    """Name and content of every finding in a folder or an archive, and the files beside it; nothing is unpacked to disk."""
    if source.is_dir():
        for path in sorted(path for path in source.rglob(DOCUMENT) if path.is_file()):
            yield (
                str(path),
                path.read_bytes(),
                {each.name: each.read_bytes() for each in path.parent.glob("arrays*.npz")},
            )
        return
    if not source.exists():
        raise ValueError(
            f"--merge needs a folder of findings or a .tar.gz of one, and {source} does not exist. Check the path."
        )
    try:
        with tarfile.open(source) as archive:
            members = [member for member in archive if member.isfile() and _wanted(Path(member.name).name)]
            content = {str(Path(member.name)): _member(archive, member) for member in members}
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ValueError(
            f"{source} must be a folder of findings or a whole .tar.gz of one, and is neither. Pass what biascope reproduce wrote."
        ) from error
    for name in sorted(content):
        if Path(name).name == DOCUMENT:
            folder = Path(name).parent
            beside = {Path(other).name: data for other, data in content.items() if Path(other).parent == folder}
            yield f"{source}:{name}", content[name], beside


def _date_of(finding: bytes) -> str:
    """When a finding was made; nothing for a damaged one, which is refused later."""
    try:
        return str(json.loads(finding)["record"]["date"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _wanted(name: str) -> bool:
    return name == DOCUMENT or (name.startswith("arrays") and name.endswith(".npz"))


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    return b"" if stream is None else stream.read()


def _merge_one(
    name: str, finding: bytes, beside: Mapping[str, bytes], results: Path, gallery: Path | None
) -> tuple[str, str]:
    document, record = Record.parsed(finding, name)
    figure = papers.figure(record.paper, record.figure)
    entries = committed(figure, results=results)
    before = entries.get(record.effort)
    words = f"{figure.paper} {figure.number}, {record.effort}, {record.date} on {record.device}"
    added = record.settings.get(selection.KEY)
    fresh = added and before is not None and record.statistics.keys() - before.statistics.keys()  # of another network
    if before is not None and before.date >= record.date and not fresh:
        same = "the same" if before.as_json() == record.as_json() else f"one of {before.date}, no older,"
        return "kept", f"{words}: {same} is committed"
    drawn = None
    if gallery is not None and all(effort_rank(effort) <= effort_rank(record.effort) for effort in entries):
        drawn = picture(figure, record.finding(_arrays(document, beside, name)))
        if added and before is not None and not record.statistics.keys() >= before.statistics.keys():
            again = bool(record.statistics.keys() & before.statistics.keys())
            drawn = _below(
                gallery / f"{figure.paper}-{figure.file_name}.png", drawn, _caption(added, record.date, again)
            )
    whole = before is not None and record.statistics.keys() >= before.statistics.keys()
    if added:
        record = united(figure, before, record)
    entries[record.effort] = record
    ordered = {effort: entries[effort].as_json() for effort in sorted(entries, key=effort_rank)}
    path = _committed_file(figure, results)
    make_writable(path.parent)
    document = {"format": FORMAT, "paper": figure.paper, "figure": figure.number, "efforts": ordered}
    write_atomically(path, _written(document))
    if drawn is not None and gallery is not None:
        make_writable(gallery)
        write_atomically(gallery / f"{figure.paper}-{figure.file_name}.png", drawn)
    if before is None:
        return "new", words
    if added and not whole:
        return "added", f"{words}: {', '.join(map(str, added))}, to one of {before.date}"
    lost = ", ".join(sorted(before.statistics.keys() - record.statistics.keys()))
    remark = f"; no longer measured: {lost}" if lost else ""
    return "replaced", f"{words}, for one of {before.date} on {before.device}{remark}"


def united(figure: FigureOfPaper, before: Record | None, record: Record) -> Record:
    """A run for some networks of a figure, together with the numbers that a committed run of the same effort has of others.

    Both must have been run in the same way: with the same device and precision, and with the same value of every setting that both
    record. There are two exceptions. Settings that list networks, or have an entry for each, are joined. A setting of one network
    (``"epochs: LeNet"``) may change if all numbers of this network are measured again. The date is that of the later run, the seconds
    are those of both. A run that has every number of the earlier one replaces it.

    Args:
        figure: The figure.
        before: The committed run; ``None`` if there is none.
        record: The run for some networks.

    Raises:
        ValueError: If the two were not run in the same way.
    """
    settings = {key: value for key, value in record.settings.items() if key != selection.KEY}
    if before is None or record.statistics.keys() >= before.statistics.keys():
        return dataclasses.replace(record, settings=settings)
    pairs = {"device": (before.device, record.device), "precision": (before.precision, record.precision)}
    joined = _joined(before, record)
    settings |= joined
    pairs |= {
        key: (before.settings[key], record.settings[key])
        for key in (settings.keys() & before.settings.keys()) - joined.keys()
        if not _measured_again(key.rpartition(": ")[2] if ": " in key else "", before, record)
    }
    for key, (one, two) in sorted(pairs.items()):
        if one != two:
            raise ValueError(
                f"A run for some networks must have the settings of the committed one, but {key} is {two!r} and not {one!r}. "
                "Run the figure as a whole."
            )
    numbers = {**before.statistics, **record.statistics}
    stored = {pair[0].statement: pair for pair in before.claims}
    claims = []
    for claim, _ in record.claims:
        needed = {claim.statistic, *(each.statistic for each in claim.trained)}
        fresh = claim.judge(numbers, record.effort).verdict
        known = stored.get(claim.statement)
        # A claim on earlier numbers alone stays as it was when they were measured.
        claims.append((claim, fresh) if known is None or needed & record.statistics.keys() else known)
    names = ", ".join(map(str, record.settings[selection.KEY]))
    note = f"The numbers of {names} were added on {record.date}; the others are of {before.date}."
    return dataclasses.replace(
        record,
        statistics=numbers,
        settings={**before.settings, **settings},
        notes=tuple(dict.fromkeys((*before.notes, *record.notes, note))),
        date=max(before.date, record.date),
        seconds=round(before.seconds + record.seconds, 1),
        claims=tuple(claims),
    )


def _joined(before: Record, record: Record) -> dict[str, Any]:
    """Settings that list networks, or have an entry for each, as they are of both runs together. An empty one says nothing."""
    networks = {selection.letters(str(name)) for name in record.settings[selection.KEY]}
    found: dict[str, Any] = {}
    for key in (record.settings.keys() & before.settings.keys()) - {selection.KEY}:
        known, value = before.settings[key], record.settings[key]
        if known in ([], {}) and type(value) is type(known):
            found[key] = value
        elif isinstance(value, list) and isinstance(known, list):
            if networks.issuperset(selection.letters(str(each)) for each in value):
                found[key] = list(dict.fromkeys((*known, *value)))
        elif isinstance(value, dict) and isinstance(known, dict):
            agree = all(known.get(each, entry) == entry for each, entry in value.items())
            if agree and networks.issuperset(selection.letters(str(each)) for each in value):
                found[key] = known | value
    return found


def _measured_again(title: str, before: Record, record: Record) -> bool:
    """Whether a run has every number that an earlier one has of a network."""
    own = [key for key in before.statistics if title and key.startswith(f"{snake(title)}_")]
    return bool(own) and record.statistics.keys() >= set(own)


def _caption(networks: Sequence[object], date: str, again: bool) -> str:
    """What stands between the picture of an earlier run and that of some networks."""
    names = ", ".join(str(name).replace("_", " ") for name in networks)
    return f"Run of {date[:10]} ({names})" + (", which replaces its curves above" if again else "")


def _below(path: Path, drawn: bytes, caption: str) -> bytes:
    """A picture below the one in a file, if there is one, and a line between them: arrays of earlier runs are not kept."""
    if not path.exists():
        return drawn
    from PIL import Image, ImageDraw, ImageFont

    with Image.open(path) as above, Image.open(io.BytesIO(drawn)) as below:
        parts = [above.convert("RGB"), below.convert("RGB")]
    width = max(part.width for part in parts)
    height = width // 20
    line = Image.new("RGB", (width, height), "white")
    ink = ImageDraw.Draw(line)
    ink.line((0, 1, width, 1), fill="grey")
    ink.text((height // 3, height // 2), caption, fill="black", font=ImageFont.load_default(height // 2), anchor="lm")
    parts.insert(1, line)
    whole = Image.new("RGB", (width, sum(part.height for part in parts)), "white")
    for number, part in enumerate(parts):
        whole.paste(part, (0, sum(each.height for each in parts[:number])))
    held = io.BytesIO()
    whole.save(held, "png", optimize=True)
    return held.getvalue()


def _arrays(document: Mapping[str, Any], beside: Mapping[str, bytes], name: str) -> dict[str, np.ndarray]:
    stored = store.arrays_name(document)
    return store.parsed_arrays(beside.get(stored, b""), str(Path(name).with_name(stored)))


def _written(document: Any) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _installed(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True
