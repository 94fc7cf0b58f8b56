"""The doctor of merges on folders as transformers and PEFT write them: each fault is found, and not on its clean twin."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from biascope.editing.doctor import diagnosis_of
from biascope.families.libraries.packages import define_operators_of_torchvision

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    define_operators_of_torchvision()
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")

pytestmark = pytest.mark.usefixtures("_quiet")
TARGETS = ["q_proj", "v_proj", "up_proj"]
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "vocab_size": 64}
LLAMA = SIZES | {"num_hidden_layers": 2, "num_key_value_heads": 1}
RANK, ALPHA = 4, 16


@pytest.fixture
def _quiet():
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def llama(seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**(LLAMA | {"tie_word_embeddings": False} | settings))
    )


def adapted(model: Any, seed: int = 1, size: float = 0.03, **settings: Any) -> Any:
    """A model with an adapter that looks trained."""
    usual = {"r": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS, "task_type": "CAUSAL_LM"}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**(usual | settings)))
    torch.manual_seed(seed)
    for name, tensor in wrapped.named_parameters():
        if ".lora_magnitude" in name:
            tensor.data *= 1 + size * torch.randn_like(tensor)
        elif ".lora_" in name:
            tensor.data = size * torch.randn_like(tensor)
    return wrapped


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A base, two adapters, and the first merged by PEFT."""
    folder = tmp_path_factory.mktemp("made")
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        llama().save_pretrained(folder / "base")
        for seed, name in ((1, "a"), (2, "b")):
            adapted(llama(), seed).save_pretrained(folder / name)
            named(folder / name, folder / "base")
        adapted(llama()).merge_and_unload().save_pretrained(folder / "merged")
    return folder


def named(adapter: Path, base: Path | str) -> None:
    """Write the base's name into the adapter, as PEFT does for a base that was loaded by it."""
    edit(adapter / "adapter_config.json", base_model_name_or_path=str(base))


def edit(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def copied(folder: Path, target: Path, **settings: Any) -> Path:
    """A copy of an adapter with other settings."""
    shutil.copytree(folder, target)
    edit(target / "adapter_config.json", **settings)
    return target


def retold(file: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(file)).items()}, file, {"format": "pt"})


def found(case: str, *sources: Path, **settings: Any) -> str:
    """The status of a case; if it is a finding, the place that decides it follows."""
    diagnosis = diagnosis_of([*sources], **settings)
    places = [f" {Path(sign.file).name}: {sign.key}" for sign in diagnosis.findings if sign.case == case]
    return diagnosis.status(case) + "".join(places[:1])


def combined(made: Path, target: Path, weights: list[float], kind: str, *names: Path, **settings: Any) -> Path:
    """Adapters combined by PEFT."""
    model = transformers.LlamaForCausalLM.from_pretrained(made / "base")
    wrapped = peft.PeftModel.from_pretrained(model, names[0], adapter_name="first")
    for place, name in enumerate(names[1:], 1):
        wrapped.load_adapter(name, adapter_name=f"more{place}")
    wrapped.add_weighted_adapter(
        ["first", *(f"more{place}" for place in range(1, len(names)))], weights, "both", kind, **settings
    )
    wrapped.save_pretrained(target, selected_adapters=["both"])
    return target / "both"


def test_clean_folders_have_no_finding(made):
    diagnosis = diagnosis_of([made / "a"], merged=made / "merged")
    assert not diagnosis.findings
    assert diagnosis.folders[0] == ("base", str(made / "base"))
    seen = {row["number"] for row in diagnosis.rows() if row["status"] == "clean"}
    assert seen == {1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 13, 14, 16}


@pytest.mark.parametrize("rank", [None, 2])
def test_scale_applied_twice(made, tmp_path, rank):
    """PEFT before the correction multiplied the weights of ``svd`` by the scales, which the updates have already."""
    pair = (made / "a", made / "b")
    right = combined(made, tmp_path / "right", [0.5, 0.25], "svd", *pair, svd_rank=rank)
    wrong = combined(made, tmp_path / "wrong", [0.5 * ALPHA / RANK, 0.25 * ALPHA / RANK], "svd", *pair, svd_rank=rank)
    weights = {made / "a": 0.5, made / "b": 0.25}
    assert found("scaled_twice", *pair, merged=right, coefficients=weights) == "clean"
    assert found("scaled_twice", *pair, merged=wrong, coefficients=weights) == "fault adapter_config.json: lora_alpha"
    assert found("scaled_twice", *pair, merged=wrong) == "cannot be seen"


