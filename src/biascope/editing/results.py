"""What the results of editing share: subject, intervals, tables, figures, and joined seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from biascope.editing import pictures
from biascope.results.estimate import Estimate, over_repeats
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


def over_seeds_and_samples(values: np.ndarray, draws: np.ndarray) -> Estimate:
    """The mean of a number over seeds. Its error joins that of seeds and that of test samples; of one seed, test samples alone.

    Args:
        values: The number of each seed.
        draws: The number of each seed on resampled test samples ``(seed, resample)``, the same resamples for all seeds.

    Example:
        >>> found = over_seeds_and_samples(np.array([0.0, 2.0]), np.array([[-1.0, 1.0], [1.0, 3.0]]))
        >>> found.value, round(found.standard_error, 3)  # 1 over seeds, 1 over samples
        (1.0, 1.414)
    """
    if len(values) == 1:
        return Estimate.from_draws(values[0], draws[0])
    seeds = over_repeats(values)
    samples = float(draws.mean(0).std())
    reach = math.hypot(seeds.high - seeds.value, 1.96 * samples)
    error = math.hypot(seeds.standard_error, samples)
    return Estimate(seeds.value, error, seeds.value - reach, seeds.value + reach)


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
