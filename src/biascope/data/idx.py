"""The idx format of MNIST and its relatives: a magic number, the lengths of the axes, then the bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from biascope.data.dataset import Dataset, Images, Split, numbered_classes
from biascope.data.official import Layout, content_of, damaged, file_in, files_of_split

PREFIXES = {"train": "train", "test": "t10k"}


def file_names(split: str) -> tuple[str, str]:
    """The official names of a split's images and labels.

    Example:
        >>> file_names("test")
        ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')
    """
    return f"{PREFIXES[split]}-images-idx3-ubyte", f"{PREFIXES[split]}-labels-idx1-ubyte"


def read_idx(path: Path, *, axes: int) -> Images:
    """The array of unsigned bytes in an idx file, which may be compressed.

    Four bytes of magic number (0, 0, 8 for unsigned bytes, number of axes), a big-endian 32-bit length per axis, data.

    Args:
        path: The file.
        axes: How many axes it must have: 3 for images, 1 for labels.

    Returns:
        The array.

    Raises:
        ValueError: If the file is not of this format or not whole.
    """
    content = content_of(path)
    expected, header = bytes((0, 0, 8, axes)), 4 + 4 * axes
    if bytes(content[:4]) != expected:
        came = f"begins with {bytes(content[:4]).hex() or 'nothing'}"
        raise damaged(path, f"begin with the magic number {expected.hex()} of an idx file with {axes} axes", came)
    shape = tuple(int(length) for length in np.frombuffer(content[4:header], ">u4")) if len(content) >= header else ()
    if len(shape) != axes or len(content) != header + math.prod(shape):
        promised = f"have {header + math.prod(shape):,} bytes" if shape else f"have a header of {header} bytes"
        raise damaged(path, f"{promised}, as its header says" if shape else promised, f"has {len(content):,}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def idx_splits(folder: Path, *, num_classes: int | None = None) -> dict[str, Split]:
    """The splits that a folder of idx files holds, images as (n, 1, h, w).

    Args:
        folder: Where the files lie, under their official names, compressed or not.
        num_classes: How many labels there may be; None allows any.

    Raises:
        ValueError: If a file is missing beside its other half, or damaged.
    """
    splits: dict[str, Split] = {}
    for split in PREFIXES:
        if paths := files_of_split(folder, file_names(split)):
            images, labels = read_idx(paths[0], axes=3), read_idx(paths[1], axes=1)
            if len(images) != len(labels) or not images.size:
                raise damaged(
                    paths[1], f"hold a label for each of the {len(images):,} images", f"holds {len(labels):,}"
                )
            if num_classes is not None and labels.max() >= num_classes:
                index = int((labels >= num_classes).argmax())
                raise damaged(paths[1], f"have labels 0 … {num_classes - 1}", f"has {labels[index]} at image {index}")
            splits[split] = images[:, None], labels.astype(np.int64)
    return splits


def idx_layouts(*folders: str, md5: Mapping[str, str], num_classes: int) -> tuple[Layout, ...]:
    """The same idx files in any of several folders."""
    return tuple(Layout(folder, md5, partial(idx_splits, num_classes=num_classes)) for folder in folders)


def holds_idx(folder: Path) -> bool:
    """Whether a folder has idx files under their official names."""
    return any(file_in(folder, name) for split in PREFIXES for name in file_names(split))


def read_idx_set(folder: Path) -> Dataset:
    """A user's own set of idx files: its name is the folder's, its classes are numbers."""
    splits = idx_splits(folder)
    whole = folder.resolve()
    name = whole.parent.name if whole.name == "raw" else whole.name  # "raw" is customary, and says nothing
    return Dataset(name, splits, numbered_classes(splits))
