"""Names as transformers writes them: bases without a head, ties, prefixes, and spellings of its versions."""

from pathlib import Path
from typing import Any

import pytest
import torch

from biascope.editing.merge import merge
from biascope.families.checkpoint import Checkpoint
from biascope.families.names import fitted, told
from biascope.families.source import family_of

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertForSequenceClassification", {"vocab_size": 50}),
    "roberta": ("RobertaModel", "RobertaForSequenceClassification", {"vocab_size": 50}),
    "distilbert": (
        "DistilBertModel",
        "DistilBertForSequenceClassification",
        {"vocab_size": 50, "dim": 32, "n_heads": 2},
    ),
    "vit": ("ViTModel", "ViTForImageClassification", {"image_size": 32, "patch_size": 16}),
    "llama": ("LlamaModel", "LlamaForSequenceClassification", {"vocab_size": 50, "pad_token_id": 0}),
}


def near(model: Any, start: dict[str, torch.Tensor], seed: int) -> Any:
    """A model whose weights are near those of another, as fine-tuning leaves them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, own in model.state_dict().items():
            begin = start.get(name)
            if begin is not None and begin.shape == own.shape and own.is_floating_point():
                own.copy_(begin + 0.02 * torch.randn(own.shape, generator=generator))
    return model


def fine_tuned(folder: Path, kind: str) -> tuple[Any, list[Any]]:
    """A base without a head and two classifiers near it, in folders that the library wrote."""
    body, whole, more = KINDS[kind]
    config = getattr(transformers, whole).config_class
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = getattr(transformers, body)(config(**SIZES, **more)).eval()
        classifiers = [getattr(transformers, whole)(config(**SIZES, **more, num_labels=labels)) for labels in (2, 3)]
    base.save_pretrained(folder / "base")
    prefix = classifiers[0].base_model_prefix
    for seed, (name, model) in enumerate(zip("ab", classifiers, strict=True)):
        near(model, {f"{prefix}.{key}": each for key, each in base.state_dict().items()}, seed)
        model.eval().save_pretrained(folder / name)
    return base, classifiers


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_merged_opens_with_the_library(tmp_path: Path, kind: str) -> None:
    base, classifiers = fine_tuned(tmp_path, kind)
    opened = {name: Checkpoint.open(tmp_path / name) for name in ("base", "a", "b")}
    found = merge(opened["base"], [(opened["a"], 0.5), (opened["b"], 0.5)], tmp_path / "merged")
    assert any("Kept apart as a head" in remark for remark in found.remarks)
    merged, loaded = type(base).from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(loaded.values())
    for name, own in zip("ab", classifiers, strict=True):
        place = tmp_path / "merged-heads" / name
        whole, loaded = type(own).from_pretrained(place, output_loading_info=True)
        assert not any(loaded.values())
        assert whole.config.num_labels == own.config.num_labels
        body = own.base_model.state_dict()
        others = {
            key: each for key, each in own.state_dict().items() if not key.startswith(f"{own.base_model_prefix}.")
        }
        assert others
        assert all(torch.equal(whole.state_dict()[key], each) for key, each in others.items())
        for key, each in whole.base_model.state_dict().items():
            expected = merged.state_dict()[key]
            assert torch.equal(each, expected)
            pair = sum(model.base_model.state_dict()[key] for model in classifiers) / 2
            assert torch.allclose(expected, pair if key in body else base.state_dict()[key], atol=1e-6)


def test_a_state_of_the_module_has_the_names_of_its_folder(tmp_path: Path) -> None:
    """The library renames layers of a ViT when it saves: torch.save does not."""
    _, (a, _) = fine_tuned(tmp_path, "vit")
    torch.save(a.state_dict(), tmp_path / "state.bin")
    assert a.state_dict().keys() != Checkpoint.open(tmp_path / "a").tensors.keys()
    base, state = Checkpoint.open(tmp_path / "base"), Checkpoint.open(tmp_path / "state.bin")
    (fit,) = fitted([state], base)
    (same,) = fitted([Checkpoint.open(tmp_path / "a")], base)
    assert same.names.keys() == fit.names.keys()
    assert all(torch.equal(same.shared.read(name), fit.shared.read(name)) for name in fit.names)


def test_a_head_of_a_name_of_its_own_is_what_stands_beside_the_shared_part(tmp_path: Path) -> None:
    """Of Electra, the library says that models share what is under ``electra``."""
    config = transformers.ElectraConfig(**SIZES, embedding_size=32, vocab_size=50, num_labels=3)
    base = transformers.ElectraForPreTraining(config)
    base.save_pretrained(tmp_path / "base")
    model = near(transformers.ElectraForQuestionAnswering(config), base.state_dict(), 1)
    model.save_pretrained(tmp_path / "a")
    (fit,) = fitted([Checkpoint.open(tmp_path / "a")], Checkpoint.open(tmp_path / "base"))
    assert {name.partition(".")[0] for name in fit.heads} == {"qa_outputs"}
    assert {name.partition(".")[0] for name in fit.absent} == {"discriminator_predictions"}
    assert {name.partition(".")[0] for name in fit.names} == {"electra"}


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_with_and_without_its_copy_of_the_table(tmp_path: Path, tied: bool) -> None:
    config = transformers.LlamaConfig(**SIZES, vocab_size=50, tie_word_embeddings=tied)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "folder")
    torch.save(model.state_dict(), tmp_path / "state.bin")
    model.model.save_pretrained(tmp_path / "bare")
    folder, state, bare = (Checkpoint.open(tmp_path / name) for name in ("folder", "state.bin", "bare"))
    sentences = told(fitted([state], folder))
    copied = ["In state.bin, lm_head.weight is tied to model.embed_tokens.weight: both hold the same numbers."]
    assert sentences == (copied if tied else [])
    (fit,) = fitted([state], bare)
    assert set(fit.heads) == (set() if tied else {"lm_head.weight"})


class TestWeights:
    def outputs(self, source: str, **how: Any) -> torch.Tensor:
        """Of a few inputs, in units of one table for all."""
        x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
        family = family_of(source, **how)
        return family.first_outputs(x)

    def test_a_folder_at_weights_of_another(self, tmp_path: Path) -> None:
        fine_tuned(tmp_path, "bert")
        source, file = f"hf:{tmp_path / 'base'}", tmp_path / "a" / "model.safetensors"
        named = family_of(source, weights_file=file).name
        assert named.endswith("at model (prefix bert removed, without its classifier)")
        torch.save(Checkpoint.open(tmp_path / "base").params(), tmp_path / "state.bin")
        other = family_of(f"hf:{tmp_path / 'a'}", weights_file=tmp_path / "state.bin")
        assert other.name.endswith("at state (prefix bert added, classifier of a)")

    def test_its_own_weights_change_nothing(self, tmp_path: Path) -> None:
        fine_tuned(tmp_path, "bert")
        source = f"hf:{tmp_path / 'a'}"
        again = self.outputs(source, weights_file=tmp_path / "a" / "model.safetensors")
        assert torch.equal(self.outputs(source), again)

    def test_a_folder_without_weights_takes_whole_ones(self, tmp_path: Path) -> None:
        fine_tuned(tmp_path, "bert")
        wanted = self.outputs(f"hf:{tmp_path / 'a'}")
        file = (tmp_path / "a" / "model.safetensors").rename(tmp_path / "moved.safetensors")
        assert torch.equal(self.outputs(f"hf:{tmp_path / 'a'}", weights_file=file), wanted)
        bare = tmp_path / "base" / "model.safetensors"
        with pytest.raises(ValueError, match=r"classifier\.bias and 1 others would stay random"):
            family_of(f"hf:{tmp_path / 'a'}", weights_file=bare)
        bare.unlink()
        with pytest.raises(ValueError, match=r"lacks classifier\.bias"):
            family_of(f"hf:{tmp_path / 'base'}", weights_file=file)

    def test_what_is_refused(self, tmp_path: Path) -> None:
        fine_tuned(tmp_path, "bert")
        fine_tuned(tmp_path / "other", "vit")
        with pytest.raises(ValueError, match=r"must fit .*base: .*missing"):
            family_of(f"hf:{tmp_path / 'base'}", weights_file=tmp_path / "other" / "a" / "model.safetensors")
