"""Trainings on labels that depend on eigenvectors of a network's average geometry: what figures 1, 4, 5, 10, 11 and 14 share."""

# m networks · p places in the order of eigenvectors · r repeats · D input size

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.families.family import Family
from biascope.papers.geometry2025.pictures import panels_figure
from biascope.papers.geometry2025.shared import (
    SPREAD,
    error_of_a_difference,
    geometry_of,
    released_family,
    run_of,
)
from biascope.results.estimate import Estimate, over
from biascope.results.finding import Finding
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.training.recipe import Recipe
from biascope.training.sweep import Course, Trial, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPE = (1, 32, 32)
THREE = ("linear", "quadratic", "sinusoidal")
# The loop of the authors' code; the length is that of each figure.
RECIPE = Recipe("sgd", rate=0.1, schedule="linear", momentum=0.9, clip=0.5, batch=128)
ONE_EACH = "Intervals are over independent trainings. Where a point is one training, its spread is unknown."


def basis_of(
    name: str, draws: int, run: Run, *, shape: tuple[int, int, int], scale: float = SPREAD, **settings: Any
) -> Tensor:
    """Eigenvectors of a network's average geometry."""
    family = released_family(name, shape, "gelu", **settings)
    geometry = functools.partial(geometry_of, family, shape, draws, run, scale=scale)
    return eigenvectors(geometry, run, family, shape, of="G", draws=draws, scale=scale)


def eigenvectors(matrix: Callable[[], Tensor], run: Run, family: Family, at: Any, **parts: Any) -> Tensor:
    """Of a symmetric matrix, as rows ``(D, D)`` by falling eigenvalue; kept, since their rounding depends on the number of threads.

    Trainings along them are stored under their content, so that vectors computed afresh would not find them again.
    """

    def work(key: str) -> Outcome:
        vectors: Tensor = torch.linalg.eigh(matrix().double())[1]
        return {"vectors": vectors.T.flip(0).float().cpu().contiguous()}

    trials = Trials("eigenvectors", run.shared, code=(work, geometry_of), at=at, family=family, **parts)
    with trials.alone():
        return next(trials.outcomes(["by falling eigenvalue"], work))["vectors"]


@dataclass(frozen=True)
class Along(Course):
    """Trainings along the rows of a basis: a kind of trial is a labelling, a learning rate and a repeat, a member a row."""

    vectors: Tensor
    train: int
    test: int
    epochs: int
    shape: tuple[int, int, int] = SHAPE

    @property
    def inputs(self) -> Any:
        """The shape of one, unless there are images."""
        return self.shape

    def recipe(self, kind: str) -> Recipe:
        """Of the rate that the kind says."""
        return dataclasses.replace(RECIPE, rate=float(kind.split(", ")[1].split()[1]), epochs=self.epochs)

    def repeat(self, kind: str) -> int:
        """As said in the kind."""
        return int(kind.split(", ")[2].split()[1])


def accuracies(
    family: Family,
    course: Along,
    places: Sequence[int],
    run: Run,
    *,
    labellings: Sequence[str],
    rates: Sequence[float] = (RECIPE.rate,),
    repeats: int = 1,
) -> dict[tuple[str, float, str], np.ndarray]:
    """Accuracies in percent, ``(r, p)`` by labelling, rate and split."""
    trials = {
        (labelling, rate): [
            [Trial(f"{labelling}, rate {rate!r}, repeat {repeat}", place) for place in places]
            for repeat in range(repeats)
        ]
        for labelling in labellings
        for rate in rates
    }
    flat = [trial for table in trials.values() for row in table for trial in row]
    found = trained(family, course, flat, seed=0, run=run_of(family, run, "bfloat16"), label=family.name)
    return {
        (*key, split): np.array([[100 * float(found[each][f"accuracy/{split}"]) for each in row] for row in table])
        for key, table in trials.items()
        for split in course.splits
    }


def difference(
    first: np.ndarray,
    second: np.ndarray,
    shared: int | None = None,
    own: int | None = None,
    within: tuple[float, float] = (-100.0, 100.0),
) -> Estimate:
    """Mean difference of accuracies in percent, one of each per repeat.

    Args:
        first: By repeat.
        second: By repeat.
        shared: Number of test samples, if all repeats have the same.
        own: Number of test samples, if each repeat has its own.
        within: Where the difference can lie.

    Example:
        >>> difference(np.array([70.0, 72.0]), np.array([50.0, 51.9]), own=2000)
        20 ± 1.1 (95 % CI 18.0 to 22.1)
    """
    means = float(first.mean()), float(second.mean())
    sampled = [0.0 if count is None else error_of_a_difference(*means, count) for count in (shared, own)]
    return over(first - second, shared=sampled[0], samples=sampled[1], within=within)


def places_of(count: int, size: int = math.prod(SHAPE)) -> list[int]:
    """Indices from first to last, denser at the beginning."""
    wanted = np.unique(np.round(np.geomspace(1, size, count)).astype(int) - 1)
    return [int(place) for place in wanted]


def drawn_along(finding: Finding, dark: bool, x: str = "eigenvector number", first: int = 1) -> Figure:
    """Accuracy by the number of the eigenvector, or by something else that the arrays begin with, a panel for each subject."""
    panels: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for key, (places, accuracy) in finding.arrays.items():
        subject, _, curve = key.partition(", ")
        panels.setdefault(subject, {})[curve] = (places + first, accuracy)
    return panels_figure(panels, x=x, y="test accuracy, %", dark=dark)
