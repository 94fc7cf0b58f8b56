"""A user's own arrays: an .npz file or a folder of .npy files with x_train, y_train, x_test, y_test, or x and perhaps y."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from biascope.data.dataset import Dataset, Images, Inputs, Labels, Split, numbered_classes, require_finite
from biascope.data.official import damaged
from biascope.results.axes import Axis, named_axes

Array = np.ndarray[Any, np.dtype[Any]]

_MOST_CLASSES = 100_000
_KEYS = "x_train, y_train, x_test, y_test, or x and perhaps y"
_IMAGE = ("channel", "height", "width")


def read_npz(path: Path) -> Dataset:
    """The data set in an .npz file, as :func:`dataset_of_arrays` tells it. No code in the file is run.

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
    return dataset_of_arrays(path.stem, arrays, str(path))


def holds_npy(folder: Path) -> bool:
    """Whether a folder has inputs as .npy files."""
    return any(path.stem == "x" or path.stem.startswith("x_") for path in folder.glob("x*.npy"))


def read_npy_folder(folder: Path) -> Dataset:
    """The data set in a folder of .npy files, which have the names that arrays have in an .npz file.

    Raises:
        ValueError: If a file is damaged or its array is not of this form.
    """
    arrays = {}
    for path in sorted(folder.glob("*.npy")):
        try:
            with path.open("rb") as file:
                arrays[path.stem] = np.load(file, allow_pickle=False)
        except MemoryError as error:
            raise damaged(path, "hold an array that fits into memory", "declares a larger one") from error
        except Exception as error:  # as above
            raise damaged(path, "be a whole .npy file of numbers", f"is not ({_first_words(error)})") from error
    return dataset_of_arrays(folder.resolve().name, arrays, str(folder))


def dataset_of_arrays(name: str, arrays: Mapping[str, Array], where: str) -> Dataset:
    """The data set that arrays are.

    ``x_NAME`` holds the samples and ``y_NAME`` the labels of split NAME; ``x`` and ``y`` alone are the split "train". What samples
    are is told by their type and shape, or by ``axes``, their names from the first to the last:

    - Bytes and fractions in [0, 1] of three or four axes are images: (n, h, w), (n, h, w, 1), (n, h, w, 3) or (n, C, h, w). Fractions
      are rounded to 256 levels.
    - Whole numbers of two axes, or with an axis "token", are token ids.
    - Other floats are numbers as they are: tables (n, features), sequences (n, time, features), images (n, C, h, w). With ``axes``,
      any shape.

    An ``attention_mask`` is refused, unless it leaves out nothing: networks take the ids alone.

    Labels are whole numbers from 0; there may be none. ``classes`` may name them, and ``features`` the features.

    Args:
        name: What the set is called.
        arrays: By these names.
        where: Whose they are, for errors.

    Raises:
        ValueError: If they are not of this form.

    Example:
        >>> dataset_of_arrays("people", {"x": np.array([[34.0, 2.5], [51.0, 3.1]]), "features": np.array(["age", "income"])}, "it")
        people: 2 train samples of 2 features, no labels
    """
    keys = [key for key in arrays if key == "x" or key.startswith("x_")]
    if not keys:
        there = ", ".join(arrays) or "nothing"
        raise ValueError(f"{where} must hold {_KEYS}, but holds {there}. Save the arrays under these names.")
    if masks := [key for key in arrays if key.startswith("attention_mask") and not (arrays[key] == 1).all()]:
        raise ValueError(
            f"{masks[0]} of {where} would be left out, because networks here take token ids alone. Let forward make it, such as "
            "mask = ids != 0, and leave it out."
        )
    said = _said_axes(where, arrays)
    inputs, axes = _inputs({f"{key} of {where}": arrays[key] for key in keys}, said)
    splits: dict[str, Split] = {}
    for key, samples in zip(keys, inputs, strict=True):
        label_key = "y" + key[1:]
        labels = _labels(f"{label_key} of {where}", arrays[label_key], len(samples)) if label_key in arrays else None
        splits[key[2:] or "train"] = samples, labels
    axes = _with_features(where, axes, inputs[0].shape[1:], arrays.get("features"))
    named = tuple(str(each) for each in np.atleast_1d(arrays["classes"])) if "classes" in arrays else ()
    return Dataset(name, splits, named or numbered_classes(splits), axes)


def _said_axes(where: str, arrays: Mapping[str, Array]) -> tuple[Axis, ...]:
    """The axes of a sample, where the file names them."""
    if "axes" not in arrays:
        return ()
    said = arrays["axes"]
    if said.dtype.kind != "U":
        raise ValueError(f'axes of {where} must be names, got {said.dtype}. Save axes=["time", "feature"].')
    try:
        return named_axes(",".join(np.atleast_1d(said).tolist()))
    except ValueError as error:
        raise ValueError(f"axes of {where} cannot be used. {error}") from error


