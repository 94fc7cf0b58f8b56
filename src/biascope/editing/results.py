"""WHAT: editing encoders by task vectors: how far tasks interfere, and how well tasks are added and forgotten."""

# A coefficients along a side · T tasks · R repeats · B resamples

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from biascope.editing import pictures as pictures
from biascope.results.estimate import Estimate, over_repeats
from biascope.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRETRAINED = "pre-trained"
_ROWS = ("target", "control")
Repeated = TypeVar("Repeated", "TaskAddition", "TaskNegation")


class EditingResult(Result):
    """What is known of an encoder that is edited."""

    @property
    def subject(self) -> str:
        """Who was measured."""
        return str(self.provenance.get("settings", {}).get("name", "encoder"))


def resampled_interval(value: float, draws: np.ndarray) -> Estimate:
    """A number with the percentile interval of its values on resampled points."""
    low, high = np.quantile(draws, [0.025, 0.975])
    error = float(draws.std())
    return Estimate(float(value), error if error > 1e-12 else 0.0, float(min(low, value)), float(max(high, value)))


def in_percent(values: np.ndarray, draws: np.ndarray) -> Estimate:
    """A share of each repeat, as a percentage: the mean with its interval over repeats; of one, over its resampled points."""
    return over_repeats(100 * values) if len(values) > 1 else resampled_interval(100 * values[0], 100 * draws)


@dataclass(frozen=True, repr=False)
class Disentanglement(EditingResult):
    """The disentanglement error of two task vectors over a grid of coefficients; arrays are by way to edit.

    Attributes:
        tasks: The two.
        methods: The ways: non-linear, post-hoc, linearised.
        points: Samples of each task.
        alphas: Coefficients along each side of the grid.
        box: Where coefficients are searched.
        threshold: Error below which a place of the grid counts as disentangled.
        distance: Between outputs.
        terms: The two terms of ξ: what one vector does to the other's task.
        terms_error: Their standard errors over points.
        area: On resampled points, the share of the grid with ξ below the threshold.
        box_error: On resampled points, the mean ξ in the box.
        control: Distance to the pre-trained outputs on samples outside both tasks; ``None`` if there were none.
        control_box: On resampled points, its mean in the box.
    """

    tasks: tuple[str, str]
    methods: tuple[str, ...]
    points: tuple[int, int]
    alphas: np.ndarray
    box: tuple[float, float]
    threshold: float
    distance: str
    terms: np.ndarray
    terms_error: np.ndarray
    area: np.ndarray
    box_error: np.ndarray
    control: np.ndarray | None = None
    control_box: np.ndarray | None = None

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "alphas": ("coefficient",),
        "terms": ("method", "task", "coefficient", "coefficient"),
        "terms_error": ("method", "task", "coefficient", "coefficient"),
        "area": ("method", "resample"),
        "box_error": ("method", "resample"),
        "control": ("method", "coefficient", "coefficient"),
        "control_box": ("method", "resample"),
    }

    @property
    def xi(self) -> np.ndarray:
        """``ξ(α₁, α₂)`` (method, coefficient of the first task, of the second), from 0 to 2."""
        return np.asarray(self.terms.sum(1))

    @property
    def inside(self) -> np.ndarray:
        """Which places of the grid lie in the search box."""
        return places_inside(self.alphas, self.box)

    @property
    def areas(self) -> dict[str, Estimate]:
        """Share of the grid with ξ below the threshold, by way to edit."""
        low = (self.xi < self.threshold).mean((1, 2))
        return {name: resampled_interval(low[i], self.area[i]) for i, name in enumerate(self.methods)}

    @property
    def box_errors(self) -> dict[str, Estimate]:
        """Mean ξ in the search box, by way to edit."""
        mean = self.xi[:, self.inside].mean(1)
        return {name: resampled_interval(mean[i], self.box_error[i]) for i, name in enumerate(self.methods)}

    def headline(self) -> dict[str, Estimate]:  # noqa: D102
        low, high = self.box
        numbers = {f"mean ξ for α in [{low:g}, {high:g}]², {name}": each for name, each in self.box_errors.items()}
        numbers |= {f"share of the grid with ξ < {self.threshold:g}, {name}": each for name, each in self.areas.items()}
        if self.control is not None and self.control_box is not None:
            moved = self.control[:, self.inside].mean(1)
            numbers |= {
                f"change outside both tasks there, {name}": resampled_interval(moved[i], self.control_box[i])
                for i, name in enumerate(self.methods)
            }
        return numbers

    def sentence(self) -> str:  # noqa: D102
        first, second = self.tasks
        shares = [f"{100 * each.value:.0f} % ({name})" for name, each in self.areas.items()]
        order = np.argsort([each.value for each in self.areas.values()])
        # All ways saw the same samples, resampled alike: differences are certain where single areas are not.
        ahead = float((self.area[order[-1]] > self.area[order[0]]).mean())
        verdict = "no way to edit is told from another"
        if ahead >= 0.975:
            verdict = f"{self.methods[order[-1]]} editing keeps them apart better than {self.methods[order[0]]}"
        ending = "" if len(self.methods) == 1 else f": {verdict}"
        return (
            f"Task vectors of {first} and {second} on {self.subject} leave each other's predictions alone (ξ < {self.threshold:g}) on "
            f"{', '.join(shares)} of the coefficients in [{self.alphas[0]:g}, {self.alphas[-1]:g}]²{ending}."
        )

    def plots(self, dark: bool = False) -> dict[str, Figure]:  # noqa: D102
        maps = dict(zip(self.methods, self.xi, strict=True))
        found = {
            "Disentanglement error": pictures.map_figure(
                maps, self.alphas, self.tasks, threshold=self.threshold, box=self.box, dark=dark
            )
        }
        if self.control is not None:
            maps = dict(zip(self.methods, self.control, strict=True))
            unit = "change of outputs outside both tasks"
            found["Samples outside both tasks"] = pictures.map_figure(
                maps, self.alphas, self.tasks, box=self.box, unit=unit, dark=dark
            )
        return found


