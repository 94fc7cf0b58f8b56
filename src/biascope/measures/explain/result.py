"""WHAT: the changes of a card's rows by the replacement of components, in a table, in pictures and in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from biascope.measures.explain.variants import ADDED, REMOVED
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number
from biascope.results.result import Result
from biascope.results.story import Sentence, Step, Story, model_word

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Said(NamedTuple):
    """A change that a sentence tells, from fresh draws.

    Attributes:
        way: ``"removed"`` or ``"added"``.
        part: The component.
        alternative: What stands in its place.
        quantity: The row of the card, with its article.
        unit: Its unit.
        before: The row without the change.
        after: The row with it.
        low: Lower end of the change.
        high: Upper end of it.
    """

    way: str
    part: str
    alternative: str
    quantity: str
    unit: str
    before: float
    after: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """Changes of the rows of a bias card by the replacement of components.

    Attributes:
        keys: Of the rows.
        labels: The same in words.
        units: The same.
        ways: Of each variant: ``"removed"`` from the network, ``"added"`` to the neutral one; empty for these two themselves.
        parts: The component of each variant.
        alternatives: What stands in its place; what it replaces, where it is added.
        values: Of each variant and row.
        own: The rows of the network.
        own_low: Lower ends of their 95 % intervals.
        own_high: Upper ends.
        changes: The change by each variant, in each row; nan for the first two.
        low: Lower ends of the intervals, which hold all together.
        high: Upper ends.
        said: Changes that fresh draws confirmed.
        kept: What could not be replaced, and why.
        draws: Networks of each variant.
        comparisons: How many changes share the level of 5 %.
    """

    keys: tuple[str, ...]
    labels: tuple[str, ...]
    units: tuple[str, ...]
    ways: tuple[str, ...]
    parts: tuple[str, ...]
    alternatives: tuple[str, ...]
    values: np.ndarray
    own: np.ndarray
    own_low: np.ndarray
    own_high: np.ndarray
    changes: np.ndarray
    low: np.ndarray
    high: np.ndarray
    said: tuple[Said, ...]
    kept: tuple[str, ...]
    draws: int
    comparisons: int

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("values", "changes", "low", "high"), ("variant", "row")),
        **dict.fromkeys(("own", "own_low", "own_high"), ("row",)),
    }

    @classmethod
    @override
    def from_earlier(cls, values: dict[str, Any]) -> dict[str, Any]:
        """JSON has no named tuples."""
        return values | {"said": tuple(Said(*each) for each in values["said"])}

    @override
    def headline(self) -> dict[str, Number]:
        found = {}
        for row, key in enumerate(self.keys):
            if math.isfinite(self.own[row]):
                known = Estimate(*map(float, (self.own[row], self._error(row), self.own_low[row], self.own_high[row])))
                known = known.within(0.0, 1.0) if self.units[row] == SHARE else known
                found[key] = known.named(self.labels[row].removeprefix("the "), self.units[row])
        return found

    def _error(self, row: int) -> float:
        from scipy.special import stdtrit

        groups = min(32, self.draws)
        return float(self.own_high[row] - self.own[row]) / float(stdtrit(groups - 1, 0.975))

    @property
    def clear(self) -> np.ndarray:
        """Which changes differ from zero, all at one level, ``(variant, row)``."""
        return np.asarray((self.low > 0) | (self.high < 0))

    @override
    def sentence(self) -> str:
        return " ".join(text for text, _ in self._sentences())

    def _sentences(self) -> list[Sentence]:
        if not self.said:
            return [
                Sentence(
                    f"No component of {self.subject} is known to cause a preference: no change of {self.comparisons} was confirmed.",
                    REMOVED,
                )
            ]
        return [Sentence(self._told(each), each.way) for each in self.said]

    def _told(self, said: Said) -> str:
        share = said.unit == SHARE
        form = _percent if share else _plain
        unit, points = (" %", " points") if share else ("", "")
        numbers = (
            f"from {form(said.before)} to {form(said.after)}{unit} (95 % CI of the change {form(said.low, True)} to "
            f"{form(said.high, True)}{points})"
        )
        falls = said.after < said.before
        if said.way == REMOVED:
            return (
                f"The {said.part} {'raises' if falls else 'lowers'} {said.quantity}. With {said.alternative} in its place, "
                f"{said.quantity} {'falls' if falls else 'rises'} {numbers}."
            )
        return (
            f"The {said.part} alone {'lowers' if falls else 'raises'} {said.quantity}. Where it is added to the neutral network, "
            f"{said.quantity} {'falls' if falls else 'rises'} {numbers}. Its removal has no clear "
            "effect, so other components may stand in for it."
        )

    @override
    def story(self) -> Story:
        columns = {key: _HEADINGS[key] for key in self.keys}
        first = next((each for each in self.said if each.way == REMOVED), None)
        steps = [Step("See the whole card.", f"biascope scan {model_word(self.subject, '')}")]
        if first is not None:
            steps.insert(0, Step(f"Try {first.alternative} in place of the {first.part}, then compare both networks."))
        shown = {"removed": {"component": "Component", "replaced_by": "Replaced by", **columns}}
        if ADDED in self.ways:
            shown["added"] = {"component": "Component, added to the neutral network", **columns}
        if self.kept:
            shown["kept"] = {"not_replaced": "Not replaced"}
        return Story(
            sentences=self._sentences(),
            meaning=(
                "This is about initial weights and random inputs. It tells to which component the card is sensitive. It does not tell "
                "which network is more accurate. A component whose removal changes nothing may be one of several that do the same: the "
                "second table adds each one alone to a network without any. "
                f"Changes with a star differ from zero. The {self.comparisons} intervals hold together at 95 %."
            ),
            next_steps=steps,
            shown_tables=shown,
            page_title=f"What causes the preferences of {self.subject}?",
            key_picture=REMOVED,
        )

    @override
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {REMOVED: [], ADDED: [], "kept": [], "changes": []}
        for place, way in enumerate(self.ways):
            if not way:
                continue
            about = {"component": self.parts[place], "replaced_by": self.alternatives[place]}
            found[way].append(about | {key: self._cell(place, row) for row, key in enumerate(self.keys)})
            for row, key in enumerate(self.keys):
                numbers = {
                    "before": self.values[1 if way == ADDED else 0, row],
                    "after": self.values[place, row],
                    "change": self.changes[place, row],
                    "low": self.low[place, row],
                    "high": self.high[place, row],
                }
                plain = {name: None if math.isnan(number) else float(number) for name, number in numbers.items()}
                found["changes"].append(
                    {"way": way, **about, "quantity": key, **plain, "clear": bool(self.clear[place, row])}
                )
        found["kept"] = [{"not_replaced": each} for each in self.kept]
        return {key: rows for key, rows in found.items() if rows}

    def _cell(self, place: int, row: int) -> str:
        """A change with its interval, as a table shows it."""
        change, low, high = self.changes[place, row], self.low[place, row], self.high[place, row]
        if math.isnan(change):
            return "–"
        form = _percent if self.units[row] == SHARE else _short
        words = f"{form(change, True)} ({form(low)} to {form(high)})"
        return f"{words} *" if self.clear[place, row] else words

    @override
    def facts(self) -> dict[str, Any]:
        return {"said": [each._asdict() for each in self.said], "not_replaced": list(self.kept)}

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        captions = {REMOVED: "Change by the removal of each component", ADDED: "Change by each component alone"}
        return {
            way: captioned(caption, self._picture(way, dark)) for way, caption in captions.items() if way in self.ways
        }

    def _picture(self, way: str, dark: bool) -> Figure:
        from biascope.results import draw

        places = [place for place, own in enumerate(self.ways) if own == way]
        before = self.values[1 if way == ADDED else 0]
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = self.changes[places] / np.maximum(np.abs(before), np.abs(self.values[places]))
        figure = draw.blank(
            1.6 + 0.27 * len(places),
            "Each number is a change in percent of the larger value, with and without it. Grey numbers may be zero.",
        )
        axes = draw.panel(figure, dark)
        draw.heat(axes, np.where(self.clear[places], relative, 0.0), dark, (-1.0, 1.0), aspect="auto")
        names = [self.parts[place] + (f" → {self.alternatives[place]}" if way == REMOVED else "") for place in places]
        axes.set_yticks(range(len(places)), [draw.plain(name, 60) for name in names], size=7)
        axes.set_xticks(
            range(len(self.keys)),
            [_HEADINGS[key].removesuffix(", %") for key in self.keys],
            rotation=30,
            ha="right",
            size=8,
        )
        axes.tick_params(length=0)
        colours = draw.PALETTE[dark]
        for line, row in np.ndindex(*relative.shape):
            known = np.isfinite(relative[line, row])
            clear = self.clear[places[line], row]
            text = f"{100 * relative[line, row]:+.0f}" if known else "–"
            axes.text(row, line, text, ha="center", va="center", size=7, color=colours.ink if clear else colours.muted)
        return figure


_HEADINGS = {
    "low_frequencies": "low frequencies, %",
    "stripes_along_axes": "stripes along axes, %",
    "slow_changes": "slow changes, %",
    "positions": "positions used, %",
    "effective_rank": "effective rank, %",
    "shift_error": "shift error",
    "complexity": "complexity",
    "favourite_class": "favourite class, %",
}


def _percent(share: float, signed: bool = False) -> str:
    return f"{100 * share:+.1f}" if signed else f"{100 * share:.1f}"


def _short(number: float, signed: bool = False) -> str:
    return f"{number:+.2f}" if signed else f"{number:.2f}"


def _plain(number: float, signed: bool = False) -> str:
    return f"{number:+.3f}" if signed else f"{number:.3f}"
