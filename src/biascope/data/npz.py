"""A user's own arrays: an .npz file with x_train, y_train, x_test, y_test, or x and perhaps y."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from biascope.data.dataset import Dataset, Images, Labels, Split, numbered_classes
from biascope.data.official import damaged

Array = np.ndarray[Any, np.dtype[Any]]

_MOST_CLASSES = 100_000
_KEYS = "x_train, y_train, x_test, y_test, or x and perhaps y"


def read_npz(path: Path) -> Dataset:
    """The data set in an .npz file.

    ``x_NAME`` holds the images and ``y_NAME`` the labels of split NAME; ``x`` and ``y`` alone are the split "train".
    Images are (n, h, w), (n, h, w, 1), (n, h, w, 3) or (n, C, h, w); uint8, or floating-point numbers in [0, 1], which
    are rounded to 256 levels. Labels are whole numbers from 0; there may be none. ``classes`` may name them. No code
    in the file is run: arrays of Python objects are refused.

    Raises:
        ValueError: If the file is damaged or its arrays are not of this form.
    """
    try:
        # Opened here, because np.load leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except MemoryError as error:
        raise damaged(path, "hold arrays that fit into memory", "declares larger ones") from error
    except Exception as error:  # a damaged header or member makes NumPy and zipfile raise almost anything
        raise damaged(path, "be a whole .npz file of numbers", f"is not ({_first_words(error)})") from error
    if foreign := [key for key, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"{path} must hold only arrays, but {foreign[0]} is not one. Save it with numpy.savez.")
    splits: dict[str, Split] = {}
    for key in arrays:
        if key == "x" or key.startswith("x_"):
            images = _images(f"{key} of {path}", arrays[key])
            label_key = "y" + key[1:]
            labels = _labels(f"{label_key} of {path}", arrays[label_key], len(images)) if label_key in arrays else None
            splits[key[2:] or "train"] = images, labels
    if not splits:
        there = ", ".join(arrays) or "nothing"
        raise ValueError(f"{path} must hold {_KEYS}, but holds {there}. Save the arrays under these names.")
    named = tuple(str(name) for name in np.atleast_1d(arrays["classes"])) if "classes" in arrays else ()
    return Dataset(path.stem, splits, named or numbered_classes(splits))


def _first_words(error: Exception) -> str:
    """What a library says of a file, without its advice."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0]


def _images(what: str, array: Array) -> Images:
    return np.ascontiguousarray(_as_bytes(what, _channels_first(what, array)))


def _channels_first(what: str, array: Array) -> Array:
    if array.ndim == 3 and array.size:
        return array[:, None]
    if array.ndim != 4 or not array.size:
        raise ValueError(
            f"{what} must be (n, h, w), (n, h, w, 1 or 3) or (n, C, h, w) with n ≥ 1, got {array.shape}. Reshape it."
        )
    first, last = array.shape[1], array.shape[3]
    if last in (1, 3) and first in (1, 3):
        raise ValueError(f"{what} must have one possible channel axis, but {array.shape} has two. Pad the images.")
    if last in (1, 3):
        return array.transpose(0, 3, 1, 2)
    if last in (2, 4) and first > 4:
        raise ValueError(
            f"{what} must have 1 or 3 channels where they come last, got {array.shape}. Drop a channel, or move them to axis 1."
        )
    return array


def _as_bytes(what: str, array: Array) -> Images:
    if array.dtype == np.uint8:
        return array
    top = 1 if array.dtype.kind == "f" else 255
    if array.dtype.kind not in "fiu" or not (array.min() >= 0 and array.max() <= top):  # also refuses NaN
        came = f"{array.dtype} in [{array.min():g}, {array.max():g}]" if array.dtype.kind in "fiu" else str(array.dtype)
        raise ValueError(
            f"{what} must be whole numbers in 0 … 255 or fractions in [0, 1], got {came}. Rescale it; a command with --pixels "
            "MEAN:SPREAD undoes that for the network."
        )
    return _rounded(what, array) if top == 1 else array.astype(np.uint8)


_WORTH_TELLING, _MOST_LOST = 0.01, 0.1  # of the spread; fractions spread evenly over [0, 1] lose 0.004


def _rounded(what: str, array: Array) -> Images:
    """Fractions at 256 levels; a warning or an error where they span few of them, as images that were divided by 255 twice."""
    wide = array.astype(np.float32, copy=False) * 255
    rounded = np.rint(wide)
    spread = float(np.std(wide, dtype=np.float64))
    share = float(np.sqrt(np.mean((wide - rounded) ** 2, dtype=np.float64))) / spread if spread else 0.0
    if share > _MOST_LOST:
        raise ValueError(
            f"{what} must use more of the 256 levels between 0 and 1, but rounding to them changes it by {share:.0%} of its spread. "
            "Rescale it to the range from 0 to 1."
        )
    if share > _WORTH_TELLING:
        warnings.warn(
            f"{what} is rounded to 256 levels between 0 and 1, which changes it by {share:.1%} of its spread. Rescale it to the "
            "range from 0 to 1.",
            stacklevel=2,
        )
    return rounded.astype(np.uint8)


def _labels(what: str, array: Array, num: int) -> Labels:
    flat = array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array
    if flat.dtype.kind not in "iu" or flat.shape != (num,):
        came = f"{array.dtype} {array.shape}"
        raise ValueError(f"{what} must be {num:,} whole numbers, one per image, got {came}. Convert it first.")
    if flat.min() < 0:
        raise ValueError(f"{what} must count classes from 0, got {flat.min()}. Number the classes from 0.")
    if flat.max() >= _MOST_CLASSES:
        raise ValueError(
            f"{what} must count classes from 0 up to {_MOST_CLASSES:,}, got {flat.max()}. Number the classes from 0."
        )
    return flat.astype(np.int64)
