"""SHOW: directions that a page steps through, as many as it has room for; the page's part for them is in ``templates/parts.html``."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from biascope.results.axes import InputAxes
from biascope.results.numbers import rounded
from biascope.results.story import Directions


@dataclass(frozen=True, eq=False)
class Gallery:
    """Directions and the part of them that the page holds.

    Attributes:
        id: On the page.
        directions: What a result has.
        count: How many of them the page holds.
        pixels: These as 8-bit numbers in base 64.
        scales: What 127 of these numbers stands for, of each direction.
    """

    id: str
    directions: Directions
    count: int = 0
    pixels: str = ""
    scales: tuple[float | None, ...] = ()

    title: ClassVar[str] = "Step through the directions"

    @property
    def size(self) -> int:
        """Numbers of one input."""
        return int(self.directions.vectors.shape[1])

    @property
    def axes(self) -> InputAxes:
        """What an input is."""
        return self.directions.axes

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of a direction as it is drawn."""
        if self.axes.image:
            return self.axes.shape[-2], self.axes.shape[-1]
        height, width = self.axes.laid_out(self.directions.vectors[:1]).shape[1:]
        return height, width

    @property
    def bars(self) -> bool:
        """Whether a direction is drawn as bars: its numbers are in no order."""
        return len(self.axes.shape) == 1 and not self.axes.axes[0].ordered

    @property
    def signal(self) -> bool:
        """Whether a direction is drawn as a curve, or as bars."""
        return min(self.shape) == 1

    @property
    def frequencies(self) -> bool:
        """Whether its frequencies mean something: those of an image, or of one signal along time."""
        return self.axes.image or (self.signal and "time" in self.axes.names)

    @property
    def channels(self) -> int:
        """Channels of a direction."""
        return self.size // math.prod(self.shape)

    @property
    def coloured(self) -> bool:
        """Whether a direction is drawn in colours."""
        return self.axes.image and self.channels == 3

    @property
    def layout(self) -> str:
        """What is drawn, in words."""
        if self.axes.image:
            return "as an input"
        if self.bars:
            return f"weight of each {self.axes.axes[0].noun(1)}, from the first to the last"
        return (
            f"along its {self.axes.axes[0 if self.shape[0] == 1 else -1].noun(2)}"
            if self.signal
            else self.axes.layout()
        )

    @property
    def resolved(self) -> int | None:
        """How many are resolved, where that is known."""
        return self.directions.resolved

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script needs, as plain JSON."""
        given = self.directions
        values = np.where(given.values > 1e-9 * given.values.max(initial=0.0), given.values, 0.0)  # rounding errors
        return {
            "channels": self.channels,
            "height": self.shape[0],
            "width": self.shape[1],
            "resolved": len(given.vectors) if given.resolved is None else given.resolved,
            "bars": self.bars,
            "frequencies": self.frequencies,
            "values": [rounded(value) for value in values],
            "errors": [rounded(error) for error in given.errors],
            "mean": rounded(given.mean),
            "scales": list(self.scales),
            "pixels": self.pixels,
        }


def filled(steppers: Sequence[Gallery], room: int) -> list[Gallery]:
    """The same, each with as many directions as its share of the room holds, as 8-bit numbers with a scale each."""
    found = list(steppers)
    smallest_first = sorted(range(len(found)), key=lambda place: found[place].directions.vectors.nbytes)
    for before, place in enumerate(smallest_first):
        vectors = found[place].directions.vectors
        each = math.ceil(vectors.shape[1] * 4 / 3) + 24  # its scale, too
        count = max(1, min(len(vectors), room // (len(found) - before) // each))
        axes = found[place].axes
        shown = vectors[:count] if axes.image else axes.laid_out(vectors[:count]).reshape(-1, vectors.shape[1])
        # The sign is arbitrary: the largest entry is made positive, as in the pictures.
        largest = np.take_along_axis(shown, np.abs(shown).argmax(1)[:, None], 1)
        whole = np.rint(127 * shown / np.where(largest == 0, 1, largest)).astype(np.int8)
        found[place] = dataclasses.replace(
            found[place],
            count=count,
            pixels=base64.b64encode(whole.tobytes()).decode(),
            scales=tuple(rounded(abs(value)) for value in largest[:, 0]),
        )
        room -= count * each
    return found