def _with_features(where: str, axes: tuple[Axis, ...], shape: tuple[int, ...], names: Array | None) -> tuple[Axis, ...]:
    """The axes with the names of the features."""
    if names is None:
        return axes
    at = [place for place, axis in enumerate(axes) if axis.name == "feature"]
    if names.dtype.kind != "U" or names.ndim != 1 or not at:
        raise ValueError(
            f'features of {where} must be names of the places of an axis "feature", but there is no such axis or they are no names. '
            'Save axes=["time", "feature"] beside them, or leave them out.'
        )
    labels = tuple(names.tolist())
    if len(labels) != shape[at[-1]]:
        raise ValueError(
            f"features of {where} must name each of the {shape[at[-1]]:,} features, got {len(labels):,} names. Correct them."
        )
    return tuple(Axis(axis.name, labels) if place == at[-1] else axis for place, axis in enumerate(axes))


def _inputs(arrays: Mapping[str, Array], axes: tuple[Axis, ...]) -> tuple[list[Inputs], tuple[Axis, ...]]:
    """Samples of all splits, read alike, and what their axes are."""
    for what, array in arrays.items():
        if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            raise ValueError(
                f"{what} must be real numbers of at most 64 bits, got {array.dtype}. Convert it, for example to float32."
            )
        if array.ndim < 2 or not array.size:
            raise ValueError(
                f"{what} must be (n, h, w), (n, h, w, 1 or 3) or (n, C, h, w) for images, (n, features) for a table or "
                f"(n, time, features) for sequences, with n ≥ 1, got {array.shape}. Reshape it."
            )
        if axes and len(axes) != array.ndim - 1:
            raise ValueError(
                f"{what} must have the {len(axes)} axes that its file names beside the one over samples, got {array.shape}. "
                "Correct axes in the file."
            )
    first, kinds = next(iter(arrays.values())), {array.dtype.kind for array in arrays.values()}
    names = tuple(axis.name for axis in axes)
    if axes and not (names == _IMAGE and first.dtype == np.uint8):
        if "token" in names and "f" not in kinds:
            return [_ids(what, array) for what, array in arrays.items()], axes
        return [_floats(what, array) for what, array in arrays.items()], axes
    if first.ndim == 2:
        if "f" in kinds:
            return [_floats(what, array) for what, array in arrays.items()], (Axis("feature"),)
        return [_ids(what, array) for what, array in arrays.items()], (Axis("token"),)
    if first.ndim > 4:
        what = next(iter(arrays))
        raise ValueError(
            f"{what} has {first.ndim} axes, and its file must name those of a sample. Save "
            'axes=["time", "channel", "height", "width"] beside it.'
        )
    if not all(array.dtype.kind in "iu" or _like_pixels(array) for array in arrays.values()):
        if first.ndim == 3:
            return [_floats(what, array) for what, array in arrays.items()], ()
        laid_out = {what: _channels_first(what, array) for what, array in arrays.items()}
        return [_floats(what, array) for what, array in laid_out.items()], tuple(map(Axis, _IMAGE))
    return [_images(what, array) for what, array in arrays.items()], ()


def _like_pixels(array: Array) -> bool:
    """Whether floats lie in [0, 1], or are bytes in disguise, which is refused."""
    low, high = array.min(), array.max()
    return bool(low >= 0 and (high <= 1 or (high <= 255 and np.array_equal(array, np.rint(array)))))


def _floats(what: str, array: Array) -> Inputs:
    """Numbers as they are; those of 32 bits or fewer in 32."""
    require_finite(what, array)
    return np.ascontiguousarray(array, np.float64 if array.dtype.itemsize > 4 else np.float32)


def _ids(what: str, array: Array) -> Inputs:
    """Token ids; bytes of two axes may be pixels as well."""
    if array.dtype == np.uint8:
        raise ValueError(
            f"{what} must be pictures (n, h, w), token ids of 64 bits or a table of floats, got uint8 {array.shape}. "
            "Reshape or convert it."
        )
    if array.min() < 0:
        raise ValueError(
            f"{what} must be token ids from 0, got {array.min()}. Pad with another id; save a table of whole numbers as float32."
        )
    return np.ascontiguousarray(array, np.int64)


def _first_words(error: Exception) -> str:
    """What a library says of a file, without its advice."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0]


def _images(what: str, array: Array) -> Images:
    return np.ascontiguousarray(_as_bytes(what, _channels_first(what, array)))


def _channels_first(what: str, array: Array) -> Array:
    if array.ndim == 3:
        return array[:, None]
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
    if not (array.min() >= 0 and array.max() <= top):
        raise ValueError(
            f"{what} must be whole numbers in 0 … 255 or fractions in [0, 1] to be images, got {array.dtype} in "
            f'[{array.min():g}, {array.max():g}]. Save images as uint8, or say what else it is, such as axes=["time", "feature"].'
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
        raise ValueError(f"{what} must be {num:,} whole numbers, one per sample, got {came}. Convert it first.")
    if flat.min() < 0:
        raise ValueError(f"{what} must count classes from 0, got {flat.min()}. Number the classes from 0.")
    if flat.max() >= _MOST_CLASSES:
        raise ValueError(
            f"{what} must count classes from 0 up to {_MOST_CLASSES:,}, got {flat.max()}. Number the classes from 0."
        )
    return flat.astype(np.int64)
