"""SHOW: the cards of several networks side by side: one table, a panel for each row of the card, and what differs."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.results import draw
from biascope.results.differences import separations
from biascope.results.estimate import Number
from biascope.results.numbers import NO_SPREAD, in_words
from biascope.results.registry import title_of
from biascope.results.result import Result
from biascope.results.story import Compared, Story
from biascope.results.wording import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 5  # sentences
_NAMED = 3  # networks that a sentence lists
_ACROSS = 3  # panels in a row of a picture
_LETTERS = 100  # of a line of a printed table


@dataclass(frozen=True)
class CardCell:
    """A number of one network, in words.

    Attributes:
        value: Without its error.
        interval: Its 95 % interval; empty if there is none.
        why: Why it has no interval, or why there is no number.
        start: Where the interval begins on the scale of the column, in percent.
        end: Where it ends there.
        at: Where the number lies there.
    """

    value: str
    interval: str = ""
    why: str = ""
    start: str = ""
    end: str = ""
    at: str = ""

    @classmethod
    def of(cls, number: Number, scale: tuple[float, float]) -> CardCell:
        """The words of a number."""
        value, interval = in_words(number)
        _, unit = number.printed
        if " × 10" not in value:
            value = f"{value.partition(' ± ')[0].removesuffix(unit).strip()} {unit if unit == '%' else ''}".strip()
        known = interval not in ("exact", "unknown")
        start, end, at = (_place(each, scale) for each in (number.low, number.high, number.value))
        why = NO_SPREAD if interval == "unknown" else ""
        return cls(value, interval if known else "", why, start or at, end or at, at)

    @property
    def text(self) -> str:
        """Both in one line."""
        return f"{self.value} ({self.interval})" if self.interval else self.value


def _place(value: float, scale: tuple[float, float]) -> str:
    if math.isnan(value):
        return ""
    share = (value - scale[0]) / (scale[1] - scale[0])
    return f"{100 * min(max(share, 0.0), 1.0):.1f}"


@dataclass(frozen=True)
class Column:
    """One row of the card, of several networks that were measured in one way.

    Attributes:
        measurement: By its name.
        name: Of the measurement, as a title.
        apart: What is special to the way of measuring, where there are several.
        compared: What one of the networks says of it.
        numbers: Of each network; of two of one network, the first.
        detail: Whether it is only a detail beside another column, of which nothing is concluded.
    """

    measurement: str
    name: str
    apart: str
    compared: Compared
    numbers: Mapping[str, Number]
    detail: bool

    @property
    def title(self) -> str:
        """The heading of the column."""
        return self.name + self.apart

    @property
    def noun(self) -> str:
        """What its numbers are, in a sentence."""
        return self.compared.noun + self.apart

    @property
    def pairs(self) -> int:
        """How many pairs of networks have it."""
        return math.comb(len(self.numbers), 2)

    @property
    def scale(self) -> tuple[float, float]:
        """Where its bars begin and end."""
        ends = [end for number in self.numbers.values() for end in (number.value, number.low, number.high)]
        finite = [end for end in ends if math.isfinite(end)]
        low, high = min(finite), max(finite)
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    @property
    def reading(self) -> str:
        """What its numbers are."""
        return f"{self.compared.noun.removeprefix('the ')}, {self.compared.unit}"

    def shown(self, subject: str, measured: bool) -> CardCell:
        """The number of a network in words, or why it has none.

        Args:
            subject: The network.
            measured: Whether it was measured in another way.
        """
        if subject in self.numbers:
            return CardCell.of(self.numbers[subject], self.scale)
        if measured:
            return CardCell("–", why="Measured in another way, which is another column.")
        return CardCell("–", why="No result: the row does not suit this network, or its scan left it out.")


@dataclass(frozen=True)
class CardDifference:
    """A difference in one row of the card.

    Attributes:
        text: In a sentence.
        separation: In half widths of the interval of the difference.
    """

    text: str
    separation: float


@dataclass(frozen=True)
class Cards:
    """Several networks, or checkpoints of one, in the rows of the card that they have.

    Attributes:
        subjects: Their names, in the order of the table.
        columns: Rows of the card.
        trained: Whether they are checkpoints of a training, in its order.
        seeds: Of each network, those of its draws.
    """

    subjects: tuple[str, ...]
    columns: tuple[Column, ...]
    trained: bool
    seeds: Mapping[str, frozenset[Any]]

    @classmethod
    def of(cls, results: Sequence[Result], stories: Sequence[Story], trained: bool = False) -> Cards:
        """The cards of networks; they are sorted by the first row, checkpoints as they come.

        Args:
            results: Of several subjects.
            stories: What is to be told of each.
            trained: Whether they are checkpoints of a training, in its order.
        """
        groups: dict[tuple[str, str, tuple[int, ...]], list[tuple[Result, Compared]]] = {}
        for result, story in zip(results, stories, strict=True):
            if (own := story.compared) is not None:
                groups.setdefault((result.measurement, own.kind, own.shape), []).append((result, own))
        columns = []
        for (name, kind, _), members in groups.items():
            others = [key[1] for key in groups if key[0] == name]
            first, compared = members[0]
            numbers: dict[str, Number] = {}
            for result, own in members:
                numbers.setdefault(result.subject, own.number)
            apart = f" ({_own_words(kind, others)})" if len(others) > 1 else ""
            columns.append(Column(name, title_of(first), apart, compared, numbers, bool(first.why_detail(results))))
        order = list(dict.fromkeys(column.measurement for column in columns))
        columns.sort(key=lambda each: (each.detail, each.compared.overlaid is None, order.index(each.measurement)))
        subjects = list(dict.fromkeys(subject for column in columns for subject in column.numbers))
        subjects = [each for each in dict.fromkeys(result.subject for result in results) if each in subjects]
        if columns and not trained:
            known = columns[0].numbers
            subjects.sort(key=lambda subject: known[subject].value if subject in known else math.inf)
        seeds = {
            subject: frozenset(
                result.provenance.get("settings", {}).get("seed") for result in results if result.subject == subject
            )
            - {None}
            for subject in subjects
        }
        return cls(tuple(subjects), tuple(columns), trained, seeds)

    @property
    def told(self) -> list[Column]:
        """Rows of which something is concluded: those of several networks that are no details."""
        return [column for column in self.columns if column.pairs and not column.detail]

    @property
    def comparisons(self) -> int:
        """How many have the level of 5 % together: all pairs in all rows; along a training, the ends of each row."""
        return sum(1 if self.trained else column.pairs for column in self.told)

    def cells(self, subject: str) -> list[CardCell]:
        """The row of a network in the table."""
        known = {column.measurement for column in self.columns if subject in column.numbers}
        return [column.shown(subject, column.measurement in known) for column in self.columns]

    def level(self) -> str:
        """What the sentences promise; empty where nothing is compared."""
        if not self.comparisons:
            return ""
        what = "changes from the first to the last checkpoint" if self.trained else "pairs of networks in all columns"
        each = f"{self.comparisons:,} comparisons" if self.comparisons > 1 else "one comparison"
        return (
            f"Sentences name only differences that exceed their 95 % intervals. The level holds for all {what} together: {each}, "
            "Bonferroni."
        )

    def warnings(self) -> list[str]:
        """What a reader must know of the differences."""
        both = itertools.combinations(self.subjects, 2)
        shared = [pair for pair in both if self.seeds[pair[0]] & self.seeds[pair[1]]]
        if self.trained or not shared or not self.comparisons:
            return []
        return [
            f"{listed(shared[0])}{' and others' if len(shared) > 1 else ''} were drawn with the same seed and share random inputs. "
            "Intervals of differences take draws as independent, so they may be too wide or too narrow. Pass the networks "
            "themselves to compare: each is then drawn with its own seed."
        ]

    def sentences(self, names: Mapping[str, str] | None = None) -> list[str]:
        """Differences that exceed their intervals, the clearest first, and in which rows there are none.

        Args:
            names: How to call each network; by default as it is.
        """
        called = {subject: (names or {}).get(subject, subject) for subject in self.subjects}
        found, alike = list[CardDifference](), list[str]()
        for column in self.told:
            difference = (self._changed if self.trained else self._differing)(column, called)
            if difference is None:
                alike.append(column.noun)
            else:
                found.append(difference)
        found.sort(key=lambda difference: -difference.separation)
        said = [difference.text for difference in found[: _MOST - bool(alike)]]
        if not alike or self.trained:
            return said
        if not found:
            return ["No difference between these networks exceeds its interval."]
        return [*said, f"No difference exceeds its interval in {listed(alike)}."]

    def _changed(self, column: Column, called: Mapping[str, str]) -> CardDifference | None:
        """How a number changes from the first to the last checkpoint that have it; that of a subspace tells it itself."""
        subjects = [subject for subject in self.subjects if subject in column.numbers]
        first, last = subjects[0], subjects[-1]
        apart = separations([column.numbers[first], column.numbers[last]], self.comparisons)[1, 0]
        if not abs(apart) > 1 or column.compared.concluded is not None:
            return None
        way = "rises" if apart > 0 else "falls"
        start, end = (self._number(column, [each]) for each in (first, last))
        noun = column.noun
        text = f"From {called[first]} to {called[last]}, {noun} {way} from {start} to {end}."
        return CardDifference(text, float(abs(apart)))

    def _differing(self, column: Column, called: Mapping[str, str]) -> CardDifference | None:
        """The clearest statement on a row: the networks of largest number against all others, else the two that differ most."""
        subjects = sorted(column.numbers, key=lambda subject: -column.numbers[subject].value)
        numbers = [column.numbers[subject] for subject in subjects]
        apart = separations(numbers, self.comparisons)
        if not (apart > 1).any():
            return None
        cuts = [float(apart[:cut, cut:].min()) for cut in range(1, len(subjects))]
        if max(cuts) > 1:
            cut = int(np.argmax(cuts)) + 1
            return CardDifference(self._said(column, subjects[:cut], subjects[cut:], called), max(cuts))
        above, below = np.unravel_index(int(apart.argmax()), apart.shape)
        text = self._said(column, [subjects[above]], [subjects[below]], called)
        pairs = f"{int((apart > 1).sum())} of {column.pairs} pairs differ."
        return CardDifference(f"{text} {pairs}", float(apart[above, below]))

    def _said(self, column: Column, more: Sequence[str], fewer: Sequence[str], called: Mapping[str, str]) -> str:
        noun, whole = column.noun, len(more) + len(fewer) == len(column.numbers)
        one, two = (
            f"{_named([called[each] for each in part], whole and len(part) > len(other))} ({self._number(column, part)})"
            for part, other in ((more, fewer), (fewer, more))
        )
        if len(more) > len(fewer):  # the few are told of
            return f"{noun[0].upper()}{noun[1:]} is smaller for {two} than for {one}; a larger one means that {column.compared.larger}."
        return f"{noun[0].upper()}{noun[1:]} is larger for {one} than for {two}: {column.compared.larger}."

    def _number(self, column: Column, subjects: Sequence[str]) -> str:
        """The numbers of some networks: one with its interval, of several the least and the largest."""
        ordered = sorted(subjects, key=lambda subject: column.numbers[subject].value)
        least, largest = (CardCell.of(column.numbers[subject], column.scale) for subject in (ordered[0], ordered[-1]))
        if len(subjects) == 1:
            return f"{least.value}, 95 % CI {least.interval}" if least.interval else least.value
        return least.value if least.value == largest.value else f"{least.value} to {largest.value}"

    def figure(self, dark: bool, names: Mapping[str, str] | None = None) -> Figure:
        """One panel for each row of the card, with a dot and an interval for each network."""
        shown = [column for column in self.columns if column.pairs]
        across = min(_ACROSS, len(shown))
        down = math.ceil(len(shown) / across)
        count, colours = len(self.subjects), draw.PALETTE[dark]
        small = 9 if count <= 10 else 7.5
        figure = draw.blank(
            down * (0.75 + count * (0.21 if count <= 10 else 0.15)),
            "Dots are numbers, bars their own 95 % intervals. Networks are in the order of the table.",
        )
        grid, first = figure.add_gridspec(down, across), None
        for index, column in enumerate(shown):
            axes = draw.panel(figure, dark, grid[divmod(index, across)], sharey=first)
            first = first or axes
            self._drawn(axes, column, colours.lines[0])
            axes.set_title("\n".join(textwrap.wrap(column.title, 22)), fontsize=9, color=colours.ink, loc="left")
            axes.tick_params(axis="x", labelsize=8)
            axes.tick_params(axis="y", length=0, labelsize=small, labelleft=index % across == 0)
            axes.grid(axis="y", color=colours.muted, alpha=0.25, linewidth=0.6)
        if first is not None:
            called = [(names or {}).get(subject, subject) for subject in self.subjects]
            first.set_yticks(range(count), [draw.plain(name, 16) for name in called])
            first.set_ylim(count - 0.4, -0.6)
        return draw.captioned("The rows of the card", figure)

    def _drawn(self, axes: Any, column: Column, colour: str) -> None:
        low, high = column.scale
        room = 0.08 * (high - low)
        for place, subject in enumerate(self.subjects):
            if (number := column.numbers.get(subject)) is None:
                continue
            shown, _ = number.printed
            ends = [end if math.isfinite(end) else shown.value for end in (shown.low, shown.high)]
            axes.plot(ends, [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
            axes.plot([shown.value], [place], "o", color=colour, markersize=4)
        percent = 100.0 if next(iter(column.numbers.values())).printed[1] == "%" else 1.0
        axes.set_xlim(percent * (low - room), percent * (high + room))
        axes.locator_params(axis="x", nbins=3)

    def as_dict(self) -> dict[str, Any]:
        """The table, for JSON."""
        return {
            "columns": [
                {
                    "measurement": column.measurement,
                    "title": column.title,
                    "quantity": column.compared.noun.removeprefix("the "),
                    "unit": column.compared.unit,
                    "measured": column.compared.kind,
                    "larger": column.compared.larger,
                }
                for column in self.columns
            ],
            "rows": [
                {"subject": subject, "numbers": [column.numbers.get(subject) for column in self.columns]}
                for subject in self.subjects
            ],
            "comparisons": self.comparisons,
            "sentences": self.sentences(),
            "warnings": self.warnings(),
        }

    def lines(self) -> Iterator[str]:
        """The table as text, in as many parts below one another as its columns need."""
        name = max(map(len, ("network", *self.subjects)))
        rows = [[cell.text for cell in self.cells(subject)] for subject in self.subjects]
        heads = [textwrap.wrap(column.title, 24) + textwrap.wrap(column.reading, 24) for column in self.columns]
        widths = [max(map(len, [*head, *texts])) for head, *texts in zip(heads, *rows, strict=True)]
        for part in _parts(widths, _LETTERS - name):
            tall = max(len(heads[place]) for place in part)
            for line in range(tall):
                words = [(heads[place] + tall * [""])[line].ljust(widths[place]) for place in part]
                yield "  ".join(["".ljust(name), *words]).rstrip()
            for subject, texts in zip(self.subjects, rows, strict=True):
                yield "  ".join([subject.ljust(name), *(texts[place].ljust(widths[place]) for place in part)]).rstrip()
            yield ""


def _own_words(kind: str, others: Sequence[str]) -> str:
    """What is said of one way of measuring and not of all others.

    Example:
        >>> _own_words("50 inputs, 2 classes", ["50 inputs, 2 classes", "50 inputs, 10 classes"])
        '2 classes'
    """
    words = kind.split(", ")
    own = [part for part in words if not all(part in other.split(", ") for other in others)]
    return ", ".join(own or words)


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns that stand beside one another, in order."""
    parts, used = list[list[int]](), 0
    for place, width in enumerate(widths):
        if not parts or used + width + 2 > room:
            parts.append([])
            used = 0
        parts[-1].append(place)
        used += width + 2
    return parts


def _named(names: Sequence[str], rest: bool) -> str:
    """Networks in a sentence; of many, only how many they are."""
    if rest and len(names) > 1:
        return f"all {len(names)} others" if len(names) > 2 else "both others"
    if len(names) > _NAMED:
        return f"{listed([*names[: _NAMED - 1], f'{len(names) - _NAMED + 1} more'])}"
    return listed(names)
