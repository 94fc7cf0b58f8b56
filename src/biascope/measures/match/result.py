"""WHAT: how much networks can change along the directions of the data, and a warning for each that hardly can."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from biascope.results.draw import captioned
from biascope.results.estimate import Estimate, Number
from biascope.results.result import Badge, Result, Sentence, Step
from biascope.results.wording import listed, short, snake

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# log₂ of the gain below which a network is warned of: on flipped CIFAR-10 (docs/match.md) the networks that lay lower learned worse.
CLOSED = -2.0
CAVEAT = "Above the limit, the gain does not predict accuracy. To choose a network, train the candidates: biascope match --race."
_WHERE = {
    "data": "the directions in which the data vary",
    "class means": "the directions between class means",
    "Fisher": "the directions that separate the classes",
}


@dataclass(frozen=True, repr=False)
class Match(Result):
    """How much networks can change along the directions of the data, in the order in which the networks were given.

    An overlap is kept as the binary logarithm of a gain: 0 for a network that moves equally freely everywhere, 1 where it
    moves twice as freely along the directions in question as in an average one.

    Attributes:
        names: The architectures.
        kinds: Kinds of directions: ``data`` and, with labels, ``class means`` and ``Fisher``.
        along: The kind by which networks are warned of: ``class means`` with labels, else ``data``.
        overlap: ``(kind, architecture)``.
        errors: Standard errors over initialisations.
        low: Lower ends of 95 % intervals.
        high: Upper ends.
        parameters: Trainable numbers.
        flops: Floating-point operations of one forward pass.
        layers: Layers with weights; 0 where an earlier version did not count them.
        effective_ranks: Effective rank of each geometry: the number of directions over which it is spread.
        draws: Networks drawn of each.
        data: The data set, in words.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    along: str
    overlap: np.ndarray
    errors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    parameters: np.ndarray
    flops: np.ndarray
    layers: np.ndarray
    effective_ranks: np.ndarray
    draws: int
    data: str

    shown_tables: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "architectures": {
            "architecture": "Network",
            "warning": "Verdict",
            "overlap_class_means": "Gain along class means (95 % interval)",
            "overlap_fisher": "Gain along Fisher directions",
            "overlap_data": "Gain along the data",
            "effective_rank": "Effective rank",
            "parameters": "Parameters",
            "flops": "FLOPs of a forward pass",
            "layers": "Layers with weights",
        }
    }
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("overlap", "errors", "low", "high"), ("kind", "architecture")),
        **dict.fromkeys(("parameters", "flops", "layers", "effective_ranks"), ("architecture",)),
    }

    @property
    def subject(self) -> str:  # noqa: D102
        return f"{len(self.names)} architectures on {self.data}"

    @classmethod
    def from_earlier(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The values of a ranking that an earlier version saved: without places, and in the order that was given."""
        if "ranked_by" not in values:
            return values
        kept = {name: value for name, value in values.items() if name not in ("ranked_by", "ahead")}
        names = tuple(kept["names"])
        kept |= {"along": values["ranked_by"], "layers": np.zeros(len(names), dtype=np.int64)}
        given = [each["name"] for each in kept.get("provenance", {}).get("families", [])]
        if sorted(given) != sorted(names):
            return kept
        order = [names.index(name) for name in given]
        kept["names"] = tuple(given)
        for name, axes in cls.axes.items():
            kept[name] = kept[name][:, order] if len(axes) > 1 else kept[name][order]
        return kept

    @property
    def closed(self) -> list[int]:
        """The networks that can hardly change along the data: the whole interval is below the threshold."""
        row = self.kinds.index(self.along)
        return [index for index in range(len(self.names)) if float(self.high[row, index]) < CLOSED]

    @property
    def warnings(self) -> list[str]:
        """Those of the measurement, and one for each network that can hardly change along the data."""
        return [*super().warnings, *map(self._warning, self.closed)]

    def _warning(self, index: int) -> str:
        gain = self.gain(index)
        return (
            f"Before training, {self.names[index]} can hardly change along the directions of {self.data}. Its gain along "
            f"{_WHERE[self.along]} is {_in_words(gain)}. A network without preference has 1. Train it briefly before you choose it."
        )

    def gain(self, index: int, kind: str | None = None) -> Estimate:
        """Sensitivity of an architecture along directions of a kind, relative to an average direction."""
        row = self.kinds.index(kind or self.along)
        value, low, high = (2.0 ** float(array[row, index]) for array in (self.overlap, self.low, self.high))
        return Estimate(value, math.log(2) * value * float(self.errors[row, index]), low, high)

    def headline(self) -> dict[str, Number]:  # noqa: D102
        return {
            f"gain:{name}": self.gain(index).named(f"gain of {name} ({self._size(index)})")
            for index, name in enumerate(self.names)
        }

    def _size(self, index: int) -> str:
        return f"{short(self.parameters[index])} parameters, {short(self.flops[index])} FLOPs"

    def sentence(self) -> str:  # noqa: D102
        where, count, limit = _WHERE[self.along], len(self.names), f"{2.0**CLOSED:g}"
        closed = [self.names[index] for index in self.closed]
        if closed:
            number = f"{len(closed)} of {count} networks" if count > 1 else "the network"
            return (
                f"Before training, {number} can hardly change along the directions of {self.data}: {listed(closed)}. The gain along "
                f"{where} is below the limit of {limit}. A network without preference has 1. {CAVEAT}"
            )
        lowest = int(np.argmin(self.overlap[self.kinds.index(self.along)]))
        gain = _in_words(self.gain(lowest))
        if count > 1:
            words = f"None of the {count} networks has a gain clearly below the limit of {limit} on {self.data}. "
            words += f"The lowest gain along {where} is {gain}, for {self.names[lowest]}. "
        else:
            words = f"The gain of {self.names[0]} is not clearly below the limit of {limit} on {self.data}. "
            words += f"Along {where}, it is {gain}. "
        return f"{words}A network without preference has 1. {CAVEAT}"

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Networks in the order given: the gain along each kind of directions, whether it is a warning; and their size."""
        closed = set(self.closed)
        rows = [
            {
                "architecture": name,
                "closed": index in closed,
                **{f"overlap_{snake(kind)}": self.gain(index, kind).named(f"overlap, {kind}") for kind in self.kinds},
                "effective_rank": float(self.effective_ranks[index]),
                "parameters": int(self.parameters[index]),
                "flops": int(self.flops[index]),
                "layers": int(self.layers[index]) or None,
            }
            for index, name in enumerate(self.names)
        ]
        return {"architectures": rows}

    def facts(self) -> dict[str, Any]:
        """The kind of directions by which networks are warned of, and those that are."""
        return {"along": self.along, "closed": [self.names[index] for index in self.closed]}

    def table(self) -> str:
        """The networks as text, in the order given: gains with a mark for a warning, and their size apart."""
        width = max(map(len, (*self.names, "network")))
        head = f"{'network':{width}}" + "".join(f"{f'gain, {kind}':>22}" for kind in self.kinds)
        lines = [head + f"           |{'parameters':>12}{'FLOPs':>9}{'layers':>8}"]
        closed = set(self.closed)
        for index, name in enumerate(self.names):
            cells = "".join(f"{_in_words(self.gain(index, kind)):>22}" for kind in self.kinds)
            mark = "closed" if index in closed else ""
            layers = f"{self.layers[index]}" if self.layers[index] else "–"
            size = f"{short(self.parameters[index]):>12}{short(self.flops[index]):>9}{layers:>8}"
            lines.append(f"{name:{width}}{cells}{mark:>9}  |{size}")
        return "\n".join(lines)

    def page_title(self) -> str:  # noqa: D102
        who = f"these {len(self.names)} networks" if len(self.names) > 1 else self.names[0]
        return f"Can {who} change along {self.data.partition(',')[0]}?"

    def badge(self) -> Badge:  # noqa: D102
        closed = len(self.closed)
        if not closed:
            return Badge("no warning", "good")
        return Badge(
            f"{closed} of {len(self.names)} can hardly change" if len(self.names) > 1 else "can hardly change", "bad"
        )

    def sentences(self) -> list[Sentence]:  # noqa: D102
        row = self.kinds.index(self.along)
        found = [Sentence(self.sentence().replace(f" {CAVEAT}", ""), "gains")]
        if len(self.names) > 1:
            highest = int(np.argmax(self.overlap[row]))
            found.append(
                Sentence(
                    f"The highest gain along {_WHERE[self.along]} is {_in_words(self.gain(highest))}, for {self.names[highest]}.",
                    "architectures",
                )
            )
        return [*found, Sentence(CAVEAT, "gain_by_size")]

    def meaning(self) -> str:  # noqa: D102
        return (
            "A gain far below 1 means that the untrained network hardly reacts to the directions in which these data differ. Such "
            "networks "
            "learned worse in our tests. A gain near or above 1 is no praise: above the limit of 0.25, the gain did not predict "
            "accuracy. So use it to find networks that are likely to fail, never to choose among the others."
        )

    def next_steps(self) -> list[Step]:  # noqa: D102
        from biascope import networks

        data = self.data.partition(",")[0]
        known = [name for name in self.names if name in networks.names()] or ["MODELS"]
        return [
            Step(
                "Train the candidates briefly, side by side, and rank them.",
                f"biascope match {' '.join(known)} --data {data} --race",
            )
        ]

    def plots(self, dark: bool = False) -> dict[str, Figure]:  # noqa: D102
        return {
            "gains": captioned("How much networks can change along the data", self._gain_figure(dark)),
            "gain_by_size": captioned("Gain against size", self._size_figure(dark)),
        }

    def _gain_figure(self, dark: bool) -> Figure:
        from biascope.results import draw

        reading = (
            "Dots are gains, bars 95 % intervals over initialisations. A network without preference has 1. If the filled dot and its "
            "interval lie left of the dashed line, the network can hardly change along the data. The order does not predict accuracy."
        )
        figure = draw.blank(1.4 + 0.32 * len(self.names), reading)
        axes, colours = draw.panel(figure, dark), draw.PALETTE[dark]
        axes.axvline(1, color=colours.muted, linestyle=":", linewidth=1.2)
        axes.axvline(2.0**CLOSED, color=colours.muted, linestyle="--", linewidth=1.2)
        for row, kind in enumerate(self.kinds):
            gains = [self.gain(index, kind) for index in range(len(self.names))]
            at = np.arange(len(gains)) + 0.2 * (row - (len(self.kinds) - 1) / 2)
            colour = colours.lines[row]
            style: dict[str, Any] = {"markerfacecolor": colour if kind == self.along else "none", "label": kind}
            values = [gain.value for gain in gains]
            axes.errorbar(values, at, xerr=_reach(gains), fmt="o", markersize=4.5, linewidth=1.2, color=colour, **style)
        labels = [f"{draw.plain(name, 24)}  {index + 1}" for index, name in enumerate(self.names)]
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set(xlabel="gain (network without preference: 1)", xscale="log")
        _plain_ticks(axes.xaxis, self)
        draw.legend_below(figure, axes, dark)
        return figure

    def _size_figure(self, dark: bool) -> Figure:
        from biascope.results import draw

        figure = draw.blank(
            3.1, "Numbers identify the networks in the given order. Bars are 95 % intervals over initialisations."
        )
        axes, colours = draw.panel(figure, dark), draw.PALETTE[dark]
        axes.axhline(1, color=colours.muted, linestyle=":", linewidth=1.2)
        axes.axhline(2.0**CLOSED, color=colours.muted, linestyle="--", linewidth=1.2)
        gains = [self.gain(index) for index in range(len(self.names))]
        values = [gain.value for gain in gains]
        axes.errorbar(self.parameters, values, _reach(gains), fmt="o", markersize=4.5, color=colours.lines[0])
        for index, (count, value) in enumerate(zip(self.parameters, values, strict=True)):
            style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "color": colours.ink}
            axes.annotate(str(index + 1), (count, value), xytext=(6, 2), **style)
        axes.set(xlabel="parameters", ylabel=f"gain along {self.along}", xscale="log", yscale="log")
        _plain_ticks(axes.yaxis, self)
        return figure


def _reach(gains: Sequence[Estimate]) -> list[list[float]]:
    """How far the intervals go below and above the values."""
    return [[gain.value - gain.low for gain in gains], [gain.high - gain.value for gain in gains]]


def _plain_ticks(axis: Any, found: Match) -> None:
    """Powers of two as plain numbers, every second one where they are many."""
    low, high = math.floor(min(float(found.low.min()), CLOSED)), math.ceil(max(float(found.high.max()), 0.0))
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