@pytest.mark.parametrize("kind", ["cat", "svd", "linear"])
def test_rank_stabilised_adapters_combined(made, tmp_path, kind):
    adapted(llama(), 3, use_rslora=True).save_pretrained(tmp_path / "a")
    named(tmp_path / "a", made / "base")
    pair = (tmp_path / "a",) if kind == "linear" else (tmp_path / "a", tmp_path / "a")
    both = combined(made, tmp_path / "both", [1.0] * len(pair), kind, *pair)
    corrected = copied(both, tmp_path / "corrected", use_rslora=False)  # all that the correction of PEFT changes
    wrong = json.loads((both / "adapter_config.json").read_text())["use_rslora"]
    sources, weights = (tmp_path / "a",), {tmp_path / "a": float(len(pair))}
    status = found(
        "variant_lost", *sources, merged=copied(both, tmp_path / "wrong", use_rslora=True), coefficients=weights
    )
    assert status == "fault adapter_config.json: use_rslora"
    assert found("variant_lost", *sources, merged=corrected, coefficients=weights) == "clean"
    assert found("variant_lost", *sources, merged=both, coefficients=weights).startswith("fault" if wrong else "clean")
    assert found("variant_lost", merged=copied(both, tmp_path / "alone", use_rslora=True)).startswith("warning")


@pytest.mark.parametrize("name", ["use_dora", "lora_bias", "kasa_config"])
def test_variants_combined(made, tmp_path, name):
    setting = {name: peft.tuners.lora.config.KasaConfig() if name == "kasa_config" else True}
    adapted(llama(), 3, **setting).save_pretrained(tmp_path / "a")
    named(tmp_path / "a", made / "base")
    both = combined(made, tmp_path / "both", [1.0], "linear", tmp_path / "a")
    assert found("variant_lost", tmp_path / "a", merged=both) == f"fault adapter_config.json: {name}"
    same = copied(tmp_path / "a", tmp_path / "same")
    assert "fault" not in found("variant_lost", tmp_path / "a", merged=same)


def test_norms_of_dora_that_a_merger_ignores(made, tmp_path):
    wrapped = adapted(llama(), 3, use_dora=True)
    wrapped.save_pretrained(tmp_path / "a")
    named(tmp_path / "a", made / "base")
    wrapped.merge_and_unload().save_pretrained(tmp_path / "right")
    plain = adapted(llama(), 3)
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    peft.set_peft_model_state_dict(plain, {name: each for name, each in tensors.items() if "magnitude" not in name})
    plain.merge_and_unload().save_pretrained(tmp_path / "wrong")
    assert found("variant_lost", tmp_path / "a", merged=tmp_path / "right") == "clean"
    assert found("variant_lost", tmp_path / "a", merged=tmp_path / "wrong") == "fault adapter_config.json: use_dora"


def test_alpha_lost(made, tmp_path):
    for file, alpha in (("a", 0.25), ("unscaled", RANK)):  # s = 1/16, and lost: s = 1
        wrapped = adapted(llama(), 1, lora_alpha=alpha)
        wrapped.save_pretrained(tmp_path / file)
        named(tmp_path / file, made / "base")
        wrapped.merge_and_unload().save_pretrained(tmp_path / f"{file}-merged")
    assert found("alpha_lost", tmp_path / "a", merged=tmp_path / "a-merged") == "clean"
    assert (
        found("alpha_lost", tmp_path / "a", merged=tmp_path / "unscaled-merged")
        == "fault adapter_config.json: lora_alpha"
    )
    said = next(sign.says for sign in diagnosis_of([tmp_path / "a"], merged=tmp_path / "unscaled-merged").findings)
    assert "is 16 times the expected one, in 6 layers: the scale s = 0.062" in said
    for alpha in (None, 0):
        bare = copied(made / "a", tmp_path / f"alpha-{alpha}", lora_alpha=alpha)
        assert found("alpha_lost", bare) == "fault adapter_config.json: lora_alpha"
    assert found("alpha_lost", made / "a") == "clean"


