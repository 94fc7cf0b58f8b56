"""A user's own pictures: train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from biascope.data.dataset import Dataset, Images, Split
from biascope.data.picture import SUFFIXES, height_and_width, in_8_bits, is_deep, is_grey, opened
from biascope.runs.files import as_text

SPLITS = {"train": "train", "test": "test", "val": "validation", "validation": "validation"}


def read_image_folder(folder: Path, *, size: int | tuple[int, int] | None = None) -> Dataset:
    """The data set in a folder of pictures, one folder per class, in alphabetical order.

    Grey pictures give one channel if all are grey; otherwise all are read as RGB. Pictures are turned as their EXIF data say.

    Args:
        folder: With ``train/CLASS/*``, ``test/CLASS/*`` (also ``val``), or with ``CLASS/*`` directly, which is the
            split "train".
        size: Side, or height and width, to resize to; None where all pictures have one size.

    Returns:
        The data set; its name is the folder's.

    Raises:
        ValueError: If there are no pictures, one cannot be read or has ambiguous colours (more than 8 bits, transparency,
            several frames, CMYK), or sizes differ and none is asked for.
    """
    wanted = _height_and_width(size)
    pictures = _pictures(folder)
    classes = tuple(sorted({path.parent.name for paths in pictures.values() for path in paths}))
    every = [path for paths in pictures.values() for path in paths]
    if not every:
        raise ValueError(
            f"{folder} must hold CLASS/*.png or train/CLASS/*.png and test/CLASS/*.png, but has no such pictures. "
            "Put each class into a folder of its own."
        )
    headers = {path: _header(path) for path in every}
    common = wanted or _common_size({path: size for path, (_, size) in headers.items()})
    mode = "L" if all(grey for grey, _ in headers.values()) else "RGB"
    number = {name: label for label, name in enumerate(classes)}
    splits: dict[str, Split] = {}
    for split, paths in pictures.items():
        if paths:
            images = np.stack([_pixels(path, mode, common) for path in paths])
            splits[split] = images, np.array([number[path.parent.name] for path in paths], np.int64)
    return Dataset(as_text(folder.resolve().name), splits, tuple(map(as_text, classes)))


def _height_and_width(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}. Pass size=32.")
    return height, width


def _pictures(folder: Path) -> dict[str, list[Path]]:
    """The picture files of each split. A class called "train" beside other classes is a class."""
    below = _folders(folder)
    if below and all(path.name in SPLITS and _folders(path) for path in below):
        in_order = sorted(below, key=lambda path: list(SPLITS).index(path.name))
        return {SPLITS[path.name]: _files(path) for path in in_order}
    return {"train": _files(folder)}


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    return [
        path
        for below in _folders(folder)
        for path in sorted(below.iterdir())
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]


def _header(path: Path) -> tuple[bool, tuple[int, int]]:
    """Whether a picture is grey, and its height and width."""
    with opened(path) as picture:
        if is_deep(picture):
            raise ValueError(f"{path} must have 8 bits per channel, but has mode {picture.mode}. Convert it to 8 bits.")
        return is_grey(picture), height_and_width(picture)


def _common_size(sizes: dict[Path, tuple[int, int]]) -> tuple[int, int]:
    usual = Counter(sizes.values()).most_common(1)[0][0]
    for path, size in sizes.items():
        if size != usual:
            remedy = f"Resize it, or pass size={usual[0] if usual[0] == usual[1] else usual} to resize all."
            raise ValueError(
                f"{path} must have {usual[0]}×{usual[1]} pixels like the other pictures, but has {size[0]}×{size[1]}. {remedy}"
            )
    return usual


def _pixels(path: Path, mode: str, size: tuple[int, int]) -> Images:
    from PIL import Image

    height, width = size
    with opened(path) as picture:
        expected, converted = height_and_width(picture), in_8_bits(picture, mode, path)
    if converted.size != expected[::-1]:
        raise ValueError(
            f"{path} must store its orientation before its pixels, but stores it after them. Save it again."
        )
    if converted.size != (width, height):
        converted = converted.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(converted).reshape(height, width, -1).transpose(2, 0, 1)
