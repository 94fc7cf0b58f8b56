"""WHAT: what a figure of a paper found. A figure is a function with a plan that tells numbers; they are recorded with its claims."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.results.claim import Claim, is_key
from biascope.results.estimate import Estimate, Number
from biascope.results.plan import Plan, Row
from biascope.results.sheet import sheet
from biascope.results.wording import snake

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from biascope.runs.run import Run


@dataclass(frozen=True)
class Finding:
    """The findings of a figure function.

    Attributes:
        statistics: The numbers that decide claims, and others worth quoting, each under a key that never changes; what was not
            run is left out.
        arrays: All that the picture needs.
        settings: Seeds, sizes, epochs, directions …: whatever tells what was run.
        notes: Remarks to be read beside the verdicts: a deviation from the text, a reason.
    """

    statistics: dict[str, Number]
    arrays: dict[str, np.ndarray]
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, number in self.statistics.items():
            if not getattr(number, "label", ""):  # a plain number, an Estimate or one without a name
                kind = type(number).__name__
                raise ValueError(
                    f"statistic {name!r} must be a Number with a label, got {kind}. Pass Estimate.exact(number).named(label)."
                )
            if not is_key(name):
                raise ValueError(f"statistic {name!r} must have a key in snake_case. Pass {snake(name)!r}.")
        for name, array in self.arrays.items():
            if np.asarray(array) is not array or array.dtype.hasobject:
                raise ValueError(f"array {name!r} must be a NumPy array of plain numbers or text. Convert it first.")
        if isinstance(self.notes, str):
            raise ValueError("notes must be a tuple of sentences, got one string. Pass notes=(sentence,).")

    def arrays_of(self, kind: str) -> dict[str, np.ndarray]:
        """The arrays that are called ``KIND: NAME``, by name."""
        return {
            key.removeprefix(f"{kind}: "): array for key, array in self.arrays.items() if key.startswith(f"{kind}: ")
        }

    def curves_of(self, kind: str, scale: float = 1.0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Those whose first two rows are the places and the values of a curve; the values times the scale.

        Example:
            >>> finding = Finding({}, {"accuracy: LeNet": np.array([[1.0, 2.0], [0.5, 0.75]])}, {})
            >>> finding.curves_of("accuracy", 100)
            {'LeNet': (array([1., 2.]), array([50., 75.]))}
        """
        return {name: (array[0], scale * array[1]) for name, array in self.arrays_of(kind).items()}


@dataclass(frozen=True)
class Tell:
    """Collects what a figure finds.

    Attributes:
        numbers: Numbers told so far, by key.
        arrays: Arrays that the picture needs.
        settings: Settings that the plan cannot know: a precision, the name of the data.
        notes: Remarks to be read beside the verdicts.
        subject: What the next numbers are about: the beginning of their labels and keys.

    Example:
        >>> tell = Tell()
        >>> tell.about("ResNet-18")("mean accuracy", Estimate.exact(50.0), "%")
        >>> tell.numbers["resnet_18_mean_accuracy"].label
        'ResNet-18: mean accuracy'
    """

    numbers: dict[str, Number] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    subject: str = ""

    def about(self, subject: str) -> Tell:
        """The same, for numbers about a subject."""
        return dataclasses.replace(self, subject=subject)

    def __call__(self, label: str, number: Estimate, unit: str = "", *, key: str = "") -> None:
        """Tell a number.

        Args:
            label: What it is, in words.
            number: Its value and interval.
            unit: Its unit.
            key: By which claims and programs name it; by default the subject and the label in snake_case.

        Raises:
            ValueError: If another number has that key.
        """
        words = ": ".join(filter(None, (self.subject, label)))
        key = key or snake(words)
        if key in self.numbers:
            raise ValueError(f"Numbers of a figure must have different keys, got {key!r} twice. Pass key=.")
        self.numbers[key] = number.named(words, unit)

    def array(self, name: str, values: np.ndarray, *, kind: str = "") -> None:
        """Tell an array that the picture needs; :meth:`Finding.arrays_of` gives those of a kind."""
        self.arrays[": ".join(filter(None, (kind, name)))] = values

    def note(self, *sentences: str) -> None:
        """Tell remarks, each of them once."""
        self.notes.extend(each for each in sentences if each not in self.notes)


Work = Callable[[Row, "Run", Tell], None]
Show = Callable[[Finding, bool], "Figure"]


@dataclass(frozen=True)
class FigureOfPaper:
    """A figure or table of a paper: called with an effort and a Run, it returns its Finding.

    Attributes:
        paper: Id of the paper.
        number: As the paper numbers it: ``"6"``, ``"S21-S22"``.
        title: What it shows.
        claims: What the paper reads from it.
        plan: What it runs at each effort, and what the authors ran.
        function: What measures it.
        show: Its picture from a finding, on a light or a dark background.
    """

    paper: str
    number: str
    title: str
    claims: tuple[Claim, ...]
    plan: Plan = field(repr=False, hash=False)
    function: Work = field(repr=False)
    show: Show = field(repr=False)

    def __call__(self, effort: str, run: Run, networks: Sequence[str] = ()) -> Finding:
        """Measure it, for some of its networks alone if they are named."""
        row, tell = self.plan.row(effort, networks), Tell()
        self.function(row, run, tell)
        return Finding(tell.numbers, tell.arrays, {**row.settings, **tell.settings}, tuple(tell.notes))

    @property
    def published(self) -> dict[str, Any]:
        """The authors' settings, under the names that those of a finding have."""
        return Row("published", self.plan.published, self.plan.titles).settings

    @property
    def file_name(self) -> str:
        """The number as part of a file name."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", self.number).strip("-.")


def figure(number: str, *, title: str, plan: Plan, show: Show) -> Callable[[Work], FigureOfPaper]:
    """Make a function of a file in ``papers/`` a figure of that paper; its claims are those of the sheet beside the file.

    Args:
        number: As the paper numbers it.
        title: What it shows.
        plan: What it runs at each effort, and what the authors ran.
        show: Its picture from a finding, ``show(finding, dark)``.

    Example:
        >>> @figure("1", title="A coin", plan=Plan({"tosses": 2}, {"tosses": 100}, {}), show=lambda finding, dark: None)
        ... def figure_1(plan, run, tell):
        ...     tell("share of heads", Estimate.exact(1 / plan["tosses"]))
        >>> figure_1("smoke", None).statistics, figure_1("smoke", None).settings
        ({'share_of_heads': 0.5}, {'tosses': 2})
    """

    def register(function: Work) -> FigureOfPaper:
        # A paper's file or folder is called by its id, which ends in the year.
        parts = function.__module__.split(".")
        paper = next((part for part in parts if re.fullmatch(r"[a-z]\w*\d{4}", part)), parts[-1])
        beside = Path(sys.modules[function.__module__].__file__ or "").parent
        return FigureOfPaper(paper, number, title, sheet(beside).claims.get(number, ()), plan, function, show)

    return register
