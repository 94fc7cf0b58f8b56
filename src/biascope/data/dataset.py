"""Dataset: samples and labels in memory, in named splits."""

# n samples · C channels · h, w pixels

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from biascope.results.axes import Axis

Images = npt.NDArray[np.uint8]
Inputs = npt.NDArray[Any]  # images uint8, numbers float32 or float64, token ids int64
Labels = npt.NDArray[np.int64]
Split = tuple[Inputs, Labels | None]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples and labels in named splits.

    Attributes:
        name: What the set is called.
        splits: ``{"train": (inputs, labels), "test": (inputs, labels)}``, only those that there are. Inputs are images, uint8
            (n, C, h, w), other numbers, float32 or float64 (n, …), or token ids, int64 (n, …). Labels are int64 (n,) counting
            from 0, or None where there are none.
        classes: The name of each label; empty where there are no labels.
        axes: What the axes of one sample are, where the data say so.
        told: How the samples were read, in words, where there is something to say.

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
    axes: tuple[Axis, ...] = ()
    told: str = ""

    def __post_init__(self) -> None:
        if not self.splits:
            raise ValueError(
                f"Data set {self.name!r} must have at least one split, but has none. Pass splits={{'train': …}}."
            )
        for split, (inputs, labels) in self.splits.items():
            what = f"The {split} {self._noun} of {self.name!r}"
            self._check_inputs(what, inputs)
            if inputs.shape[1:] != self.shape:
                shapes = f"{_times(inputs.shape[1:])} and {_times(self.shape)}"
                raise ValueError(f"{what} must have the shape of the other splits, got {shapes}. Resize one of them.")
            if labels is not None:
                self._check_labels(f"The {split} labels of {self.name!r}", labels, len(inputs))
        if self.axes and len(self.axes) != len(self.shape):
            named = ", ".join(axis.name for axis in self.axes)
            raise ValueError(
                f"The axes of {self.name!r} must be as many as those of a sample of {_times(self.shape)}, got {named}. Name each one."
            )
        for axis, length in zip(self.axes, self.shape, strict=False):
            if axis.labels and (len(axis.labels) != length or len(set(axis.labels)) < length):
                raise ValueError(
                    f"{self.name!r} must have {length:,} different names along {axis.name}, got {len(set(axis.labels)):,}. "
                    "Correct the names."
                )

    def _check_inputs(self, what: str, inputs: Inputs) -> None:
        came = f"{inputs.dtype} {inputs.shape}"
        if inputs.dtype == np.uint8:
            if inputs.ndim != 4 or inputs.size == 0:
                raise ValueError(f"{what} must be uint8 (n, C, h, w) with n ≥ 1, got {came}. Convert them first.")
            return
        if inputs.dtype not in (np.float32, np.float64, np.int64) or inputs.ndim < 2 or inputs.size == 0:
            raise ValueError(
                f"{what} must be uint8 images (n, C, h, w), floats (n, …) or int64 token ids (n, …) with n ≥ 1, got {came}. "
                "Convert them first."
            )
        if inputs.dtype != next(iter(self.splits.values()))[0].dtype:
            raise ValueError(f"{what} must have the type of the other splits, got {inputs.dtype}. Convert them first.")
        require_finite(what, inputs)
        if inputs.dtype.kind == "i" and inputs.min() < 0:
            raise ValueError(f"{what} must be token ids from 0, got {inputs.min()}. Pass another id for padding.")

    def _check_labels(self, what: str, labels: Labels, num: int) -> None:
        if labels.dtype != np.int64 or labels.shape != (num,):
            came = f"{labels.dtype} {labels.shape}"
            raise ValueError(f"{what} must be int64 ({num},), one per sample, got {came}. Convert them first.")
        if labels.min() < 0 or labels.max() >= self.num_classes:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise ValueError(f"{what} must lie in 0 … {self.num_classes - 1}, got {wrong}. Number the classes from 0.")

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(inputs):,} {split}" for split, (inputs, _) in self.splits.items())
        classes = f"{self.num_classes} classes" if self.classes else "no labels"
        return f"{self.name}: {counts} {self._noun} of {self._size}, {classes}"

    @property
    def _noun(self) -> str:
        return "images" if self.holds_images else "samples"

    @property
    def _size(self) -> str:
        """The size of one sample in words."""
        if self.holds_ids:
            return f"{_times(self.shape)} token ids"
        if self.holds_images or not self.axes:
            return _times(self.shape)
        return " × ".join(f"{count} {axis.noun(count)}" for axis, count in zip(self.axes, self.shape, strict=True))

    @property
    def _kind(self) -> np.dtype[Any]:
        return next(iter(self.splits.values()))[0].dtype

    @property
    def holds_images(self) -> bool:
        """Whether samples are images of 8 bits."""
        return self._kind == np.uint8

    @property
    def holds_ids(self) -> bool:
        """Whether samples are token ids."""
        return self._kind == np.int64

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample; of an image, channels, height and width."""
        return tuple(next(iter(self.splits.values()))[0].shape[1:])

    def images(self) -> Dataset:
        """The same set, known to hold images.

        Raises:
            ValueError: If it holds something else.
        """
        if not self.holds_images:
            raise ValueError(
                f"Data set {self.name!r} must hold images of 8 bits, but holds samples of {self._size}. Pass images as uint8 or "
                "as fractions from 0 to 1; commands with --pixels MEAN:SPREAD put them on the scale of the network."
            )
        return self

    @property
    def num_classes(self) -> int:
        """How many classes there are; 0 without labels."""
        return len(self.classes)

    @functools.cached_property
    def identity(self) -> str:
        """Name and content digest: equal for equal samples, labels and classes, from whatever files."""
        digest = hashlib.sha256(repr(self.classes).encode())
        if not self.holds_images:
            digest.update(repr((str(self._kind), self.axes)).encode())
        for split, (inputs, labels) in sorted(self.splits.items()):
            digest.update(repr((split, inputs.shape, labels is not None)).encode())
            digest.update(np.ascontiguousarray(inputs).data)
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
            inputs, labels = splits[split]
            if not 1 <= count <= len(inputs):
                raise ValueError(
                    f"The {split} subset of {self.name!r} must have 1 to {len(inputs):,} samples, got {count:,}. Pass another number."
                )
            chosen = np.random.default_rng(seed_of(seed, "subset", split)).permutation(len(inputs))[:count]
            splits[split] = inputs[chosen], None if labels is None else labels[chosen]
        return dataclasses.replace(self, splits=splits)

    def padded(self, side: int) -> Dataset:
        """The images centred in squares of zeros, for networks that need 32×32 pixels.

        Args:
            side: Height and width to reach.

        Returns:
            A data set with the same labels.

        Raises:
            ValueError: If the images are larger, or samples are no images.

        Example:
            >>> one = Dataset("one", {"train": (np.full((1, 1, 2, 2), 9, np.uint8), None)}, ())
            >>> one.padded(4).splits["train"][0][0, 0].tolist()
            [[0, 0, 0, 0], [0, 9, 9, 0], [0, 9, 9, 0], [0, 0, 0, 0]]
        """
        _, height, width = self.images().shape
        if side < max(height, width):
            raise ValueError(
                f"side must be at least {max(height, width)} for images of {height}×{width}, got {side}. Pass a larger side."
            )
        top, left = (side - height) // 2, (side - width) // 2
        margins = ((0, 0), (0, 0), (top, side - height - top), (left, side - width - left))
        splits = {split: (np.pad(images, margins), labels) for split, (images, labels) in self.splits.items()}
        return dataclasses.replace(self, splits=splits)


def require_finite(what: str, inputs: Inputs) -> None:
    """Refuse nan and infinite numbers, naming the first.

    Raises:
        ValueError: If there is one.
    """
    if inputs.dtype.kind == "f" and not (finite := np.isfinite(inputs)).all():
        sample, *place = (int(index) for index in np.argwhere(~finite)[0])
        raise ValueError(
            f"{what} must be finite numbers, but sample {sample} has {inputs[(sample, *place)]} at {tuple(place)}, counted from 0. "
            "Fill or remove it."
        )


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
