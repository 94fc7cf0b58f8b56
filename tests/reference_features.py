"""Features and token ids of encoders at weights that a formula gives: what any implementation of them must agree with.

The numbers in ``reference_features.json`` were computed in float64 by this package's own modules, before it took those of libraries.
"""

import json
import tempfile
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn

from biascope.editing.encoders.clip_tower import clip_tower
from biascope.editing.encoders.efficientnet_lite import efficientnet_lite
from biascope.editing.encoders.texts import text_encoder
from biascope.families.libraries.hf import library

REFERENCE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

BERT = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "layer_norm_eps": 1e-5,
}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
TOWER = {"image_size": 16, "patch_size": 8, "width": 24, "layers": 2, "head_width": 8}
EMBEDDING = 5
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PIECES = [
    *(*MARKS, "the", "on", "e", "##s", "tower", "quot", "##es", "##e", "n", "##ai", "##ve", "do", "##ne"),
    *(
        "$",
        "5",
        "+",
        "3",
        "東",
        "京",
        "is",
        "##n",
        "'",
        "t",
        "it",
        "?",
        "ß",
        "nb",
        "##sp",
        "i",
        "##stanbul",
        "κ",
        "##α",
    ),
]
TEXTS = [
    "naïve Ünïcödé — “quotes” … ½ ™ 東京 tower\u200b zero\x00width\ttab\u00a0nbsp $5+3^2=`x` İstanbul ß " + "a" * 101,
    "",
    "\u0301 lone accent",
    "Ελληνικά кириллица — done ; isn't it ?",
    "A man is playing a guitar.",
    "The price rose by 3.5% to $12,000 (see p. 7) -- who's to blame?",
]


def formula_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights in float64 that depend on names and shapes alone, of the size that keeps a signal.

    Args:
        state: Names and shapes; whole numbers are left as they are.
    """
    found = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            found[name] = tensor
            continue
        wave = _spread(tensor.numel(), zlib.crc32(name.encode())).reshape(tensor.shape)
        if tensor.dim() > 1:
            found[name] = 2 * wave * tensor[0].numel() ** -0.5
        else:
            at_one = name.endswith(("norm.weight", "Norm.weight", "running_var", "_1.weight", "_2.weight")) or (
                "_bn" in name and name.endswith("weight")
            )
            found[name] = at_one + 0.2 * wave
    return found


def images(side: int) -> Tensor:
    """Two images in float64."""
    return 2 * _spread(2 * 3 * side**2, side).reshape(2, 3, side, side)


def _spread(count: int, seed: int) -> Tensor:
    """Numbers from −1 to 1 without a pattern, by whole numbers alone: the same on every machine."""
    bits = (torch.arange(count) + seed) & 0xFFFFFFFF
    for shift, factor in ((16, 0x45D9F3B), (15, 0x2C1B3C6D), (16, 1)):
        bits = ((bits ^ (bits >> shift)) * factor) & 0xFFFFFFFF
    return bits.double() / 2**31 - 1


def token_ids() -> Tensor:
    """Three texts of 8, 5 and 3 tokens; 0 is padding."""
    ids = (torch.arange(24).reshape(3, 8) * 7) % 39 + 1
    for row, count in zip(ids, (8, 5, 3), strict=True):
        row[count:] = 0
    return ids


def bert() -> nn.Module:
    transformers = library("the test")
    return text_encoder(transformers, transformers.BertConfig(**BERT), 0, folder=Path(), random=True)


def t5(kind: str) -> nn.Module:
    transformers = library("the test")
    config = transformers.T5Config(**T5, feed_forward_proj=kind, decoder_start_token_id=0)
    return text_encoder(transformers, config, 0, folder=Path(), random=True)


def tower(*, quick: bool = False) -> nn.Module:
    config = {"embed_dim": EMBEDDING, "vision_cfg": TOWER, "quick_gelu": quick}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
        return clip_tower(Path(folder))


def lite(version: int) -> nn.Module:
    return efficientnet_lite(version)
