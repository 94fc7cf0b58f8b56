"""Adapters that PEFT writes: what is merged is what PEFT itself merges, and it opens with transformers."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from biascope.editing.extraction import extracted
from biascope.editing.merge import differences, merge
from biascope.families.checkpoint import Checkpoint
from biascope.families.libraries.packages import define_operators_of_torchvision

with warnings.catch_warnings():  # peft imports models that need torchvision, as the modules of tests are read
    warnings.simplefilter("ignore")
    define_operators_of_torchvision()
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 60}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def base(folder: Path, kind: str) -> Any:
    """A base that the library wrote, and how to open it for an adapter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "llama":
            config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=True)
            transformers.LlamaForCausalLM(config).save_pretrained(folder / "base")
        elif kind == "gpt2":
            config = transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=2, n_positions=64)
            transformers.GPT2LMHeadModel(config).save_pretrained(folder / "base")
        else:
            transformers.BertModel(transformers.BertConfig(**SIZES)).save_pretrained(folder / "base")
    task = transformers.AutoModelForSequenceClassification if kind == "bert" else transformers.AutoModelForCausalLM
    return lambda: task.from_pretrained(folder / "base", **({"num_labels": 3} if kind == "bert" else {}))


def adapter(folder: Path, model: Any, name: str = "a", seed: int = 0, **settings: Any) -> Any:
    """An adapter as it is after training, saved; and the model with it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        wrapped = peft.get_peft_model(model, peft.LoraConfig(**{"r": 4, "lora_alpha": 8, **settings}))
        with torch.no_grad():
            for key, tensor in wrapped.named_parameters():
                if tensor.requires_grad:
                    tensor.add_(torch.rand_like(tensor) if "magnitude" in key else 0.1 * torch.randn_like(tensor))
    wrapped.save_pretrained(folder / name)
    return wrapped.eval()


def opened(place: Path, model: Any) -> Any:
    """The merged model as the library opens it, without anything missing or left over."""
    found, loaded = type(model).from_pretrained(place, output_loading_info=True)
    assert not any(loaded.values()), loaded
    return found.eval()


LLAMA: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {"alpha_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 32}, "rank_pattern": {"k_proj": 2}},
    "dora": {"use_dora": True, "use_rslora": True},
    "biases": {"bias": "all"},
    "table": {"target_modules": [*LINEAR, "embed_tokens"]},
    "table with dora": {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True},
    "saved whole": {"modules_to_save": ["embed_tokens", "lm_head"]},
}


@pytest.mark.parametrize("how", LLAMA)
def test_a_language_model_is_what_peft_merges(tmp_path: Path, how: str) -> None:
    fresh = base(tmp_path, "llama")
    settings = {"task_type": "CAUSAL_LM", "target_modules": LINEAR, **LLAMA[how]}
    wrapped = adapter(tmp_path, fresh(), **settings)
    tokens = torch.arange(20).view(2, 10)
    wanted = wrapped.merge_and_unload()
    merge(Checkpoint.open(tmp_path / "base"), [(Checkpoint.open(tmp_path / "a"), 1.0)], tmp_path / "out")
    place = tmp_path / "out-heads" / "a" if how == "saved whole" else tmp_path / "out"
    found = opened(place, wanted)
    assert found.config.tie_word_embeddings == (how != "saved whole")
    names = wanted.state_dict()
    assert found.state_dict().keys() == names.keys()
    for name, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, names[name], rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(found(tokens).logits, wanted(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", [{}, {"use_dora": True}, {"lora_bias": True}], ids=["plain", "dora", "bias"])
def test_a_classifier_is_what_peft_merges(tmp_path: Path, how: dict[str, Any]) -> None:
    """The base has neither the prefix nor the head of the adapter; the folder of the whole model has both, and says its classes."""
    wrapped = adapter(tmp_path, base(tmp_path, "bert")(), task_type="SEQ_CLS", target_modules=["query", "value"], **how)
    wanted = wrapped.merge_and_unload()
    merge(Checkpoint.open(tmp_path / "base"), [(Checkpoint.open(tmp_path / "a"), 1.0)], tmp_path / "out")
    opened(tmp_path / "out", wanted.bert)
    found = opened(tmp_path / "out-heads" / "a", wanted)
    assert found.config.num_labels == 3
    assert found.config.architectures == ["BertForSequenceClassification"]
    for name, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, wanted.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dora", [False, True])
def test_layers_that_are_stored_turned(tmp_path: Path, dora: bool) -> None:
    fresh = base(tmp_path, "gpt2")
    how = {"task_type": "CAUSAL_LM", "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": dora}
    wanted = adapter(tmp_path, fresh(), **how).merge_and_unload()
    path = tmp_path / "a" / "adapter_config.json"
    # What PEFT leaves there, if a layer that is not turned was the last one.
    path.write_text(json.dumps({**json.loads(path.read_text()), "fan_in_fan_out": False}))
    merge(Checkpoint.open(tmp_path / "base"), [(Checkpoint.open(tmp_path / "a"), 1.0)], tmp_path / "out")
    found = opened(tmp_path / "out", wanted)
    for name, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, wanted.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_the_difference_of_adapters_is_that_of_merged_models(tmp_path: Path) -> None:
    fresh = base(tmp_path, "llama")
    for seed, (name, dora) in enumerate((("a", True), ("b", False))):
        how = {"task_type": "CAUSAL_LM", "target_modules": LINEAR, "use_dora": dora}
        adapter(tmp_path, fresh(), name, seed, **how).merge_and_unload().save_pretrained(tmp_path / f"{name}-whole")
    start, a, b, *whole = (Checkpoint.open(tmp_path / each) for each in ("base", "a", "b", "a-whole", "b-whole"))
    found, wanted = differences(start, [a, b]), differences(start, whole)
    assert found.layers == wanted.layers
    assert found.task_norms == pytest.approx(wanted.task_norms, rel=1e-4, abs=1e-6)
    assert found.dots == pytest.approx(wanted.dots, rel=1e-3, abs=1e-5)


def test_another_adapter_is_refused_in_a_sentence(tmp_path: Path) -> None:
    fresh = base(tmp_path, "llama")
    peft.get_peft_model(fresh(), peft.LoHaConfig(r=4, target_modules=["q_proj"])).save_pretrained(tmp_path / "loha")
    peft.get_peft_model(
        fresh(), peft.IA3Config(target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"])
    ).save_pretrained(tmp_path / "ia3")
    adapter(tmp_path, fresh(), "pissa", target_modules=["q_proj"], init_lora_weights="pissa")
    adapter(tmp_path, fresh(), "bias", target_modules=["q_proj"], lora_bias=True)
    adapter(tmp_path, fresh(), "tied", target_modules=["q_proj", "lm_head"])
    start = Checkpoint.open(tmp_path / "base")
    for name, words in (
        ("loha", "has peft_type LOHA"),
        ("ia3", "has peft_type IA3"),
        ("pissa", "has init_lora_weights pissa"),
        ("bias", "its layer model.layers.0.self_attn.q_proj has none"),
        ("tied", "lacks lm_head.weight, which is tied to the table of tokens"),
    ):
        with pytest.raises(ValueError, match=words):
            merge(start, [(Checkpoint.open(tmp_path / name), 1.0)], tmp_path / "out")


def test_an_extracted_adapter_opens_with_peft(tmp_path: Path) -> None:
    """At full rank it is the fine-tuned model, with its head, but for the biases and norms that it does not cover."""
    fresh = base(tmp_path, "bert")
    model = fresh()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() == 2 and "embeddings" not in name:
                tensor.add_(0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(tmp_path / "tuned")
    start, end = (Checkpoint.open(tmp_path / name) for name in ("base", "tuned"))
    found = extracted(start, end, tmp_path / "lora", rank=32)
    assert found.kept_share == pytest.approx(1, abs=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of keys that are missing or left over
        opened = peft.PeftModel.from_pretrained(fresh(), tmp_path / "lora").eval()
    tokens = torch.arange(20).view(2, 10)
    with torch.no_grad():
        torch.testing.assert_close(opened(tokens).logits, model.eval()(tokens).logits, rtol=1e-3, atol=1e-4)
    merge(start, [(Checkpoint.open(tmp_path / "lora"), 1.0)], tmp_path / "out")
    whole = type(model).from_pretrained(tmp_path / "out-heads" / "lora")
    torch.testing.assert_close(whole.state_dict(), model.state_dict(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_share_of_a_language_model_opens_with_peft(tmp_path: Path, kind: str) -> None:
    fresh = base(tmp_path, kind)
    model = fresh()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.02 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(tmp_path / "tuned")
    start, end = (Checkpoint.open(tmp_path / name) for name in ("base", "tuned"))
    found = extracted(start, end, tmp_path / "lora", energy=0.5)
    assert (found.kept >= 0.5 - 1e-6).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        wrapped = peft.PeftModel.from_pretrained(fresh(), tmp_path / "lora")
    merge(start, [(Checkpoint.open(tmp_path / "lora"), 1.0)], tmp_path / "out")
    opened_one = type(model).from_pretrained(tmp_path / "out")
    torch.testing.assert_close(opened_one.state_dict(), wrapped.merge_and_unload().state_dict(), rtol=1e-4, atol=1e-5)
