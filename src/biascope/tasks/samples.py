"""Real samples as a user names them, on a scale that is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from biascope import data
from biascope.families.named_model import Pixels
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.progress import phase
from biascope.tasks.scale import HOW, numbers_of, scale_of
from biascope.tasks.signals import Signal
from biascope.tasks.task import Arrays


@under_torch_defaults
def samples_of(
    name_or_path: str | Path,
    *,
    sizes: tuple[int, ...] = (2000, 1000),
    side: int | None = None,
    root: Path | None = None,
    labelled: bool = True,
    standardise: str | Pixels = "own",
    label: str | None = None,
    tokenizer: Path | str | None = None,
    length: int | None = None,
    seed: int = 0,
) -> Arrays:
    """Samples of a data set: images and other numbers standardised over the training samples taken, token ids as they are.

    Args:
        name_or_path: A data set or a file, as :func:`biascope.data.load` takes them.
        sizes: Training and test samples to take, or training samples alone; if a set has fewer, all of them.
        side: Height and width to pad images to, for networks that need a certain size.
        root: Folder of data sets.
        labelled: Whether labels are needed; if not, samples without any are all labelled 0.
        standardise: ``"own"`` standardises each channel or feature to mean 0 and variance 1. ``"none"`` leaves numbers as they are,
            and pixels between 0 and 1. :func:`biascope.families.source.pixels_of` has the scale of images that a model was made for.
        label: Column of the labels in a table; by default, one called "label", else the last.
        tokenizer: A ``tokenizer.json`` or a folder that has one, for texts.
        length: Token ids of each text, 64 by default.
        seed: Random seed for the choice of samples.

    Returns:
        Samples and labels, in the splits that the set has, and in words what was done to the numbers.

    Raises:
        ValueError: If there is no such set, it lacks labels that are needed, or its training samples are all equal.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> images = np.random.default_rng(0).integers(0, 255, (6, 1, 4, 4)).astype(np.uint8)
        >>> np.savez(folder / "six.npz", x_train=images, y_train=np.arange(6) % 2)
        >>> found = samples_of("six", sizes=(4,), root=folder)
        >>> found.name, found.prepared
        ('six, 4 train samples', 'pixels divided by 255, then each channel standardised over the training samples')
    """
    if not sizes or any(size < 1 for size in sizes):
        raise ValueError(f"sizes must be one or two positive numbers of samples, got {sizes}. Pass sizes=(2000, 1000).")
    if not isinstance(standardise, Pixels) and standardise not in HOW:
        raise ValueError(
            f"standardise must be one of {', '.join(HOW)}, got {standardise!r}. Pass standardise={HOW[0]!r}."
        )
    with phase(f"reading {name_or_path}"):
        whole = data.load(name_or_path, root=root, label=label, tokenizer=tokenizer, length=length)
    wanted = dict(zip(("train", "test"), sizes, strict=False))
    there: dict[str, int] = {}
    for split, count in wanted.items():
        if split in whole.splits:
            if labelled and whole.splits[split][1] is None:
                raise ValueError(f"The {split} samples of {whole.name!r} must have labels, but have none. Add labels.")
            there[split] = min(count, len(whole.splits[split][0]))
    if "train" not in there:
        raise ValueError(
            f"Data set {whole.name!r} must have a split 'train', got {', '.join(whole.splits)}. Rename one to train."
        )
    part = whole.subset(there, seed=seed)
    part = part if side is None else part.padded(side)
    train = part.splits["train"][0]
    if len(train) > 1 and bool((train == train[:1]).all()):
        raise ValueError(
            f"The training samples of {whole.name!r} must differ from one another, but the {there['train']:,} that were taken are "
            "all equal. Pass another data set, or more --samples."
        )
    scale = None if part.holds_ids else scale_of(part, standardise)
    splits = {}
    for split in there:
        inputs, labels = part.splits[split]
        labels = np.zeros(len(inputs), np.int64) if labels is None else np.asarray(labels)
        served = inputs if scale is None else scale.applied(numbers_of(part, split))
        splits[split] = torch.from_numpy(served), torch.from_numpy(labels)
    counts = " and ".join(f"{count:,} {split}" for split, count in there.items())
    return Arrays(
        splits,
        torch.float32 if scale else torch.int64,
        f"{whole.name}, {counts} samples",
        whole.classes,
        whole.axes,
        "; ".join(filter(None, [whole.told, scale.words if scale else "token ids as they are"])),
    )


@under_torch_defaults
def grey_signals(
    name_or_path: str | Path, *, num: int = 100, root: Path | None = None, seed: int = 0
) -> tuple[Signal, ...]:
    """Images of a data set as signals of one channel, from 0 to 1, for implicit representations.

    Args:
        name_or_path: As :func:`biascope.data.load` takes it; labels are not needed.
        num: How many, of its first split; where there are fewer, all of them.
        root: Folder of data sets.
        seed: Random seed for the choice.

    Returns:
        The signals, in float64; colours are averaged.

    Raises:
        ValueError: If there is no such set, or none is asked for.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> np.savez(folder / "faces.npz", x=np.full((5, 4, 4), 51, np.uint8))
        >>> [(each.name, each.shape, round(float(each.values.mean()), 4)) for each in grey_signals("faces", num=1, root=folder)]
        [('images of faces', (4, 4), 0.2)]
    """
    if num < 1:
        raise ValueError(f"num must be at least 1 to have a signal, got {num}. Pass num=100.")
    whole = data.load(name_or_path, root=root).images()
    split = next(iter(whole.splits))
    images = whole.subset({split: min(num, len(whole.splits[split][0]))}, seed=seed).splits[split][0]
    values = torch.from_numpy(images.mean(1) / 255)  # (n, h, w)
    return tuple(Signal(each[..., None], f"images of {whole.name}") for each in values)
