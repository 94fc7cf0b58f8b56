"""Patches in an ``.npy`` or ``.npz`` file of the user."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from biascope import data
from biascope.families.named_model import Pixels
from biascope.tasks.patches import Patches
from biascope.tasks.scale import scale_of

Scale = tuple[np.ndarray, np.ndarray]  # mean and spread of each channel, (C, 1, 1)

_KEYS = "patches, and perhaps names and statistics"


def pixel_scale(
    name_or_path: str | Path,
    *,
    size: int,
    standardise: str | Pixels = "own",
    root: Path | None = None,
    seed: int = 0,
) -> Scale:
    """Mean and standard deviation of each channel by which :func:`biascope.tasks.samples.samples_of` standardises images.

    Args:
        name_or_path: The data set.
        size: Training samples that are taken of it.
        standardise: As there.
        root: Folder of data sets.
        seed: Random seed for the choice of samples.
    """
    whole = data.load(name_or_path, root=root).images()
    part = whole.subset({"train": min(size, len(whole.splits["train"][0]))}, seed=seed)
    if standardise != "own":
        found, ones = scale_of(part, standardise), np.ones((part.shape[0], 1, 1))
        return np.reshape(found.mean, (-1, 1, 1)) * ones, np.reshape(found.spread, (-1, 1, 1)) * ones
    images = part.splits["train"][0] / 255.0
    mean, spread = images.mean((0, 2, 3)), images.std((0, 2, 3))
    return mean[:, None, None], np.maximum(spread, 1e-6)[:, None, None]


def patches_of(path: Path | str, *, within: float | None = 0.5, scale: Scale | None = None) -> Patches | None:
    """The patterns in a file: patches ``(P, C, h, w)`` or ``(P, h, w)``.

    An ``.npy`` file holds the patches alone; an ``.npz`` file holds them as ``patches``, with ``names`` of each and label
    ``statistics`` where these are known. Bytes are pixels of images, 0 to 255, and are standardised as images are, or without a
    scale taken as numbers from 0 to 1. Other numbers are taken as they are: in the units of the network's input.

    Args:
        path: The file.
        within: See :class:`biascope.tasks.patches.Patches`.
        scale: By which images are standardised, as of :func:`pixel_scale`.

    Returns:
        The patches, or ``None`` where the word names no such file: a data set.

    Raises:
        ValueError: If the file is damaged, or does not hold patches.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "corners.npz"
        >>> np.savez(file, patches=np.eye(4).reshape(4, 2, 2), names=["a", "b", "c", "d"])
        >>> found = patches_of(file)
        >>> found.names, tuple(found.pixels.shape), found.name
        (('a', 'b', 'c', 'd'), (4, 1, 2, 2), 'corners.npz')
    """
    if within is not None and not 0 < within < math.inf:
        raise ValueError(f"within must be a positive number of pattern norms, got {within}. Pass within=0.5.")
    path = Path(path).expanduser()
    if path.suffix not in (".npy", ".npz") or (path.suffix == ".npz" and not path.is_file()):
        return None
    arrays = _arrays(path)
    if "patches" not in arrays:
        if any(key == "x" or key.startswith("x_") for key in arrays):
            return None  # a data set
        raise ValueError(
            f"{path} must hold {_KEYS}, but holds {', '.join(arrays) or 'nothing'}. Save the arrays under these names."
        )
    pixels = arrays["patches"]
    if pixels.dtype.kind not in "fiu":
        raise ValueError(f"The patches of {path} must be numbers, got {pixels.dtype}. Convert them first.")
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels
    if pixels.dtype == np.uint8:
        mean, spread = scale or (np.zeros(1), np.ones(1))
        if scale is not None and pixels.ndim == 4 and len(mean) != pixels.shape[1]:
            raise ValueError(
                f"The patches of {path} must have the {len(mean)} channels of the data, got {pixels.shape[1]}. "
                "Cut the patches from images of this data."
            )
        pixels = (pixels / 255.0 - mean) / spread
    statistics = arrays.get("statistics")
    if statistics is not None and (statistics.dtype.kind not in "fiu" or not np.isfinite(statistics).all()):
        raise ValueError(
            f"The statistics of {path} must be finite numbers, got {statistics.dtype}. Fix or remove them."
        )
    return Patches(
        torch.from_numpy(np.ascontiguousarray(pixels, np.float64)),
        names=tuple(map(str, arrays["names"].tolist())) if "names" in arrays else (),
        statistics=None if statistics is None else torch.from_numpy(statistics.astype(np.float64)),
        within=within,
        name=path.name,
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file under their names; no code in it is run."""
    if not path.is_file():
        raise ValueError(f"The patches {path} must be an existing file, but there is none. Check the path.")
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            return {key: found[key] for key in found.files} if path.suffix == ".npz" else {"patches": found}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} must be a whole {path.suffix} file of numbers, but is not ({error}). Save it again."
        ) from error
