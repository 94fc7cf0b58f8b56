"""WHAT: where an untrained network stands among those of the atlas, which were measured in the same way, from committed rows."""

from __future__ import annotations

import csv
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from biascope.results.axes import InputAxes
from biascope.results.estimate import Estimate

LEAST = 10  # networks: fewer are no population
_WIDE = 0.6  # of the population: an interval that covers so much does not place a network
_SIZES = (
    8.0  # a quantity that may be compared across shapes is so where inputs have at most so many times as many numbers
)
_CHANCE = 0.005  # between shares that a favourite class gets by chance: guesses of as many inputs among as many classes
_KINDS = {
    "image": "image networks",
    "sequence": "sequence networks",
    "token": "token models",
    "table": "table networks",
}
#: Settings that fit a network to its inputs and classes, and make it no other network.
_USUAL = ("outputs", "num_classes", "channels", "image_size", "in_chans", "img_size", "inputs")


@dataclass(frozen=True)
class Quantity:
    """A column of the atlas.

    Attributes:
        title: What it is, as the head of a column.
        more: What is said of a network, ``{name}``, with a larger number than others.
        less: The same of a smaller one.
        across: Whether it may be compared across shapes of one kind of input.
        share: Whether it lies between 0 and 1 and is told in percent.
    """

    title: str
    more: str = ""
    less: str = ""
    across: bool = False
    share: bool = False

    @property
    def placed(self) -> bool:
        """Whether a network is placed by it."""
        return bool(self.more)


_DIMENSION = (
    "The mean dimension of {name} is larger than that of",
    "The mean dimension of {name} is smaller than that of",
)

QUANTITIES: Mapping[str, Quantity] = {
    "rank_share": Quantity(
        "directions of the mean gradient, share",
        "{name} spreads over a larger share of directions than",
        "{name} spreads over a smaller share of directions than",
        across=True,
        share=True,
    ),
    "low_frequencies": Quantity(
        "energy at low frequencies",
        "{name} prefers smooth patterns more than",
        "{name} prefers smooth patterns less than",
        across=True,
        share=True,
    ),
    # Draws choose these frequencies, so that few draws give a smaller share: it is told, and places no network.
    "few_frequencies": Quantity("energy on 5 % of all frequencies", share=True),
    "complexity": Quantity("complexity", "{name} is more complex than", "{name} is less complex than", across=True),
    "mean_dimension_of_16": Quantity("mean dimension of 16 places", *_DIMENSION, across=True),
    "mean_dimension_of_64": Quantity("mean dimension of 64 places", *_DIMENSION, across=True),
    "mean_dimension_of_24": Quantity("mean dimension of 24 steps", *_DIMENSION),
    "mean_dimension_of_14": Quantity("mean dimension of 14 features", *_DIMENSION),
    "shift_error": Quantity("shift error", "{name} reacts to shifts more than", "{name} reacts to shifts less than"),
    "favourite_share": Quantity(
        "share of the favourite class",
        "{name} favours one class more than",
        "{name} favours one class less than",
        across=True,
        share=True,
    ),
    "favourite_by_chance": Quantity("the same by chance", share=True),
    "mean_lag": Quantity("mean lag", "{name} looks further back than", "{name} looks less far back than"),
    "mean_frequency": Quantity(
        "mean frequency along time",
        "{name} responds to faster changes than",
        "{name} responds to slower changes than",
        across=True,
        share=True,
    ),
}


@dataclass(frozen=True)
class Peer:
    """A network of the atlas.

    Attributes:
        name: By which it is scanned, with the settings that make it another network.
        library: Where its builder is.
        kind: Of its inputs: ``"image"``, ``"sequence"``, ``"token"`` or ``"table"``.
        group: Family of architectures.
        shape: Of one input.
        parameters: How many it has.
        numbers: Its quantities, with 95 % intervals; without those that could not be measured.
        draws: Of how many networks each was measured.
        versions: Of what made it.
        date: When it was measured.
    """

    name: str
    library: str
    kind: str
    group: str
    shape: tuple[int, ...]
    parameters: int
    numbers: Mapping[str, Estimate]
    draws: Mapping[str, int]
    versions: str
    date: str


