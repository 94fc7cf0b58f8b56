"""The samples that an edited encoder classifies correctly, on validation and test samples and on resamples."""

# n samples · G sets of coefficients · B resamples

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from biascope.editing.heads import Head
from biascope.editing.outputs import METHODS, edited_outputs, require_repeatable, sampled
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

SPLITS = ("validation", "test")  # where a coefficient is chosen, and where it is judged


@dataclass(frozen=True)
class EditedEncoder:
    """An encoder to be edited, and the samples that its edits are judged on.

    Attributes:
        encoder: At θ₀.
        heads: By task.
        samples: By task and split.
        run: Folder, device, precision.
    """

    encoder: Network
    heads: Mapping[str, Head]
    samples: Mapping[tuple[str, str], Arrays]
    run: Run

    @classmethod
    def on(
        cls,
        tasks: Mapping[str, Arrays],
        encoder: Network,
        heads: Mapping[str, Head],
        *,
        points: int | None,
        seed: int,
        run: Run,
    ) -> Self:
        """The same with at most this many samples of each split."""
        samples = {
            (task, split): sampled(data, split, points, seed=seed_of(seed, task))
            for task, data in tasks.items()
            for split in SPLITS
        }
        for task in tasks:
            require_repeatable(encoder, samples[task, "test"], name="The encoder", run=run)
        return cls(encoder, heads, samples, run)

    def right(self, way: str, task: str, split: str, vectors: Sequence[TaskVector], rows: Tensor) -> np.ndarray:
        """Which samples of a task are classified correctly, ``(G, n)``, for each row of coefficients."""
        there, linearised = self.samples[task, split], METHODS[way][0]
        found = edited_outputs(
            self.encoder, self.heads[task], vectors, rows, there, linearised=linearised, run=self.run
        )
        return np.asarray((found == there.splits[split][1].cpu()).double().numpy())


def searched_coefficients(count: int) -> Tensor:
    """Coefficients of a search: equidistant from 0 to 1, with four more inside the first step, where long sums have their best.

    Example:
        >>> [round(each, 3) for each in searched_coefficients(3).tolist()]
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0]
    """
    even = torch.linspace(0, 1, count, dtype=torch.float64)
    return torch.cat([even[1] * torch.arange(5, dtype=torch.float64) / 5, even[1:]])


def resampled_accuracies(right: np.ndarray, place: int, resamples: int, seed: int) -> np.ndarray:
    """Accuracies of edits on resampled samples of a task ``(G, B)``, from the correct samples ``(G, n)``."""
    count = right.shape[1]
    counts = resample_counts(count, resamples, seed_of(seed, "resamples", place))
    return np.asarray(right @ counts.T / count)


def resample_counts(samples: int, resamples: int, seed: int) -> np.ndarray:
    """How often each sample is in each resample, ``(B, n)``.

    Example:
        >>> resample_counts(5, 3, seed=0).sum(1)
        array([5, 5, 5])
    """
    return np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), size=resamples)


def require_resamples(resamples: int) -> None:
    """Require enough resamples for an interval.

    Raises:
        ValueError: If they are fewer than two.
    """
    if resamples < 2:
        raise ValueError(f"resamples must be at least 2 for an interval, got {resamples}. Pass resamples=400.")
