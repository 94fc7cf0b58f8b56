"""WHAT: what a paper claims against what was measured. A figure is a function that returns a Finding; its claims judge it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.results import store
from biascope.results.estimate import Estimate, Number
from biascope.results.result import KEY
from biascope.results.store import plain
from biascope.results.wording import snake

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from biascope.runs.run import Run

EFFORTS = ("smoke", "laptop", "paper")  # from least to most; smoke only shows that everything runs
COMPARATORS = ("about", "at least", "at most")
VERDICTS = ("reproduced", "not reproduced", "inconclusive", "not run")
DOCUMENT = "finding.json"
FORMAT = 2  # of a record; raised when an old reader could misread a new file


def _is_key(name: str) -> bool:
    """Whether a name is a valid key of a paper's number; unlike a result's key, it has no case after a colon."""
    return bool(KEY.fullmatch(name)) and name == snake(name)


def effort_rank(effort: str) -> int:
    """The place of an effort, 0 being the least.

    Raises:
        ValueError: If there is no such effort.
    """
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}. Pass effort='laptop'.")
    return EFFORTS.index(effort)


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, the number that decides it, and what would count as agreement.

    Attributes:
        statement: What the paper says, in one plain sentence.
        statistic: Key of the number in :attr:`Finding.statistics` that decides it.
        comparator: ``"about"``, ``"at least"`` or ``"at most"``.
        published: The paper's number, or its words where it gives none.
        tolerance: For ``"about"`` the largest distance from the published number; otherwise the bound itself.
        minimum_effort: The least effort at which a verdict counts.

    Example:
        >>> claim = Claim("Half of them.", "share", "about", 50.0, 5.0)
        >>> claim.verdict(Estimate(51.0, 1.0, 49.0, 53.0), "laptop"), claim.verdict(Estimate.exact(56.0), "laptop")
        ('reproduced', 'not reproduced')
        >>> claim.verdict(Estimate(54.0, 1.0, 52.0, 56.0), "laptop")  # the interval straddles 55
        'inconclusive'
    """

    statement: str
    statistic: str
    comparator: str
    published: float | str
    tolerance: float
    minimum_effort: str = "laptop"

    def __post_init__(self) -> None:
        effort_rank(self.minimum_effort)
        if not _is_key(self.statistic):
            raise ValueError(
                f"statistic must be a key in snake_case, got {self.statistic!r}. Pass statistic={snake(self.statistic)!r}."
            )
        if self.comparator not in COMPARATORS:
            known = ", ".join(map(repr, COMPARATORS))
            raise ValueError(f"comparator must be one of {known}, got {self.comparator!r}. Pass comparator='about'.")
        if not math.isfinite(self.tolerance):
            raise ValueError(f"tolerance must be a finite number, got {self.tolerance}. Pass a bound or a distance.")
        if self.comparator == "about" and isinstance(self.published, str):
            raise ValueError(
                f"published must be a number for the comparator 'about', got {self.published!r}. Pass 'at least' or 'at most'."
            )
        if self.comparator == "about" and self.tolerance < 0:
            raise ValueError(
                f"tolerance must be a distance of 0 or more, got {self.tolerance}. Pass tolerance=0.05, say."
            )

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value that agree with the claim."""
        slack = 1e-12 * abs(self.tolerance)  # 0.3 + 0.1 is not 0.4 in binary
        if self.comparator == "at least":
            return self.tolerance - slack, math.inf
        if self.comparator == "at most":
            return -math.inf, self.tolerance + slack
        published = float(self.published)
        reach = self.tolerance + max(slack, 1e-12 * abs(published))
        return published - reach, published + reach

    @property
    def allowed(self) -> str:
        """The tolerance in words: ``"± 5"``, ``"at least 0.9"``."""
        return f"{'±' if self.comparator == 'about' else self.comparator} {self.tolerance:.10g}"

    @property
    def printed(self) -> str:
        """The published number, or the paper's words."""
        return self.published if isinstance(self.published, str) else f"{self.published:.10g}"

    def counts_at(self, effort: str) -> bool:
        """Whether a verdict counts at an effort."""
        return effort_rank(effort) >= effort_rank(self.minimum_effort)

    def verdict(self, measured: Estimate | None, effort: str) -> str:
        """The verdict of a measured number on the claim.

        With the interval I of the measured number and the values A that agree (:attr:`bounds`):

        ===================  =========================================================================
        *not run*            nothing was measured
        *inconclusive*       the effort is below the claim's minimum, or the value is not a number
        *reproduced*         I lies in A
        *not reproduced*     I and A have nothing in common
        *inconclusive*       otherwise: I straddles an end of A
        ===================  =========================================================================

        An exact number is its own interval. Where the interval is unknown (too few repetitions to know a spread), the
        value alone may speak against a claim and never for it: outside A it is *not reproduced*, inside *inconclusive*.
        So leaving out an error bar can never improve a verdict.

        Args:
            measured: The deciding number, ``None`` if this part of the figure was not run.
            effort: Effort at which it was measured.

        Returns:
            One of :data:`VERDICTS`.

        Raises:
            ValueError: If there is no such effort.
        """
        if measured is None:
            return "not run"
        if not self.counts_at(effort) or math.isnan(measured.value):
            return "inconclusive"
        least, greatest = self.bounds
        if math.isnan(measured.low) or math.isnan(measured.high):
            return "inconclusive" if least <= measured.value <= greatest else "not reproduced"
        if least <= measured.low and measured.high <= greatest:
            return "reproduced"
        return "not reproduced" if measured.high < least or measured.low > greatest else "inconclusive"