def places_inside(alphas: np.ndarray, box: tuple[float, float]) -> np.ndarray:
    """Which places of a square grid lie in a box.

    Example:
        >>> places_inside(np.array([-1.0, 0.0, 1.0]), (0.0, 1.0)).sum()
        np.int64(4)
    """
    along = (alphas >= box[0] - 1e-9) & (alphas <= box[1] + 1e-9)
    return np.asarray(along[:, None] & along[None, :])


@dataclass(frozen=True, repr=False)
class TaskAddition(EditingResult):
    """How well one encoder serves all tasks whose vectors were added to it; accuracies are between 0 and 1.

    Attributes:
        tasks: Their names.
        methods: The ways to edit.
        samples: Test samples of each task.
        alphas: Coefficients that were tried.
        chosen: The one with the best normalised accuracy on validation samples.
        curves: Accuracy on validation samples at each coefficient.
        pretrained: Accuracy on test samples without any edit.
        single: With the task's own vector alone, at coefficient 1.
        merged: With the sum of all vectors, at the chosen coefficient.
        draws: On resampled test samples, means over tasks of ``pretrained``, ``single``, ``merged`` and ``merged/single``.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    samples: tuple[int, ...]
    alphas: np.ndarray
    chosen: np.ndarray
    curves: np.ndarray
    pretrained: np.ndarray
    single: np.ndarray
    merged: np.ndarray
    draws: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "alphas": ("coefficient",),
        "chosen": ("repeat", "method"),
        "curves": ("repeat", "method", "coefficient", "task"),
        "pretrained": ("repeat", "task"),
        **dict.fromkeys(("single", "merged"), ("repeat", "method", "task")),
        "draws": ("repeat", "method", "statistic", "resample"),
    }

    @property
    def absolute(self) -> np.ndarray:
        """Mean accuracy of the merged encoder over tasks (repeat, method)."""
        return np.asarray(self.merged.mean(-1))

    @property
    def normalised(self) -> np.ndarray:
        """Mean over tasks of merged over single-task accuracy (repeat, method)."""
        return np.asarray((self.merged / np.maximum(self.single, 1e-12)).mean(-1))

    def table(self) -> dict[str, dict[str, Estimate]]:
        """In percent, by way to edit: absolute and normalised accuracy, and that of single tasks.

        Intervals are over repeats; of one repeat, over its test samples.
        """
        rows = {"single": self.single.mean(-1), "absolute": self.absolute, "normalised": self.normalised}
        table = {PRETRAINED: {"absolute": in_percent(self.pretrained.mean(1), self.draws[0, 0, 0])}}
        for place, name in enumerate(self.methods):
            table[name] = {
                row: in_percent(each[:, place], self.draws[0, place, 1 + number])
                for number, (row, each) in enumerate(rows.items())
            }
        return table

    def headline(self) -> dict[str, Estimate]:  # noqa: D102
        table = self.table()
        order = [*self.methods, PRETRAINED]
        return {
            f"{row} accuracy, {name}, %": table[name][row]
            for row in ("absolute", "normalised", "single")
            for name in order
            if row in table[name]
        }

    def sentence(self) -> str:  # noqa: D102
        table = self.table()
        words = [
            f"{table[name]['absolute'].value:.1f} % {name} ({table[name]['normalised'].value:.1f} % of single tasks)"
            for name in self.methods
        ]
        return (
            f"Adding the vectors of {len(self.tasks)} tasks to {self.subject}, one coefficient chosen on validation samples, gives "
            f"a mean accuracy of {', '.join(words)}, against {table[PRETRAINED]['absolute'].value:.1f} % before."
        )

    def plots(self, dark: bool = False) -> dict[str, Figure]:  # noqa: D102
        chosen = {name: float(self.chosen[:, i].mean()) for i, name in enumerate(self.methods)}
        curves = {name: 100 * self.curves[:, i].mean((0, 2)) for i, name in enumerate(self.methods)}
        rays = {PRETRAINED: 100 * self.pretrained.mean(0)}
        rays |= {name: 100 * self.merged[:, i].mean(0) for i, name in enumerate(self.methods)}
        return {
            "Mean accuracy against the coefficient": pictures.coefficient_figure(
                curves, self.alphas, chosen, y="mean validation accuracy, %", dark=dark
            ),
            "Accuracy of each task after addition": pictures.radar_figure(rays, self.tasks, dark=dark),
        }


@dataclass(frozen=True, repr=False)
class TaskNegation(EditingResult):
    """How far tasks are forgotten while a control task is kept; accuracies are between 0 and 1.

    Attributes:
        tasks: The targets.
        methods: The ways to edit.
        control_task: The task that must be kept.
        kept: Share of the pre-trained control accuracy that must be kept on validation samples.
        alphas: Coefficients that were tried; they are subtracted.
        chosen: The one with the least target accuracy among those that keep the control task.
        target_curves: Target accuracy on validation samples.
        control_curves: Control accuracy on validation samples.
        pretrained: Target accuracy on test samples without any edit.
        pretrained_control: Control accuracy likewise.
        target: Target accuracy on test samples at the chosen coefficient.
        control: Control accuracy likewise.
        draws: On resampled test samples, means over tasks of ``pretrained``, ``target``, ``pretrained_control`` and ``control``.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    control_task: str
    kept: float
    alphas: np.ndarray
    chosen: np.ndarray
    target_curves: np.ndarray
    control_curves: np.ndarray
    pretrained: np.ndarray
    pretrained_control: np.ndarray
    target: np.ndarray
    control: np.ndarray
    draws: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "alphas": ("coefficient",),
        "pretrained": ("repeat", "task"),
        "pretrained_control": ("repeat",),
        **dict.fromkeys(("target_curves", "control_curves"), ("repeat", "method", "coefficient", "task")),
        **dict.fromkeys(("chosen", "target", "control"), ("repeat", "method", "task")),
        "draws": ("repeat", "method", "statistic", "resample"),
    }

    def table(self) -> dict[str, dict[str, Estimate]]:
        """In percent, by way to edit: mean target and control accuracy, with intervals as in :meth:`TaskAddition.table`."""
        start = (self.pretrained.mean(1), self.pretrained_control)
        table = {PRETRAINED: {row: in_percent(start[i], self.draws[0, 0, 2 * i]) for i, row in enumerate(_ROWS)}}
        for place, name in enumerate(self.methods):
            means = (self.target[:, place].mean(-1), self.control[:, place].mean(-1))
            table[name] = {row: in_percent(means[i], self.draws[0, place, 2 * i + 1]) for i, row in enumerate(_ROWS)}
        return table

    def headline(self) -> dict[str, Estimate]:  # noqa: D102
        table = self.table()
        return {f"{row} accuracy, {name}, %": table[name][row] for row in _ROWS for name in (*self.methods, PRETRAINED)}

    def sentence(self) -> str:  # noqa: D102
        table = self.table()
        words = [f"{table[name]['target'].value:.1f} % {name}" for name in self.methods]
        return (
            f"Subtracting task vectors from {self.subject} lowers the mean accuracy on {len(self.tasks)} "
            f"{'task' if len(self.tasks) == 1 else 'tasks'} from {table[PRETRAINED]['target'].value:.1f} % to {', '.join(words)}, "
            f"while at least {100 * self.kept:.0f} % of the validation accuracy on {self.control_task} is kept."
        )

    def plots(self, dark: bool = False) -> dict[str, Figure]:  # noqa: D102
        curves, control = (
            {name: 100 * each[:, i].mean((0, 2)) for i, name in enumerate(self.methods)}
            for each in (self.target_curves, self.control_curves)
        )
        chosen = {name: float(self.chosen[:, i].mean()) for i, name in enumerate(self.methods)}
        rays = {PRETRAINED: 100 * self.pretrained.mean(0)}
        rays |= {name: 100 * self.target[:, i].mean(0) for i, name in enumerate(self.methods)}
        reading = "Validation accuracy as task vectors are subtracted, averaged over targets; dashed, that of the control task. "
        reading += "Rings mark the mean coefficient chosen."
        return {
            "Accuracy against the coefficient": pictures.coefficient_figure(
                curves, self.alphas, chosen, dashed=control, y="mean validation accuracy, %", reading=reading, dark=dark
            ),
            "Accuracy of each target after negation": pictures.radar_figure(rays, self.tasks, dark=dark),
        }


def repeated(results: Sequence[Repeated]) -> Repeated:
    """Results of one measurement on task vectors of several seeds as one, with intervals over the seeds.

    Raises:
        ValueError: If they are not of the same tasks and ways to edit.
    """
    first = results[0] if results else None
    if first is None or any((each.tasks, each.methods) != (first.tasks, first.methods) for each in results):
        raise ValueError("results must be at least one, all of the same tasks and methods. Pass one for each seed.")
    along = [name for name, axes in first.axes.items() if axes[0] == "repeat"]
    joined: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in results]) for name in along}
    return dataclasses.replace(first, **joined)
