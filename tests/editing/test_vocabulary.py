"""Vocabularies that were resized are explained and never cropped in silence; what folders say differently is named."""

import json
from pathlib import Path

import pytest
import torch
from checkpoint_files import same_bits
from networks_under_test import normal

from biascope.editing.configurations import told_of_folders
from biascope.editing.merge import differences, merge
from biascope.editing.vocabulary import SharedRows, resized, tokens_of
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint
from biascope.families.names import held

WORDS = ["<pad>", "<s>", "cat", "dog", "sun"]


def folder(place: Path, rows: int, words: list[str] | None, seed: int, **settings) -> Checkpoint:
    """A model with a table of tokens and a layer, its tokenizer and its configuration."""
    place.mkdir()
    start = {
        "embed_tokens.weight": 3 * normal(8, 3, seed=0)[:rows].float(),
        "q.weight": 3 * normal(4, 3, seed=1).float(),
    }
    moved = {name: each + 0.1 * normal(*each.shape, seed=seed).float() for name, each in start.items()}
    weights.save(moved if seed else start, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps({"vocab_size": rows, **settings}))
    if words is not None:
        vocabulary = {word: number for number, word in enumerate(words)}
        (place / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    return Checkpoint.open(place)


@pytest.mark.parametrize(("rows", "own"), [(5, 8), (8, 5), (5, 5)])
@pytest.mark.parametrize("most", [1, 4, 100])
def test_rows_that_are_shared_are_the_models_and_the_others_those_of_the_base(rows, own, most):
    base, mine = normal(rows, 3).float(), normal(own, 3, seed=1).float()
    taken = torch.arange(rows) % 2 == 0
    taken[own:] = False
    tensors = held("a", {"base": base, "own": mine}).tensors
    found = torch.cat(list(SharedRows(tensors["base"], tensors["own"], taken).slices(most))).view(rows, 3)
    wanted = base.clone()
    wanted[taken] = mine[: len(taken)][taken[: len(mine)]] if own >= rows else mine[taken[:own]]
    assert torch.equal(found, wanted)


def test_a_resized_vocabulary_is_explained_and_merged_by_shared_tokens(tmp_path):
    base = folder(tmp_path / "base", 5, WORDS, 0)
    chat = folder(tmp_path / "chat", 7, ["<pad>", "<eos>", *WORDS[2:], "<user>", "<end>"], 2)
    assert resized(base, chat) == {"embed_tokens.weight": "embed_tokens.weight"}
    said = r"embed_tokens\.weight has 7 rows instead of 5\. Only chat has rows 5 to 6 \('<user>' and '<end>', as its"
    with pytest.raises(ValueError, match=rf"{said}.*Pass --shared-tokens"):
        merge(base, [(chat, 0.5)], tmp_path / "out")
    assert "Only chat has rows 5 to 6" in differences(base, [chat]).sentence()
    found = merge(base, [(chat, 0.5)], tmp_path / "out", shared_tokens=True).sentence()
    assert (
        "the 4 rows whose tokens have the same number in base count. The other 1 rows are those of base; 3 rows of chat"
        in found
    )
    assert "1 numbers stand for other tokens (1 is '<s>' and '<eos>'); 2 tokens are only in chat" in found
    start, end, out = (Checkpoint.open(tmp_path / name).params() for name in ("base", "chat", "out"))
    same = [0, 2, 3, 4]
    table, moved, done = (each["embed_tokens.weight"] for each in (start, end, out))
    assert same_bits(done[1], table[1])
    torch.testing.assert_close(done[same], (table[same] + moved[same]) / 2)
    torch.testing.assert_close(out["q.weight"], (start["q.weight"] + end["q.weight"]) / 2)
    merge(chat, [(base, 1.0)], tmp_path / "longer", shared_tokens=True)
    done = weights.load(tmp_path / "longer" / "model.safetensors")["embed_tokens.weight"]
    assert same_bits(done[same], table[same])
    assert same_bits(done[[1, 5, 6]], moved[[1, 5, 6]])


def test_nothing_is_guessed_of_a_vocabulary_without_a_tokenizer(tmp_path):
    base, bare = folder(tmp_path / "base", 5, WORDS, 0), folder(tmp_path / "bare", 7, None, 2)
    with pytest.raises(
        ValueError, match=r"rows 5 to 6 \(no tokenizer names their tokens\)\. Only tokenizers tell.* is in bare"
    ):
        merge(base, [(bare, 0.5)], tmp_path / "out", shared_tokens=True)
    other = folder(tmp_path / "other", 7, list("abcdefg"), 2)
    with pytest.raises(ValueError, match="The tokenizers give no number to the same token"):
        merge(base, [(other, 0.5)], tmp_path / "out", shared_tokens=True)
    assert not (tmp_path / "out").exists()


def test_tokens_are_read_from_every_kind_of_file(tmp_path):
    wanted = {0: "a", 1: "b", 2: "<c>"}
    files = {
        "fast": {"tokenizer.json": {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<c>"}]}},
        "unigram": {"tokenizer.json": {"model": {"vocab": [["a", -1.0], ["b", -2.0], ["<c>", 0]]}}},
        "slow": {"vocab.json": {"a": 0, "b": 1}, "added_tokens.json": {"<c>": 2}},
    }  # fmt: skip
    for name, texts in files.items():
        (tmp_path / name).mkdir()
        for file, text in texts.items():
            (tmp_path / name / file).write_text(json.dumps(text))
        assert tokens_of(Checkpoint(name, {}, path=tmp_path / name)) == wanted


def test_what_folders_say_differently_is_named(tmp_path):
    base = folder(tmp_path / "base", 5, WORDS, 0, eos_token_id=1, rope={"theta": 1.0}, dtype="float32")
    chat = folder(tmp_path / "chat", 5, WORDS, 2, eos_token_id=[1, 4], rope={"theta": 2.0}, dtype="bfloat16")
    (tmp_path / "chat" / "chat_template.jinja").write_text("{{ messages }}")
    words = told_of_folders(base, [chat])
    assert words == [
        "config.json of chat differs from that of base in eos_token_id ([1, 4] instead of 1), "
        "rope ({'theta': 2.0} instead of {'theta': 1.0}).",
        "chat has a chat template, and base has none.",
    ]
    assert words[0] in merge(base, [(chat, 0.5)], tmp_path / "out").sentence()
    (tmp_path / "base" / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ other }}"}))
    assert told_of_folders(base, [chat])[1:] == ["chat has another chat template than base."]
    assert told_of_folders(base, [base]) == []
