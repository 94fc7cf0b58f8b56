"""WHAT: architectures ranked for a data set, with how sure the order is, and beside what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from biascope.results.estimate import Estimate, Number
from biascope.results.result import Result
from biascope.results.wording import listed, percent, short, snake

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAVEAT = "This is where networks can move at the start: far below 1 is a warning, far above it foretells no accuracy."
SURE = 0.95  # probability from which one architecture counts as ahead of another
_WHERE = {
    "data": "the directions in which the data vary",
    "class means": "the directions between class means",
    "Fisher": "the directions that tell classes apart",
}


@dataclass(frozen=True, repr=False)
class Match(Result):
    """Architectures ranked for a data set, the best first.

    An overlap is kept as the binary logarithm of a gain: 0 for a network that moves equally freely everywhere, 1 where it
    moves twice as freely along the directions in question as in an average one.

    Attributes:
        names: The architectures.
        kinds: Of directions: ``data`` and, with labels, ``class means`` and ``Fisher``.
        ranked_by: The kind that they are ranked by.
        overlap: ``(kind, architecture)``.
        errors: Standard errors over initialisations.
        low: Lower ends of 95 % intervals.
        high: Upper ends.
        ahead: ``(architecture, rival)`` probability that the first has in truth the larger overlap, by initialisations.
        parameters: Trainable numbers.
        flops: Floating-point operations of one forward pass.
        effective_ranks: Of each geometry: over how many directions it is spread.
        draws: Networks drawn of each.
        data: The data set, in words.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    ranked_by: str
    overlap: np.ndarray
    errors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ahead: np.ndarray
    parameters: np.ndarray
    flops: np.ndarray
    effective_ranks: np.ndarray
    draws: int
    data: str

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("overlap", "errors", "low", "high"), ("kind", "architecture")),
        **dict.fromkeys(("parameters", "flops", "effective_ranks"), ("architecture",)),
        "ahead": ("architecture", "rival"),
    }

    @property
    def subject(self) -> str:  # noqa: D102
        return f"{len(self.names)} architectures on {self.data}"

    @property
    def places(self) -> list[int]:
        """For each architecture, 1 + the number of those that are ahead of it with 95 % probability."""
        return [1 + int((self.ahead[:, index] >= SURE).sum()) for index in range(len(self.names))]

    def gain(self, index: int, kind: str | None = None) -> Estimate:
        """How many times as freely as in an average direction an architecture moves along those of a kind."""
        row = self.kinds.index(kind or self.ranked_by)
        value, low, high = (2.0 ** float(array[row, index]) for array in (self.overlap, self.low, self.high))
        return Estimate(value, math.log(2) * value * float(self.errors[row, index]), low, high)

    def headline(self) -> dict[str, Number]:  # noqa: D102
        return {
            f"gain:{self.names[index]}": self.gain(index).named(f"{place}. {self._described(index)}")
            for index, place in enumerate(self.places)
        }

    def _described(self, index: int) -> str:
        cost = f"{short(self.parameters[index])} parameters, {short(self.flops[index])} FLOPs"
        return f"{self.names[index]} ({cost})"

    def sentence(self) -> str:  # noqa: D102
        where, best, last = _WHERE[self.ranked_by], self.gain(0), len(self.names) - 1
        words = f"Before training, {self._described(0)} moves most freely where {self.data} lie"
        if best.low <= 1 <= best.high:
            words = f"Nothing here is known to move more freely where {self.data} lie than a network without preference"
            words += f": the first is {self._described(0)}"
        words += f". Along {where} it moves {_digits(best.value)} times as freely as in an average direction"
        level = [name for name, place in zip(self.names[1:], self.places[1:], strict=True) if place == 1]
        if last and len(level) == last:
            return f"{words}; so many draws cannot tell the {len(self.names)} architectures apart. {CAVEAT}"
        if level:
            words += f"; {listed(level)} cannot be told apart from it"
        if last:
            words += f". Last is {self._described(last)}, with {_digits(self.gain(last).value)} times"
        largest = int(np.argmax(self.parameters))
        if 0 < largest < last:
            words += f". The largest, {self._described(largest)}, comes at {_digits(self.gain(largest).value)} times"
        return f"{words}. {CAVEAT}"

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Architectures in their order: what each costs, and its overlap with each kind of directions."""
        rows = [
            {
                "place": place,
                "architecture": name,
                "parameters": int(self.parameters[index]),
                "flops": int(self.flops[index]),
                "effective_rank": float(self.effective_ranks[index]),
                "chance_next_is_better": self._chance_of_next(index),
                **{f"overlap_{snake(kind)}": self.gain(index, kind).named(f"overlap, {kind}") for kind in self.kinds},
            }
            for index, (place, name) in enumerate(zip(self.places, self.names, strict=True))
        ]
        return {"architectures": rows}

    def facts(self) -> dict[str, Any]:
        """The kind of directions that ranks, and the probability that one architecture is in truth ahead of another."""
        return {"ranked_by": self.ranked_by, "ahead": self.ahead.tolist()}

    def _chance_of_next(self, index: int) -> float | None:
        """Probability that the next architecture of the ranking is in truth better; none of the last."""
        return float(self.ahead[index + 1, index]) if index + 1 < len(self.names) else None

    def table(self) -> str:
        """The ranking as text, with parameters and operations beside it."""
        width = max(map(len, (*self.names, "architecture")))
        head = f"place  {'architecture':{width}}" + "".join(f"{kind:>22}" for kind in self.kinds)
        lines = [head + f"{'or the next':>13}{'parameters':>12}{'FLOPs':>8}"]
        for index, (place, name) in enumerate(zip(self.places, self.names, strict=True)):
            cells = "".join(f"{_in_words(self.gain(index, kind)):>22}" for kind in self.kinds)
            chance = self._chance_of_next(index)
            shown = "" if chance is None else percent(round(chance, 2)) if chance >= 0.005 else "< 1 %"
            counts = f"{short(self.parameters[index]):>12}{short(self.flops[index]):>8}"
            lines.append(f"{place:5}  {name:{width}}{cells}{shown:>13}{counts}")
        return "\n".join(lines)

    def plots(self, dark: bool = False) -> dict[str, Figure]:  # noqa: D102
        return {
            "Which architecture lies where the data lie": self._ranking_figure(dark),
            "The overlap against the size": self._size_figure(dark),
        }

    def _ranking_figure(self, dark: bool) -> Figure:
        from biascope.results import draw

        reading = "Dots are overlaps, bars 95 % intervals over initialisations; a network without preference is at 1. Filled, "
        figure = draw.blank(1.4 + 0.32 * len(self.names), f"{reading}what the ranking goes by, the best on top.")
        axes, colours = draw.panel(figure, dark), draw.PALETTE[dark]
        axes.axvline(1, color=colours.muted, linestyle=":", linewidth=1.2)
        for row, kind in enumerate(self.kinds):
            gains = [self.gain(index, kind) for index in range(len(self.names))]
            at = np.arange(len(gains)) + 0.2 * (row - (len(self.kinds) - 1) / 2)
            colour = colours.lines[row]
            style: dict[str, Any] = {"markerfacecolor": colour if kind == self.ranked_by else "none", "label": kind}
            values = [gain.value for gain in gains]
            axes.errorbar(values, at, xerr=_reach(gains), fmt="o", markersize=4.5, linewidth=1.2, color=colour, **style)
        labels = [f"{draw.plain(name, 24)}  {index + 1}" for index, name in enumerate(self.names)]
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set(xlabel="overlap (isotropic network: 1)", xscale="log")
        _plain_ticks(axes.xaxis, self)
        draw.legend_below(figure, axes, dark)
        return figure

    def _size_figure(self, dark: bool) -> Figure:
        from biascope.results import draw

        figure = draw.blank(3.1, "Numbers are those of the ranking; bars are 95 % intervals over initialisations.")
        axes, colours = draw.panel(figure, dark), draw.PALETTE[dark]
        axes.axhline(1, color=colours.muted, linestyle=":", linewidth=1.2)
        gains = [self.gain(index) for index in range(len(self.names))]
        values = [gain.value for gain in gains]
        axes.errorbar(self.parameters, values, _reach(gains), fmt="o", markersize=4.5, color=colours.lines[0])
        for index, (count, value) in enumerate(zip(self.parameters, values, strict=True)):
            style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "color": colours.ink}
            axes.annotate(str(index + 1), (count, value), xytext=(6, 2), **style)
        axes.set(xlabel="parameters", ylabel=f"overlap with {self.ranked_by}", xscale="log", yscale="log")
        _plain_ticks(axes.yaxis, self)
        return figure


def _reach(gains: Sequence[Estimate]) -> list[list[float]]:
    """How far the intervals go below and above the values."""
    return [[gain.value - gain.low for gain in gains], [gain.high - gain.value for gain in gains]]


def _plain_ticks(axis: Any, found: Match) -> None:
    """Powers of two as plain numbers, every second one where they are many."""
    low, high = math.floor(float(found.low.min())), math.ceil(float(found.high.max()))
    step = max(1, math.ceil((high - low) / 6))
    powers = [power for power in range(low, high + 1) if power % step == 0]
    axis.set_major_locator(_fixed([2.0**power for power in powers]))
    axis.set_minor_locator(_fixed([]))
    axis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 0.1 else f"{value:.2g}")


def _fixed(places: list[float]) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(places)


def _digits(value: float) -> str:
    """Three digits."""
    return f"{value:.{2 - min(2, int(math.log10(max(value, 1))))}f}"


def _in_words(gain: Estimate) -> str:
    return f"{_digits(gain.value)} ({_digits(gain.low)}–{_digits(gain.high)})"
