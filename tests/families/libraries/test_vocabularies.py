"""Tokenizers as transformers writes them: compared by the number of each token, copied with the merged model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from biascope.editing.merge import merge
from biascope.families.checkpoint import Checkpoint

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")


def tokenizer(*more: str, **settings: Any) -> Any:
    words = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", "cat", "dog", "sun"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    found = transformers.PreTrainedTokenizerFast(
        **{"tokenizer_object": made, "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", **settings}
    )
    found.add_tokens(list(more))
    return found


@pytest.mark.parametrize("tied", [True, False])
def test_a_chat_model_with_more_tokens_merges_by_those_it_shares(tmp_path: Path, tied: bool) -> None:
    """The result opens with the vocabulary and the tokenizer of the base, tied as it is."""
    config = transformers.LlamaConfig(
        **{
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "vocab_size": 6,
        },
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    model.resize_token_embeddings(8)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.01 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)))
    model.generation_config.eos_token_id = 7
    model.save_pretrained(tmp_path / "chat")
    chat = tokenizer("<user>", "<end>", eos_token="<end>")
    chat.chat_template = "{{ messages }}"
    chat.save_pretrained(tmp_path / "chat")
    base, other = (Checkpoint.open(tmp_path / name) for name in ("base", "chat"))
    with pytest.raises(ValueError, match=r"rows 6 to 7 \('<end>' and '<user>'|rows 6 to 7 \('<user>' and '<end>'"):
        merge(base, [(other, 1.0)], tmp_path / "out")
    words = merge(base, [(other, 1.0)], tmp_path / "out", shared_tokens=True).sentence()
    assert "eos_token (<end> instead of </s>)" in words
    assert "chat has a chat template, and base has none" in words
    found, loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(loaded.values())
    table, wanted = found.get_input_embeddings().weight, model.get_input_embeddings().weight
    torch.testing.assert_close(table, wanted[:6])
    torch.testing.assert_close(found.get_output_embeddings().weight, model.get_output_embeddings().weight[:6])
    assert (table is found.get_output_embeddings().weight) == tied
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab() == tokenizer().get_vocab()