def test_layers_lost(made, tmp_path):
    few = copied(made / "a", tmp_path / "few")
    file = few / "adapter_model.safetensors"
    retold(file, lambda tensors: {name: each for name, each in tensors.items() if "1.mlp.up_proj" not in name})
    assert found("alpha_lost", few) == "fault adapter_model.safetensors: model.layers.1.mlp.up_proj"
    retold(file, lambda tensors: {name: each for name, each in tensors.items() if "up_proj" not in name})
    assert found("alpha_lost", few, base=made / "base") == "fault adapter_config.json: target_modules"
    edit(few / "adapter_config.json", target_modules=["q_proj", "v_proj"])
    assert found("alpha_lost", few) == "clean"
    merged = peft.PeftModel.from_pretrained(llama(), few).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    assert found("alpha_lost", few, merged=tmp_path / "merged") == "clean"
    assert found("alpha_lost", made / "a", merged=tmp_path / "merged").startswith(
        "fault model.safetensors: model.layers.0.mlp"
    )


def test_adapter_that_fits_no_module(made, tmp_path):
    assert found("no_module", made / "a") == "clean"
    wrapped = copied(made / "a", tmp_path / "wrapped")
    head = "base_model.model."
    retold(
        wrapped / "adapter_model.safetensors",
        lambda tensors: {name.replace(head, f"{head}language_model."): each for name, each in tensors.items()},
    )
    assert found("no_module", wrapped).startswith("fault adapter_model.safetensors: language_model.model.layers.0")
    config = transformers.BertConfig(**SIZES, num_hidden_layers=1, num_labels=3)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    settings = {"target_modules": ["query"], "task_type": "SEQ_CLS"}
    adapted(transformers.BertForSequenceClassification(config), **settings).save_pretrained(tmp_path / "classifier")
    assert found("no_module", tmp_path / "classifier", base=tmp_path / "bert") == "clean"
    assert found("no_module", tmp_path / "classifier", base=made / "base").startswith(
        "fault adapter_model.safetensors: bert.enc"
    )
    llama(hidden_size=64).save_pretrained(tmp_path / "wide")
    assert found("no_module", made / "a", base=tmp_path / "wide").startswith(
        "fault adapter_model.safetensors: base_model"
    )


def test_tied_embeddings(made, tmp_path):
    tied = llama(tie_word_embeddings=True)
    tied.save_pretrained(tmp_path / "tied")
    settings = {"modules_to_save": ["embed_tokens", "lm_head"]}
    wrapped = adapted(llama(tie_word_embeddings=True), **settings)
    wrapped.base_model.model.lm_head.modules_to_save["default"].weight.data.mul_(1.5)
    wrapped.save_pretrained(tmp_path / "a")
    named(tmp_path / "a", tmp_path / "tied")
    assert found("tied_again", tmp_path / "a") == "fault config.json: tie_word_embeddings"
    plain = copied(made / "a", tmp_path / "plain", base_model_name_or_path=str(tmp_path / "tied"))
    assert found("tied_again", plain) == "clean"
    wrapped.merge_and_unload().save_pretrained(tmp_path / "merged")
    extra = "lm_head.weight" in load_file(tmp_path / "merged" / "model.safetensors")
    says_tied = json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"]
    assert found("tied_again", tmp_path / "merged").startswith("fault" if extra and says_tied else "clean")
    places = {"apart": "fault config.json: tie_word_embeddings", "copy": "warning model.safetensors: lm_head.weight"}
    for file, status in places.items():
        times = 1.5 if file == "apart" else 1.0
        shutil.copytree(tmp_path / "tied", tmp_path / file)
        retold(
            tmp_path / file / "model.safetensors",
            lambda tensors, times=times: tensors | {"lm_head.weight": times * tensors["model.embed_tokens.weight"]},
        )
        assert found("tied_again", tmp_path / file) == status
    assert found("tied_again", tmp_path / "tied") == "clean"
    edit(tmp_path / "apart" / "config.json", tie_word_embeddings=False)
    assert found("tied_again", tmp_path / "apart") == "clean"


