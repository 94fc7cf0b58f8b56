"""Real samples as a user names them, standardised as in the papers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from biascope import data
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.progress import phase
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
    seed: int = 0,
) -> Arrays:
    """Samples of a data set, each channel standardised to mean 0 and variance 1 over the training samples taken.

    Args:
        name_or_path: A published set, an ``.npz`` file or an image folder, as :func:`biascope.data.load` takes them.
        sizes: Training and test samples to take, or training samples alone; if a set has fewer, all of them.
        side: Height and width to pad images to, for networks that need a certain size.
        root: Folder of data sets.
        labelled: Whether labels are needed; if not, samples without any are all labelled 0.
        seed: Random seed for the choice of samples.

    Returns:
        Float images and labels, in the splits that the set has.

    Raises:
        ValueError: If there is no such set, it lacks labels that are needed, or its training samples are all equal.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> images = np.random.default_rng(0).integers(0, 255, (6, 1, 4, 4)).astype(np.uint8)
        >>> np.savez(folder / "six.npz", x_train=images, y_train=np.arange(6) % 2)
        >>> samples_of("six", sizes=(4,), root=folder).name
        'six, 4 train samples'
    """
    if not sizes or any(size < 1 for size in sizes):
        raise ValueError(f"sizes must be one or two positive numbers of samples, got {sizes}. Pass sizes=(2000, 1000).")
    with phase(f"reading {name_or_path}"):
        whole = data.load(name_or_path, root=root)
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
    images = {split: part.splits[split][0].astype(np.float32) / 255 for split in there}
    if len(images["train"]) > 1 and bool((images["train"] == images["train"][:1]).all()):
        raise ValueError(
            f"The training samples of {whole.name!r} must differ from one another, but the {there['train']:,} that were taken are "
            "all equal. Pass another data set, or more --samples."
        )
    mean = images["train"].mean((0, 2, 3), keepdims=True)
    spread = np.maximum(images["train"].std((0, 2, 3), keepdims=True), 1e-6)
    splits = {}
    for split in there:
        labels = part.splits[split][1]
        labels = np.zeros(len(images[split]), np.int64) if labels is None else np.asarray(labels)
        splits[split] = torch.from_numpy((images[split] - mean) / spread), torch.from_numpy(labels)
    counts = " and ".join(f"{count:,} {split}" for split, count in there.items())
    return Arrays(splits, name=f"{whole.name}, {counts} samples", classes=whole.classes)


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
    whole = data.load(name_or_path, root=root)
    split = next(iter(whole.splits))
    images = whole.subset({split: min(num, len(whole.splits[split][0]))}, seed=seed).splits[split][0]
    values = torch.from_numpy(images.mean(1) / 255)  # (n, h, w)
    return tuple(Signal(each[..., None], f"images of {whole.name}") for each in values)