@dataclass(frozen=True)
class Finding:
    """The findings of a figure function.

    Attributes:
        statistics: The numbers that decide claims, and others worth quoting, each under a key that never changes; what was not
            run is left out.
        arrays: All that the picture needs.
        settings: Seeds, sizes, epochs, directions …: whatever tells what was run.
        notes: Remarks to be read beside the verdicts: a deviation from the text, a reason.
    """

    statistics: dict[str, Number]
    arrays: dict[str, np.ndarray]
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, number in self.statistics.items():
            if not getattr(number, "label", ""):  # a plain number, an Estimate or one without a name
                kind = type(number).__name__
                raise ValueError(
                    f"statistic {name!r} must be a Number with a label, got {kind}. Pass Estimate.exact(number).named(label)."
                )
            if not _is_key(name):
                raise ValueError(f"statistic {name!r} must have a key in snake_case. Pass {snake(name)!r}.")
        for name, array in self.arrays.items():
            if np.asarray(array) is not array or array.dtype.hasobject:
                raise ValueError(f"array {name!r} must be a NumPy array of plain numbers or text. Convert it first.")
        if isinstance(self.notes, str):
            raise ValueError("notes must be a tuple of sentences, got one string. Pass notes=(sentence,).")

    def arrays_of(self, kind: str) -> dict[str, np.ndarray]:
        """The arrays that are called ``KIND: NAME``, by name."""
        return {
            key.removeprefix(f"{kind}: "): array for key, array in self.arrays.items() if key.startswith(f"{kind}: ")
        }

    def curves_of(self, kind: str, scale: float = 1.0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Those whose first two rows are the places and the values of a curve; the values times the scale.

        Example:
            >>> finding = Finding({}, {"accuracy: LeNet": np.array([[1.0, 2.0], [0.5, 0.75]])}, {})
            >>> finding.curves_of("accuracy", 100)
            {'LeNet': (array([1., 2.]), array([50., 75.]))}
        """
        return {name: (array[0], scale * array[1]) for name, array in self.arrays_of(kind).items()}


Work = Callable[[str, "Run"], Finding]
Drawing = Callable[[Finding, bool], "Figure"]


@dataclass(frozen=True)
class FigureOfPaper:
    """A figure or table of a paper: called with an effort and a Run, it returns its Finding.

    Attributes:
        paper: Id of the paper.
        number: As the paper numbers it: ``"6"``, ``"S21-S22"``.
        title: What it shows.
        claims: What the paper reads from it.
        function: What measures it.
        draw: Its picture from a finding, on a light or a dark background.
    """

    paper: str
    number: str
    title: str
    claims: tuple[Claim, ...]
    function: Work = field(repr=False)
    draw: Drawing = field(repr=False)

    def __call__(self, effort: str, run: Run) -> Finding:
        """Measure it."""
        effort_rank(effort)
        finding = self.function(effort, run)
        if not isinstance(finding, Finding):
            kind = type(finding).__name__
            raise TypeError(f"figure {self.number} of {self.paper} must return a Finding, got {kind}.")
        return finding

    @property
    def file_name(self) -> str:
        """The number as part of a file name."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", self.number).strip("-.")


def figure(number: str, *, title: str, claims: Sequence[Claim], draw: Drawing) -> Callable[[Work], FigureOfPaper]:
    """Make a function of a file in ``papers/`` a figure of that paper.

    Args:
        number: As the paper numbers it.
        title: What it shows.
        claims: What the paper reads from it, at least one.
        draw: Its picture from a finding, ``draw(finding, dark)``.

    Raises:
        ValueError: If there is no claim, or two claims say the same.

    Example:
        >>> @figure("1", title="A coin", claims=[Claim("Fair.", "heads", "about", 0.5, 0.1)], draw=lambda finding, dark: None)
        ... def figure_1(effort, run):
        ...     return Finding({"heads": Estimate.exact(0.5).named("share of heads", "share")}, {}, {"tosses": 2})
        >>> figure_1.claims[0].verdict(figure_1("laptop", None).statistics["heads"], "laptop")
        'reproduced'
    """
    statements = [claim.statement for claim in claims]
    if not statements or len(set(statements)) < len(statements):
        raise ValueError(
            f"claims of figure {number} must be at least one and all different, got {statements}. Rename them."
        )

    def register(function: Work) -> FigureOfPaper:
        # A paper's file or folder is called by its id, which ends in the year.
        parts = function.__module__.split(".")
        paper = next((part for part in parts if re.fullmatch(r"[a-z]\w*\d{4}", part)), parts[-1])
        return FigureOfPaper(paper, number, title, tuple(claims), function, draw)

    return register


