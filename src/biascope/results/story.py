"""WHAT a result means: what a report tells of it besides its numbers, pictures and tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from biascope.results.axes import InputAxes
from biascope.results.estimate import Number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from biascope.results.result import Result


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
        shape: Of what is compared, without axes of length 1: results of other shapes are not compared with it.
        number: The number to put side by side.
        noun: What the number is, with its article: "the mean dimension".
        unit: In which it is given, or of how many.
        larger: What a larger number means, as a clause.
        meaning: What a difference between networks means beyond that, and what it does not.
        along_training: The same of a difference between checkpoints of a training.
        overlaid: Pictures of them, for a dark page if the last argument says so; ``None`` if the number says all.
        concluded: What a comparison concludes beside the numbers, shown by these pictures.
    """

    kind: str
    shape: tuple[int, ...]
    number: Number
    noun: str
    unit: str
    larger: str
    meaning: str = ""
    along_training: str = ""
    overlaid: Callable[[Sequence[Any], Sequence[str], bool, bool], dict[str, Figure]] | None = None
    concluded: Callable[[Sequence[Any], Sequence[str], bool], Sequence[Sentence]] | None = None

    @classmethod
    def first_number(cls, result: Result, noun: str, larger: str, *, unit: str, alike: str = "") -> Compared:
        """The first number of a result, which is compared where it was taken on the same inputs with the same readout.

        Args:
            result: With its provenance.
            noun: What the number is, with its article.
            larger: What a larger number means, as a clause.
            unit: In which it is given, or of how many.
            alike: What else must be the same, in words: settings that change the number and not only its interval.
        """
        probe = re.sub(r"^[\d,]+ |\bfresh | per network$", "", str(result.provenance.get("probe", "given inputs")))
        readout = str(result.provenance.get("settings", {}).get("readout", "first"))
        words = [alike, probe, "" if readout == "first" else f"readout {readout}"]
        number = next(iter(result.headline().values()))
        return cls(", ".join(filter(None, words)), (), number, noun, unit, larger)


@dataclass(frozen=True, eq=False)
class Directions:
    """Directions in the space of inputs that a report steps through.

    Attributes:
        vectors: ``(direction, input)``, from most to least variance.
        axes: What one input is.
        values: Variance along each.
        errors: Standard error of each variance.
        mean: Mean variance over all directions.
        resolved: How many of the first the draws resolve; ``None`` where that is not known.
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
