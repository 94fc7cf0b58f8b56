"""Texts as token ids: the word pieces of BERT, and the pieces that a tokenizer.json describes."""

# n texts · t tokens

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_LONGEST_WORD = 100  # characters, as in BERT; a longer one is unknown
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPieces:
    """Turns texts into ids of BERT's word pieces.

    Letters lose case and accents; words are split at spaces and at every punctuation mark; a word is the longest piece of the
    vocabulary that it begins with, then the longest that goes on (``##…``), and so forth. [CLS] comes before, [SEP] after;
    longer texts are cut, shorter ones filled with [PAD].

    Args:
        vocabulary: The pieces in the order of their ids.
        length: Tokens of every text, including the two special tokens.

    Raises:
        ValueError: If a special token is not in the vocabulary, or there is no room for a token.

    Example:
        >>> pieces = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "merg", "##ing", "!"], length=7)
        >>> pieces(["Merging!", "merging models"]).tolist()
        [[2, 4, 5, 6, 3, 0, 0], [2, 4, 5, 1, 3, 0, 0]]

    Reference:
        Devlin et al., BERT: pre-training of deep bidirectional transformers, NAACL 2019; its released tokenisation.
    """

    def __init__(self, vocabulary: Sequence[str], *, length: int = 64) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        if missing := [mark for mark in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if mark not in self._ids]:
            raise ValueError(
                f"The vocabulary must hold BERT's special tokens, but lacks {', '.join(missing)}. Pass BERT's vocabulary."
            )
        if length < 3:
            raise ValueError(
                f"length must be at least 3 to hold a token between two special tokens, got {length}. Pass length=64."
            )
        self.length, self.pieces = length, len(vocabulary)
        self._pieces = lru_cache(maxsize=1 << 16)(self._split)  # words come again and again

    @staticmethod
    def from_file(path: Path, *, length: int = 64) -> WordPieces:
        """Read the pieces of a ``vocab.txt``, one in each line.

        Raises:
            ValueError: If there is no such file.
        """
        if not path.is_file():
            raise ValueError(
                f"{path} must hold the vocabulary, one piece in each line, but is not there. Add the file."
            )
        return WordPieces(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), length=length)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Ids ``(n, t)``."""
        rows = torch.full((len(texts), self.length), self._ids["[PAD]"])
        for row, text in zip(rows, texts, strict=True):
            ids = [each for word in words_of(text) for each in self._pieces(word)][: self.length - 2]
            row[: len(ids) + 2] = torch.tensor([self._ids["[CLS]"], *ids, self._ids["[SEP]"]])
        return rows

    def _split(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        start = 0
        while start < len(word) <= _LONGEST_WORD:
            for end in range(len(word), start, -1):
                if (found := self._ids.get(("##" if start else "") + word[start:end])) is not None:
                    ids.append(found)
                    start = end
                    break
            else:
                break
        return tuple(ids) if start == len(word) else (self._ids["[UNK]"],)


def words_of(text: str) -> Iterator[str]:
    """The words and punctuation marks of a text, in lower case and without accents.

    Example:
        >>> list(words_of("Crème brûlée, isn't it?"))
        ['creme', 'brulee', ',', 'isn', "'", 't', 'it', '?']
    """
    plain = "".join(_spaced(letter) for letter in text)
    plain = "".join(letter for letter in unicodedata.normalize("NFD", plain) if unicodedata.category(letter) != "Mn")
    for word in plain.lower().split():
        start = 0
        for place, letter in enumerate(word):
            if _is_mark(letter):
                if start < place:
                    yield word[start:place]
                yield letter
                start = place + 1
        if start < len(word):
            yield word[start:]


def _spaced(letter: str) -> str:
    """A letter as it is, control characters as nothing, other white space as a space, Chinese characters as words."""
    if letter.isspace():
        return " "
    if letter == "\ufffd" or unicodedata.category(letter).startswith("C"):
        return ""
    return f" {letter} " if any(low <= ord(letter) <= high for low, high in _CHINESE) else letter


@lru_cache(maxsize=4096)
def _is_mark(letter: str) -> bool:
    # ASCII's symbols ($, +, ^, …) count although Unicode calls them otherwise.
    return (letter.isascii() and letter.isprintable() and not letter.isalnum() and letter != " ") or (
        unicodedata.category(letter).startswith("P")
    )


class TokenizerFile:
    """Turns texts into the ids that a ``tokenizer.json`` describes, for example of T5.

    Args:
        path: The file.
        length: Tokens of every text; longer ones are cut, shorter ones filled up.
        pad: The id that fills up.

    Raises:
        ValueError: If the file is not there or cannot be read, or the package ``tokenizers`` is not installed.
    """

    def __init__(self, path: Path, *, length: int = 64, pad: int = 0) -> None:
        if not path.is_file():
            raise ValueError(
                f"{path} must describe the tokens, but is not there. Save the tokenizer of the model into its folder."
            )
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ValueError(
                f"Reading {path.name} needs the package tokenizers, which is not installed. Run: pip install tokenizers."
            ) from error
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise ValueError(f"{path} must be a whole tokenizer.json, but is not ({error}). Save it again.") from error
        self._tokenizer.enable_truncation(length)
        self._tokenizer.enable_padding(length=length, pad_id=pad)
        self.length, self.pieces = length, int(self._tokenizer.get_vocab_size())

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Ids ``(n, t)``."""
        encoded = self._tokenizer.encode_batch(list(texts))
        return torch.tensor([each.ids for each in encoded]).reshape(len(encoded), self.length)
