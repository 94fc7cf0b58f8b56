"""WHAT: what a paper claims against what was measured. A figure is a function that returns a Finding; its claims judge it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
KINDS = ("paper", "ours", "check")
#: The gate, one rule for all papers: the least share of the way from chance to the best possible value that a network must have
#: gone in training. It is 60 % of training samples with two balanced classes, and 28 % with ten.
LEAST_PROGRESS = 0.2
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
class Statement:
    """A testable statement of a paper. The statements of a paper are the denominator of what was reproduced.

    Attributes:
        key: By which claims name it, in snake_case.
        section: Where the paper says it.
        text: What it says, in our words.
        untested: Why no claim tests it by the paper's own bound; empty if one does.
        ruled_out: If it is not reproduced, the experiment that rules our settings out as the reason. Without one, the verdict
            stays *inconclusive*.
        undecided: If some of its claims hold and others do not, what the difference between them is.
    """

    key: str
    section: str
    text: str
    untested: str = ""
    ruled_out: str = ""
    undecided: str = ""

    def __post_init__(self) -> None:
        if not _is_key(self.key):
            raise ValueError(f"key must be in snake_case, got {self.key!r}. Pass key={snake(self.key)!r}.")


@dataclass(frozen=True)
class Dropped:
    """Claims that were withdrawn.

    Attributes:
        figure: Number of the figure.
        claim: What was claimed; one sentence may stand for several claims of one form.
        verdict: What the verdicts were.
        reason: Why the claims were withdrawn.
    """

    figure: str
    claim: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class Trained:
    """Evidence that networks trained: a number of the finding, with its values at chance and at best.

    A number passes if it has gone :data:`LEAST_PROGRESS` of the way from chance to the best value. The end of its interval nearer to
    chance decides. The value itself decides if its spread is unknown, as it is of networks that all agree, or if that end is open:
    what other networks would do says nothing of those that trained. Use training accuracy or loss. Test accuracy is evidence too: a
    network that generalises has trained. If a figure contains directions that cannot be learned, take the best of each network.

    Attributes:
        statistic: Key of the number.
        chance: Value of the number for a network that has not learned.
        best: The best possible value of the number.

    Example:
        >>> accuracy = Trained("training_accuracy", chance=50.0, best=100.0)
        >>> accuracy.passes(Estimate(61.0)), accuracy.passes(Estimate(61.0, 1.0, 59.0, 63.0))
        (True, False)
        >>> Trained("training_loss", chance=0.69, best=0.0).passes(Estimate(0.4))
        True
    """

    statistic: str
    chance: float
    best: float

    def __post_init__(self) -> None:
        if not _is_key(self.statistic):
            raise ValueError(
                f"statistic must be a key in snake_case, got {self.statistic!r}. Pass statistic={snake(self.statistic)!r}."
            )
        if not math.isfinite(self.chance) or not math.isfinite(self.best) or self.chance == self.best:
            raise ValueError(
                f"chance and best must be two different numbers, got {self.chance} and {self.best}. Pass 50.0 and 100.0."
            )

    @property
    def needed(self) -> float:
        """The value that a trained network reaches."""
        return self.chance + LEAST_PROGRESS * (self.best - self.chance)

    def passes(self, number: Estimate) -> bool:
        """Whether the number is that of a trained network."""
        end = number.low if self.best > self.chance else number.high
        known = math.isfinite(end) and not math.isnan(number.standard_error)
        value = end if known else number.value
        return (value - self.chance) / (self.best - self.chance) >= LEAST_PROGRESS


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim, and the reason if it is inconclusive.

    Attributes:
        verdict: One of :data:`VERDICTS`.
        reason: Why the verdict is inconclusive; otherwise empty.
        counts: Whether the claim was judged: it ran at its minimum effort, on networks that trained.
    """

    verdict: str
    reason: str = ""
    counts: bool = True


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
        of: Key of the paper's :class:`Statement` that it tests; empty if it tests none.
        kind: ``"paper"`` if statement and bound are the paper's, ``"ours"`` if the bound or the statement is ours, ``"check"`` for an
            identity or a test of our own code.
        post_hoc: Whether the claim or its bound was written after its number had been seen.
        trained: Evidence that its networks trained; empty if the claim is not about trained networks.

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
    of: str = ""
    kind: str = "ours"
    post_hoc: bool = False
    trained: tuple[Trained, ...] = ()

    def __post_init__(self) -> None:
        effort_rank(self.minimum_effort)
        if self.kind not in KINDS:
            raise ValueError(
                f"kind must be one of {', '.join(map(repr, KINDS))}, got {self.kind!r}. Pass kind='paper'."
            )
        if self.kind == "paper" and not self.of:
            raise ValueError(
                f"A claim of the paper must name the paper's statement, got {self.statement!r} without one. Pass of='key_of_it'."
            )
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
        # This compares one number; :meth:`judge` also asks whether the networks trained.
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

    def judge(self, numbers: Mapping[str, Number], effort: str) -> Judgement:
        """The verdict on a run: that of :meth:`verdict`, or *inconclusive* if its networks did not train.

        Args:
            numbers: All numbers of the run, by key.
            effort: Effort of the run.

        Example:
            >>> gate = Trained("training_accuracy", chance=50.0, best=100.0)
            >>> claim = Claim("The two differ.", "difference", "at least", "differ", 0.0, trained=(gate,))
            >>> found = {"difference": Estimate(9.0, 1.0, 7.0, 11.0).named("difference")}
            >>> claim.judge(found | {"training_accuracy": Estimate(51.0).named("training accuracy", "%")}, "laptop").reason
            'did not train: training accuracy is 51 % (spread unknown), and a trained network has at least 60'
        """
        measured = numbers.get(self.statistic)
        verdict = self.verdict(measured, effort)
        if measured is None:
            return Judgement(verdict, "", counts=False)
        if not self.counts_at(effort):
            return Judgement(verdict, f"a verdict needs at least {self.minimum_effort} effort", counts=False)
        for evidence in self.trained:
            number = numbers.get(evidence.statistic)
            if number is None:
                return Judgement("inconclusive", "the run does not record whether its networks trained", counts=False)
            if not evidence.passes(number):
                side = "at least" if evidence.best > evidence.chance else "at most"
                reason = f"did not train: {number.label} is {number!r}, and a trained network has {side} {evidence.needed:.4g}"
                return Judgement("inconclusive", reason, counts=False)
        if verdict != "inconclusive":
            return Judgement(verdict)
        if math.isnan(measured.value):
            return Judgement(verdict, "the number could not be computed", counts=False)
        if math.isnan(measured.low) or math.isnan(measured.high):
            return Judgement(verdict, "the spread is unknown, because there are too few repetitions")
        return Judgement(verdict, "the interval straddles the tolerance")


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
        published: The authors' settings, under the keys that :attr:`Finding.settings` has; empty if they are not listed yet.
        networks: By effort, the networks that it can be run for one by one; empty if it compares them with one another.
    """

    paper: str
    number: str
    title: str
    claims: tuple[Claim, ...]
    function: Work = field(repr=False)
    draw: Drawing = field(repr=False)
    published: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)
    networks: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False, hash=False)

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


@dataclass(frozen=True)
class Difference:
    """A setting of a run that is not the published one.

    Attributes:
        setting: Its name.
        published: Its published value, in words.
        ours: Its value in the run, in words.
    """

    setting: str
    published: str
    ours: str


def figure(
    number: str,
    *,
    title: str,
    claims: Sequence[Claim],
    draw: Drawing,
    published: Mapping[str, Any] | None = None,
    networks: Mapping[str, Iterable[str]] | None = None,
) -> Callable[[Work], FigureOfPaper]:
    """Make a function of a file in ``papers/`` a figure of that paper.

    Args:
        number: As the paper numbers it.
        title: What it shows.
        claims: What the paper reads from it, at least one.
        draw: Its picture from a finding, ``draw(finding, dark)``.
        published: The authors' settings, under the keys that the finding's settings have.
        networks: By effort, the networks that it can be run for one by one (:func:`biascope.papers.selection.chosen`).

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
        alone = {effort: tuple(names) for effort, names in (networks or {}).items()}
        return FigureOfPaper(paper, number, title, tuple(claims), function, draw, plain(dict(published or {})), alone)

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
        judged = [(claim, claim.judge(numbers, effort).verdict) for claim in figure.claims]
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
        document = store.parsed(data, source)
        try:
            return document, Record.from_json(document.get("record", document))  # before 0.2 it was the document itself
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
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
        content["claims"] = tuple((_claim(claim), str(claim["verdict"])) for claim in content["claims"])
        return Record(**content)

    def differences(self, figure: FigureOfPaper) -> list[Difference]:
        """Every published setting that this run does not have, in the order of the figure's list.

        Example:
            >>> @figure("1", title="A coin", claims=[Claim("Fair.", "heads", "about", 0.5, 0.1)], draw=None, published={"tosses": 9})
            ... def coin(effort, run):
            ...     return Finding({}, {}, {"tosses": 2})
            >>> circumstances = dict(device="cpu", precision="float32", seconds=0.0, date="", versions={})
            >>> Record.of(coin, coin("laptop", None), "laptop", circumstances).differences(coin)
            [Difference(setting='tosses', published='9', ours='2')]
        """
        return [
            Difference(
                name, _in_words(value), _in_words(self.settings[name]) if name in self.settings else "not recorded"
            )
            for name, value in figure.published.items()
            if name not in self.settings or self.settings[name] != value
        ]


def _in_words(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_in_words, value))
    return str(value)


_LATER_TERMS = ("of", "kind", "post_hoc", "trained")  # which older records do not have


def _claim(content: Mapping[str, Any]) -> Claim:
    """The claim in a record; any of several errors if it is none."""
    terms = {entry.name: content[entry.name] for entry in dataclasses.fields(Claim) if entry.name not in _LATER_TERMS}
    terms |= {name: content[name] for name in _LATER_TERMS if name in content}
    terms["trained"] = tuple(Trained(**each) for each in terms.get("trained", ()))
    return Claim(**terms | {"statistic": snake(terms["statistic"])})


_UNITS = ("%", "dB", "points")


def _named(name: str, number: Mapping[str, Any]) -> dict[str, Any]:
    """A number with the words and the unit that its name had."""
    words, comma, unit = name.rpartition(", ")
    return {**number, "label": words if comma and unit in _UNITS else name, "unit": unit if unit in _UNITS else ""}