COLUMNS = ("name", "library", "kind", "group", "input", "parameters")
_PARTS = ("", "_low", "_high", "_draws")


def columns() -> list[str]:
    """Columns of the file: what a network is; of each quantity value, ends of its interval and draws; how it was made."""
    numbers = [f"{key}{part}" for key in QUANTITIES for part in _PARTS]
    return [*COLUMNS, *numbers, "versions", "date"]


FILE = Path(__file__).with_name("atlas.csv")


@functools.cache
def rows() -> tuple[Peer, ...]:
    """All networks of the atlas; ``benchmarks/atlas.py --write`` writes the file."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(map(_row, csv.DictReader(file)))


def _row(cells: Mapping[str, str]) -> Peer:
    known = [key for key in QUANTITIES if cells[key]]
    return Peer(
        name=cells["name"],
        library=cells["library"],
        kind=cells["kind"],
        group=cells["group"],
        shape=tuple(map(int, cells["input"].split("×"))),
        parameters=int(cells["parameters"]),
        numbers={key: _estimate([cells[f"{key}{part}"] for part in _PARTS[:3]]) for key in known},
        draws={key: int(cells[f"{key}_draws"]) for key in known},
        versions=cells["versions"],
        date=cells["date"],
    )


def _estimate(cells: Sequence[str]) -> Estimate:
    value, low, high = (float(cell) if cell else math.nan for cell in cells)
    return Estimate(value, (high - low) / 3.92, low, high)


@dataclass(frozen=True)
class Placement:
    """A network's number, to be placed among those of the atlas.

    Attributes:
        quantity: Its key in :data:`QUANTITIES`.
        number: The number with its interval.
        axes: Of the inputs.
        by_chance: For the share of a favourite class, what it is by chance.
    """

    quantity: str
    number: Estimate
    axes: InputAxes
    by_chance: float = math.nan


@dataclass(frozen=True)
class Ranked:
    """Which share of a population has a smaller number.

    Attributes:
        below: The share; of its interval, the ends are those at the ends of the network's number.
        networks: How many the population has.
        shapes: Shapes of its inputs, where they differ from the network's own.
    """

    below: Estimate
    networks: int
    shapes: tuple[tuple[int, ...], ...]


def kind_of(axes: InputAxes) -> str:
    """The kind of inputs, as in the atlas; empty of others, such as graphs.

    Example:
        >>> from biascope.results.axes import named_axes
        >>> shapes = (("", (3, 8, 8)), ("time,feature", (9, 2)), ("", (14,)), ("node,feature", (5, 3)))
        >>> [kind_of(InputAxes.of(named_axes(names), shape)) for names, shape in shapes]
        ['image', 'sequence', 'table', '']
    """
    if axes.image:
        return "image" if len(axes.shape) == 3 else ""
    if axes.names == ("feature",):
        return "table"
    if "token" in axes.names:
        return "token"
    return "sequence" if axes.time is not None and "height" not in axes.names else ""


def standing(placement: Placement, name: str, among: Sequence[Peer] | None = None) -> Ranked | None:
    """Where a number stands among those of networks of one kind of input; ``None`` where that says nothing.

    Networks below the number's lower end count as below for certain, those below its upper end as perhaps. A network with the same
    number counts half. The network itself is not among them.

    Args:
        placement: The number.
        name: Of the network.
        among: Networks; by default those of the atlas.

    Example:
        >>> axes = InputAxes.of([], (14,))
        >>> parts = Estimate(1.0), {"complexity": 9}
        >>> known = [Peer(f"net {n}", "", "table", "", (14,), 9, {"complexity": Estimate(n / 20)}, {}, "", "") for n in range(20)]
        >>> found = standing(Placement("complexity", Estimate(0.72, 0.1, 0.52, 0.92), axes), "mine", known)
        >>> found.below.value, found.below.low, found.below.high
        (0.75, 0.55, 0.95)
    """
    key, number = placement.quantity, placement.number
    quantity = QUANTITIES.get(key)
    if quantity is None or not quantity.placed or not math.isfinite(number.low) or not math.isfinite(number.value):
        return None
    others = [
        row
        for row in (rows() if among is None else among)
        if key in row.numbers and identity(row.name) != identity(name) and _comparable(row, placement, quantity)
    ]
    if len(others) < LEAST:
        return None
    values = [row.numbers[key].value for row in others]

    def share(of: float, ties: float) -> float:
        return sum((value < of) + ties * (value == of) for value in values) / len(values)

    below = Estimate(
        share(number.value, 0.5), math.nan, share(number.low, 0.0), share(number.high, 1.0), number.confidence
    )
    if below.high - below.low > _WIDE:
        return None
    shapes = {row.shape for row in others if _varied(row.shape) != _varied(placement.axes.shape)}
    return Ranked(below, len(others), () if placement.quantity == "favourite_share" else tuple(sorted(shapes)))


def _varied(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length > 1)


def _comparable(row: Peer, placement: Placement, quantity: Quantity) -> bool:
    axes = placement.axes
    if row.kind != kind_of(axes):
        return False
    if placement.quantity == "favourite_share":
        chance = row.numbers.get("favourite_by_chance")
        if chance is None or not abs(chance.value - placement.by_chance) < _CHANCE:
            return False
    if quantity.across or row.kind == "token":  # of tokens, widths differ between models
        larger, smaller = sorted((math.prod(row.shape), math.prod(axes.shape)), reverse=True)
        lengths = row.shape[0] == axes.shape[0] if row.kind == "token" and not quantity.across else True
        return larger <= _SIZES * smaller and lengths
    if row.kind == "image":
        return row.shape[-2:] == axes.shape[-2:]
    return row.shape[0] == axes.shape[axes.time or 0]


def sentence(placement: Placement, name: str, among: Sequence[Peer] | None = None) -> str:
    """The same in words; empty where that says nothing.

    Args:
        placement: The number.
        name: Of the network, which is not compared with itself.
        among: Networks; by default those of the atlas.
    """
    if (found := standing(placement, name, among)) is None:
        return ""
    quantity, below = QUANTITIES[placement.quantity], found.below
    more = below.value >= 0.5
    low, high = (below.low, below.high) if more else (1 - below.high, 1 - below.low)
    among_which = f"{found.networks} untrained {_KINDS[kind_of(placement.axes)]} of the atlas"
    shapes = " or ".join("×".join(map(str, shape)) for shape in found.shapes)
    many = len(found.shapes) > 1 and kind_of(placement.axes) == "token"
    where = " (other widths)" if many else f" (theirs measured on {shapes} inputs)" if shapes else ""
    words = (quantity.more if more else quantity.less).format(name=name)
    return f"{words} {_told(low, high)} {among_which}{where}."


def _told(low: float, high: float) -> str:
    """Two shares in whole percent; all and none are only said of all and none.

    Example:
        >>> _told(1.0, 1.0), _told(0.746, 0.853), _told(0.8, 0.8), _told(0.9, 1.0), _told(0.997, 0.998)
        ('all', '75 to 85 % of', '80 % of', '90 to 100 % of', '99 % of')
    """
    if low == 1.0:
        return "all"
    ends = [round(100 * share) if share in (0.0, 1.0) else min(99, max(1, round(100 * share))) for share in (low, high)]
    return f"{ends[0]} % of" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]} % of"


def sentences(placements: Sequence[Placement], name: str) -> Iterator[str]:
    """Those of several numbers that are not empty."""
    yield from filter(None, (sentence(each, name) for each in placements))


def identity(name: str) -> str:
    """A network's name without its library, settings that only fit it to inputs, and how it is written.

    Example:
        >>> identity("ResNet-18") == identity("timm:resnet18 num_classes=10") == identity("resnet18")
        True
        >>> identity("lenet activation=tanh") == identity("lenet")
        False
    """
    words = [word for word in name.rpartition(":")[2].split() if word.partition("=")[0] not in _USUAL]
    own = " ".join(words).partition("(")[0]  # hf-config:bert is named with its sizes
    return re.sub(r"[^a-z0-9=×.]", "", own.casefold())
