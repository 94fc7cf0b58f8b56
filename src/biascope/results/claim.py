"""WHAT: what a paper says, and what a measured number says of it: statements, claims, evidence of training, verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from biascope.results.estimate import Estimate, Number
from biascope.results.result import KEY
from biascope.results.wording import snake

EFFORTS = ("smoke", "laptop", "paper")  # from least to most; smoke only shows that everything runs
COMPARATORS = ("about", "at least", "at most")
VERDICTS = ("reproduced", "not reproduced", "inconclusive", "not run")
KINDS = ("paper", "ours", "check")
#: The gate, one rule for all papers: the least share of the way from chance to the best possible value that a network must have
#: gone in training. It is 60 % of training samples with two balanced classes, and 28 % with ten.
LEAST_PROGRESS = 0.2
MOST_WORDS = 8  # of a paper that are quoted to find a place


def is_key(name: str) -> bool:
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
class Place:
    """Where a paper says something.

    Attributes:
        section: Section, figure or table.
        words: The paper's own words or number by which a reader finds it there, at most :data:`MOST_WORDS`.
        shown_in: The figure that it is read off, where the paper does not say it in words.

    Example:
        >>> str(Place("2, figure 3", "test accuracy improves")), str(Place("2", shown_in="figure 3"))
        ('2, figure 3: “test accuracy improves”', '2: read off figure 3')
    """

    section: str = ""
    words: str = ""
    shown_in: str = ""

    def __post_init__(self) -> None:
        if len(self.words.split()) > MOST_WORDS:
            raise ValueError(f"words must be at most {MOST_WORDS} of the paper's, got {self.words!r}. Leave some out.")

    def __str__(self) -> str:
        told = f"“{self.words}”" if self.words else f"read off {self.shown_in}" if self.shown_in else ""
        return ": ".join(filter(None, (self.section, told)))


@dataclass(frozen=True)
class Statement:
    """A testable statement of a paper. The statements of a paper are the denominator of what was reproduced.

    Attributes:
        key: By which claims name it, in snake_case.
        place: Where the paper says it.
        text: What it says, in our words.
        untested: Why no claim tests it by the paper's own bound; empty if one does.
        ruled_out: If it is not reproduced, the experiment that rules our settings out as the reason. Without one, the verdict
            stays *inconclusive*.
        undecided: If some of its claims hold and others do not, what the difference between them is.
    """

    key: str
    place: Place
    text: str
    untested: str = ""
    ruled_out: str = ""
    undecided: str = ""

    def __post_init__(self) -> None:
        if not is_key(self.key):
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
        if not is_key(self.statistic):
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
        published: The paper's number; ``None`` where it gives none.
        tolerance: For ``"about"`` the largest distance from the published number; otherwise the bound itself.
        minimum_effort: The least effort at which a verdict counts.
        of: Key of the paper's :class:`Statement` that it tests; empty if it tests none.
        kind: ``"paper"`` if statement and bound are the paper's, ``"ours"`` if the bound or the statement is ours, ``"check"`` for an
            identity or a test of our own code.
        post_hoc: Whether the claim or its bound was written after its number had been seen.
        trained: Evidence that its networks trained; empty if the claim is not about trained networks.
        place: Where the paper says it.
        reads: What is printed there, in our words, where neither the number nor the place tells it.

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
    published: float | None
    tolerance: float
    minimum_effort: str = "laptop"
    of: str = ""
    kind: str = "ours"
    post_hoc: bool = False
    trained: tuple[Trained, ...] = ()
    place: Place = Place()
    reads: str = ""

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
        if not is_key(self.statistic):
            raise ValueError(
                f"statistic must be a key in snake_case, got {self.statistic!r}. Pass statistic={snake(self.statistic)!r}."
            )
        if self.comparator not in COMPARATORS:
            known = ", ".join(map(repr, COMPARATORS))
            raise ValueError(f"comparator must be one of {known}, got {self.comparator!r}. Pass comparator='about'.")
        if not math.isfinite(self.tolerance):
            raise ValueError(f"tolerance must be a finite number, got {self.tolerance}. Pass a bound or a distance.")
        if self.comparator == "about" and self.published is None:
            raise ValueError(
                "published must be a number for the comparator 'about', got none. Pass 'at least' or 'at most'."
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
        published = float(self.published or 0.0)
        reach = self.tolerance + max(slack, 1e-12 * abs(published))
        return published - reach, published + reach

    @property
    def allowed(self) -> str:
        """The tolerance in words: ``"± 5"``, ``"at least 0.9"``."""
        return f"{'±' if self.comparator == 'about' else self.comparator} {self.tolerance:.10g}"

    @property
    def printed(self) -> str:
        """The published number, otherwise what is printed in our words, otherwise where it is said."""
        return self.reads or str(self.place) if self.published is None else f"{self.published:.10g}"

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
            >>> claim = Claim("The two differ.", "difference", "at least", None, 0.0, trained=(gate,))
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
