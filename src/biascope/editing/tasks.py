"""Tasks of images or texts to fine-tune an encoder on, in three splits, as a user names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from biascope import data
from biascope.data.text import text_set
from biascope.editing.encoders.encoder import Encoder
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.randomness import seed_of
from biascope.tasks.task import Arrays

TEXT_TASKS = ("sst2", "trec", "agnews")
SIZES = (5000, 1000, 2000)  # training, validation and test samples
_VALIDATION_SHARE = 5  # at most one in so many training samples is held out


def task_of(
    name: str | Path,
    encoder: Encoder,
    *,
    sizes: tuple[int, int, int] = SIZES,
    root: Path | str | None = None,
    seed: int = 0,
) -> Arrays:
    """A task as an encoder sees it: prepared inputs and labels, in the splits train, validation and test.

    Where a set has no validation split, it is taken from the training samples, at most a fifth of them. Which samples are
    taken depends on the seed alone: fewer are the beginning of more, and no two splits share a sample.

    Args:
        name: An image set as :func:`biascope.data.load` takes it, or a text set as :func:`biascope.data.text.text_set` does.
        encoder: Whose inputs are prepared.
        sizes: Most samples of the training, validation and test splits.
        root: Folder of data sets.
        seed: Random seed for the choice of samples.

    Returns:
        The task; token ids are whole numbers in float32 once served.

    Raises:
        ValueError: If there is no such set, it lacks labels or a split, or sizes are not positive.
    """
    if min(sizes) < 1:
        raise ValueError(
            f"sizes must be three positive numbers of samples, got {sizes}. Pass sizes=(5000, 1000, 2000)."
        )
    splits = _splits(name, encoder.kind, root)
    if "train" not in splits or "test" not in splits:
        raise ValueError(f"{name} must have the splits train and test, got {', '.join(splits)}. Add the missing split.")
    wanted = dict(zip(("train", "validation", "test"), sizes, strict=True))
    chosen: dict[str, tuple[str, np.ndarray]] = {}
    order = {split: _order(len(labels), seed, split) for split, (_, labels) in splits.items()}
    if "validation" in splits:
        chosen["validation"] = "validation", order["validation"][: wanted["validation"]]
    else:
        held = min(wanted["validation"], max(1, len(order["train"]) // _VALIDATION_SHARE))
        chosen["validation"] = "train", order["train"][::-1][:held]  # from the end: training samples stay the same
        order["train"] = order["train"][: len(order["train"]) - held]
    chosen |= {split: (split, order[split][: wanted[split]]) for split in ("train", "test")}
    prepared = {}
    for split in wanted:
        source, indices = chosen[split]
        inputs, labels = splits[source]
        taken = inputs[indices] if isinstance(inputs, np.ndarray) else [inputs[i] for i in indices]
        prepared[split] = encoder.prepare(taken), torch.from_numpy(labels[indices])
    return Arrays(prepared, name=str(name))


@under_torch_defaults
def tasks_of(
    names: Sequence[str],
    encoder: Encoder,
    *,
    sizes: tuple[int, int, int] = SIZES,
    root: Path | str | None = None,
    seed: int = 0,
) -> dict[str, Arrays]:
    """Several tasks by name; see :func:`task_of`.

    Example:
        >>> import tempfile
        >>> from biascope.editing.encoder_source import encoder_of
        >>> folder = Path(tempfile.mkdtemp())
        >>> images, labels = np.zeros((10, 8, 8), np.uint8), np.arange(10) % 2
        >>> np.savez(folder / "ten.npz", x_train=images, y_train=labels, x_test=images[:4], y_test=labels[:4])
        >>> tasks = tasks_of(["ten"], encoder_of("vit", random=True), root=folder)
        >>> tasks["ten"].sizes, tasks["ten"].shape
        ({'train': 8, 'validation': 2, 'test': 4}, (3, 32, 32))
    """
    return {str(name): task_of(name, encoder, sizes=sizes, root=root, seed=seed) for name in names}


Inputs = np.ndarray | tuple[str, ...]


def _splits(name: str | Path, kind: str, root: Path | str | None) -> dict[str, tuple[Inputs, np.ndarray]]:
    """Raw inputs and labels by split."""
    if kind == "text":
        return dict(text_set(name, root=root).splits)
    whole = data.load(name, root=root).images()
    if without := [split for split, (_, labels) in whole.splits.items() if labels is None]:
        raise ValueError(f"The {without[0]} samples of {whole.name!r} must have labels, but have none. Add labels.")
    return {split: (images, np.asarray(labels)) for split, (images, labels) in whole.splits.items()}


def _order(num: int, seed: int, split: str) -> np.ndarray:
    return np.random.default_rng(seed_of(seed, "task", split)).permutation(num)
