"""Texts as token ids of one length, by a tokenizer of the package tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from biascope.data.dataset import Dataset, Split
from biascope.data.text import TextSet
from biascope.results.axes import Axis
from biascope.results.wording import percent

LENGTH = 64  # token ids of a text, where none are asked for
_PADDING = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")


def tokenised(texts: TextSet, tokenizer: Path | str, length: int | None = None, told: str = "") -> Dataset:
    """The data set of token ids that texts are: longer ones are cut, shorter ones padded at their end.

    Args:
        texts: The texts.
        tokenizer: A ``tokenizer.json``, or a folder that has one.
        length: Token ids of each text, 64 by default.
        told: What else is to be said of how the texts were read.

    Raises:
        ValueError: If there is no such tokenizer, it has no token to pad with, or no room for a token, or a text is empty.
    """
    length = LENGTH if length is None else length
    path, encode = _tokenizer_of(Path(tokenizer).expanduser())
    padding, name = _padding_of(path, encode)
    if length <= (least := encode.num_special_tokens_to_add(False)):
        raise ValueError(
            f"length must be above {least}, the special tokens of {path}, got {length}. Pass --length {LENGTH}."
        )
    encode.no_padding()
    encode.enable_truncation(length)
    splits: dict[str, Split] = {}
    cut, count = 0, 0
    for split, (own, labels) in texts.splits.items():
        if (blank := next((place for place, text in enumerate(own, 1) if not text.strip()), None)) is not None:
            raise ValueError(
                f"Each text of {texts.name!r} must have a word, but {split} text {blank} is empty: no token would be left of it. "
                "Remove it."
            )
        ids = np.full((len(own), length), padding, np.int64)
        for row, found in zip(ids, encode.encode_batch(list(own)), strict=True):
            row[: len(found.ids)] = found.ids
            cut += bool(found.overflowing)
        count += len(own)
        splits[split] = ids, labels
    words = (
        f"texts as {length} token ids by {path.parent.resolve().name}/{path.name}, {percent(cut / count)} of them cut, shorter ones "
        f"padded with {name} at their end"
    )
    return Dataset(texts.name, splits, texts.classes, (Axis("token"),), "; ".join(filter(None, [told, words])))


def _tokenizer_of(place: Path) -> tuple[Path, Any]:
    """The file of a tokenizer, and what it holds."""
    path = place / "tokenizer.json" if place.is_dir() else place
    return path, loaded_tokenizer(path)


def loaded_tokenizer(path: Path) -> Any:
    """What a ``tokenizer.json`` describes, as an object of the package tokenizers.

    Raises:
        ValueError: If the file is not there or cannot be read, or the package is not installed.
    """
    if not path.is_file():
        raise ValueError(
            f"{path} must describe the tokens, but is not there. transformers writes it with tokenizer.save_pretrained(FOLDER)."
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            f"Reading {path.name} needs the package tokenizers, which is not installed. Run: pip install tokenizers."
        ) from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise ValueError(f"{path} must be a whole tokenizer.json, but is not ({error}). Save it again.") from error


def _padding_of(path: Path, encode: Any) -> tuple[int, str]:
    """The id to pad with, and its token."""
    if (said := encode.padding) is not None:
        return int(said["pad_id"]), str(said["pad_token"])
    for token in (_configured_padding(path), *_PADDING):
        if token and (found := encode.token_to_id(token)) is not None:
            return int(found), token
    raise ValueError(
        f"{path} must have a token to pad short texts with, but has none of {', '.join(_PADDING)}. Add one: "
        'tokenizer.add_special_tokens(["[PAD]"]).'
    )


def _configured_padding(path: Path) -> str:
    """The token that transformers pads with, by the file beside a tokenizer."""
    try:
        said = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8"))["pad_token"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(said.get("content", "") if isinstance(said, dict) else said or "")
