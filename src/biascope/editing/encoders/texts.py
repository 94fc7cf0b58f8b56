"""Texts as token ids, and encoders of texts of transformers as functions of these ids."""

# n texts · t tokens · w width

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from biascope.families.libraries.hf import initial, library, part, tokenizer_in
from biascope.families.weights import Params

POOLER = "pooler."  # of BERT and others: a part of the classifier, which may be missing beside other heads


@dataclass(frozen=True)
class Tokens:
    """Turns texts into token ids of one length: longer texts are cut, shorter ones filled up.

    Attributes:
        tokenizer: Of transformers.
        length: Tokens of every text, including special tokens.
        rows: Tokens that the model has; a GPU ends the process at another.
        folder: Where the tokenizer is from, for errors.
    """

    tokenizer: Any
    length: int
    rows: int
    folder: Path

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Ids ``(n, t)``.

        Raises:
            ValueError: If a text has a token that the model does not have.
        """
        coded = self.tokenizer(list(texts), padding="max_length", truncation=True, max_length=self.length)
        ids = torch.tensor(coded["input_ids"], dtype=torch.long).reshape(len(texts), self.length)
        if len(ids) and int(ids.max()) >= self.rows:
            text = texts[int(ids.amax(1).argmax())]
            raise ValueError(
                f"Every token must be one of the {self.rows:,} that the model of {self.folder} has, but {text[:40]!r} has token "
                f"{int(ids.max())}. Pass the tokenizer of this model."
            )
        return ids


def tokens_of(folder: Path, config: Any, transformers: Any, length: int) -> Tokens:
    """The tokenizer in a folder, which must fit the model there.

    Raises:
        ValueError: If there is none, or it does not fit.
    """
    tokenizer, rows = tokenizer_in(folder, transformers), int(config.get_text_config().vocab_size)
    if tokenizer.vocab_size > rows:
        raise ValueError(
            f"The vocabulary of {folder} must have at most {rows:,} pieces, as vocab_size of config.json says, got "
            f"{tokenizer.vocab_size:,}. Pass the vocabulary of this model."
        )
    pad = config.get_text_config().pad_token_id
    if tokenizer.pad_token_id is None or pad not in (None, tokenizer.pad_token_id):
        raise ValueError(
            f"The tokenizer of {folder} must fill up with the pad_token_id of config.json, {pad}, got {tokenizer.pad_token_id}. Save "
            "the tokenizer of this model there."
        )
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and length > most:
        raise ValueError(
            f"length must be at most {most}, the positions that the encoder has, got {length}. Pass a smaller length."
        )
    if length <= (least := tokenizer.num_special_tokens_to_add()):
        raise ValueError(f"length must be above {least}, the special tokens of a text, got {length}. Pass length=64.")
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    return Tokens(tokenizer, length, rows, folder)


def require_text_encoder(folder: Path, config: Any, transformers: Any) -> None:
    """Refuse a model that the library does not count among encoders of texts."""
    if type(config) not in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING:
        raise ValueError(
            f"{folder / 'config.json'} must have the model_type of an encoder of texts, such as bert or t5, got {config.model_type}. "
            "Pass a BERT or T5."
        )


def text_encoder(
    transformers: Any,
    config: Any,
    pad: int,
    *,
    folder: Path,
    random: bool = False,
    state: Params | None = None,
    head: str = "",
) -> nn.Module:
    """A model of transformers as a function from token ids ``(n, t)`` to features ``(n, w)``.

    Features are the mean of the last layer over all tokens but padding. Ids may come as floating-point numbers, as a task serves its
    inputs; they are whole. Names of weights are the library's.

    Args:
        transformers: The library.
        config: Of a model that the library counts among encoders of texts.
        pad: The id that fills up.
        folder: With the configuration and weights.
        random: Whether to use the library's initial weights.
        state: Other weights, in place of those of the folder.
        head: Name of a layer in the file that is left out.

    Raises:
        ValueError: If weights do not fit.
    """
    kind = transformers.MODEL_FOR_TEXT_ENCODING_MAPPING[type(config)]
    left_out = (POOLER, *((f"{head}.",) if head else ()))
    model: Any = initial(kind, config) if random else part(transformers, folder, kind, state, left_out=left_out)[0]
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # the mean over tokens does not need it
    model.eval()
    take_ids(model, pad)
    model.register_forward_hook(_mean_over_tokens, with_kwargs=True)
    return model  # type: ignore[no-any-return]


def take_ids(model: nn.Module, pad: int) -> None:
    """Let a model of transformers take one tensor of token ids, of which an id is padding."""
    model.register_forward_pre_hook(_Masked(pad), with_kwargs=True)


def minilm_at_random_weights() -> nn.Module:
    """An encoder of the sizes of MiniLM-L6, which needs no files.

    Raises:
        ValueError: If transformers is not installed.
    """
    transformers = library("MiniLM-L6")
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, pad_token_id=0
    )
    return text_encoder(transformers, config, 0, folder=Path("MiniLM-L6"), random=True)


@dataclass(frozen=True)
class _Masked:
    """Gives a model token ids, and which of them are no padding."""

    pad: int

    def __call__(
        self, _: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[()], dict[str, Tensor]]:
        ids = args[0].long()
        return (), {"input_ids": ids, "attention_mask": (ids != self.pad).long()}


def _mean_over_tokens(_: nn.Module, args: tuple[()], kwargs: Mapping[str, Any], outputs: Any) -> Tensor:
    """The mean of the last layer over the tokens of a text."""
    tokens = outputs.last_hidden_state
    share = kwargs["attention_mask"].to(tokens.dtype)[..., None]
    return (tokens * share).sum(1) / share.sum(1).clamp_min(1)  # type: ignore[no-any-return]
