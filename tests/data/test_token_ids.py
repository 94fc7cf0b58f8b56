"""Texts as token ids: where they lie, how long they are, and what is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from biascope import data
from biascope.data.text import texts_of
from biascope.tasks.samples import samples_of

WORDS = ["[PAD]", "[UNK]", "a", "dull", "fine", "film"]
LINES = "sad\ta dull film\nglad\ta fine film\nglad\tfine\n"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of six words, without special tokens around a text."""
    pytest.importorskip("tokenizers", reason="texts need the package tokenizers (extra hub)")
    model = {"type": "WordLevel", "vocab": {word: place for place, word in enumerate(WORDS)}, "unk_token": "[UNK]"}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    content = {"version": "1.0", "added_tokens": [], **parts, "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path / "words"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def forms(folder: Path) -> dict[str, Path]:
    """The same texts in every form."""
    write(folder / "classes" / "glad.txt", "a fine film\r\nfine\r\n")
    write(folder / "classes" / "sad.txt", "a dull film\n")
    write(folder / "splits" / "train" / "glad.txt", "a fine film\nfine\n")
    write(folder / "splits" / "train" / "sad.txt", "a dull film\n")
    write(folder / "splits" / "test" / "sad.txt", "dull\n")
    write(folder / "published" / "train.tsv", "label\ttext\n" + LINES)
    table = "text,mood,year\na dull film,sad,1999\na fine film,glad,2001\nfine,glad,2002\n"
    return {
        "lines": write(folder / "lines.txt", LINES),
        "with a header": write(folder / "more.tsv", "label\ttext\n" + LINES),
        "files of classes": folder / "classes",
        "files of classes by split": folder / "splits",
        "a set": folder / "published",
        "a table": write(folder / "table.csv", table),
    }


FORMS = ["lines", "with a header", "files of classes", "files of classes by split", "a set", "a table"]


@pytest.mark.parametrize("form", FORMS)
def test_texts_are_found_in_every_form(tmp_path: Path, form: str) -> None:
    texts, told = texts_of(forms(tmp_path)[form], label="mood" if form == "a table" else None)
    own, labels = texts.splits["train"]
    assert texts.classes == ("glad", "sad")
    assert sorted(zip(own, labels.tolist(), strict=True)) == [("a dull film", 1), ("a fine film", 0), ("fine", 0)]
    assert told == ("label 'mood'; texts of 'text'; without year" if form == "a table" else "")
    assert list(texts.splits) == (["train", "test"] if "split" in form else ["train"])


def test_texts_are_ids_of_one_length(tmp_path: Path, tokenizer: Path) -> None:
    path = write(tmp_path / "lines.txt", LINES)
    found = data.load(path, tokenizer=tokenizer, length=2)
    assert found.splits["train"][0].tolist() == [[2, 3], [2, 4], [4, 0]]
    assert repr(found) == "lines: 3 train samples of 2 token ids, 2 classes"
    assert found.told == (
        "texts as 2 token ids by words/tokenizer.json, 66.7 % of them cut, shorter ones padded with [PAD] at their end"
    )
    assert data.load(path, tokenizer=tokenizer / "tokenizer.json").shape == (64,)
    samples = samples_of(path, tokenizer=tokenizer, length=4)
    assert samples.prepared.endswith(
        "0 % of them cut, shorter ones padded with [PAD] at their end; token ids as they are"
    )
    assert samples.axes[0].name == "token"


def test_a_text_without_a_word_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    path = write(tmp_path / "lines.txt", LINES + "sad\t \n")
    with pytest.raises(ValueError, match="Each text of 'lines' must have a word, but train text 4 is empty"):
        data.load(path, tokenizer=tokenizer)


def test_what_the_file_of_a_tokenizer_says_of_padding_is_used(tmp_path: Path, tokenizer: Path) -> None:
    path, file = write(tmp_path / "lines.txt", LINES), tokenizer / "tokenizer.json"
    plain = json.loads(file.read_text())
    padding = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_type_id": 0}
    file.write_text(json.dumps(plain | {"padding": padding | {"pad_id": 5, "pad_token": "film"}}))
    assert data.load(path, tokenizer=tokenizer, length=2).splits["train"][0][2].tolist() == [4, 5]
    plain["model"]["vocab"] = {word.strip("[]"): place for word, place in plain["model"]["vocab"].items()}
    plain["model"]["unk_token"] = "UNK"
    file.write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=r"must have a token to pad short texts with, but has none of \[PAD\]"):
        data.load(path, tokenizer=tokenizer)
    write(tokenizer / "tokenizer_config.json", json.dumps({"pad_token": {"content": "PAD"}}))
    assert data.load(path, tokenizer=tokenizer, length=2).splits["train"][0][2].tolist() == [4, 0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("no tab\n", "must have a label, a tab and a text in each line, but has 'no tab' in line 1. Correct the line."),
        ("sad\tdull\n\tfine\n", "but has '\\\\tfine' in line 2"),
        ("", "must have a label, a tab and a text in each line"),
    ],
)
def test_lines_without_a_label_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        texts_of(write(tmp_path / "lines.txt", text))


@pytest.mark.parametrize(
    ("name", "how", "sentence"),
    [
        ("lines.txt", {}, r"lines.txt holds texts, which need a tokenizer. Pass --tokenizer FOLDER"),
        ("lines.txt", {"length": 4}, "length must be left out where there is no tokenizer"),
        ("lines.txt", {"tokenizer": "nowhere"}, "nowhere must describe the tokens, but is not there"),
        ("table.csv", {"tokenizer": "nowhere", "label": "sold"}, "--label must be a column of .*table.csv, got 'sold'"),
        ("lines.txt", {"tokenizer": "nowhere", "label": "mood"}, "label must be left out for .*lines.txt"),
        ("table.csv", {"tokenizer": "nowhere", "label": "text"}, "must have one column of texts.* but has mood"),
        ("lines.txt", {"tokenizer": "nowhere", "size": 8}, "size must be left out"),
    ],
)
def test_what_does_not_fit_together_is_a_sentence(
    tmp_path: Path, name: str, how: dict[str, Any], sentence: str
) -> None:
    forms(tmp_path)
    write(tmp_path / "table.csv", "text,mood\na,sad\nb,sad\n")
    if how.get("label") == "text":
        write(tmp_path / "table.csv", "text,mood,other\na,sad,x\nb,sad,y\n")
        sentence = sentence.replace("has mood", "has mood, other")
    with pytest.raises(ValueError, match=sentence):
        data.load(tmp_path / name, **how)


def test_a_tokenizer_must_be_whole_and_have_room(tmp_path: Path, tokenizer: Path) -> None:
    path = write(tmp_path / "lines.txt", LINES)
    with pytest.raises(ValueError, match="length must be above 0, the special tokens of"):
        data.load(path, tokenizer=tokenizer, length=0)
    write(tokenizer / "tokenizer.json", "{}")
    with pytest.raises(ValueError, match=r"must be a whole tokenizer.json, but is not"):
        data.load(path, tokenizer=tokenizer)
