"""WHAT: several results of one measurement side by side."""

from __future__ import annotations

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
        overlap: Mean squared cosine between the leading subspaces of each pair, ``(result, result)``.
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
        head = f"{self.measurement} ({self.estimator}); overlap of the leading {self.leading} directions, chance {self.chance:.3f}"
        lines = [head]
        for result, row in zip(self.results, self.overlap, strict=True):
            cells = " ".join(f"{value:5.2f}" for value in row)
            lines.append(f"  {result.subject:{width}} effective rank {result.effective_rank!r:40}  {cells}")
        return "\n".join(lines)


def compared(results: Sequence[Result], leading: int = 10) -> list[Comparison]:
    """Group results by measurement and put each group side by side.

    Raises:
        ValueError: If results of one measurement were taken with different estimators or on different input sizes.
    """
    groups: dict[str, list[CovarianceResult]] = {}
    for result in results:
        if isinstance(result, CovarianceResult):
            groups.setdefault(result.measurement, []).append(result)
    tables = []
    for name, members in groups.items():
        estimators = {result.estimator for result in members}
        if len(estimators) > 1:
            listed = "; ".join(f"{result.subject}: {result.estimator}" for result in members)
            raise ValueError(
                f"Compared results must share one estimator, got {listed}. Scan them with the same --estimator."
            )
        if len(members) < 2:
            continue
        count = min([leading, *(len(result.directions) for result in members)])
        overlap = np.array([[common_directions(one, two, count) for two in members] for one in members])
        tables.append(Comparison(name, estimators.pop(), tuple(members), count, overlap, count / members[0].size))
    return tables
