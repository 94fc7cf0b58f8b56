"""Arrays that are no images: tables, sequences and token ids, told apart by one rule, or by what the file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from biascope import data
from biascope.data.dataset import Dataset
from biascope.results.axes import Axis

GENERATOR = np.random.default_rng(0)
TABLE = GENERATOR.normal(size=(6, 3)).astype(np.float32)
SEQUENCES = GENERATOR.normal(size=(6, 5, 3))
IDS = GENERATOR.integers(0, 900, (6, 5))
PIXELS = GENERATOR.integers(0, 256, (6, 4, 4), np.uint8)
TIME = np.array(["time", "feature"])


def loaded(folder: Path, **arrays: Any) -> Dataset:
    np.savez(folder / "mine.npz", **arrays)
    return data.load(folder / "mine.npz")


@pytest.mark.parametrize(
    ("arrays", "words", "dtype", "axes"),
    [
        ({"x": TABLE}, "6 train samples of 3 features", np.float32, ("feature",)),
        ({"x": TABLE.astype(np.float16)}, "6 train samples of 3 features", np.float32, ("feature",)),
        ({"x": IDS, "axes": np.array(["feature"])}, "6 train samples of 5 features", np.float64, ("feature",)),
        ({"x": SEQUENCES}, "6 train samples of 5×3", np.float64, ()),
        ({"x": SEQUENCES, "axes": TIME}, "6 train samples of 5 steps × 3 features", np.float64, ("time", "feature")),
        ({"x": PIXELS, "axes": TIME}, "6 train samples of 4 steps × 4 features", np.float32, ("time", "feature")),
        ({"x": PIXELS / 255, "axes": TIME}, "6 train samples of 4 steps × 4 features", np.float64, ("time", "feature")),
        ({"x": PIXELS}, "6 train images of 1×4×4", np.uint8, ()),
        ({"x": PIXELS / 255}, "6 train images of 1×4×4", np.uint8, ()),
        ({"x": IDS}, "6 train samples of 5 token ids", np.int64, ("token",)),
        (
            {"x": IDS.astype(np.int32), "x_test": IDS[:2]},
            "6 train, 2 test samples of 5 token ids",
            np.int64,
            ("token",),
        ),
    ],
)
def test_what_samples_are(
    tmp_path: Path, arrays: dict[str, Any], words: str, dtype: type, axes: tuple[str, ...]
) -> None:
    found = loaded(tmp_path, **arrays)
    assert repr(found) == f"mine: {words}, no labels"
    assert found.splits["train"][0].dtype == dtype
    assert tuple(axis.name for axis in found.axes) == axes
    if dtype != np.uint8:
        assert np.allclose(found.splits["train"][0], arrays["x"], rtol=1e-6)


def test_floats_of_four_axes_are_images_on_a_scale_of_their_own(tmp_path: Path) -> None:
    found = loaded(tmp_path, x=GENERATOR.normal(size=(2, 4, 5, 3)))
    assert repr(found) == "mine: 2 train samples of 3 channels × 4 rows × 5 columns, no labels"
    with pytest.raises(ValueError, match="'mine' must hold images of 8 bits, but holds samples of 3 channels"):
        found.padded(8)


def test_splits_are_read_alike(tmp_path: Path) -> None:
    """A part that happens to lie in [0, 1] is no image where another part is not."""
    found = loaded(tmp_path, x_train=SEQUENCES, x_test=np.abs(SEQUENCES[:1]) / 99)
    assert found.splits["test"][0].dtype == np.float64


def test_features_have_names(tmp_path: Path) -> None:
    names = np.array(["age", "income", "height"])
    assert loaded(tmp_path, x=TABLE, features=names).axes == (Axis("feature", ("age", "income", "height")),)
    assert loaded(tmp_path, x=SEQUENCES, axes=TIME, features=names).axes[1].label(2) == "height"


def test_a_folder_of_npy_files_is_the_same_set(tmp_path: Path) -> None:
    arrays = {"x_train": TABLE, "y_train": np.arange(6) % 2, "x_test": TABLE[:2], "features": np.array(["a", "b", "c"])}
    (tmp_path / "mine").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "mine" / f"{name}.npy", array)
    assert data.load(tmp_path / "mine").identity == loaded(tmp_path, **arrays).identity
    (tmp_path / "mine" / "y_train.npy").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"y_train.npy must be a whole .npy file of numbers"):
        data.load(tmp_path / "mine")


def test_the_identity_tells_numbers_and_names_apart(tmp_path: Path) -> None:
    kinds = [{"x": IDS}, {"x": IDS, "axes": np.array(["feature"])}, {"x": TABLE}]
    kinds.append({"x": TABLE, "features": np.array(["a", "b", "c"])})
    assert len({loaded(tmp_path, **arrays).identity for arrays in kinds}) == len(kinds)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": TABLE * np.array([1, np.nan, 1])}, r"x of .* must be finite numbers, but sample 0 has nan at \(1,\)"),
        ({"x": IDS - 50}, "must be token ids from 0, got -"),
        ({"x": SEQUENCES[:, :, :, None, None]}, "has 5 axes, and its file must name those of a sample"),
        ({"x": SEQUENCES, "axes": np.array(["time"])}, "must have the 1 axes that its file names"),
        (
            {"x": SEQUENCES, "axes": np.array(["time", "letter"])},
            "axes of .* cannot be used. Axes must .* got 'letter'",
        ),
        ({"x": SEQUENCES, "axes": np.arange(2)}, "axes of .* must be names, got int64"),
        ({"x": SEQUENCES, "features": np.array(["a", "b", "c"])}, "features of .* must be names of the places"),
        (
            {"x": TABLE, "features": np.array(["a", "b"])},
            "features of .* must name each of the 3 features, got 2 names",
        ),
        ({"x": TABLE, "features": np.array(["a", "b", "a"])}, "must have 3 different names along feature, got 2"),
        ({"x_train": TABLE, "x_test": IDS[:, :3]}, "must have the type of the other splits, got float64"),
        ({"x": TABLE, "y": TABLE[:, 0]}, "y of .* must be 6 whole numbers, one per sample, got float32"),
        ({"x": np.zeros((2, 3), np.clongdouble)}, "must be real numbers of at most 64 bits"),
    ],
)
def test_what_arrays_cannot_be_is_a_sentence(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        loaded(tmp_path, **arrays)
