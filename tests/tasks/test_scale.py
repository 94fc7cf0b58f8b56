"""The scale of samples: by the training samples, by axis, and told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from biascope.families.named_model import Pixels
from biascope.tasks.patch_files import pixel_scale
from biascope.tasks.samples import samples_of
from biascope.tasks.task import Arrays

GENERATOR = np.random.default_rng(0)
TABLE = GENERATOR.normal(size=(40, 3)) * [1, 1e5, 1e-3] + [40, 2e9, 0]
SEQUENCES = GENERATOR.normal(size=(40, 6, 3)) * [[[1, 10, 100]]]


def taken(folder: Path, *, sizes: tuple[int, ...] = (40,), standardise: str | Pixels = "own", **arrays: Any) -> Arrays:
    np.savez(folder / "mine.npz", **arrays)
    return samples_of(folder / "mine.npz", sizes=sizes, labelled=False, standardise=standardise)


def moments(samples: torch.Tensor, *axes: int) -> tuple[torch.Tensor, torch.Tensor]:
    return samples.double().mean(axes), samples.double().std(axes, correction=0)


@pytest.mark.parametrize(
    ("arrays", "axes", "words"),
    [
        ({"x": TABLE}, (0,), "each feature standardised over the training samples"),
        ({"x": SEQUENCES}, (0, 1), "each place along the last axis standardised over the training samples"),
        (
            {"x": SEQUENCES.swapaxes(1, 2), "axes": np.array(["channel", "time"])},
            (0, 2),
            "each channel standardised over the training samples",
        ),
        ({"x": TABLE, "axes": np.array(["time"])}, (0, 1), "every number standardised over the training samples"),
    ],
)
def test_numbers_are_standardised_along_the_axis_that_is_told(
    tmp_path: Path, arrays: dict[str, Any], axes: tuple[int, ...], words: str
) -> None:
    found = taken(tmp_path, **arrays)
    mean, spread = moments(found.whole("train")[0], *axes)
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-6, rtol=0)
    torch.testing.assert_close(spread, torch.ones_like(spread), atol=1e-6, rtol=0)
    assert found.prepared == words


def test_the_test_samples_have_the_scale_of_the_training_samples(tmp_path: Path) -> None:
    found = taken(tmp_path, sizes=(40, 1), x_train=TABLE, x_test=TABLE[:1] + TABLE.std(0))
    expected = (TABLE[:1] - TABLE.mean(0)) / TABLE.std(0) + 1
    torch.testing.assert_close(found.whole("test")[0], torch.tensor(expected).float(), atol=1e-5, rtol=0)


def test_numbers_stay_as_they_are_where_that_is_asked(tmp_path: Path) -> None:
    found = taken(tmp_path, standardise="none", x=SEQUENCES)
    order = sorted(found.whole("train")[0][:, 0, 0].tolist())
    assert order == sorted(SEQUENCES[:, 0, 0].astype(np.float32).tolist())
    assert found.prepared == "numbers as they are"
    pixels = np.array([[[0, 51], [0, 0]], [[255, 0], [0, 0]]], np.uint8)
    found = taken(tmp_path, standardise="none", x=pixels)
    assert sorted(set(found.whole("train")[0].flatten().tolist())) == pytest.approx([0, 0.2, 1])
    assert found.prepared == "pixels divided by 255"


def test_a_constant_feature_is_told_and_set_to_0(tmp_path: Path) -> None:
    table = TABLE.copy()
    table[:, 1] = 0.1
    with pytest.warns(UserWarning, match="Of 'mine', feature income is constant over the training samples"):
        found = taken(tmp_path, x=table, features=np.array(["age", "income", "height"]))
    assert found.whole("train")[0][:, 1].abs().max() < 1e-6
    assert found.prepared.endswith("; feature income is constant, and set to 0")


def test_token_ids_stay_whole_numbers(tmp_path: Path) -> None:
    ids = GENERATOR.integers(0, 900, (40, 5))
    found = taken(tmp_path, x=ids)
    x = found.whole("train")[0]
    assert x.dtype == torch.int64
    assert sorted(x.flatten().tolist()) == sorted(ids.flatten().tolist())
    assert found.prepared == "token ids as they are"


def test_images_have_the_scale_that_a_model_was_made_for(tmp_path: Path) -> None:
    images = GENERATOR.integers(0, 256, (6, 3, 4, 4)).astype(np.uint8)
    pixels = Pixels("timm:resnet18", (0.5, 0.4, 0.3), (0.2, 0.25, 0.5))
    found = taken(tmp_path, standardise=pixels, x=images)
    x = found.whole("train")[0] * torch.tensor(pixels.spread)[:, None, None] + torch.tensor(pixels.mean)[:, None, None]
    assert sorted((255 * x).round().int().flatten().tolist()) == sorted(images.flatten().tolist())
    assert found.prepared == (
        "pixels divided by 255, then each channel minus 0.5, 0.4, 0.3 over 0.2, 0.25, 0.5, as timm:resnet18 states"
    )
    mean, spread = pixel_scale(tmp_path / "mine.npz", size=6, standardise=pixels)
    assert (mean.shape, spread.flatten().tolist()) == ((3, 1, 1), pytest.approx(pixels.spread))
    grey = images[:, :1]
    with pytest.raises(ValueError, match="must have the 3 channels for which timm:resnet18 scales pixels, got 1"):
        taken(tmp_path, standardise=pixels, x=grey)
    for other, words in ((grey, "each channel"), (TABLE, "each feature")):
        found = taken(tmp_path, standardise=dataclasses.replace(pixels, usual=True), x=other)
        assert found.prepared.endswith(f"{words} standardised over the training samples")


def test_patches_have_the_scale_of_the_images(tmp_path: Path) -> None:
    images = GENERATOR.integers(0, 256, (6, 3, 4, 4)).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", x=images)
    plain, own = (pixel_scale(tmp_path / "mine.npz", size=6, standardise=how) for how in ("none", "own"))
    assert (plain[0].tolist(), plain[1].tolist()) == ([[[0]]] * 3, [[[1]]] * 3)
    assert own[0].flatten() == pytest.approx((images / 255).mean((0, 2, 3)))


@pytest.mark.parametrize(
    ("arrays", "how", "sentence"),
    [
        ({"x": TABLE}, "half", "standardise must be one of own, none, got 'half'"),
        ({"x": TABLE[:1]}, "own", "The 1 training samples of 'mine' must differ .* each feature is constant"),
        ({"x": TABLE * 1e200}, "own", "must fit into 64 bits, but the largest is 2"),
        ({"x": TABLE * 1e100}, "none", "must fit into 32 bits, but the largest is 2"),
    ],
)
def test_what_has_no_scale_is_a_sentence(tmp_path: Path, arrays: dict[str, Any], how: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        taken(tmp_path, standardise=how, **arrays)
