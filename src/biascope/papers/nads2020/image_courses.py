"""What networks learn from CIFAR-10: its images as they are, poisoned, flipped, or beside a channel that tells the class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from biascope import data
from biascope.papers.images import held
from biascope.runs.run import Run
from biascope.tasks.images import SideBySide, flipped, poisoned
from biascope.tasks.task import Arrays, Task, along_directions, master_dtype
from biascope.training.recipe import Recipe
from biascope.training.sweep import Course

# Mean and standard deviation of CIFAR-10 by channel, as in the released code, which standardises images before the network.
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
CARRIED = 0.05  # ε of the carriers that poison images


def cifar(train: int, test: int, run: Run) -> Arrays:
    """So many images of CIFAR-10, or as many as the data folder has."""
    name, root = held("cifar10", run)
    whole = data.load(name, root=root)
    sizes = {split: min(count, len(whole.splits[split][0])) for split, count in (("train", train), ("test", test))}
    part = whole.subset(sizes, seed=0)
    return Arrays({split: (torch.from_numpy(x), _classes(y)) for split, (x, y) in part.splits.items()})


def _classes(labels: np.ndarray | None) -> torch.Tensor:
    assert labels is not None
    return torch.from_numpy(labels.astype(np.int64))


@dataclass(frozen=True, repr=False)
class Standardised(Task):
    """Images with each channel minus its mean, divided by its standard deviation.

    Attributes:
        pixels: Images from 0 to 1, with what was done to them in pixel space.
        mean: ``(K, 1, 1)``, to subtract.
        deviation: ``(K, 1, 1)``, to divide by.
    """

    pixels: Task
    mean: torch.Tensor
    deviation: torch.Tensor

    @property
    def members(self) -> int | None:
        """Number of members, if the images have members."""
        return self.pixels.members

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split."""
        return self.pixels.sizes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.pixels.shape

    @override
    def batch(self, split: str, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.pixels.batch(split, indices)
        return (x - self.mean) / self.deviation, y

    @override
    def select(self, members: Sequence[int]) -> Standardised:
        return Standardised(self.pixels.select(members), self.mean, self.deviation)


def standardised(pixels: Task, run: Run) -> Standardised:
    """Images of CIFAR-10 standardised as in the released code."""
    mean, deviation = (
        torch.tensor(numbers, device=run.torch_device, dtype=master_dtype(run))[:, None, None]
        for numbers in (MEAN, DEVIATION)
    )
    return Standardised(pixels, mean, deviation)


@dataclass(frozen=True)
class Images(Course):
    """Trainings on images as they are; a kind of trial is a variant of the data and a repeat."""

    images: Arrays
    how: Recipe

    @property
    def inputs(self) -> Any:
        """The images."""
        return self.images

    def recipe(self, kind: str) -> Recipe:
        """The same for all."""
        return self.how

    def repeat(self, kind: str) -> int:
        """As said in the kind."""
        return int(kind.rpartition(" ")[2])

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """The images, standardised."""
        return standardised(self.images.to(run), run)


@dataclass(frozen=True)
class InBasis(Images):
    """Images that are changed along the directions of a basis."""

    basis: torch.Tensor


class Poisoned(InBasis):
    """Carriers at a member's place among the directions."""

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """Images that are poisoned in pixel space and then standardised."""
        return standardised(poisoned(self.images.to(run), self.basis, members, epsilon=CARRIED), run)


class Flipped(InBasis):
    """The images flipped in the basis of the directions."""

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """Images that are flipped in pixel space and then standardised."""
        return standardised(flipped(self.images.to(run), self.basis), run)


class Underspecified(InBasis):
    """Two classes of images beside a channel that tells the class along a direction."""

    @property
    def inputs(self) -> Any:
        """The shape of an image with the channel."""
        return (self.images.shape[0] + 1, *self.images.shape[1:])

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """Standardised images and D(v) of the same labels; without its images an input is the mean image."""
        binary = {split: (x, (y >= 5).long()) for split, (x, y) in self.images.splits.items()}
        images = Arrays(binary).to(run)
        labels = {split: y for split, (_, y) in binary.items()}
        vectors = self.basis[list(members)]
        line = along_directions(vectors, (1, 32, 32), noise=1.0, epsilon=1.0, labels=labels, seed=seed, run=run)
        return SideBySide(standardised(images, run), line)

    @property
    def splits(self) -> tuple[str, ...]:
        """Both sources, and each alone."""
        return ("train", "test", "test, first only", "test, second only")
