"""Dataset: images and labels in memory, in named splits."""

# n images · C channels · h, w pixels

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Split = tuple[Images, Labels | None]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images and labels in named splits.

    Attributes:
        name: What the set is called.
        splits: ``{"train": (images, labels), "test": (images, labels)}``, only those that there are: images uint8
            (n, C, h, w), labels int64 (n,) counting from 0, or None where there are none.
        classes: The name of each label; empty where there are no labels.

    Raises:
        ValueError: If shapes, types or labels do not fit together.

    Example:
        >>> images = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
        >>> Dataset("two", {"train": (images, np.array([1, 0]))}, ("cat", "dog"))
        two: 2 train images of 1×2×2, 2 classes
    """

    name: str
    splits: dict[str, Split]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.splits:
            raise ValueError(
                f"Data set {self.name!r} must have at least one split, but has none. Pass splits={{'train': …}}."
            )
        for split, (images, labels) in self.splits.items():
            what = f"The {split} images of {self.name!r}"
            if images.dtype != np.uint8 or images.ndim != 4 or images.size == 0:
                came = f"{images.dtype} {images.shape}"
                raise ValueError(f"{what} must be uint8 (n, C, h, w) with n ≥ 1, got {came}. Convert them first.")
            if images.shape[1:] != self.shape:
                shapes = f"{_times(images.shape[1:])} and {_times(self.shape)}"
                raise ValueError(f"{what} must have the shape of the other splits, got {shapes}. Resize one of them.")
            if labels is not None:
                self._check_labels(f"The {split} labels of {self.name!r}", labels, len(images))

    def _check_labels(self, what: str, labels: Labels, num: int) -> None:
        if labels.dtype != np.int64 or labels.shape != (num,):
            came = f"{labels.dtype} {labels.shape}"
            raise ValueError(f"{what} must be int64 ({num},), one per image, got {came}. Convert them first.")
        if labels.min() < 0 or labels.max() >= self.num_classes:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise ValueError(f"{what} must lie in 0 … {self.num_classes - 1}, got {wrong}. Number the classes from 0.")

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(images):,} {split}" for split, (images, _) in self.splits.items())
        classes = f"{self.num_classes} classes" if self.classes else "no labels"
        return f"{self.name}: {counts} images of {_times(self.shape)}, {classes}"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = next(iter(self.splits.values()))[0].shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """How many classes there are; 0 without labels."""
        return len(self.classes)

    @functools.cached_property
    def identity(self) -> str:
        """Name and content digest: equal for equal images, labels and classes, from whatever files."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for split, (images, labels) in sorted(self.splits.items()):
            digest.update(repr((split, images.shape, labels is not None)).encode())
            digest.update(np.ascontiguousarray(images).data)
            if labels is not None:
                digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
        return f"{self.name}-{digest.hexdigest()[:16]}"

    def subset(self, counts: Mapping[str, int], *, seed: int) -> Dataset:
        """A random subset of each named split; the order depends on the seed only.

        A smaller subset is the beginning of a larger one under the same seed.

        Args:
            counts: How many samples of which split; a split that is not named stays whole.
            seed: Random seed for the order.

        Returns:
            A data set with the same classes, also where a class has no sample left.

        Raises:
            ValueError: If there is no such split or it has fewer samples.

        Example:
            >>> images = np.arange(8, dtype=np.uint8).reshape(8, 1, 1, 1)
            >>> whole = Dataset("eight", {"train": (images, None)}, ())
            >>> few, more = whole.subset({"train": 2}, seed=0), whole.subset({"train": 5}, seed=0)
            >>> bool((few.splits["train"][0] == more.splits["train"][0][:2]).all())
            True
        """
        from biascope.runs.randomness import seed_of

        splits = dict(self.splits)
        for split, count in counts.items():
            if split not in splits:
                there = ", ".join(map(repr, splits))
                raise ValueError(f"split must be one of {there} for {self.name!r}, got {split!r}. Pass one of these.")
            images, labels = splits[split]
            if not 1 <= count <= len(images):
                raise ValueError(
                    f"The {split} subset of {self.name!r} must have 1 to {len(images):,} samples, got {count:,}. Pass another number."
                )
            chosen = np.random.default_rng(seed_of(seed, "subset", split)).permutation(len(images))[:count]
            splits[split] = images[chosen], None if labels is None else labels[chosen]
        return dataclasses.replace(self, splits=splits)

    def padded(self, side: int) -> Dataset:
        """The images centred in squares of zeros, for networks that need 32×32 pixels.

        Args:
            side: Height and width to reach.

        Returns:
            A data set with the same labels.

        Raises:
            ValueError: If the images are larger.

        Example:
            >>> one = Dataset("one", {"train": (np.full((1, 1, 2, 2), 9, np.uint8), None)}, ())
            >>> one.padded(4).splits["train"][0][0, 0].tolist()
            [[0, 0, 0, 0], [0, 9, 9, 0], [0, 9, 9, 0], [0, 0, 0, 0]]
        """
        _, height, width = self.shape
        if side < max(height, width):
            raise ValueError(
                f"side must be at least {max(height, width)} for images of {height}×{width}, got {side}. Pass a larger side."
            )
        top, left = (side - height) // 2, (side - width) // 2
        margins = ((0, 0), (0, 0), (top, side - height - top), (left, side - width - left))
        splits = {split: (np.pad(images, margins), labels) for split, (images, labels) in self.splits.items()}
        return dataclasses.replace(self, splits=splits)


def numbered_classes(splits: Mapping[str, Split]) -> tuple[str, ...]:
    """The numbers 0 … max as names, for labels that come without any; empty where there are no labels.

    Example:
        >>> numbered_classes({"train": (np.zeros((2, 1, 1, 1), np.uint8), np.array([0, 2]))})
        ('0', '1', '2')
    """
    largest = (int(labels.max()) for _, labels in splits.values() if labels is not None and labels.size)
    return tuple(str(label) for label in range(max(largest, default=-1) + 1))


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
