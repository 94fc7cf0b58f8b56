"""WHAT the results of editing share: their subject, intervals, and seeds joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from biascope.results.estimate import Estimate, over_repeats
from biascope.results.result import Result

PRETRAINED = "pre-trained"
Repeated = TypeVar("Repeated", bound="RepeatedResult")


@dataclass(frozen=True, repr=False)
class EditingResult(Result):
    """What is known of an encoder that is edited.

    Attributes:
        encoder: What it is called.
    """

    encoder: str = field(default="encoder", kw_only=True)

    @property
    def subject(self) -> str:
        """Who was measured."""
        return self.encoder


class RepeatedResult(EditingResult):
    """One whose first axis may run over repeats, of the same tasks and ways to edit."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]


def over_seeds_or_samples(values: np.ndarray, draws: np.ndarray) -> Estimate:
    """The mean of a number over seeds with its interval; of one seed, with the interval over its resampled samples."""
    return over_repeats(values) if len(values) > 1 else Estimate.from_draws(values[0], draws)


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
