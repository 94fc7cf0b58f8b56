"""Samples that need no labels, on the scale that a network was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biascope import data
from biascope.data.dataset import Dataset
from biascope.data.text import text_set
from biascope.editing.encoders.encoder import Encoder
from biascope.runs.randomness import seed_of
from biascope.tasks.task import Arrays

SPLIT = "samples"  # what the samples that were chosen are called
_MEASURED = 5000  # training images that means and spreads are taken of


def unlabelled_images(
    name: str | Path,
    *,
    points: int,
    shape: tuple[int, ...] | None = None,
    pixels: str = "own",
    split: str | None = None,
    root: Path | str | None = None,
    seed: int = 0,
) -> Arrays:
    """Images of a set in the split ``"samples"``, on the scale that a network was trained on.

    Args:
        name: As :func:`biascope.data.load` takes it.
        points: How many at most.
        shape: Shape of one input; smaller images are centred in it.
        pixels: ``"own"`` (each channel standardised over the set's training images), ``"unit"`` (from 0 to 1) or ``"MEAN:SPREAD"``,
            a number for each channel or one for all.
        split: Where they are taken from; by default test, validation, or the first that there is.
        root: Folder of data sets.
        seed: Random seed for the choice.

    Returns:
        The images, with their labels where the set has them; labels that are not known are −1.

    Raises:
        ValueError: If there is no such set, split or scale.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> np.savez(folder / "grey.npz", x=np.full((5, 4, 4), 51, np.uint8))
        >>> found = unlabelled_images("grey", points=3, pixels="unit", root=folder)
        >>> found.name, found.sizes, round(float(found.splits[SPLIT][0].mean()), 4)
        ('grey (train)', {'samples': 3}, 0.2)
    """
    whole = data.load(name, root=root).images()
    chosen = split_of(tuple(whole.splits), str(name), split)
    images, labels = _taken(whole, chosen, points, shape, seed)
    if pixels == "own":
        known, _ = _taken(whole, "train" if "train" in whole.splits else chosen, _MEASURED, shape, seed)
        mean, spread = known.mean((0, 2, 3)), known.std((0, 2, 3), correction=0)
    else:
        mean, spread = _scale(pixels, images.shape[1])
    images = (images - mean[:, None, None]) / spread[:, None, None].clamp_min(1e-6)
    return Arrays({SPLIT: (images, labels)}, name=f"{whole.name} ({chosen})")


def prepared_samples(
    name: str | Path,
    encoder: Encoder,
    *,
    points: int,
    split: str | None = None,
    root: Path | str | None = None,
    seed: int = 0,
) -> Arrays:
    """Images or texts of a set as inputs of an encoder, in the split ``"samples"``; arguments and labels as above."""
    whole: Any = text_set(name, root=root) if encoder.kind == "text" else data.load(name, root=root).images()
    chosen = split_of(tuple(whole.splits), str(name), split)
    inputs, labels = whole.splits[chosen]
    order = np.random.default_rng(seed_of(seed, "samples", chosen)).permutation(len(inputs))[:points]
    taken = inputs[order] if isinstance(inputs, np.ndarray) else [inputs[place] for place in order]
    known = _unknown(len(taken)) if labels is None else torch.tensor(labels[order]).long()
    return Arrays({SPLIT: (encoder.prepare(taken), known)}, name=f"{whole.name} ({chosen})")


def _taken(whole: Dataset, split: str, points: int, shape: tuple[int, ...] | None, seed: int) -> tuple[Tensor, Tensor]:
    """Some images of a split as numbers from 0 to 1, padded to a shape, and their labels."""
    images, labels = whole.splits[split]
    part = Dataset(whole.name, {split: (images, labels)}, whole.classes).subset(
        {split: min(points, len(images))}, seed=seed
    )
    side = shape[-1] if shape is not None and len(shape) > 1 else None
    part = part if side is None else part.padded(side)
    taken, known = part.splits[split]
    return torch.from_numpy(taken).float() / 255, _unknown(len(taken)) if known is None else torch.tensor(known).long()


def _unknown(count: int) -> Tensor:
    return torch.full((count,), -1)


def split_of(there: Sequence[str], name: str, asked: str | None) -> str:
    """The split that was asked for; else test, validation, or the first that there is."""
    if asked is not None and asked not in there:
        raise ValueError(f"--split must be one of {', '.join(there)} for {name}, got {asked}. Pass one of these.")
    return asked or next((split for split in ("test", "validation") if split in there), there[0])


def _scale(pixels: str, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and spread from words.

    Example:
        >>> _scale("0.5:0.25", 2)
        (tensor([0.5000, 0.5000]), tensor([0.2500, 0.2500]))
    """
    if pixels == "unit":
        return torch.zeros(channels), torch.ones(channels)
    try:
        mean, spread = (torch.tensor([float(each) for each in part.split(",")]) for part in pixels.split(":"))
        if not bool(mean.isfinite().all() and spread.isfinite().all() and (spread > 0).all()):
            raise ValueError("a spread is positive, and both are finite")
        return mean.expand(channels), spread.expand(channels)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"--pixels must be own, unit, or MEAN:SPREAD, a number for each of {channels} channels, SPREAD positive, got {pixels!r}. "
            "Pass 0.1307:0.3081."
        ) from error
