"""`biascope merge check` on folders of transformers: each model is read through its own head, as the library itself reads it."""

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asking
import numpy as np
import pytest
import torch
from reference_features import LETTERS, MARKS
from torch import Tensor

from biascope.cli.merge import app
from biascope.editing.candidates import Candidates, candidates_of, kept_by_apply
from biascope.editing.merged_vector import merged_vector
from biascope.editing.reading import Reading
from biascope.families.network import Network
from biascope.measures.merge_check import merge_check
from biascope.measures.merge_check.next_words import merge_check_texts
from biascope.runs.run import Run

pytestmark = pytest.mark.usefixtures("hub", "unrendered_pictures")

SMALL = {
    "bert": {"num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 16},
    "roberta": {"num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 16},
    "distilbert": {"n_layers": 1, "dim": 12, "n_heads": 2, "hidden_dim": 16},
    "gpt2": {"n_layer": 1, "n_embd": 12, "n_head": 2},
    "vit": {"num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 8,
            "patch_size": 4},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"},
}  # fmt: skip
TOKENS = {"vocab_size": 42, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
KINDS = {"vit": "image", "resnet": "image"}
said = functools.partial(asking.said, app)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts and pictures in the working folder."""
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    Path("texts").mkdir()
    lines = "".join(f"{'ab'[k % 2]}\t{' '.join(draws.choice(LETTERS, 5))}\n" for k in range(60))
    for split in ("train", "test"):
        Path("texts", f"{split}.tsv").write_text(f"label\ttext\n{lines}")
    pixels = draws.integers(0, 255, (60, 10, 14)).astype(np.uint8)
    np.savez("pictures.npz", x_train=pixels, x_test=pixels, y_train=np.arange(60) % 3, y_test=np.arange(60) % 3)
    return tmp_path


def save(kind: str, *, base: str = "") -> Callable[[str, float, str], Tensor]:
    """Folders base, a and b of an architecture, with 2 and 3 classes; their classes at a coefficient, by the library alone.

    Args:
        kind: The architecture.
        base: The library's class of the base; the body without a head by default.
    """
    import transformers

    image = KINDS.get(kind) == "image"
    config = transformers.AutoConfig.for_model(kind, **SMALL[kind], **({} if image else TOKENS))
    task = transformers.AutoModelForImageClassification if image else transformers.AutoModelForSequenceClassification
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        start = (getattr(transformers, base)(config) if base else transformers.AutoModel.from_config(config)).eval()
        body = getattr(start, start.base_model_prefix, start) if base else start
        for parameter in body.parameters():
            parameter.data.add_((0.5 if parameter.dim() > 1 else 0.1) * torch.randn_like(parameter))
        models = {}
        for count, name in enumerate(("a", "b"), 2):
            own_config = copy.deepcopy(config)
            own_config.num_labels = count
            model = task.from_config(own_config).eval()
            own = getattr(model, model.base_model_prefix)
            own.load_state_dict(
                {**own.state_dict(), **{k: v for k, v in body.state_dict().items() if k in own.state_dict()}}
            )
            for parameter in own.parameters():
                parameter.data.add_(0.2 * parameter.std().nan_to_num(0.1) * torch.randn_like(parameter))
            own_names = {f"{model.base_model_prefix}.{key}" for key, _ in own.named_parameters()}
            for key, parameter in model.named_parameters():
                if key not in own_names:
                    parameter.data.copy_(0.5 * torch.randn_like(parameter))
            models[name] = model
    for name, model in {"base": start, **models}.items():
        model.save_pretrained(name)
        if image:
            transformers.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(name)
        else:
            Path(name, "vocab.txt").write_text("\n".join([*MARKS, "[MASK]", *LETTERS]) + "\n")
            transformers.BertTokenizer(f"{name}/vocab.txt").save_pretrained(name)

    def inputs() -> dict[str, Tensor]:
        if image:
            pixels = np.repeat(np.load("pictures.npz")["x_test"][:, None], 3, 1)
            processor = transformers.AutoImageProcessor.from_pretrained("base", backend="pil")
            return dict(processor(images=list(pixels), return_tensors="pt", input_data_format="channels_first"))
        texts = [line.split("\t")[1] for line in Path("texts/test.tsv").read_text().splitlines()[1:]]
        found = transformers.AutoTokenizer.from_pretrained("base")(texts, padding=True, return_tensors="pt")
        return {key: found[key] for key in ("input_ids", "attention_mask")}

    with torch.no_grad():
        for model in models.values():  # all classes are predicted
            bias = [each for each in model.parameters() if each.shape == (model.num_labels,)]
            for each in bias[-1:]:
                each.sub_(model(**inputs()).logits.mean(0))
            model.save_pretrained("a" if model is models["a"] else "b")
    there = body.state_dict()

    @torch.no_grad()
    def classes(name: str, alpha: float, at: str = "") -> Tensor:
        """Of a model's samples, by its head on the merge, or on the body of ``at``."""
        model = models[name]
        own = getattr(model, model.base_model_prefix)
        bodies = {key: getattr(each, each.base_model_prefix).state_dict() for key, each in models.items()}
        before = {key: value.clone() for key, value in own.state_dict().items()}
        mixed = {}
        for key, value in before.items():
            statistics = "running_" in key or not value.is_floating_point()
            if key not in there or (at == name and not statistics):
                mixed[key] = value
            else:
                moves = 0 if statistics or at == "base" else sum(each[key] - there[key] for each in bodies.values())
                mixed[key] = there[key] + (alpha * moves if not statistics else 0)
        own.load_state_dict(mixed)
        found = model(**inputs()).logits.argmax(1)
        own.load_state_dict(before)
        return found

    return classes


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        ("roberta", "RobertaForMaskedLM"),
        ("distilbert", ""),
        ("gpt2", "GPT2LMHeadModel"),
        ("bert", "BertForMaskedLM"),
        ("vit", ""),
        ("resnet", ""),
    ],
)
def test_each_model_predicts_through_its_own_head(folder: Path, kind: str, base: str) -> None:
    classes = save(kind, base=base)
    data = "pictures.npz" if kind in KINDS else "texts"
    run = Run(device="cpu")
    known = candidates_of(Path("base"), [Path("a"), Path("b")], [data], Reading(samples=1000), run=run)
    found = merge_check(
        known.network, known.heads, known.vectors, known.tasks, split="samples", grid=None, resamples=20, run=run
    )
    assert found.probed == ()
    for place, model in enumerate(("a", "b")):
        own = classes(model, 1.0, model)
        for at in (0, len(found.alphas) // 2, len(found.alphas) - 1):
            merged = classes(model, float(found.alphas[at]))
            assert found.apart[place, at] == pytest.approx(float((own != merged).double().mean()), abs=1.01 / 60)
    assert found.apart.max() > 0.05


def test_the_command_says_whose_head_and_what_to_type_next(folder: Path) -> None:
    save("roberta", base="RobertaForMaskedLM")
    printed = json.loads(said("check", "base", "a", "b", "--data", "texts", "--grid", "0", "--device", "cpu", "--json"))
    (found,) = printed["results"]
    coefficient = next(number["value"] for number in found["numbers"] if number["key"] == "coefficient")
    assert "probe" not in found["sentence"]
    assert "own last layer, classifier, which is not merged" in found["sentence"]
    assert [row["read_by"] for row in found["tables"]["models"]] == ["model", "model"]
    assert printed["command"] in ("", f"biascope merge apply base a b --weight {coefficient:g} --out merged")


def test_what_does_not_fit_is_told_in_one_sentence(folder: Path) -> None:
    import transformers

    save("bert")

    def refused(message: str, *words: str) -> None:
        asking.refused(app, folder, message, "check", "base", "a", "b", "--grid", "0", "--device", "cpu", *words)

    refused("--head must be among classifier, got 'score'", "--data", "texts", "--head", "score")
    (folder / "b" / "tokenizer.json").unlink()
    Path("b", "vocab.txt").write_text("\n".join([*MARKS, "[MASK]", *reversed(LETTERS)]) + "\n")
    transformers.BertTokenizer("b/vocab.txt").save_pretrained("b")
    refused("a and b must have the same tokens", "--data", "texts")
    body: Any = transformers.BertModel.from_pretrained("base")
    body.save_pretrained("b")
    refused("must have a classifier of their own, or none, but b has none and a has", "--data", "texts")
    save("distilbert")
    for place in Path("base").iterdir():
        place.unlink()
    save_base = transformers.BertModel(transformers.BertConfig(**SMALL["bert"], **TOKENS))
    save_base.save_pretrained("base")
    refused("base must hold|must have|must fit", "--data", "texts")


def save_language(kind: str) -> None:
    """Folders base, a and b of a causal language model."""
    import transformers

    sizes = {"gpt2": SMALL["gpt2"], "llama": {**SMALL["bert"], "num_key_value_heads": 1}}[kind]
    config = transformers.AutoConfig.for_model(kind, **sizes, **TOKENS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        start = {key: value + 0.3 * torch.randn_like(value) for key, value in model.state_dict().items()}
        for name in ("base", "a", "b"):
            moved = {key: value + (name != "base") * 0.15 * torch.randn_like(value) for key, value in start.items()}
            model.load_state_dict(moved)
            model.tie_weights()
            model.save_pretrained(name)
            Path(name, "vocab.txt").write_text("\n".join([*MARKS, "[MASK]", *LETTERS]) + "\n")
            transformers.BertTokenizer(f"{name}/vocab.txt").save_pretrained(name)


@pytest.mark.parametrize(("kind", "data"), [("gpt2", "songs.txt"), ("llama", "texts")])
def test_language_models_are_compared_by_the_next_words_of_texts(folder: Path, kind: str, data: str) -> None:
    import transformers

    save_language(kind)
    lines = [" ".join(np.random.default_rng(seed).choice(LETTERS, 2 + seed % 5)) for seed in range(40)]
    Path("songs.txt").write_text("\n".join(lines) + "\n\n")
    words = ("check", "base", "a", "b", "--data", data, "--device", "cpu")
    printed = json.loads(said(*words, "--json"))
    (found,) = printed["results"]
    assert found["facts"]["compared"] == "words"
    assert "of the next words of a and b" in found["sentence"]
    texts = (
        lines
        if data == "songs.txt"
        else [line.split("\t")[1] for line in Path("texts/test.tsv").read_text().splitlines()[1:]]
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained("base")
    for row in found["tables"]["models"]:
        model = transformers.AutoModelForCausalLM.from_pretrained(row["model"]).eval()
        base = transformers.AutoModelForCausalLM.from_pretrained("base").eval()
        surprise, changed, count = 0.0, 0, 0
        with torch.no_grad():
            for text in texts:
                ids = tokenizer(text, return_tensors="pt")["input_ids"]
                one, two = (each(ids).logits[0, :-1].double().log_softmax(-1) for each in (model, base))
                surprise -= float(one.gather(1, ids[0, 1:, None]).sum())
                changed += int((one.argmax(1) != two.argmax(1)).sum())
                count += len(one)
        assert row["next_words"] == count
        assert row["perplexity"]["value"] == pytest.approx(np.exp(surprise / count), rel=1e-4)
        assert row["distance_from_base"]["value"] == pytest.approx(changed / count, abs=1.01 / count)
    assert max(row["distance_from_base"]["value"] for row in found["tables"]["models"]) > 0.02


def test_what_does_not_fit_language_models_is_told_in_one_sentence(folder: Path) -> None:
    save_language("gpt2")

    def refused(message: str, *words: str) -> None:
        asking.refused(app, folder, message, "check", "base", "a", "b", "--device", "cpu", *words)

    refused("--control is not for language models", "--data", "texts", "--control", "texts")
    refused("--accuracy and --method are for classifiers", "--data", "texts", "--accuracy", "0.9", "--accuracy", "0.9")
    Path("short.txt").write_text("\n\n")
    refused("must have two texts with at least two tokens|must", "--data", "short.txt")
    refused("must hold texts, but is not there", "--data", "nowhere")
    Path("odd.csv").write_text("one,two\na,b\n")
    refused('must have one column of texts, or one called "text"', "--data", "odd.csv")
    config = json.loads(Path("b/config.json").read_text())
    Path("b/config.json").write_text(json.dumps({**config, "architectures": ["GPT2Model"]}))
    refused("All must be causal language models, or none, but b is not", "--data", "texts")


def save_adapters(kind: str) -> None:
    """Folders a and b with LoRA adapters of the library on base, and a-whole and b-whole with the models that it merges them to."""
    import peft
    import transformers

    language = kind == "llama"
    task = transformers.AutoModelForCausalLM if language else transformers.AutoModelForSequenceClassification
    how: dict[str, dict[str, Any]] = {
        "llama": {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "down_proj"]},
        "bert": {"task_type": "SEQ_CLS", "target_modules": ["query", "value"], "modules_to_save": ["classifier"]},
        "gpt2": {"task_type": "SEQ_CLS", "target_modules": ["c_attn"], "modules_to_save": ["score"], "fan_in_fan_out": True},
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for count, name in enumerate(("a", "b"), 2):
            of_task = {} if language else {"num_labels": count}
            model = task.from_pretrained("base", attn_implementation="eager", **of_task)
            special = {"use_rslora": True} if name == "a" else {"use_dora": True}
            model = peft.get_peft_model(model, peft.LoraConfig(r=2, **how[kind], **special))
            for key, parameter in model.named_parameters():
                if any(part in key for part in ("lora_A", "lora_B", "modules_to_save")):
                    parameter.data.copy_(0.4 * torch.randn_like(parameter))
            model.save_pretrained(name)
            model.merge_and_unload().save_pretrained(f"{name}-whole")
            transformers.AutoTokenizer.from_pretrained("base").save_pretrained(f"{name}-whole")


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_adapters_are_checked_as_the_models_that_peft_merges_them_to(folder: Path, kind: str) -> None:
    if kind == "llama":
        save_language(kind)
    else:
        save(kind, base="GPT2LMHeadModel" if kind == "gpt2" else "")
    for place in (*Path("a").iterdir(), *Path("b").iterdir()):
        place.unlink()
    save_adapters(kind)
    run, reading = Run(device="cpu"), Reading(samples=1000)
    as_adapters, mixed, as_models = (
        candidates_of(Path("base"), list(map(Path, names)), ["texts"], reading, run=run)
        for names in (("a", "b"), ("a", "b-whole"), ("a-whole", "b-whole"))
    )
    assert as_adapters.compared == as_models.compared == ("words" if kind == "llama" else "classes")
    for found in (as_adapters, mixed):
        for one, other in zip(found.vectors.values(), as_models.vectors.values(), strict=True):
            assert one.deltas.keys() == other.deltas.keys()
            for name, delta in one.deltas.items():
                torch.testing.assert_close(delta, other.deltas[name], atol=2e-6, rtol=1e-5)
    if kind == "llama":
        words = merge_check_texts(as_adapters.network, as_adapters.vectors, as_adapters.tasks, split="samples",  # type: ignore[arg-type]
                                  resamples=20, run=run)  # fmt: skip
        whole = merge_check_texts(as_models.network, as_models.vectors, as_models.tasks, split="samples",  # type: ignore[arg-type]
                                  resamples=20, run=run)  # fmt: skip
        np.testing.assert_allclose(words.divergence, whole.divergence, atol=1e-4)  # type: ignore[arg-type]
        np.testing.assert_allclose(words.apart, whole.apart, atol=1.01 / 240)
        assert words.apart.max() > 0.02
        return
    methods = ("ties", "iso_c lambda=1")
    same: dict[str, Any] = {"split": "samples", "grid": None, "resamples": 20, "methods": methods, "run": run}
    ours, theirs = (
        merge_check(each.network, each.heads, each.vectors, each.tasks, **same) for each in (as_adapters, as_models)
    )
    assert ours.probed == theirs.probed == ()
    np.testing.assert_allclose(ours.apart, theirs.apart, atol=1.01 / 60)
    np.testing.assert_allclose(ours.methods_apart, theirs.methods_apart, atol=1.01 / 60)
    assert ours.apart.max() > 0.05
    # The method, through the own heads of the library's merged models.
    vector, _ = merged_vector("iso_c", first_network(as_models).params, as_models.vectors)
    for place, name in enumerate(as_models.vectors):
        network, inputs = as_models.network[name], as_models.tasks[name].splits["samples"][0]  # type: ignore[index]
        own = network(inputs, as_models.vectors[name].applied(network.params)).argmax(1)
        merged = network(inputs, vector.applied(network.params)).argmax(1)
        assert ours.methods_apart[place, 1] == pytest.approx(float((own != merged).double().mean()), abs=1.01 / 60)


def first_network(known: Candidates) -> Network:
    """The network of the first model."""
    return known.network if isinstance(known.network, Network) else next(iter(known.network.values()))


def test_the_command_merges_the_adapters_that_it_checked(folder: Path) -> None:
    save("bert")
    for place in (*Path("a").iterdir(), *Path("b").iterdir()):
        place.unlink()
    save_adapters("bert")
    words = ("check", "base", "a", "b", "--data", "texts", "--grid", "0", "--device", "cpu")
    printed = json.loads(said(*words, "--json"))
    assert "own last layer, classifier, which is not merged" in printed["results"][0]["sentence"]
    command = kept_by_apply(Path("base"), [Path("a"), Path("b")], "classifier")
    assert command == ""  # nothing to name: the heads are kept apart
    said("apply", "base", "a", "b", "--weight", "0.5", "--out", "merged")
    assert Path("merged-heads/a/config.json").is_file()
    settings = json.loads(Path("a/adapter_config.json").read_text())
    Path("a/adapter_config.json").write_text(json.dumps({**settings, "task_type": "TOKEN_CLS"}))
    asking.refused(
        app, folder, "must classify whole samples, but its adapter_config.json has task_type TOKEN_CLS", *words
    )
    asking.refused(
        app, folder, "must hold the weights of a model, but holds an adapter", "check", "a", "b", "b", *words[4:]
    )
