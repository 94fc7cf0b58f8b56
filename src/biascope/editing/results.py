"""WHAT the results of editing share: their subject, intervals, and seeds joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from biascope.results.estimate import Estimate, over_repeats
from biascope.results.result import Result

PRETRAINED = "pre-trained"
Repeated = TypeVar("Repeated", bound="RepeatedResult")


class EditingResult(Result):
    """What is known of an encoder that is edited."""

    @property
    def subject(self) -> str:
        """Who was measured."""
        return str(self.provenance.get("settings", {}).get("name", "encoder"))


class RepeatedResult(EditingResult):
    """One whose first axis may run over repeats, of the same tasks and ways to edit."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]


def resampled_interval(value: float, draws: np.ndarray) -> Estimate:
    """A number with the percentile interval of its values on resampled points."""
    low, high = np.quantile(draws, [0.025, 0.975])
    error = float(draws.std())
    return Estimate(float(value), error if error > 1e-12 else 0.0, float(min(low, value)), float(max(high, value)))


def in_percent(values: np.ndarray, draws: np.ndarray) -> Estimate:
    """A share of each repeat, as a percentage: the mean with its interval over repeats; of one, over its resampled points."""
    return over_repeats(100 * values) if len(values) > 1 else resampled_interval(100 * values[0], 100 * draws)


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