def test_vocabulary(made, tmp_path):
    for rows in (60, 64, 70):
        model = llama()
        model.resize_token_embeddings(rows)
        model.save_pretrained(tmp_path / f"{rows}")
        status = found("vocabulary", base=made / "base", merged=tmp_path / f"{rows}")
        assert status == ("clean" if rows == 64 else "fault model.safetensors: model.embed_tokens.weight")
    edit(tmp_path / "70" / "config.json", vocab_size=64)
    assert found("vocabulary", tmp_path / "70") == "fault config.json: vocab_size"
    assert found("vocabulary", tmp_path / "64") == "clean"
    tokenizer(tokens=64).save_pretrained(tmp_path / "64")
    assert found("vocabulary", tmp_path / "64") == "clean"
    tokenizer(tokens=65).save_pretrained(tmp_path / "64")
    assert found("vocabulary", tmp_path / "64") == "fault tokenizer.json: added_tokens"


def test_tokens_with_other_numbers(made, tmp_path):
    base, other = (shutil.copytree(made / "base", tmp_path / name) for name in ("base", "other"))
    tokenizer().save_pretrained(base)
    tokenizer().save_pretrained(other)
    assert found("vocabulary", other, base=base) == "clean"
    file = other / "tokenizer.json"
    file.write_text(file.read_text().replace('"w7"', '"w"').replace('"w8"', '"w7"').replace('"w"', '"w8"'))
    assert found("vocabulary", other, base=base) == "fault tokenizer.json: w7"


def tokenizer(tokens: int = 64, end: str = "<turn>", template: str | None = "{{ messages }}<turn>") -> Any:
    from tokenizers import Tokenizer, models

    words = ["<eos>", "<turn>", *(f"w{k}" for k in range(tokens - 2))]
    built = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="w0"))
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=built, eos_token=end)
    made.chat_template = template
    return made


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, "clean"),
        ({"end": "<eos>"}, "fault tokenizer_config.json: eos_token"),
        ({"template": "{{ messages }}"}, "fault chat_template.jinja: chat_template"),
        ({"template": None}, "fault tokenizer_config.json: chat_template"),
    ],
)
def test_end_token_and_chat_template(made, tmp_path, settings, status):
    source, merged = (shutil.copytree(made / "merged", tmp_path / name) for name in ("source", "out"))
    tokenizer().save_pretrained(source)
    tokenizer(**settings).save_pretrained(merged)
    for folder, end in ((source, 1), (merged, 0 if settings.get("end") else 1)):
        edit(folder / "generation_config.json", eos_token_id=[end])
    assert found("stop_token", source, merged=merged, base=made / "base") == status
    edit(merged / "generation_config.json", eos_token_id=[5])
    assert found("stop_token", merged) == "fault generation_config.json: eos_token_id"


