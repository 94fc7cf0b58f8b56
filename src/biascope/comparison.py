"""WHAT: several results of one measurement side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from biascope.covariance_result import CovarianceResult, common_directions
from biascope.result import Result


@dataclass(frozen=True, repr=False)
class Comparison:
    """Results of one measurement that may be compared: same estimator, same input size.

    Attributes:
        measurement: Its name.
        estimator: How gradients were taken, the same for all.
        results: In the order given.
        leading: Directions in the compared subspaces.
        overlap: Mean squared cosine between the leading subspaces of each pair, ``(result, result)``; on the diagonal
            what the two halves of a result's own draws share, which is the most that its row can be expected to reach.
        chance: What two random subspaces would have.
    """

    measurement: str
    estimator: str
    results: tuple[CovarianceResult, ...]
    leading: int
    overlap: np.ndarray
    chance: float

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {
            "measurement": self.measurement,
            "estimator": self.estimator,
            "subjects": [result.subject for result in self.results],
            "effective rank": [result.effective_rank.as_dict() for result in self.results],
            "leading": self.leading,
            "overlap": self.overlap.tolist(),
            "chance": self.chance,
        }

    def __repr__(self) -> str:
        width = max(len(result.subject) for result in self.results) + 2
        head = (
            f"{self.measurement} ({self.estimator}); overlap of the leading {self.leading} directions "
            f"(chance {self.chance:.3f}; on the diagonal a network's own two halves)"
        )
        lines = [head]
        for result, row in zip(self.results, self.overlap, strict=True):
            cells = " ".join(f"{value:5.2f}" for value in row)
            lines.append(f"  {result.subject:{width}} effective rank {result.effective_rank!r:40}  {cells}")
        return "\n".join(lines)


def side_by_side(results: Sequence[CovarianceResult], leading: int = 10) -> Comparison:
    """Results of one measurement side by side.

    Raises:
        ValueError: If they were taken with different estimators or on different input sizes, or ``leading`` is below 1.
    """
    if leading < 1:
        raise ValueError(f"leading must be at least 1 direction, got {leading}. Pass leading=10.")
    estimators = {result.estimator for result in results}
    if len(estimators) > 1:
        listed = "; ".join(f"{result.subject}: {result.estimator}" for result in results)
        raise ValueError(
            f"Compared results must share one estimator, got {listed}. Scan them with the same --estimator."
        )
    sizes = [
        int(k) for k in results[0].similarity_sizes if k <= leading and all(k <= len(r.directions) for r in results)
    ]
    count = max(sizes, default=1)
    overlap = np.array([[common_directions(one, two, count) for two in results] for one in results])
    halves = [dict(zip(result.similarity_sizes.tolist(), result.similarity, strict=True)) for result in results]
    np.fill_diagonal(overlap, [half.get(count, math.nan) for half in halves])
    return Comparison(results[0].measurement, estimators.pop(), tuple(results), count, overlap, count / results[0].size)


def compared(results: Sequence[Result], leading: int = 10) -> list[Comparison]:
    """Group results by measurement and put each group of two or more side by side.

    Raises:
        ValueError: If results of one measurement were taken with different estimators or on different input sizes.
    """
    groups: dict[str, list[CovarianceResult]] = {}
    for result in results:
        if isinstance(result, CovarianceResult):
            groups.setdefault(result.measurement, []).append(result)
    return [side_by_side(group, leading) for group in groups.values() if len(group) > 1]