@dataclass(frozen=True)
class Record:
    """The saved record of a figure that was run, without its arrays.

    Attributes:
        paper: Id of the paper.
        figure: Its number.
        title: What it shows.
        effort: At which it was run.
        device: On which.
        precision: Of the arithmetic.
        seconds: That it took, interrupted attempts included.
        date: When it was finished, in an order that sorts.
        versions: Of the software.
        statistics: As in :class:`Finding`.
        settings: As in :class:`Finding`.
        notes: As in :class:`Finding`.
        claims: The claims as they stood, each with its verdict then.
    """

    paper: str
    figure: str
    title: str
    effort: str
    device: str
    precision: str
    seconds: float
    date: str
    versions: dict[str, str]
    statistics: dict[str, Number]
    settings: dict[str, Any]
    notes: tuple[str, ...]
    claims: tuple[tuple[Claim, str], ...]

    @staticmethod
    def of(figure: FigureOfPaper, finding: Finding, effort: str, circumstances: Mapping[str, Any]) -> Record:
        """The record of a finding; circumstances are device, precision, seconds, date and versions."""
        numbers = finding.statistics
        judged = [(claim, claim.verdict(numbers.get(claim.statistic), effort)) for claim in figure.claims]
        return Record(
            paper=figure.paper,
            figure=figure.number,
            title=figure.title,
            effort=effort,
            statistics=numbers,
            settings=plain(finding.settings),
            notes=finding.notes,
            claims=tuple(judged),
            **circumstances,
        )

    def finding(self, arrays: dict[str, np.ndarray]) -> Finding:
        """The finding it records, given its arrays."""
        return Finding(self.statistics, arrays, self.settings, self.notes)

    def as_json(self) -> dict[str, Any]:
        """As plain JSON; nan is null, an infinite number is a string."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        values["statistics"] = {key: number.as_dict() for key, number in self.statistics.items()}
        values["claims"] = [{**dataclasses.asdict(claim), "verdict": verdict} for claim, verdict in self.claims]
        document: dict[str, Any] = plain({"format": FORMAT, **values})
        return document

    @staticmethod
    def parsed(data: bytes, source: Path | str) -> tuple[dict[str, Any], Record]:
        """The document in the bytes of a ``finding.json``, and the record in it.

        Raises:
            ValueError: If it is damaged, foreign or of a newer version, naming the source.
        """
        try:
            document = store.parsed(data, source)
            return document, Record.from_json(document.get("record", document))  # before 0.2 it was the document itself
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"{source} must be a finding of biascope, but is not: {reason}. Run the figure again."
            ) from error

    @staticmethod
    def from_json(document: Any) -> Record:
        """The record in a JSON document; any of several errors if it is none."""
        if document["format"] > FORMAT:
            raise ValueError(f"its format {document['format']} needs a newer biascope")
        content = {entry.name: document[entry.name] for entry in dataclasses.fields(Record)}
        for name in ("paper", "figure", "title", "effort", "device", "precision", "date"):
            if not isinstance(content[name], str):
                raise ValueError(f"its {name} is not text")
        effort_rank(content["effort"])
        content["seconds"] = float(content["seconds"])
        content["versions"], content["settings"] = dict(content["versions"]), dict(content["settings"])
        content["notes"] = tuple(map(str, content["notes"]))
        if document["format"] == 1:  # before 0.2, numbers were known by their words
            content["statistics"] = {snake(name): _named(name, each) for name, each in content["statistics"].items()}
        content["statistics"] = {key: Number.from_dict(each) for key, each in content["statistics"].items()}
        terms = [entry.name for entry in dataclasses.fields(Claim)]
        content["claims"] = tuple(
            (
                Claim(**{term: claim[term] for term in terms} | {"statistic": snake(claim["statistic"])}),
                str(claim["verdict"]),
            )
            for claim in content["claims"]
        )
        return Record(**content)


_UNITS = ("%", "dB", "points")


def _named(name: str, number: Mapping[str, Any]) -> dict[str, Any]:
    """A number with the words and the unit that its name had."""
    words, comma, unit = name.rpartition(", ")
    return {**number, "label": words if comma and unit in _UNITS else name, "unit": unit if unit in _UNITS else ""}