def test_adapter_of_a_quantised_base(made, tmp_path):
    assert found("quantised_base", made / "a") == "clean"
    few = copied(made / "a", tmp_path / "few", base_model_name_or_path="unsloth/tiny-llama-bnb-4bit")
    assert found("quantised_base", few, base=made / "base") == "warning adapter_config.json: base_model_name_or_path"
    carded = copied(made / "a", tmp_path / "carded")
    words = "The following `bitsandbytes` quantization config was used during training:\n- load_in_8bit: False\n"
    card = (carded / "README.md").read_text()
    (carded / "README.md").write_text(
        f"{card}\n## Training procedure\n\n{words}- load_in_4bit: True\n"
    )  # as PEFT 0.5 did
    assert found("quantised_base", carded) == "warning README.md: load_in_4bit"
    (carded / "README.md").write_text(f"{card}\n## Training procedure\n\n{words}- load_in_4bit: False\n")
    assert found("quantised_base", carded) == "clean"
    quantised = shutil.copytree(made / "base", tmp_path / "quantised")
    edit(quantised / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert found("quantised_base", made / "a", base=quantised) == "warning config.json: quantization_config"
    assert found("quantised_base", made / "a", base=made / "merged") == "cannot be seen"
    assert found("no_change", made / "merged", base=quantised) == "cannot be seen"


def test_mixture_of_experts(tmp_path):
    config = transformers.MixtralConfig(**LLAMA, num_local_experts=3, num_experts_per_tok=1)
    model = transformers.MixtralForCausalLM(config)
    model.save_pretrained(tmp_path / "base")
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    adapted(model, target_modules=["q_proj"], target_parameters=parameters).save_pretrained(tmp_path / "a")
    assert found("experts", tmp_path / "a", base=tmp_path / "base") == "clean"
    old = copied(tmp_path / "a", tmp_path / "old", peft_version="0.18.0")
    retold(old / "adapter_model.safetensors", _exchanged)
    place = "base_model.model.model.layers.0.mlp.experts"
    assert found(
        "experts", old, base=tmp_path / "base"
    ) == f"fault adapter_model.safetensors: {place}.lora_A.weight" or found(
        "experts", old, base=tmp_path / "base"
    ).startswith(f"fault adapter_model.safetensors: {place}.base_layer")
    assert found("experts", old) == "warning adapter_config.json: peft_version"
    assert found("experts", tmp_path / "base") == "clean"
    edit(tmp_path / "base" / "config.json", num_local_experts=4)
    assert found("experts", tmp_path / "base") == "fault config.json: num_local_experts"


def _exchanged(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Factors of experts of the sizes that PEFT before 0.19.1 gave them."""
    result = dict(tensors)
    for name in tensors:
        if "experts" in name and "lora_A" in name:
            up = name.replace("lora_A", "lora_B")
            (rows, inward), outward = tensors[name].shape, tensors[up].shape[0]
            result[name], result[up] = torch.randn(rows, outward), torch.randn(inward, rows)
    return result


def test_change_lost_to_rounding(tmp_path):
    for dtype in (torch.float32, torch.bfloat16):
        word = str(dtype).removeprefix("torch.")
        llama(dtype=dtype).to(dtype).save_pretrained(tmp_path / word)
        adapted(llama().to(dtype), size=0.0005).save_pretrained(tmp_path / f"{word}-a")
    assert found("rounding", tmp_path / "float32-a", base=tmp_path / "float32") == "clean"
    assert found("rounding", tmp_path / "float32-a", base=tmp_path / "bfloat16") == "fault model.safetensors: dtype"


def test_nothing_changed(made, tmp_path):
    peft.get_peft_model(llama(), peft.LoraConfig(target_modules=TARGETS)).save_pretrained(tmp_path / "new")
    assert found("no_change", tmp_path / "new").startswith(
        "fault adapter_model.safetensors: base_model.model.model.layers"
    )
    assert found("no_change", made / "a") == "clean"
    assert found("no_change", made / "a", merged=made / "base", base=made / "base").startswith(
        "fault model.safetensors"
    )
    assert found("no_change", made / "b", merged=made / "merged").startswith("fault model.safetensors")
    assert found("no_change", made / "a", merged=made / "merged") == "clean"


def test_task_vectors(made, tmp_path):
    base = load_file(made / "base" / "model.safetensors")
    models = {"decayed": {name: 0.9 * each for name, each in base.items()}}
    models["other"] = {name: each.clone() for name, each in llama(5).state_dict().items()}
    models["near"] = {name: each + 0.001 * torch.randn_like(each) for name, each in base.items()}
    for name, tensors in models.items():
        shutil.copytree(made / "base", tmp_path / name)
        save_file(tensors, tmp_path / name / "model.safetensors", {"format": "pt"})
    start = {"base": made / "base"}
    assert found("mostly_decay", tmp_path / "decayed", **start).startswith("warning")
    assert found("mostly_decay", tmp_path / "near", **start) == "clean"
    assert found("wrong_base", tmp_path / "other", **start).startswith("fault")
    assert found("wrong_base", tmp_path / "near", **start) == "clean"
    assert found("unequal_norms", tmp_path / "near", tmp_path / "decayed", **start).startswith("warning")
    assert found("unequal_norms", made / "a", made / "b") == "clean"
