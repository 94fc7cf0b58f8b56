"""Scale: what is done to the numbers of a data set before a network sees them, and the words that say so."""

# n samples

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from biascope.data.dataset import Dataset
from biascope.families.named_model import Pixels
from biascope.results.wording import listed

HOW = ("own", "none")
_CONSTANT = 1e-9  # of the largest value: a spread below it is rounding
_NAMED = 4  # constant features that a warning lists


@dataclass(frozen=True)
class Scale:
    """Numbers minus a mean, over a spread.

    Attributes:
        mean: As it is subtracted from samples ``(n, …)``.
        spread: Likewise.
        words: What is done, in words.
    """

    mean: npt.NDArray[Any] | float
    spread: npt.NDArray[Any] | float
    words: str

    def applied(self, samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Samples on this scale.

        Raises:
            ValueError: If they are too large for 32 bits.
        """
        with np.errstate(over="ignore"):
            found = np.asarray((samples - self.mean) / self.spread, np.float32)
        if not np.isfinite(found).all():
            largest = float(np.abs(samples).max())
            raise ValueError(
                f"Numbers must fit into 32 bits, but the largest is {largest:.3g}. Rescale them, or pass --standardise own."
            )
        return found


def numbers_of(whole: Dataset, split: str) -> npt.NDArray[Any]:
    """The samples of a split as numbers: pixels from 0 to 1, others as they are."""
    inputs = whole.splits[split][0]
    return inputs.astype(np.float32) / 255 if whole.holds_images else inputs


def scale_of(whole: Dataset, how: str | Pixels) -> Scale:
    """The scale of a set, by its training samples.

    Args:
        whole: Images or other numbers.
        how: ``"own"`` standardises each channel or feature to mean 0 and variance 1 over the training samples. These are the places
            along an axis "feature", else "channel", of axes without names the last. ``"none"`` leaves numbers as they are. Pixels put
            images on the scale of a model, and standardise other numbers as "own" does.

    Raises:
        ValueError: If no feature differs from one training sample to another, or images have other channels than a model.
    """
    first = "pixels divided by 255" if whole.holds_images else ""
    if how == "none":
        return Scale(0.0, 1.0, first or "numbers as they are")
    if isinstance(how, Pixels) and whole.holds_images:
        if len(how.mean) == len(how.spread) == whole.shape[0]:
            return _of_model(how)
        if not how.usual:
            raise ValueError(
                f"Images must have the {len(how.mean)} channels for which {how.source} scales pixels, got {whole.shape[0]}. "
                "Pass --standardise own."
            )
    train = numbers_of(whole, "train")
    at, noun = _standardised_axis(whole)
    others = tuple(axis for axis in range(train.ndim) if axis != at)
    words = f"{noun} standardised over the training samples"
    if whole.holds_images:
        spread = np.maximum(train.std(others, keepdims=True), 1e-6)
        return Scale(train.mean(others, keepdims=True), spread, f"{first}, then {words}")
    train = train.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, spread = train.mean(others, keepdims=True), train.std(others, keepdims=True)
    if not np.isfinite(spread).all():
        raise ValueError(
            f"The squares of the numbers of {whole.name!r} must fit into 64 bits, but the largest is {np.abs(train).max():.3g}. "
            "Rescale them."
        )
    constant = spread <= _CONSTANT * np.abs(train).max(others, keepdims=True)
    if constant.all():
        raise ValueError(
            f"The {len(train):,} training samples of {whole.name!r} must differ from one another, but {noun} is constant. "
            "Pass another data set, more --samples, or --standardise none."
        )
    if constant.any():
        named = _names(whole, at, np.flatnonzero(constant))
        warnings.warn(
            f"Of {whole.name!r}, {named} constant over the training samples. No network can learn from that: it is set to 0 there.",
            stacklevel=2,
        )
        words += f"; {named} constant, and set to 0"
    return Scale(mean, np.where(constant, 1.0, spread), words)


def _of_model(pixels: Pixels) -> Scale:
    """The scale of pixels that a model was made for."""
    mean, spread = (np.array(part, np.float32)[:, None, None] for part in (pixels.mean, pixels.spread))
    parts = [", ".join(f"{number:g}" for number in part) for part in (pixels.mean, pixels.spread)]
    return Scale(
        mean,
        spread,
        f"pixels divided by 255, then each channel minus {parts[0]} over {parts[1]}, as {pixels.source} states",
    )


def _standardised_axis(whole: Dataset) -> tuple[int | None, str]:
    """The axis, counted with that over samples, whose places have means of their own, and what they are called."""
    names = ["channel", "height", "width"] if whole.holds_images else [axis.name for axis in whole.axes]
    for name in ("feature", "channel"):
        if name in names:
            return names.index(name) + 1, f"each {name}"
    return (None, "every number") if names else (len(whole.shape), "each place along the last axis")


def _names(whole: Dataset, at: int | None, places: npt.NDArray[np.intp]) -> str:
    """Some features by name, or by their numbers from 1, with their verb."""
    axis = whole.axes[at - 1] if whole.axes and at is not None else None
    found = [axis.label(int(place)) if axis else str(place + 1) for place in places[:_NAMED]]
    if len(places) > _NAMED:
        found.append(f"{len(places) - _NAMED} others")
    noun = axis.noun(len(places)) if axis else "place" if len(places) == 1 else "places"
    return f"{noun} {listed(found)} {'is' if len(places) == 1 else 'are'}"
