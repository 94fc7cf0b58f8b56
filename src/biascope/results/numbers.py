"""SHOW: numbers and tables of results as a page has them, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from biascope.results.estimate import Estimate, Number, interval_in_words
from biascope.results.result import Result
from biascope.results.story import Badge, Story
from biascope.results.wording import SUPERSCRIPT, significant

MOST_ROWS = 40  # of a table that are shown
NO_SPREAD = "The spread of this number was not measured: it comes from one set of draws, or from one run. Another seed shows it."


@dataclass(frozen=True)
class NumberRow:
    """A number in words.

    Attributes:
        label: What it is.
        value: With its standard error and unit.
        interval: Its interval, ``"exact"`` or ``"unknown"``.
    """

    label: str
    value: str
    interval: str

    @classmethod
    def of(cls, number: Estimate, label: str = "") -> NumberRow:
        """The words of an estimate."""
        return cls(label, *in_words(number))

    @property
    def known(self) -> bool:
        """Whether there is an interval to show."""
        return self.interval not in ("exact", "unknown")

    @property
    def why(self) -> str:
        """Why the interval is not known, if it is not."""
        return NO_SPREAD if self.interval == "unknown" else ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table in words.

    Attributes:
        text: The words.
        badge: The tone of a verdict, if it is one.
        why: Why something about it is not known.
    """

    text: str
    badge: str = ""
    why: str = ""


@dataclass(frozen=True)
class ShownTable:
    """A table of a result as its section shows it.

    Attributes:
        id: On the page.
        key: By which the result knows it.
        headings: Of the columns in which something is known.
        rows: The first rows.
        left_out: How many rows follow.
    """

    id: str
    key: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int

    @property
    def title(self) -> str:
        """Its key in words."""
        return self.key.replace("_", " ").capitalize()


def tables_of(identity: str, result: Result, story: Story) -> tuple[ShownTable, ...]:
    """The tables that a result wants shown."""
    every, tables = result.tables() if story.shown_tables else {}, []
    for key, columns in story.shown_tables.items():
        rows = every.get(key, [])
        # A column in which nothing is known says nothing.
        there = {name: words for name, words in columns.items() if any(row.get(name) is not None for row in rows)}
        cells = tuple(_cells(row, there) for row in rows[:MOST_ROWS])
        tables.append(ShownTable(f"{identity}-{key}", key, tuple(there.values()), cells, max(0, len(rows) - MOST_ROWS)))
    return tuple(item for item in tables if item.rows)


def _cells(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[Cell, ...]:
    """Cells of the columns; a share under a heading in percent is shown in percent."""
    return tuple(_cell(row.get(name), percent=words.endswith(", %")) for name, words in columns.items())


def _cell(value: Any, percent: bool) -> Cell:
    if isinstance(value, Badge):
        return Cell(value.text, badge=value.tone)
    if isinstance(value, Estimate):
        row = NumberRow.of(value)
        return Cell(f"{row.value} ({row.interval})" if row.known else row.value, why=row.why)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell("–", why="Not measured.")
    if isinstance(value, float):
        value = 100 * value if percent else value
        return Cell(f"{value:.3g}".replace("-", "−") if abs(value) < 1000 else f"{value:,.0f}".replace(",", "\u202f"))
    return Cell(said(value))


def said(value: Any) -> str:
    """A plain value in words.

    Example:
        >>> said({"train": 12345, "test": None}), said((True, 0.5))
        ('12\u202f345 train, not set test', 'yes, 0.5')
    """
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}".replace(",", "\u202f")  # a narrow space: commas and points are read differently
    if isinstance(value, dict):
        return ", ".join(f"{said(item)} {key}" for key, item in value.items())
    return ", ".join(map(said, value)) if isinstance(value, list | tuple) else str(value)


def in_words(estimate: Estimate) -> tuple[str, str]:
    """An estimate as value with standard error and unit, and its interval.

    Example:
        >>> in_words(Estimate(209.58, 5.7, 197.96, 221.21))
        ('209.6 ± 5.7', '198.0 to 221.2')
        >>> in_words(Estimate(-0.0001167, 0.0000015, -0.0001197, -0.0001137))
        ('(−1.167 ± 0.015) × 10⁻⁴', '(−1.197 to −1.137) × 10⁻⁴')
        >>> in_words(Estimate(1.0, 0.6, 0.0, math.inf))
        ('1.00 ± 0.60', '0.00 or more')
        >>> in_words(Estimate(12.0)), in_words(Estimate.exact(12.0))
        (('12', 'unknown'), ('12', 'exact'))
        >>> in_words(Estimate(0.5, 0.01, 0.48, 0.52).named("share of them", "share"))
        ('50.0 ± 1.0 %', '48.0 to 52.0')
    """
    shown_as, unit = estimate.printed if isinstance(estimate, Number) else (estimate, "")
    pair, interval = _pair(shown_as)
    return f"{pair} {unit}".rstrip(), interval


def _pair(estimate: Estimate) -> tuple[str, str]:
    value, error = estimate.value, estimate.standard_error
    if estimate.confidence == 1.0 or not (math.isfinite(error) and error > 0):
        alone, ends = significant(value, 4).replace("-", "−"), (estimate.low, estimate.high)
        if estimate.confidence == 1.0:
            return alone, "exact"
        words = (significant(end, 4).replace("-", "−") for end in ends)
        return alone, "unknown" if any(map(math.isnan, ends)) else interval_in_words(*words)  # of repeats that agree
    power = math.floor(math.log10(max(abs(value), error)))
    power = 0 if -4 < power < 6 else power
    digits = min(max(0, 1 - math.floor(math.log10(error / 10**power))), 12)
    shown = [f"{number / 10**power:.{digits}f}" for number in (value, error, estimate.low, estimate.high)]
    shown = [number.replace("-", "−") for number in shown]
    pair, interval = f"{shown[0]} ± {shown[1]}", interval_in_words(*shown[2:])
    if not power:
        return pair, interval
    times = f" × 10{str(power).translate(SUPERSCRIPT)}"
    return f"({pair}){times}", f"({interval}){times}"


def rounded(value: float) -> float | None:
    """Four digits for a page's script; JSON has no nan."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
