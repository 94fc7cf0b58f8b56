"""WHAT a result means: what a report tells of it besides its numbers, pictures and tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from biascope.results.axes import InputAxes
from biascope.results.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Sentence(NamedTuple):
    """A sentence of a report's summary, and what on the page shows it.

    Attributes:
        text: In plain words.
        shown_by: Key of a picture or of a shown table, ``"directions"`` for the viewer, or empty for the numbers.
    """

    text: str
    shown_by: str = ""


class Step(NamedTuple):
    """Something to do after reading a result.

    Attributes:
        words: What, and why.
        command: What to type, if there is a command for it.
    """

    words: str
    command: str = ""


class Badge(NamedTuple):
    """A verdict in a word or two.

    Attributes:
        text: The verdict.
        tone: ``"good"``, ``"fair"``, ``"bad"`` or ``"open"``, which a page gives a colour.
    """

    text: str
    tone: str


@dataclass(frozen=True)
class Compared:
    """How a result is compared with others of its measurement.

    Functions take the results of one measurement, kind and shape, this one among them; a distinct name for each; and whether they are
    checkpoints of a training, in its order.

    Attributes:
        kind: How it was taken, in words: results of other kinds are not compared with it.
        shape: Of what is compared, without axes of length 1: results of other shapes are not laid over it.
        number: The number to put side by side.
        quantities: What such numbers are.
        reading: How to read a table of them.
        meaning: What a difference between networks means, and what it does not.
        along_training: The same of a difference between checkpoints of a training.
        overlaid: Their pictures, for a dark page if the last argument says so.
        concluded: What a comparison concludes, shown by these pictures.
    """

    kind: str
    shape: tuple[int, ...]
    number: Estimate
    quantities: str
    reading: str
    meaning: str
    along_training: str
    overlaid: Callable[[Sequence[Any], Sequence[str], bool, bool], dict[str, Figure]]
    concluded: Callable[[Sequence[Any], Sequence[str], bool], Sequence[Sentence]]

    @property
    def size(self) -> int:
        """How many directions there are."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Directions:
    """Directions in the space of inputs that a report steps through.

    Attributes:
        vectors: ``(direction, input)``, from most to least variance.
        axes: What one input is.
        values: Variance along each.
        errors: Standard error of each variance.
        mean: Mean variance over all directions.
        resolved: How many of the first are told from noise; ``None`` where that is not known.
    """

    vectors: np.ndarray
    axes: InputAxes
    values: np.ndarray
    errors: np.ndarray
    mean: float
    resolved: int | None


@dataclass(frozen=True)
class Story:
    """What a report tells of a result.

    Attributes:
        sentences: What a summary says of it: one to five sentences, the most important first; by default the result's own sentence.
        meaning: What the result means and what it does not, in plain words.
        next_steps: What to do next, with a command to type where there is one.
        badge: The verdict, if it gives one.
        page_title: The title of a report on this result alone; by default the report's own.
        page_kind: What kind of report it makes, in a word or two; by default the title of the measurement.
        shown_tables: Tables to show, by their keys among the result's tables: the columns to show, each with its heading.
        directions: Directions to step through.
        compared: How it is compared with others; ``None`` if it is not.
        lead: What a page on it begins with, in plain words; empty if its sentences are the beginning.
        key_picture: The picture beside that, by its key.
    """

    sentences: Sequence[Sentence] = ()
    meaning: str = ""
    next_steps: Sequence[Step] = ()
    badge: Badge | None = None
    page_title: str = ""
    page_kind: str = ""
    shown_tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    directions: Directions | None = None
    compared: Compared | None = None
    lead: str = ""
    key_picture: str = ""


def model_word(subject: str, command: str = "") -> str:
    """A network as one would type it in a command; ``MODEL`` where that is not known.

    Args:
        subject: Its name.
        command: The command that measured it, which names it first.

    Example:
        >>> model_word("lenet"), model_word("my network"), model_word("mine", "biascope scan models.py:mine --draws 9")
        ('lenet', 'MODEL', 'models.py:mine')
    """
    words = command.split()  # as they were quoted
    if words[:2] in (["biascope", "scan"], ["biascope", "kernel"]) and len(words) > 2 and not words[2].startswith("-"):
        return words[2]
    known = Path(__file__).parents[1] / "networks" / f"{subject}.py"  # a file there is a network of that name
    return subject if re.fullmatch(r"[a-z]\w*", subject) and known.is_file() else "MODEL"
