"""What the results of editing share: subject, intervals, tables, figures, and joined seeds."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from biascope.editing import pictures
from biascope.results.estimate import SHARE, Estimate, Number, agree, over
from biascope.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRETRAINED = "pre-trained"
Repeated = TypeVar("Repeated", bound="RepeatedResult")


@dataclass(frozen=True, repr=False)
class EditingResult(Result):
    """A result about an edited encoder.

    Attributes:
        encoder: Name of the encoder.
    """

    encoder: str = field(default="encoder", kw_only=True)

    @property
    def subject(self) -> str:
        """The encoder that was measured."""
        return self.encoder


class RepeatedResult(EditingResult):
    """A result whose first axis may run over repeats, with the same tasks and editing methods."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]


class AccuraciesAfterEdits(RepeatedResult):
    """Accuracies on every task at the chosen coefficient, by editing method; arrays are (repeat, method, task)."""

    chosen: np.ndarray
    pretrained: np.ndarray

    #: The kinds of accuracy in :meth:`table`, in the order of the headline.
    shown: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def table(self) -> dict[str, dict[str, Estimate]]:
        """Shares, by editing method and before any edit, of each kind of accuracy that is known there."""

    def headline(self) -> dict[str, Number]:
        """Every kind of accuracy, by editing method and before any edit."""
        table = self.table()
        return {
            f"{kind}_accuracy:{name}": table[name][kind].named(f"{kind} accuracy, {name}", SHARE)
            for kind in self.shown
            for name in (*self.methods, PRETRAINED)
            if kind in table[name]
        }

    def accuracies(self, **columns: np.ndarray) -> list[dict[str, Any]]:
        """A row for every seed, editing method and task, with these columns."""
        shape = next(iter(columns.values())).shape
        # One coefficient for all tasks, or one for each.
        chosen = np.broadcast_to(self.chosen.reshape(*shape[:2], -1), shape)
        return [
            {
                "seed": seed,
                "way": self.methods[way],
                "task": self.tasks[task],
                "coefficient": float(chosen[seed, way, task]),
                "pretrained": float(self.pretrained[seed, task]),
                **{name: float(column[seed, way, task]) for name, column in columns.items()},
            }
            for seed, way, task in np.ndindex(*shape)
        ]

    def mean_chosen(self) -> dict[str, float]:
        """The mean coefficient over seeds and tasks, by editing method."""
        return {name: float(self.chosen[:, way].mean()) for way, name in enumerate(self.methods)}

    def mean_curves(self, curves: np.ndarray) -> dict[str, np.ndarray]:
        """Accuracies (repeat, method, coefficient, task) in percent, averaged over seeds and tasks, by editing method."""
        return {name: 100 * curves[:, way].mean((0, 2)) for way, name in enumerate(self.methods)}

    def task_picture(self, edited: np.ndarray, dark: bool) -> Figure:
        """Accuracies of each task before and after the edit, averaged over seeds."""
        rays = {PRETRAINED: 100 * self.pretrained.mean(0)}
        rays |= {name: 100 * edited[:, way].mean(0) for way, name in enumerate(self.methods)}
        return pictures.radar_figure(rays, self.tasks, dark=dark)


def error_of_samples(draws: np.ndarray) -> float:
    """Standard error of a mean over seeds by test samples, from its value on resampled ones.

    Args:
        draws: The number of each seed ``(seed, resample)``, the same resamples for all seeds.

    Example:
        >>> error_of_samples(np.array([[-1.0, 1.0], [1.0, 3.0]]))
        1.0
    """
    return float(draws.mean(0).std())


def before_any_edit(values: np.ndarray, draws: np.ndarray) -> Estimate:
    """An accuracy of the pre-trained encoder by seed. No seed of fine-tuning changes it, so its error is that of test samples.

    Args:
        values: The accuracy of each seed; they differ only where each seed has an encoder of its own.
        draws: See :func:`error_of_samples`.
    """
    return over(values, shared=error_of_samples(draws), within=(0.0, 1.0), everything=agree(values))


def places_inside(alphas: np.ndarray, box: tuple[float, float]) -> np.ndarray:
    """Which places of a square grid lie in a box.

    Example:
        >>> places_inside(np.array([-1.0, 0.0, 1.0]), (0.0, 1.0)).sum()
        np.int64(4)
    """
    along = (alphas >= box[0] - 1e-9) & (alphas <= box[1] + 1e-9)
    return np.asarray(along[:, None] & along[None, :])


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
