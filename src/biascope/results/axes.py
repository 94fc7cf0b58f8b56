"""Axes of an input: what its numbers are, in the words that sentences and pictures use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # command lines are read without it
    import numpy as np

#: Names of axes, and what one place and several places along each are called.
NOUNS: dict[str, tuple[str, str]] = {
    "token": ("token", "tokens"),
    "time": ("step", "steps"),
    "feature": ("feature", "features"),
    "node": ("node", "nodes"),
    "channel": ("channel", "channels"),
    "height": ("row", "rows"),
    "width": ("column", "columns"),
    "band": ("frequency band", "frequency bands"),
    "position": ("position", "positions"),
    "coordinate": ("coordinate", "coordinates"),
}
#: Several places along an axis taken together; no input has them as an axis.
_TOGETHER = {"patch": ("patch", "patches"), "block": ("block", "blocks"), "group": ("group", "groups")}
_ORDERED = ("token", "time", "height", "width", "band", "position", "block")  # neighbours along them are alike


@dataclass(frozen=True)
class Axis:
    """An axis of an input.

    Attributes:
        name: One of :data:`NOUNS`, or ``"patch"``, ``"block"`` or ``"group"`` for places taken together; empty where nobody has said.
        labels: Names of its places, such as the columns of a table; empty if they only have numbers.
        read: The one place that the readout looks at, where there is one; counted from the end if negative.
    """

    name: str
    labels: tuple[str, ...] = ()
    read: int | None = None

    @property
    def ordered(self) -> bool:
        """Whether neighbours along it are alike, so that a beginning and an end are something."""
        return self.name in _ORDERED

    def noun(self, count: int) -> str:
        """What so many of its places are called.

        Example:
            >>> Axis("time").noun(5), Axis("token").noun(1), Axis("").noun(2)
            ('steps', 'token', 'places')
        """
        return (NOUNS | _TOGETHER).get(self.name, ("place", "places"))[count != 1]

    def label(self, place: int) -> str:
        """The name of a place, or its number from 1."""
        return self.labels[place] if self.labels else str(place + 1)

    def as_dict(self) -> dict[str, Any]:
        """As a record keeps it."""
        return {"name": self.name, "labels": list(self.labels), "read": self.read}

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> Axis:
        """What :meth:`as_dict` gave."""
        return Axis(record["name"], tuple(record["labels"]), record["read"])


@dataclass(frozen=True)
class InputAxes:
    """The axes of an input of a known shape.

    Attributes:
        axes: From the first to the last.
        shape: Of one input.
    """

    axes: tuple[Axis, ...]
    shape: tuple[int, ...]

    @staticmethod
    def of(axes: Sequence[Axis], shape: tuple[int, ...]) -> InputAxes:
        """These axes, if they are known; else an input of three axes is an image, and one of a single axis is a list of features.

        Example:
            >>> InputAxes.of([], (3, 8, 8)).names, InputAxes.of([], (14,)).names, InputAxes.of([], (5, 4)).names
            (('channel', 'height', 'width'), ('feature',), ('', ''))
        """
        if len(axes) == len(shape):
            return InputAxes(tuple(axes), shape)
        usual = {1: ("feature",), 3: ("channel", "height", "width")}.get(len(shape), ("",) * len(shape))
        return InputAxes(tuple(map(Axis, usual)), shape)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(axis.name for axis in self.axes)

    @property
    def in_words(self) -> str:
        """Its shape, with the names of its axes where they are known: ``"20×3 (time, feature)"``."""
        named = f" ({', '.join(self.names)})" if all(self.names) and len(self.names) > 1 else ""
        return "×".join(map(str, self.shape)) + named

    @property
    def image(self) -> bool:
        """Whether the input is one image, no video: what is said of pixels and of two-dimensional frequencies holds."""
        return self.names[-2:] == ("height", "width") and len(self.names) <= 3

    @property
    def time(self) -> int | None:
        """Which axis is time."""
        return self.names.index("time") if "time" in self.names else None

    @property
    def shifted(self) -> tuple[int, ...]:
        """Along which axes content can be shifted: height and width of an image, else time; no axis of other inputs.

        Example:
            >>> [InputAxes.of(named_axes(names), shape).shifted for names, shape in (("", (3, 8, 8)), ("time,feature", (9, 2)))]
            [(1, 2), (0,)]
        """
        if self.image:
            return len(self.shape) - 2, len(self.shape) - 1
        return () if self.time is None or "height" in self.names else (self.time,)

    @property
    def sequence(self) -> int | None:
        """Which axis is time, or that of tokens."""
        return next((place for place, name in enumerate(self.names) if name in ("time", "token")), None)

    def rows_in(self, outputs: tuple[int, ...]) -> int:
        """How many rows the outputs for one input have, one for each of its steps or tokens; 0 if they have none.

        Example:
            >>> steps = InputAxes.of([Axis("time"), Axis("feature")], (20, 3))
            >>> steps.rows_in((20, 10)), steps.rows_in((10,)), steps.rows_in((10, 20)), steps.rows_in((20, 20))
            (20, 0, 0, 0)
        """
        if len(outputs) != 2 or self.sequence is None or outputs[0] == outputs[1]:
            return 0
        length = self.shape[self.sequence]
        return length if outputs[0] == length > 1 else 0

    @property
    def numbers(self) -> str:
        """What one number of an input is called."""
        known = [NOUNS[name][0] for name in self.names if name]
        return "pixel" if self.image else " × ".join(known) if len(known) == len(self.shape) else "entry"

    @property
    def _turned(self) -> bool:
        """Whether a picture of two axes shows the first from left to right: time runs that way."""
        return self.names[0] == "time"

    def layout(self) -> str:
        """How a picture of directions is laid out: ``"tokens down, channels across"``."""
        nouns = [axis.noun(2) for axis in self.axes]
        down, across = " × ".join(nouns[:-1]) or "weight", nouns[-1]
        if len(nouns) == 2 and self._turned:
            down, across = across, down
        return f"{down} down, {across} across"

    def laid_out(self, vectors: np.ndarray) -> np.ndarray:
        """Directions ``(k, D)`` as pictures ``(k, down, across)`` in that layout."""
        found = vectors.reshape(len(vectors), -1, self.shape[-1])
        return found.swapaxes(1, 2) if len(self.shape) == 2 and self._turned else found

    def varied(self) -> list[int]:
        """Axes along which there is more than one place."""
        return [place for place, length in enumerate(self.shape) if length > 1]

    @property
    def varied_shape(self) -> tuple[int, ...]:
        """The shape without axes of length 1."""
        return tuple(self.shape[place] for place in self.varied())

    def laid_out_as(self, other: InputAxes) -> bool:
        """Whether the entries of two inputs are the same ones in the same order, as far as shapes and names tell."""
        turned = self.names != other.names and sorted(self.names) == sorted(other.names)
        return self.varied_shape == other.varied_shape and not turned

    def along(self, axis: int) -> tuple[int, int, int]:
        """Numbers before, along and after an axis: the shape in which it is the middle."""
        return math.prod(self.shape[:axis]), self.shape[axis], math.prod(self.shape[axis + 1 :])


def named_axes(text: str) -> tuple[Axis, ...]:
    """Axes written as ``time,feature``.

    Raises:
        ValueError: If a name is not known, or is there twice.

    Example:
        >>> [axis.name for axis in named_axes("time,feature")]
        ['time', 'feature']
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in NOUNS]:
        raise ValueError(
            f"Axes must have known names ({', '.join(NOUNS)}), got {unknown[0]!r}. Pass such as time,feature."
        )
    if len(set(names)) < len(names):
        raise ValueError(f"Axes must have different names, got {text!r}. Pass such as time,feature.")
    return tuple(map(Axis, names))
